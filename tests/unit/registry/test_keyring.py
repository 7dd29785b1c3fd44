"""Credentials: their order, what stands for them, and that they do not show."""

import json
import logging
from pathlib import Path

import pytest
from rich.pretty import pretty_repr

from extender.errors import ConfigError
from extender.images.reference import parse_reference
from extender.registry.keyring import (
    ANONYMOUS,
    Credential,
    DockerConfigKeyring,
    Keyring,
    load_docker_config,
    scope_of,
)
from extender.registry.logins import Login, Logins

KEY = b"k" * 32
APP = parse_reference("quay.io/team/app:1")


def test_anonymous_comes_last() -> None:
    """The matching logins come first, the most specific before the others."""
    keyring = DockerConfigKeyring(Logins([Login("quay.io", "a", "1"), Login("quay.io/team", "b", "2")]), key=KEY)
    assert [credential.username for credential in keyring.credentials_for(APP)] == ["b", "a", ""]
    assert keyring.credentials_for(APP)[-1] is ANONYMOUS


def test_same_login_under_two_patterns_is_tried_once() -> None:
    """A second try with the same name and password would be refused like the first."""
    keyring = DockerConfigKeyring(Logins([Login("quay.io", "a", "1"), Login("quay.io/team", "a", "1")]), key=KEY)
    assert len(keyring.credentials_for(APP)) == 2


def test_without_logins_only_anonymous_is_left() -> None:
    """Whoever has no login asks anonymously."""
    keyring: Keyring = DockerConfigKeyring(Logins([]), key=KEY)
    assert keyring.credentials_for(APP) == (ANONYMOUS,)


def test_scope_stands_for_the_login_under_one_key() -> None:
    """The same login has the same scope under the same key; another name, password or key has another one."""
    same = scope_of("ann", "secret", key=KEY)
    assert same == scope_of("ann", "secret", key=KEY)
    others = {
        scope_of("ann", "Secret", key=KEY),
        scope_of("bob", "secret", key=KEY),
        scope_of("ann", "secret", key=b"another"),
        scope_of("anns", "ecret", key=KEY),
        scope_of('ann","', "secret", key=KEY),
        ANONYMOUS.scope,
    }
    assert len(others | {same}) == 7


def test_credential_does_not_show_its_secret() -> None:
    """Neither repr, format, a pretty-printer nor a log line holds name or password."""
    credential = Credential("ann", "hunter2", scope_of("ann", "hunter2", key=KEY))
    record = logging.LogRecord("x", logging.INFO, "x", 1, "%s %r", (credential, [credential]), None)
    shown = [repr(credential), f"{credential}", pretty_repr({"credential": credential}), record.getMessage()]
    for text in shown:
        assert credential.scope in text
        assert "hunter2" not in text
        assert "ann" not in text


def test_docker_configuration_is_read_from_its_file(tmp_path: Path) -> None:
    """`docker login` writes such a file."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"auths": {"quay.io": {"username": "ann", "password": "p"}}}))
    found = load_docker_config(str(path), key=KEY).credentials_for(APP)
    assert found == (Credential("ann", "p", scope_of("ann", "p", key=KEY)), ANONYMOUS)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        pytest.param(None, "cannot be read: No such file", id="missing"),
        pytest.param("hunter2", "is no Docker configuration", id="no-json"),
        pytest.param('{"auths": {"quay.io": {"auth": "hunter2"}}}', "auth of 'quay.io' is not base64", id="auth"),
    ],
)
def test_unusable_docker_configuration_is_the_operators_error(
    tmp_path: Path, content: str | None, complaint: str
) -> None:
    """The message names setting, path and what is wrong, and no secret."""
    path = tmp_path / "config.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=complaint) as caught:
        load_docker_config(str(path), key=KEY)
    assert str(caught.value).startswith(f"registry.docker_config: {path}")
    assert "hunter2" not in str(caught.value)
