"""Each example of where nodes ask, against servers that log who was asked for what, in which order."""

import ssl
from collections.abc import AsyncIterator, Collection
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import msgspec
import pytest
import trustme
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult

from extender.credentials.keyring import ANONYMOUS
from extender.errors import RegistryError
from extender.images.reference import ImageReference, parse_reference
from extender.kubernetes.openshift_v1 import MirrorObjects
from extender.registry.endpoint import EndpointSource
from extender.registry.endpoint_tls import RegistryTrust
from extender.registry.mirror_files import MirrorFiles
from extender.registry.openshift import OpenShiftMirrors
from extender.registry.registry_client import RegistryClient
from tests.integration.registry.node_examples import CRIO, K3S, OPENSHIFT, Example, OpenShiftExample

PLAIN = {("localhost", 5000)}  # the only host that is asked over plain HTTP


class Internet(AbstractResolver):
    """Every host, by one server over TLS and one over plain HTTP. None has any image but those of `having`."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.having: Collection[str] = ()
        self.authority = trustme.CA()
        self._ports: dict[str, int] = {}

    async def start(self, stack: AsyncExitStack, names: Collection[str]) -> None:
        """Starts the servers. `names` are those in the certificate."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.authority.issue_cert(*names).configure_cert(context)
        for scheme, tls in (("https", context), ("http", None)):
            runner = web.ServerRunner(web.Server(self.answer))
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
            self._ports[scheme] = runner.addresses[0][1]

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Logs the request. Answers with a manifest or that there is none."""
        repository = request.path.removeprefix("/v2/").rpartition("/manifests/")[0].removeprefix("/")
        query = f"?{request.query_string}" if request.query_string else ""
        asked = f"{'' if request.secure else 'http://'}{request.host}/{repository}{query}"
        self.asked.append(asked)
        return web.Response(status=200 if asked in self.having else 404, body=b"{}")

    async def resolve(self, host: str, port: int = 0, family: int = 0) -> list[ResolveResult]:
        """Returns the address of one of the servers for any name."""
        there = self._ports["http" if (host, port) in PLAIN else "https"]
        return [ResolveResult(hostname=host, host="127.0.0.1", port=there, family=2, proto=0, flags=0)]

    async def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    """Closes what tests open."""
    async with AsyncExitStack() as opened:
        yield opened


async def ask(stack: AsyncExitStack, internet: Internet, mirrors: EndpointSource, image: ImageReference) -> None:
    """Looks for the image everywhere."""
    try:
        names = {endpoint.root.host or "" for endpoint in mirrors.endpoints_for(image)}
    except RegistryError:
        names = set()
    await internet.start(stack, names or {"nobody.io"})
    trusting = ssl.create_default_context()
    internet.authority.configure_trust(trusting)
    connector = aiohttp.TCPConnector(resolver=internet, ssl=trusting)
    session = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))
    client = RegistryClient(
        session,
        timeout_seconds=10,
        plain_http=frozenset(),
        mirrors=mirrors,
    )
    await client.fetch_manifest(image, ANONYMOUS)


def reference_of(example: Example | OpenShiftExample) -> ImageReference:
    """The example's image as lookups name it: a digest overrides the tag."""
    reference = parse_reference(example.image)
    return reference.with_digest(reference.digest) if reference.digest else reference


def write_crio(folder: Path, example: Example) -> MirrorFiles:
    """The main file and the drop-ins."""
    main, *drop_ins = example.files
    (folder / "registries.conf").write_text(main)
    (folder / "registries.conf.d").mkdir()
    for number, drop_in in enumerate(drop_ins):
        (folder / "registries.conf.d" / f"{number}.conf").write_text(drop_in)
    return MirrorFiles(str(folder / "registries.conf"))


def write_k3s(folder: Path, example: Example) -> MirrorFiles:
    """The file."""
    (folder / "registries.yaml").write_text(example.files[0])
    return MirrorFiles(str(folder / "registries.yaml"))


@pytest.mark.parametrize("example", CRIO, ids=lambda example: example.name)
async def test_crio_example(stack: AsyncExitStack, tmp_path: Path, example: Example) -> None:
    """All are asked in the order in which CRI-O asks them, until one has the image."""
    mirrors = write_crio(tmp_path, example)
    internet = Internet()
    with pytest.raises(RegistryError):
        await ask(stack, internet, mirrors, reference_of(example))
    assert tuple(internet.asked) == example.asked


@pytest.mark.parametrize("example", K3S, ids=lambda example: example.name)
async def test_k3s_example(stack: AsyncExitStack, tmp_path: Path, example: Example) -> None:
    """All are asked in the order in which k3s' containerd asks them, until one has the image."""
    mirrors = write_k3s(tmp_path, example)
    internet = Internet()
    with pytest.raises(RegistryError):
        await ask(stack, internet, mirrors, reference_of(example))
    assert tuple(internet.asked) == example.asked


@pytest.mark.parametrize("example", OPENSHIFT, ids=lambda example: example.name)
async def test_openshift_example(stack: AsyncExitStack, example: OpenShiftExample) -> None:
    """All are asked in the order in which CRI-O asks them by what the machine-config operator writes."""
    mirrors = OpenShiftMirrors(RegistryTrust())
    mirrors.update(msgspec.json.decode(example.objects, type=MirrorObjects))
    internet = Internet()
    with pytest.raises(RegistryError):
        await ask(stack, internet, mirrors, reference_of(example))
    assert tuple(internet.asked) == example.asked


@pytest.mark.parametrize("position", [0, 1, 2])
async def test_first_that_has_it_ends_the_search(stack: AsyncExitStack, tmp_path: Path, position: int) -> None:
    """Whoever comes behind it is not asked."""
    example = CRIO[0]
    internet = Internet()
    internet.having = (example.asked[position],)
    await ask(stack, internet, write_crio(tmp_path, example), reference_of(example))
    assert tuple(internet.asked) == example.asked[: position + 1]
