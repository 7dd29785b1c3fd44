"""A client under test, and its clock."""

from collections.abc import AsyncIterator, Callable

import aiohttp
import pytest

from extender.credentials.keyring import Credential, CredentialId
from extender.images.reference import ImageReference, parse_reference
from extender.registry.addresses import AddressGuard
from extender.registry.http import open_session
from extender.registry.registry_client import RegistryClient
from testbed.clock import Clock
from testbed.embedded_registry import EmbeddedRegistry
from testbed.images import build_index

MakeClient = Callable[..., RegistryClient]
ANN = Credential("ann", "pa:ss", CredentialId("ann"))
INDEX = build_index(["linux/amd64", "linux/arm64"])
APP = "team/app"
# The registries of these tests, and the servers they point to, are on this host, which the operator's settings allow.
ON_LOOPBACK = AddressGuard(allow=["*", "127.0.0.1", "localhost"])


def app_at(registry: EmbeddedRegistry, path: str = APP) -> ImageReference:
    registry.add(path, "1", INDEX)
    return parse_reference(f"{registry.host}/{APP}:1")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with open_session(guard=ON_LOOPBACK) as opened:
        yield opened


@pytest.fixture
def make_client(session: aiohttp.ClientSession, clock: Clock) -> MakeClient:

    def make(
        *plain_http: str,
        timeout_seconds: float = 10.0,
        over: aiohttp.ClientSession = session,
    ) -> RegistryClient:
        return RegistryClient(
            over,
            timeout_seconds=timeout_seconds,
            plain_http=frozenset(plain_http),
            clock=clock,
            wall_clock=lambda: 1_700_000_000.0,
            random=lambda: 0.0,
        )

    return make
