"""Nothing that a pod author or a registry writes makes us connect to a place inside.

The sockets that listen there count who comes, and every connection that is tried is recorded.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from extender.credentials.keyring import ANONYMOUS
from extender.errors import AddressRefused, RegistryError, RegistryUnavailable
from extender.images.content import RETRYABLE, Cause
from extender.images.failures import failure_of
from extender.images.reference import parse_reference
from extender.machine import THIS_MACHINE
from extender.registry.addresses import AddressGuard
from extender.registry.http import open_session
from extender.registry.registry_client import RegistryClient
from testbed.embedded_registry import EmbeddedRegistry
from testbed.faulty_registry import FaultyRegistry, GuardedRegistry
from testbed.hostile_addresses import IMAGES, NAMES, NO_URLS, URLS, Network, Trap, open_trap, watched_network
from tests.integration.registry.conftest import APP, INDEX, answers, app_at

# The images that show by themselves where they lead; the others' names have to be resolved.
LITERALS = [image for image in IMAGES if ".example" not in image.replace(".example.com", "")]
DENY = ("denied.example.com",)


@pytest.fixture
async def trap() -> AsyncIterator[Trap]:
    async with open_trap() as opened:
        yield opened


@pytest.fixture
def network() -> Iterator[Network]:
    with watched_network(NAMES) as watched:
        yield watched


@asynccontextmanager
async def client_of(guard: AddressGuard, *plain_http: str) -> AsyncIterator[RegistryClient]:
    async with open_session(guard=guard) as session:
        yield RegistryClient(
            session, timeout_seconds=5, plain_http=frozenset(plain_http), machine=THIS_MACHINE, guard=guard
        )


async def refusal(reference: str, guard: AddressGuard, *plain_http: str) -> RegistryError:
    async with client_of(guard, *plain_http) as client:
        with pytest.raises(RegistryError) as caught:
            await client.head_manifest(parse_reference(reference), ANONYMOUS)
    return caught.value


@pytest.mark.parametrize("image", IMAGES)
async def test_hostile_image_reaches_nothing(trap: Trap, network: Network, image: str) -> None:
    """No connection, with TLS or without; the lookup ends for good, with a reason and without an address."""
    reference = image.format(port=trap.port)
    for plain in ([], [parse_reference(reference).domain]):
        error = await refusal(reference, AddressGuard(deny=DENY), *plain)
        assert isinstance(error, AddressRefused)
        failure = failure_of(error)
        assert (failure.cause, failure.cause in RETRYABLE) == (Cause.NOT_ALLOWED, False)
        assert "registry." in failure.detail
    assert network.dialled == []
    assert trap.connections == 0


def names_token_server(url: str) -> FaultyRegistry:
    registry = GuardedRegistry("")
    registry.challenges = [f'Bearer realm="{url}",service="desk"']
    return registry


def leads_to(url: str) -> FaultyRegistry:
    return FaultyRegistry(answers(307, {"Location": url}))


def token_server_leads_to(url: str) -> FaultyRegistry:
    registry = GuardedRegistry("")
    registry.token_fault = leads_to(url).fault
    return registry


def detour_leads_to(url: str) -> FaultyRegistry:
    """A registry that redirects to itself, and then to `url`."""

    async def fault(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(status=307, headers={"Location": url if "again" in request.path else "/again"})

    return FaultyRegistry(fault)


WAYS = [names_token_server, leads_to, token_server_leads_to, detour_leads_to]


@pytest.mark.parametrize("way", WAYS, ids=["realm", "redirect", "realm-redirect", "second-redirect"])
@pytest.mark.parametrize("url", [*URLS, *NO_URLS])
async def test_registry_leads_nowhere(
    trap: Trap, network: Network, way: Callable[[str], FaultyRegistry], url: str
) -> None:
    """A registry that the operator named does not take us to what is beside it, in any spelling, by any way."""
    async with way(url.format(port=trap.port)) as registry:
        guard = AddressGuard(allow=["*", registry.host], deny=DENY)
        error = await refusal(f"{registry.host}/{APP}:1", guard, registry.host)
    assert isinstance(error, AddressRefused) == (url in URLS)
    assert set(network.dialled) == {"127.0.0.1"}  # the registry
    assert trap.connections == 0


async def test_address_that_was_checked_is_the_one_that_is_dialled() -> None:
    """A name that means another address a moment later gains nothing."""
    turns = iter([("10.1.2.3",), ("127.0.0.1",), ("127.0.0.1",)])
    async with open_trap() as trap:
        with watched_network({"rebind.example": turns}) as network:
            error = await refusal(f"rebind.example:{trap.port}/x", AddressGuard(), f"rebind.example:{trap.port}")
        assert isinstance(error, RegistryUnavailable | AddressRefused)
        assert network.resolved
        assert set(network.dialled) == {"10.1.2.3"}
        assert trap.connections == 0


async def test_registry_that_allow_names_is_asked_on_loopback() -> None:
    """By address or by name; being asked without TLS is not being named."""
    async with EmbeddedRegistry() as registry:
        app_at(registry)
        port = registry.host.partition(":")[2]
        with watched_network({"registry.example": ("127.0.0.1",)}):
            for host in (registry.host, f"registry.example:{port}"):
                async with client_of(AddressGuard(allow=["*", host]), host) as client:
                    assert await client.head_manifest(parse_reference(f"{host}/{APP}:1"), ANONYMOUS) == INDEX.digest
                assert isinstance(await refusal(f"{host}/{APP}:1", AddressGuard(), host), AddressRefused)
        assert registry.requests == {"HEAD manifests": 2}


async def test_token_server_need_not_be_allowed() -> None:
    """`allow` is for registries; Docker Hub's token server has another name than Docker Hub."""
    async with GuardedRegistry("") as desk, GuardedRegistry("") as registry:
        registry.valid = desk.valid
        registry.challenges = [f'Bearer realm="http://desk.example:{desk.host.partition(":")[2]}/token"']
        with watched_network({"desk.example": ("127.0.0.1",)}):
            async with client_of(AddressGuard(allow=[registry.host, "*.example"]), registry.host) as client:
                assert await client.head_manifest(app_at(registry), ANONYMOUS)
            closed = AddressGuard(allow=[registry.host])
            error = await refusal(f"{registry.host}/{APP}:1", closed, registry.host)
        assert str(error) == "desk.example is at an address that is asked only where registry.allow names it"


