"""What containerd's files say: one row per key and per mistake, folders by registry, and files that change."""

import gc
import ssl
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import trustme
from yarl import URL

from extender.errors import ConfigError, RegistryNotAsked
from extender.images.reference import ImageReference
from extender.registry.endpoint import Capability, Endpoint
from extender.registry.mirror_files import MirrorFiles

Write = Callable[[str, str], Path]
HUB = "https://registry-1.docker.io/v2"
AUTHORITY = trustme.CA()


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(registry: str, text: str) -> Path:
        folder = tmp_path / registry
        folder.mkdir(exist_ok=True)
        (folder / "hosts.toml").write_text(text)
        return tmp_path

    return write


@pytest.fixture
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")  # outside the folder of the mirrors
    AUTHORITY.cert_pem.write_to_path(str(folder / "ca.pem"))
    leaf = AUTHORITY.issue_cert("client.example")
    leaf.private_key_and_cert_chain_pem.write_to_path(str(folder / "both.pem"))
    leaf.private_key_pem.write_to_path(str(folder / "key.pem"))
    leaf.cert_chain_pems[0].write_to_path(str(folder / "certificate.pem"))
    return folder


def of(domain: str, path: str = "team/app") -> ImageReference:
    return ImageReference(domain, path, "1", "")


def roots(endpoints: tuple[Endpoint, ...]) -> list[str]:
    return [str(endpoint.root) for endpoint in endpoints]


def test_registry_without_a_folder_is_asked_itself(tmp_path: Path) -> None:
    directory = MirrorFiles(str(tmp_path))
    (upstream,) = directory.endpoints_for(of("quay.io"))
    assert (str(upstream.root), upstream.name, upstream.namespace) == ("https://quay.io/v2", "quay.io", "")
    assert roots(directory.endpoints_for(of("docker.io"))) == [HUB]
    assert roots(directory.endpoints_for(of("local:5000"), {"local:5000"})) == ["http://local:5000/v2"]


def test_mirrors_come_in_the_order_of_the_file_and_the_registry_last(write: Write) -> None:
    """Not in the order of the alphabet, and whether or not the registry is named."""
    hosts = '[host."https://z.example"]\n[host."https://a.example"]\n[host."http://m.example:5000"]\n'
    mirrors = ["https://z.example/v2", "https://a.example/v2", "http://m.example:5000/v2"]
    assert roots(MirrorFiles(str(write("docker.io", hosts))).endpoints_for(of("docker.io"))) == [*mirrors, HUB]
    with_server = 'server = "https://last.example"\n' + hosts
    directory = MirrorFiles(str(write("docker.io", with_server)))
    assert roots(directory.endpoints_for(of("docker.io"))) == [*mirrors, "https://last.example/v2"]


@pytest.mark.parametrize(
    ("address", "keys", "root", "repository"),
    [
        ("https://mirror.example", "", "https://mirror.example/v2", "library/app"),
        ("mirror.example:5000", "", "https://mirror.example:5000/v2", "library/app"),
        ("http://[fd00::1]:5000", "", "http://[fd00::1]:5000/v2", "library/app"),
        ("https://mirror.example/v2", "", "https://mirror.example/v2", "library/app"),
        ("https://mirror.example/hub", "", "https://mirror.example/hub/v2", "library/app"),
        ("https://mirror.example/hub", "override_path = true", "https://mirror.example/hub", "library/app"),
        ("https://mirror.example/v2/hub", "override_path = true", "https://mirror.example/v2/hub", "hub/library/app"),
        (
            "https://mirror.example//v2///hub/",
            "override_path = true",
            "https://mirror.example/v2/hub",
            "hub/library/app",
        ),
    ],
)
def test_root_of_the_api(write: Write, address: str, keys: str, root: str, repository: str) -> None:
    """`/v2` is put behind the path unless the path is said to be the whole of it, as of caches."""
    directory = MirrorFiles(str(write("docker.io", f'[host."{address}"]\n{keys}\n')))
    mirror, _ = directory.endpoints_for(of("docker.io", "library/app"))
    assert (str(mirror.root), mirror.own_repository) == (root, repository)
    assert mirror.url_of("manifests/1") == URL(f"{root}/library/app/manifests/1?ns=docker.io")


@pytest.mark.parametrize(
    ("domain", "server", "namespace"),
    [
        ("docker.io", "https://registry-1.docker.io", ""),
        ("quay.io", "https://quay.io", ""),
        ("quay.io", "https://quay.io:443", ""),
        ("reg.example:5000", "http://reg.example:5000", ""),
        ("quay.io", "https://cdn.quay.io", "quay.io"),
        ("reg.example:5000", "https://reg.example", "reg.example:5000"),
    ],
)
def test_who_is_told_the_namespace(write: Write, domain: str, server: str, namespace: str) -> None:
    """Everyone but the registry itself, which alone may see the credentials for it."""
    (endpoint,) = MirrorFiles(str(write(domain, f'server = "{server}"'))).endpoints_for(of(domain))
    assert (endpoint.namespace, endpoint.mirror_of) == (namespace, namespace)
    assert endpoint.credentials == ("both" if namespace else "image")
    assert dict(endpoint.url_of("blobs/b").query) == ({"ns": namespace} if namespace else {})


