"""Which login of a Docker configuration a repository gets: the kubelet's rules, one row each."""

import base64
import json
from typing import Any

import pytest

from extender.credentials.logins import (
    InvalidLogins,
    Login,
    Logins,
    decode_docker_config,
    decode_legacy_config,
    is_on_default_registry,
    matching_all,
)


def has_login(pattern: str, repository: str) -> bool:
    return bool(Logins([Login(pattern, "user", "secret")]).matching(repository))


@pytest.mark.parametrize(
    ("pattern", "repository", "found"),
    [
        pytest.param("quay.io", "quay.io/team/app", True, id="host"),
        pytest.param("quay.io/team", "quay.io/team/app", True, id="path"),
        pytest.param("quay.io/team", "quay.io/teammates/app", True, id="path-is-a-plain-prefix"),
        pytest.param("quay.io/team/app", "quay.io/team", False, id="path-longer-than-repository"),
        pytest.param("https://quay.io", "quay.io/a", True, id="https-scheme"),
        pytest.param("https://quay.io/v2/", "quay.io/a", True, id="v2-suffix"),
        pytest.param("quay.io/v2/team", "quay.io/team/app", True, id="v2-before-a-path"),
        pytest.param("https://quay.io/v2", "quay.io/a", False, id="v2-without-slash-is-a-path"),
        pytest.param("https://quay.io/", "quay.io/a", True, id="trailing-slash"),
        pytest.param("quay.io?x=1#y", "quay.io/a", True, id="query-and-fragment"),
        pytest.param("*.example.com", "eu.example.com/a", True, id="glob-label"),
        pytest.param("*.example.com", "a.b.example.com/a", False, id="glob-is-one-label"),
        pytest.param("*.example.com", "example.com/a", False, id="glob-is-not-no-label"),
        pytest.param("registry-*.example.com", "registry-eu.example.com/a", True, id="glob-within-a-label"),
        pytest.param("QUAY.io", "quay.io/a", False, id="case-counts"),
        pytest.param("quay.io:443", "quay.io:443/a", True, id="same-port"),
        pytest.param("quay.io:443", "quay.io/a", False, id="port-only-in-the-pattern"),
        pytest.param("quay.io", "quay.io:443/a", False, id="port-only-in-the-repository"),
        pytest.param("quay.io:*", "quay.io:443/a", False, id="no-glob-in-a-port"),
        pytest.param("[fc00::1]:5000", "[fc00::1]:5000/a", True, id="ipv6-with-port"),
        pytest.param("[fc00::1]", "[fc00::1]/a", False, id="ipv6-without-port-is-a-character-set"),
        pytest.param("", "quay.io/a", False, id="empty-pattern"),
        pytest.param("a:b:c/d", "a:b:c/d", False, id="no-address"),
        pytest.param("https://index.docker.io/v1/", "docker.io/library/redis", True, id="hub-by-its-old-name"),
        pytest.param("index.docker.io", "docker.io/team/app", True, id="hub-without-path"),
        pytest.param("docker.io", "docker.io/team/app", True, id="hub-by-its-name"),
        pytest.param("registry-1.docker.io", "docker.io/team/app", False, id="hub-by-its-host"),
        pytest.param("index.docker.io/team", "docker.io/team/app", False, id="hub-with-path-is-no-default"),
        pytest.param("https://index.docker.io/v1/", "quay.io/a", False, id="hub-login-elsewhere"),
    ],
)
def test_login_is_found_as_the_kubelet_finds_it(pattern: str, repository: str, found: bool) -> None:
    """Scheme, API version and trailing slash are dropped; port, label count, globs and path prefix decide."""
    assert has_login(pattern, repository) is found


def test_what_is_on_the_default_registry() -> None:
    hubs = ["redis", "team/app", "docker.io/team/app", "index.docker.io/team/app"]
    others = ["", "/app", "mydocker.io/app", "registry:5000/app"]
    assert list(filter(is_on_default_registry, (*hubs, *others))) == hubs


def test_every_match_is_tried_most_specific_first() -> None:
    """Keys sort in reverse string order; logins under one key keep their order, and none is left out."""
    patterns = ["quay.io", "*.io/team", "quay.io/team", "https://quay.io/v2/team", "*.io"]
    logins = Logins(Login(pattern, str(index), "secret") for index, pattern in enumerate(patterns))
    assert [login.username for login in logins.matching("quay.io/team/app")] == ["2", "3", "0", "1", "4"]


def auth(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        pytest.param({"username": "ann", "password": "p"}, ("ann", "p"), id="fields"),
        pytest.param({"auth": auth("ann:p")}, ("ann", "p"), id="auth"),
        pytest.param({"auth": auth("ann:p"), "username": "bob", "password": "q"}, ("ann", "p"), id="auth-overrides"),
        pytest.param({"auth": auth("ann:p:q")}, ("ann", "p:q"), id="colon-in-the-password"),
        pytest.param({"auth": auth("ann:")}, ("ann", ""), id="empty-password"),
        pytest.param({"auth": auth("ann:pw")[:4] + "\r\n" + auth("ann:pw")[4:]}, ("ann", "pw"), id="broken-line"),
        pytest.param({"auth": auth("änn:pä")}, ("änn", "pä"), id="utf-8"),
        pytest.param({}, None, id="left-beside-a-credential-store"),
    ],
)
def test_entry_of_a_docker_configuration(entry: dict[str, Any], expected: tuple[str, str] | None) -> None:
    """`auth` is base64 of name:password, padded or not, and overrides the two fields; an empty entry is no login."""
    logins = decode_docker_config(json.dumps({"auths": {"quay.io": entry}, "credsStore": "desktop"}).encode()).logins
    found = [(login.username, login.password) for login in logins]
    assert found == ([("", "")] if expected is None else [expected])


