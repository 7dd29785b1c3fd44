"""`registries.yaml` of k3s: what makes it invalid, its logins and certificates, and rewrites as Go means them."""

import time
from pathlib import Path

import pytest
import trustme
from yarl import URL

from extender.errors import ConfigError
from extender.images.reference import ImageReference, parse_reference
from extender.registry.go_rewrites import InvalidRewrite, read_rewrites, rewritten
from extender.registry.mirrors import HostsDirectory, RegistriesYaml
from extender.registry.registries_yaml import read_registries_yaml


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("mirrors: [", "it is no YAML"),
        ("mirrors: {a: &x [*x]}", "line 1: found an alias within what it names"),
        ("mirrors: [a.io]", "Expected `object | null`, got `array`"),
        ("mirrors: {a.io: {endpoint: https://m.io}}", "Expected `array | null`, got `str`"),
        ("mirrors: {a.io: {endpoint: ['ftp://m.io']}}", "'ftp://m.io' is no http or https address"),
        ("mirrors: {a.io: {endpoint: ['https://m.io:x']}}", "'https://m.io:x' is no http or https address"),
        ("configs: {a.io: {auth: {auth: '%'}}}", "configs.a.io.auth.auth is no base64"),
        ("#" * (256 << 10) + "#", "more than 256 KiB"),
    ],
)
def test_invalid_file(text: str, problem: str) -> None:
    """The message says what is wrong."""
    with pytest.raises(ConfigError) as raised:
        read_registries_yaml(text.encode(), default_endpoint=True)
    assert problem in str(raised.value)


def test_a_text_without_quotes_is_what_stands_there() -> None:
    """As for the decoder of k3s: a password may be a number, and a name a word of YAML's."""
    text = "configs: {127.0.0.1:5000: {auth: {username: on, password: 0123}, tls: {insecure_skip_verify: yes}, x: ~}}"
    read = read_registries_yaml(text.encode(), default_endpoint=True)
    assert read.logins == {"127.0.0.1:5000": ("on", "0123")}
    assert read_registries_yaml(b"configs: {a.io: ~}\nmirrors:\n", default_endpoint=True).logins == {}


def test_file_that_breaks_keeps_what_was_read_before(tmp_path: Path) -> None:
    """Also where an expression of it cannot be used."""
    file = tmp_path / "registries.yaml"
    file.write_text("mirrors: {a.io: {endpoint: [m.io]}}")
    mirrors = RegistriesYaml(str(file), default_endpoint=True)
    file.write_text("mirrors: {a.io: {endpoint: [n.io], rewrite: {'(a+)+': b}}}")
    assert not mirrors.files.reload_if_changed()
    assert [each.name for each in mirrors.endpoints_for(parse_reference("a.io/x:1"))] == ["m.io", "a.io"]
    with pytest.raises(ConfigError, match=r"registries.yaml: mirrors.\"a.io\".host.*rewrite: .*a group that repeats"):
        RegistriesYaml(str(file), default_endpoint=True)


def test_thousands_of_registries_are_read_in_time(tmp_path: Path) -> None:
    """As many as the file may have."""
    file = tmp_path / "registries.yaml"
    file.write_text("mirrors:\n" + "".join(f"  r{number}: {{endpoint: [m]}}\n" for number in range(9_000)))
    began = time.perf_counter()
    mirrors = RegistriesYaml(str(file), default_endpoint=True)
    assert time.perf_counter() - began < 20
    assert [each.name for each in mirrors.endpoints_for(parse_reference("r8999:80/x:1"))] == ["r8999:80"]
    assert [each.name for each in mirrors.endpoints_for(ImageReference("r8999", "x", "1", ""))] == ["m", "r8999"]


def test_logins_and_certificates_of_hosts(tmp_path: Path) -> None:
    """`configs` is by the host that is asked, mirror or registry; both kinds of login are read."""
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    file = tmp_path / "registries.yaml"
    file.write_text(f"""
mirrors: {{a.io: {{endpoint: [m.io]}}}}
configs:
  m.io: {{auth: {{username: ann, password: secret}}, tls: {{ca_file: {tmp_path}/ca.pem}}}}
  a.io: {{auth: {{auth: Ym9iOnBhOnNz}}, tls: {{insecure_skip_verify: true}}}}
""")
    mirrors = RegistriesYaml(str(file), default_endpoint=True)
    mirror, source = mirrors.endpoints_for(parse_reference("a.io/x:1"))
    elsewhere = URL("https://storage.example/")
    own = mirror.trust.context_for(mirror.root)
    assert (own is mirror.trust.context_for(elsewhere), own is True) == (True, False)
    assert (source.trust.context_for(source.root) is True, source.trust.context_for(elsewhere)) == (False, True)
    logins = [(each.username, each.password) for host in ("m.io", "a.io", "b.io")
              for each in mirrors.credentials_for(parse_reference(f"{host}/x:1"))]  # fmt: skip
    assert logins == [("ann", "secret"), ("bob", "pa:ss")]