def test_folder_of_a_registry_with_a_port(write: Write) -> None:
    """`host_port_` comes before `host:port`, and that before `_default`."""
    folder = write("_default", 'server = "https://default.example"')
    domain = "reg.example:5000"
    assert roots(MirrorFiles(str(folder)).endpoints_for(of(domain))) == ["https://default.example/v2"]
    write(domain, 'server = "https://colon.example"')
    assert roots(MirrorFiles(str(folder)).endpoints_for(of(domain))) == ["https://colon.example/v2"]
    write("reg.example_5000_", 'server = "https://underscore.example"')
    assert roots(MirrorFiles(str(folder)).endpoints_for(of(domain))) == ["https://underscore.example/v2"]
    assert roots(MirrorFiles(str(folder)).endpoints_for(of("reg.example"))) == ["https://default.example/v2"]


def test_folder_of_its_own_hides_the_default(write: Write) -> None:
    """An empty folder, or an empty file, keeps a registry from the mirrors of all."""
    folder = write("_default", '[host."https://default.example"]')
    write("quay.io", "")
    (folder / "ghcr.io").mkdir()
    directory = MirrorFiles(str(folder))
    assert roots(directory.endpoints_for(of("quay.io"))) == ["https://quay.io/v2"]
    assert roots(directory.endpoints_for(of("ghcr.io"))) == ["https://ghcr.io/v2"]
    assert roots(directory.endpoints_for(of("quay.io:8443")))[0] == "https://default.example/v2"
    assert roots(directory.endpoints_for(of("other.io"))) == ["https://default.example/v2", "https://other.io/v2"]


@pytest.mark.parametrize(
    ("keys", "capabilities"),
    [
        ("", {"resolve", "pull"}),
        ('capabilities = ["pull"]', {"pull"}),
        ('capabilities = ["Pull", "RESOLVE", "push"]', {"resolve", "pull"}),
        ('capabilities = ["push"]', set()),
        ("capabilities = []", {"resolve", "pull"}),
    ],
)
def test_capabilities(write: Write, keys: str, capabilities: set[Capability]) -> None:
    """None stated are all; those of a file without `server` are not the registry's."""
    hosts = f'{keys}\n[host."https://mirror.example"]\n{keys}\n'
    mirror, upstream = MirrorFiles(str(write("quay.io", hosts))).endpoints_for(of("quay.io"))
    assert mirror.capabilities == capabilities
    assert upstream.capabilities == {"resolve", "pull"}
    (server,) = MirrorFiles(str(write("quay.io", f'server = "quay.io"\n{keys}'))).endpoints_for(of("quay.io"))
    assert server.capabilities == capabilities


def test_headers_and_dial_timeout(write: Write) -> None:
    keys = 'dial_timeout = "1m1.5s20ms"\n[host."https://m.example".header]\nx-a = "one"\nX-B = ["two", "three"]\n'
    mirror, upstream = MirrorFiles(str(write("quay.io", f'[host."https://m.example"]\n{keys}'))).endpoints_for(
        of("quay.io")
    )
    assert mirror.headers == (("x-a", "one"), ("X-B", "two"), ("X-B", "three"))
    assert mirror.connect_seconds == pytest.approx(61.52)
    assert (upstream.headers, upstream.connect_seconds) == ((), None)


