"""`registries.yaml` of k3s: what makes it invalid, its logins and certificates, and rewrites as Go means them."""

from pathlib import Path

import pytest
import trustme
from yarl import URL

from extender.errors import ConfigError
from extender.images.reference import parse_reference
from extender.registry.endpoint_tls import CertificateReader
from extender.registry.go_rewrites import read_rewrites, rewritten
from extender.registry.mirror_files import MirrorFiles
from extender.registry.registries_yaml import NodeRegistries, read_registries_yaml


def read(text: str) -> NodeRegistries:
    return read_registries_yaml(text.encode(), CertificateReader())


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
        read(text)
    assert problem in str(raised.value)


def test_a_text_without_quotes_is_what_stands_there() -> None:
    """As for the decoder of k3s: a password may be a number, and a name a word of YAML's."""
    text = "configs: {127.0.0.1:5000: {auth: {username: on, password: 0123}, tls: {insecure_skip_verify: yes}, x: ~}}"
    assert read(text).logins == {"127.0.0.1:5000": ("on", "0123")}
    assert read("configs: {a.io: ~}\nmirrors:\n").logins == {}


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
    mirrors = MirrorFiles(str(file))
    mirror, source = mirrors.endpoints_for(parse_reference("a.io/x:1"))
    elsewhere = URL("https://storage.example/")
    own = mirror.tls_for(mirror.root)
    assert (own is mirror.tls_for(elsewhere), own is True) == (True, False)
    assert (source.tls_for(source.root) is True, source.tls_for(elsewhere)) == (False, True)
    logins = [(each.username, each.password) for host in ("m.io", "a.io", "b.io")
              for each in mirrors.credentials_for(parse_reference(f"{host}/x:1"))]  # fmt: skip
    assert logins == [("ann", "secret"), ("bob", "pa:ss")]


def test_settings_of_docker_hub_are_by_either_name() -> None:
    """For the registry itself those of its own name count, for a mirror of another one those of its address."""
    tls, none = "tls: {insecure_skip_verify: true}", "auth: {username: u, password: p}"
    routes = read(f"""
mirrors: {{a.io: {{endpoint: [docker.io]}}}}
configs: {{docker.io: {{{tls}}}, registry-1.docker.io: {{{none}}}}}
""").routes
    [own], [mirror, _] = (routes.endpoints_for(parse_reference(image)) for image in ("x:1", "a.io/x:1"))
    assert own.trust is not None
    assert mirror.trust is None


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
        ("^(.*)/(.*)/(.*)$", "$1/$3", "a/b/c", "a/c"),
    ],
)
def test_rewrite(pattern: str, replacement: str, path: str, result: str) -> None:
    """Matches, empty ones among them, and groups are those of Go's ReplaceAllString."""
    assert rewritten(path, read_rewrites({pattern: replacement})) == result


def test_first_rewrite_that_changes_the_path_counts() -> None:
    """The others are not tried on its result."""
    rewrites = read_rewrites({"^x/": "y/", "^library/": "x/", "^lib": "no"})
    assert rewritten("library/app", rewrites) == "x/app"


@pytest.mark.parametrize("pattern", ["(", "a{1001}{1001}{1001}", "\\pL"])
def test_expression_that_cannot_be_used(pattern: str) -> None:
    """The message names it."""
    with pytest.raises(ConfigError, match="is no regular expression"):
        read_rewrites({pattern: ""})