def test_hosts_file_as_the_containerd_of_k3s_means_it(tmp_path: Path) -> None:
    """Without `server` it adds no upstream; an empty one is the upstream; the embedded mirror is left out."""
    folder = tmp_path / "a.io"
    folder.mkdir()
    embedded = '[host."https://127.0.0.1:6443/v2"]\n'
    host = '[host."https://m.io"]\n[host."https://m.io".rewrite]\n"^x$" = "y"\n'
    reference = parse_reference("a.io/x:1")
    for server, names in (("", ["m.io"]), ('server = ""\n', ["m.io", "a.io"])):
        (folder / "hosts.toml").write_text(server + embedded + host)
        local, *others = HostsDirectory(str(tmp_path), is_k3s=True).endpoints_for(reference)
        assert "only the node itself reaches" in local.not_asked
        assert [each.name for each in others] == names
        assert (others[0].repository, others[0].not_asked) == ("y", "")
    stock = HostsDirectory(str(tmp_path)).endpoints_for(reference)
    assert [(each.name, each.repository) for each in stock][1:] == [("m.io", "x"), ("a.io", "x")]


@pytest.mark.parametrize(
    ("pattern", "replacement", "path", "result"),
    [
        ("(.*)", "all/$1", "library/alpine", "all/library/alpine"),
        ("^rancher/(.*)", "docker/rancher-images/$1", "rancher/k3s", "docker/rancher-images/k3s"),
        ("^rancher/(.*)", "x/$1", "library/rancher/k3s", "library/rancher/k3s"),
        ("a", "b", "banana", "bbnbnb"),
        ("a*", "x", "baac", "xbxcx"),
        ("(?P<first>[^/]+)/(.*)", "${first}_x/$2", "a/b", "a_x/b"),
        ("^(.)(.*)$", "$1_x$2", "ab", "b"),
        ("^(.)(.*)$", "${1}_x$$$2$", "ab", "a_x$b$"),
        ("(a)|b", "[$1]", "ab", "[a][]"),
        ("^library/(alpine|busybox)$", "base/$1", "library/busybox", "base/busybox"),
    ],
)
def test_rewrite(pattern: str, replacement: str, path: str, result: str) -> None:
    """Matches, empty ones among them, and groups are those of Go's ReplaceAllString."""
    assert rewritten(path, read_rewrites({pattern: replacement})) == result


def test_first_rewrite_that_changes_the_path_counts() -> None:
    """The others are not tried on its result."""
    rewrites = read_rewrites({"^x/": "y/", "^library/": "x/", "^lib": "no"})
    assert rewritten("library/app", rewrites) == "x/app"


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("(", "is no regular expression"),
        ("(a+)+$", "a group that repeats"),
        ("(a|a)*$", "a group that repeats"),
        ("((a*)b){3,}", "a group that repeats"),
        ("(a?){255}", "a group that repeats"),
        (".*.*.*x", "more than 2"),
        ("(?=a)", "Go has no"),
        ("(?<!a)b", "Go has no"),
        ("(a)\\1", "Go has no"),
        ("a++", "Go has no"),
        ("a{1001}{1001}{1001}", "is no regular expression"),
        ("\\pL", "is no regular expression"),
    ],
)
def test_expression_that_cannot_be_used(pattern: str, problem: str) -> None:
    """Those which Go has not, and those which could take for ever."""
    with pytest.raises(InvalidRewrite) as raised:
        read_rewrites({pattern: ""})
    assert problem in str(raised.value)


@pytest.mark.parametrize("pattern", [".*.*x", "a*a*b", "[a-z]*[a-z]*$x", "(.*)/(.*)x"])
def test_slowest_expressions_end(pattern: str) -> None:
    """On the longest path that there is."""
    began = time.perf_counter()
    rewritten("a" * 255, read_rewrites({pattern: "y"}))
    assert time.perf_counter() - began < 5
