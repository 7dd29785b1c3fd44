"""A resolver with a fake registry and a fake clock."""

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from extender.resolver.resolver import Resolver
from testbed.clock import Clock
from testbed.eventually import eventually
from tests.unit.resolver.fake_registry import FakeRegistry, make_resolver


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def registry() -> FakeRegistry:
    return FakeRegistry()


@pytest.fixture
async def resolver(registry: FakeRegistry, clock: Clock) -> AsyncIterator[Resolver]:
    resolver = make_resolver(registry, clock)
    yield resolver
    await resolver.close()


@pytest.fixture
def finished(resolver: Resolver) -> Callable[[], Awaitable[None]]:
    async def wait() -> None:
        await eventually(lambda: not resolver.counts()["in_flight"])

    return wait