def test_certificates_without_a_file(certificates: Path, tmp_path: Path) -> None:
    """A folder as Docker has it: authorities, and client certificates beside their keys."""
    folder = tmp_path / "quay.io"
    folder.mkdir()
    (certificates / "ca.pem").rename(folder / "ca.crt")
    (certificates / "certificate.pem").rename(folder / "client.cert")
    (certificates / "key.pem").rename(folder / "client.key")
    (endpoint,) = MirrorFiles(str(tmp_path)).endpoints_for(of("quay.io"))
    own, elsewhere = map(endpoint.tls_for, (endpoint.root, URL("https://storage.example/")))
    assert own is not elsewhere
    for context in (own, elsewhere):
        assert isinstance(context, ssl.SSLContext)
        assert ssl.PEM_cert_to_DER_cert(AUTHORITY.cert_pem.bytes().decode()) in context.get_ca_certs(binary_form=True)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("server = [", "is no TOML"),
        ("#" * (256 << 10) + "#", "more than 256 KiB"),
        ("server = 1", "server: Expected `str`, got `int`"),
        ('server = "ftp://x"', "server: 'ftp://x' is no http or https address"),
        ("x = " + "1" * 5000, "is no TOML"),
        ("host = 1", "host: write a table per host"),
        ('[host."https://m"]\nskip_verify = "yes"', 'host."https://m": skip_verify: Expected `bool`, got `str`'),
        ('[host."https://m"]\ncapabilities = ["pul"]', "capabilities: 'pul' is none of pull, resolve, push"),
        ('[host."https://m"]\ndial_timeout = "soon"', "dial_timeout: 'soon' is no duration"),
        ('[host."https://m"]\nca = "gone.pem"', "gone.pem holds no certificates: No such file"),
        ('[host."https://m"]\nclient = "gone.pem"', "gone.pem and its key cannot be used: No such file"),
        ('[host."https://m"]\nca = "a\\u0000b"', "a\x00b holds no certificates: "),
        ('[host."https://m"]\nclient = [["a", "b", "c"]]', "client[0]: Expected `array` of length 2"),
        ('[host."https://m".header]\n"a b" = "c"', "header.a b: no header can be made of it"),
        ('[host."https://m".header]\na = "se\\ncret"', "header.a: no header can be made of it"),
    ],
)
def test_malformed_file_is_refused_with_its_key(write: Write, text: str, problem: str) -> None:
    """At start the operator is told which file and which key, and no secret of it."""
    folder = write("quay.io", text)
    with pytest.raises(ConfigError) as refused:
        MirrorFiles(str(folder))
    assert str(refused.value).startswith(f"registry.mirrors: {folder}/quay.io/hosts.toml")
    assert problem in str(refused.value)
    assert "cret" not in str(refused.value)


def test_authority_that_is_rotated_makes_another_context(write: Write, certificates: Path) -> None:
    """Without a word in the file that names it. `registry.ca_files` is trusted by every context of a folder as well."""
    bundle = certificates / "bundle.pem"
    trustme.CA().cert_pem.write_to_path(str(bundle))
    directory = MirrorFiles(str(write("quay.io", f'ca = "{certificates}/ca.pem"')), ca_files=[str(bundle)])
    (before,) = directory.endpoints_for(of("quay.io"))
    for changed in (certificates / "ca.pem", bundle):
        assert not directory.files.reload_if_changed()
        trustme.CA().cert_pem.write_to_path(str(certificates / "new.pem"))
        (certificates / "new.pem").replace(changed)
        assert directory.files.reload_if_changed()
        (after,) = directory.endpoints_for(of("quay.io"))
        assert after.tls_for(after.root) is not before.tls_for(before.root)
        before = after


def test_few_contexts_are_held(write: Write, certificates: Path) -> None:
    """Each takes a megabyte; a folder may have thousands of hosts; those with the same files share."""
    for number in range(30):
        (certificates / f"{number}.pem").write_bytes((certificates / "ca.pem").read_bytes())
    tables = (f'[host."m{n}"]\nca = "{certificates}/{min(n, 29)}.pem"\n' for n in range(32))
    folder = write("quay.io", "".join(tables))
    endpoints = MirrorFiles(str(folder)).endpoints_for(of("quay.io"))[:-1]
    assert len({endpoint.tls_for(endpoint.root) for endpoint in endpoints[-3:]}) == 1
    made = weakref.WeakSet(endpoint.tls_for(endpoint.root) for endpoint in endpoints)
    gc.collect()
    assert len(made) == 24


def test_certificates_that_are_gone_when_they_are_needed(write: Write, certificates: Path) -> None:
    """The registry is not to blame, and the next check of the files says what is wrong."""
    folder = write("quay.io", f'ca = "{certificates}/ca.pem"')
    (endpoint,) = MirrorFiles(str(folder)).endpoints_for(of("quay.io"))
    (certificates / "ca.pem").unlink()
    with pytest.raises(RegistryNotAsked, match="a file with certificates has just changed or is gone"):
        endpoint.tls_for(endpoint.root)


def test_mounted_config_map(tmp_path: Path) -> None:
    """The kubelet links folders into a hidden one, and swaps that when something changes."""
    for version, server in (("..1", "one"), ("..2", "two")):
        (tmp_path / version / "quay.io").mkdir(parents=True)
        (tmp_path / version / "quay.io" / "hosts.toml").write_text(f'server = "https://{server}.example"')
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "quay.io").symlink_to("..data/quay.io")
    directory = MirrorFiles(str(tmp_path))
    assert roots(directory.endpoints_for(of("quay.io"))) == ["https://one.example/v2"]
    (tmp_path / "..new").symlink_to("..2")
    (tmp_path / "..new").replace(tmp_path / "..data")
    assert directory.files.reload_if_changed()
    assert roots(directory.endpoints_for(of("quay.io"))) == ["https://two.example/v2"]