def test_legacy_configuration_is_the_map_alone() -> None:
    """A `.dockercfg` has no `auths` around it; `auths` in it would be a registry of that name."""
    document = json.dumps({"https://index.docker.io/v1/": {"auth": auth("ann:p")}, "quay.io": {"username": "bob"}})
    assert decode_legacy_config(document.encode()).logins == (
        Login("https://index.docker.io/v1/", "ann", "p"),
        Login("quay.io", "bob", ""),
    )
    assert decode_legacy_config(b"null") == decode_legacy_config(b"{}") == ((), 0)
    for none in (b"{}", b'{"auths": null}', b'{"auths": {}}', b'{"credHelpers": {"a": "b"}}'):
        assert decode_docker_config(none) == ((), 0)


@pytest.mark.parametrize(
    "document",
    [b"secret", b'["secret"]', b'{"a": {"auth": "secret"}}', b'{"a": {"x": ' + b"[" * 5000],
    ids=["no-json", "no-map", "no-base64", "deep"],
)
def test_broken_legacy_configuration_is_refused_without_quoting_it(document: bytes) -> None:
    with pytest.raises(InvalidLogins) as caught:
        decode_legacy_config(document)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("document", "complaint"),
    [
        pytest.param(b"", "no Docker configuration", id="empty"),
        pytest.param(b"secret", "no Docker configuration", id="no-json"),
        pytest.param(b'{"a": [' + b"0," * 9000 + b"0]}", "more than 8000 values", id="long"),
        pytest.param(b'{"x": ' + b"[" * 5000, "no Docker configuration", id="deep"),
        pytest.param(b'{"auths": {"quay.io": {"auth": "!!secret"}}}', "auth of 'quay.io'", id="no-base64"),
        pytest.param(b'{"auths": {"quay.io": {"auth": "c2VjcmV0"}}}', "auth of 'quay.io'", id="no-colon"),
    ],
)
def test_broken_configuration_is_refused_without_quoting_it(document: bytes, complaint: str) -> None:
    """The message says what is wrong, and neither it nor what caused it holds a byte of a secret."""
    with pytest.raises(InvalidLogins, match=complaint) as caught:
        decode_docker_config(document)
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        pytest.param(
            '{"auths": {"a.io": null, "b.io": {"username": "ann", "password": "p"}}}',
            {"a.io": ("", ""), "b.io": ("ann", "p")},
            id="null",
        ),
        pytest.param(
            '{"auths": {"a.io": {"username": "ann", "password": null, "auth": null}}, "HttpHeaders": {"a": null}}',
            {"a.io": ("ann", "")},
            id="null-in-it",
        ),
        pytest.param(
            b'{"auths": {"a.io": {"username": "\xff", "password": "\\ud800"}}}', {"a.io": ("\ufffd", "\ufffd")},
            id="no-utf-8",
        ),
    ],
)  # fmt: skip
def test_null_and_text_that_is_none_are_read_as_the_kubelet_reads_them(
    document: str | bytes, expected: dict[str, tuple[str, str]]
) -> None:
    """Whatever else is in the document counts all the same."""
    raw = document if isinstance(document, bytes) else document.encode()
    found = decode_docker_config(raw).logins
    assert {login.pattern: (login.username, login.password) for login in found} == expected


def test_pattern_of_many_stars_is_matched_in_no_time() -> None:
    """A regular expression would try more ways than there is time for."""
    assert not has_login("*a" * 60 + "b.example.com", "a" * 250 + ".example.com/app")
    assert has_login("*a" * 60 + "b.example.com", "a" * 250 + "b.example.com/app")


@pytest.mark.parametrize(("most", "left_out"), [(None, 0), (3, 0), (2, 1)])
def test_entries_after_the_first_are_left_out_and_counted(most: int | None, left_out: int) -> None:
    """In the order of the document, and without a look at them."""
    auths = {f"{number}.example.com": {"auth": auth("ann:p")} for number in range(3)}
    expected = tuple(Login(pattern, "ann", "p") for pattern in list(auths)[: 3 - left_out])
    for decode, document in ((decode_docker_config, {"auths": auths}), (decode_legacy_config, auths)):
        assert decode(json.dumps(document).encode(), most=most) == (expected, left_out)


def test_an_empty_login_gives_nothing_and_keeps_the_default_registry_away() -> None:
    """As `docker login` writes it beside a credential store: the kubelet pulls such an image without a login."""
    logins = Logins([Login("https://index.docker.io/v1/", "ann", "x"), Login("docker.io/team", "", "")])
    assert logins.matching("docker.io/team/app") == ()
    assert [login.username for login in logins.matching("docker.io/library/redis")] == ["ann"]
    assert matching_all([Logins([login]) for login in (Login("docker.io/team", "", ""),)], "docker.io/team/app") == ()
    logins = Logins([Login("https://index.docker.io/v1/", "old", "x"), Login("docker.io", "new", "x")])
    assert [login.username for login in logins.matching("docker.io/library/redis")] == ["new"]