@pytest.fixture
async def proxy(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FaultyRegistry]:
    async with FaultyRegistry() as opened:
        app_at(opened)
        monkeypatch.setenv("HTTP_PROXY", f"http://proxy.example:{opened.host.partition(':')[2]}")
        yield opened


async def test_proxy_is_reached_wherever_it_is(proxy: FaultyRegistry) -> None:
    """It is the operator's own, and resolves the names of registries itself."""
    with watched_network({"proxy.example": ("127.0.0.1",)}) as network:
        async with client_of(AddressGuard(), "registry.example.com") as client:
            assert await client.head_manifest(parse_reference(f"registry.example.com/{APP}:1"), ANONYMOUS)
    assert network.resolved == ["proxy.example"]


async def test_hostile_images_are_not_shown_to_a_proxy(proxy: FaultyRegistry) -> None:
    """Names and literal addresses are checked, though we do not resolve them."""
    with watched_network({"proxy.example": ("127.0.0.1",)}) as network:
        for reference in (image.format(port=5000) for image in LITERALS):
            error = await refusal(reference, AddressGuard(deny=DENY), parse_reference(reference).domain)
            assert isinstance(error, AddressRefused), reference
    assert network.dialled == []
    assert proxy.shown == []


async def test_proxy_is_no_registry(proxy: FaultyRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody gets to speak to it as to a registry, where it is not used for itself."""
    monkeypatch.setenv("NO_PROXY", "proxy.example")
    host = f"proxy.example:{proxy.host.partition(':')[2]}"
    with watched_network({"proxy.example": ("127.0.0.1",)}) as network:
        assert isinstance(await refusal(f"{host}/{APP}:1", AddressGuard(), host), AddressRefused)
    assert network.dialled == []
