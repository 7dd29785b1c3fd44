"""`registries.conf` and k3s' `registries.yaml`: what makes them invalid, names, logins, certificates and rewrites."""

import ssl
import time
from pathlib import Path

import pytest
import trustme
from yarl import URL

from extender.errors import AddressRefused, ConfigError
from extender.images.reference import ImageReference, parse_reference
from extender.registry.endpoint import Routes
from extender.registry.endpoint_tls import CertificateReader
from extender.registry.go_rewrites import read_rewrites, rewritten
from extender.registry.mirror_files import MirrorFiles
from extender.registry.registries_conf import read_registries_conf
from extender.registry.registries_yaml import NodeRegistries, read_registries_yaml
from extender.watched_files import RELOADS, FileSetting


def routes_of(*texts: str) -> Routes:
    return read_registries_conf((f"{number}.conf", text.encode()) for number, text in enumerate(texts))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('[[registry]]\nlocation = "a.io', "is no TOML"),
        ('registry = "a.io"', "Expected `array`, got `str`"),
        ('[[registry]]\nlocation = "a.io"\ninsecure = "yes"', "Expected `bool`, got `str`"),
        ("[[registry]]\ninsecure = true", "neither prefix nor location"),
        ('[[registry]]\nprefix = "a.io"', "a prefix that does not begin with *. needs a location"),
        ('[[registry]]\nlocation = "https://a.io"', "leave out the scheme"),
        ('[[registry]]\nprefix = "*.a.io/x"', "a wildcard is like *.example.com"),
        ('[[registry]]\nlocation = "a.io"\npull-from-mirror = "all"', "pull-from-mirror is for mirrors"),
        ('[[registry]]\nlocation = "a.io"\n[[registry.mirror]]\ninsecure = true', "it has no location"),
        ('[[registry]]\nlocation = "a.io"\n[[registry.mirror]]\nlocation = "m.io"\npull-from-mirror = "some"',
         "Invalid enum value 'some'"),
        (('[[registry]]\nlocation = "a.io"\nmirror-by-digest-only = true\n[[registry.mirror]]\nlocation = "m.io"\n'
         'pull-from-mirror = "all"'), "exclude each other"),
        ('[[registry]]\nlocation = "a.io"\n[[registry]]\nprefix = "b.io"\nlocation = "a.io"\nblocked = true',
         "two tables for a.io differ in blocked"),
        ('unqualified-search-registries = ["a.io/x"]', "'a.io/x' is no host or host:port"),
        ('short-name-mode = "some"', "Invalid enum value 'some'"),
        ('[aliases]\n"a.io/x" = "b.io/x"', "'a.io/x' is no name without registry"),
        ('[aliases]\nx = "b.io/x:1"', "'b.io/x:1' is no name with registry"),
        ("#" * (1 << 20), "the files have more than 1 MiB"),
    ],
)  # fmt: skip
def test_invalid_file_makes_all_of_them_invalid(text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as raised:
        routes_of('[[registry]]\nlocation = "fine.io"', text)
    assert "1.conf" in str(raised.value)
    assert problem in str(raised.value)


SEARCH_ONE = 'unqualified-search-registries = ["a.io"]\n'
SEARCH_TWO = 'unqualified-search-registries = ["a.io", "docker.io"]\n'


@pytest.mark.parametrize(
    ("texts", "names"),
    [
        ((SEARCH_ONE,), ["a.io/app:1"]),
        ((SEARCH_TWO + 'short-name-mode = "disabled"',), ["a.io/app:1", "docker.io/library/app:1"]),
        ((SEARCH_TWO + 'short-name-mode = "permissive"',), ["a.io/app:1", "docker.io/library/app:1"]),
        ((SEARCH_TWO + 'short-name-mode = "enforcing"', 'short-name-mode = "disabled"', ""),
         ["a.io/app:1", "docker.io/library/app:1"]),
        ((SEARCH_ONE, 'unqualified-search-registries = ["b.io"]'), ["b.io/app:1"]),
        ((SEARCH_TWO + '[aliases]\napp = "c.io/x/app"',), ["c.io/x/app:1"]),
        (('[aliases]\napp = "docker.io/app"',), ["docker.io/library/app:1"]),
        ((SEARCH_ONE + '[aliases]\napp = "c.io/app"', '[aliases]\napp = ""'), ["a.io/app:1"]),
        ((SEARCH_TWO,), None),
        ((SEARCH_TWO + 'short-name-mode = "disabled"', 'short-name-mode = "enforcing"'), None),
        ((SEARCH_ONE + 'short-name-mode = "disabled"', "unqualified-search-registries = []"), None),
        (('short-name-mode = "disabled"',), None),
    ],
)  # fmt: skip
def test_name_without_a_registry(texts: tuple[str, ...], names: list[str] | None) -> None:
    """An alias, or one name for each registry that is searched; where CRI-O refuses it, nobody is asked."""
    short = ImageReference("", "app", "1", "")
    if names is None:
        with pytest.raises(AddressRefused, match="app has no registry"):
            routes_of(*texts).full_names_of(short)
    else:
        assert [str(name) for name in routes_of(*texts).full_names_of(short)] == names


@pytest.fixture
def main(tmp_path: Path) -> Path:
    file = tmp_path / "registries.conf"
    file.write_text('[[registry]]\nlocation = "a.io"\n[[registry.mirror]]\nlocation = "m.io"\ninsecure = true\n')
    return file


def hosts_of(files: MirrorFiles, image: str) -> list[str]:
    return [endpoint.name for endpoint in files.endpoints_for(parse_reference(image))]


def test_file_that_breaks_keeps_what_was_read_before(main: Path) -> None:
    """A drop-in counts from when it is there; a broken one changes nothing until it is mended."""
    files = MirrorFiles(str(main))
    refused = RELOADS[FileSetting.MIRRORS]["refused"].value
    assert hosts_of(files, "a.io/x:1") == ["m.io", "a.io"]
    drop_in = main.with_name("registries.conf.d") / "50.conf"
    drop_in.parent.mkdir()
    drop_in.write_text('[[registry]]\nlocation = "a.io"\n[[registry.mirror]]\nlocation = "n')
    assert not files.files.reload_if_changed()
    assert RELOADS[FileSetting.MIRRORS]["refused"].value == refused + 1
    assert hosts_of(files, "a.io/x:1") == ["m.io", "a.io"]
    drop_in.write_text('[[registry]]\nlocation = "a.io"\n[[registry.mirror]]\nlocation = "n.io"')
    assert files.files.reload_if_changed()
    assert hosts_of(files, "a.io/x:1") == ["n.io", "a.io"]


def test_credentials_and_tls_of_candidates(main: Path) -> None:
    """Those of the image are for its own host; an insecure mirror has plain HTTP behind unverified TLS."""
    mirror, source = MirrorFiles(str(main)).endpoints_for(parse_reference("a.io/x:1"))
    assert (mirror.credentials, source.credentials) == ("operator", "image")
    assert (mirror.mirror_of, source.mirror_of) == ("a.io", "")
    assert (str(mirror.plain_root), source.plain_root) == ("http://m.io/v2", None)
    assert isinstance(mirror.tls_for(mirror.root), ssl.SSLContext)
    assert source.tls_for(source.root) is True


def test_certificates_beside_the_file(main: Path) -> None:
    """A folder per host in Docker's layout; one that cannot be used is named, one that comes later counts."""
    files = MirrorFiles(str(main))
    certs = main.with_name("certs.d") / "b.io_5000_"
    certs.mkdir(parents=True)
    trustme.CA().cert_pem.write_to_path(str(certs / "ca.crt"))
    assert files.files.reload_if_changed()
    own, other = (files.endpoints_for(parse_reference(f"{host}/x:1"))[0] for host in ("b.io:5000", "b.io"))
    assert isinstance(own.tls_for(own.root), ssl.SSLContext)
    assert other.tls_for(other.root) is True
    (certs / "ca.crt").write_text("none")
    with pytest.raises(ConfigError, match=r"registry.mirrors: .*/certs.d/b.io_5000_: ca: .* holds no certificates"):
        MirrorFiles(str(main))


def test_digest_behind_a_tag_is_asked_where_the_tag_is(main: Path) -> None:
    """The parts of an image come from those that nodes ask for its tag."""
    mirror = '[[registry.mirror]]\nlocation = "m.io"\npull-from-mirror = "tag-only"'
    main.write_text(f'[[registry]]\nlocation = "a.io"\n{mirror}')
    files = MirrorFiles(str(main))
    tag, digest = parse_reference("a.io/x:1"), f"sha256:{'d' * 64}"
    assert [each.name for each in files.endpoints_for(tag.pinned_to(digest))] == ["m.io", "a.io"]
    assert [each.name for each in files.endpoints_for(tag.with_digest(digest))] == ["a.io"]


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
        ("mirrors: {a.io: {}}\nmirrors: {b.io: {}}\n", "line 2: the key 'mirrors' is there a second time"),
        ("mirrors: {a.io: {}, 'a.io': {}}", "the key 'a.io' is there a second time"),
        ("configs: {a.io: {auth: {username: a, username: b}}}", "the key 'username' is there a second time"),
        ("#" * (256 << 10) + "#", "more than 256 KiB"),
    ],
)
def test_invalid_file(text: str, problem: str) -> None:
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
    rewrites = read_rewrites({"^x/": "y/", "^library/": "x/", "^lib": "no"})
    assert rewritten("library/app", rewrites) == "x/app"


@pytest.mark.parametrize("pattern", ["^team/(a+)+$", "^(.*)*x$", "(a|aa)+$"])
def test_expression_that_tries_all_ways_is_given_up(pattern: str) -> None:
    """As soon as the processor has worked on it for a tenth of a second; the next one has as much."""
    for _ in range(2):
        began_at = time.process_time()
        with pytest.raises(AddressRefused, match="rewrites in the nodes' files take too long on team/aaa"):
            rewritten(f"team/{'a' * 200}b", read_rewrites({pattern: ""}))
        assert time.process_time() - began_at < 2
    assert rewritten("team/a", read_rewrites({pattern: "x"})) != ""


@pytest.mark.parametrize("pattern", ["(", "a{1001}{1001}{1001}", "\\pL"])
def test_expression_that_cannot_be_used(pattern: str) -> None:
    with pytest.raises(ConfigError, match="is no regular expression"):
        read_rewrites({pattern: ""})
