"""`registries.conf`: what makes a file invalid, names without a registry, and files that change."""

import ssl
from pathlib import Path

import pytest
import trustme

from extender.errors import AddressRefused, ConfigError
from extender.images.reference import ImageReference, parse_reference
from extender.registry.mirror_files import MirrorFiles
from extender.registry.registries_conf import read_registries_conf
from extender.registry.routes import Routes
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
    """The message names the file and what is wrong."""
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
