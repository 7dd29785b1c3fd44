"""A resolver with a fake registry and a fake clock."""

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from extender.resolver.resolver import Resolver
from testbed.clock import Clock
from testbed.eventually import eventually
from tests.unit.resolver.fake_registry import FakeRegistry


@pytest.fixture
def clock() -> Clock:
    """A clock that only a test advances."""
    return Clock()


@pytest.fixture
async def registry() -> FakeRegistry:
    """An empty registry that answers immediately."""
    return FakeRegistry()


@pytest.fixture
async def resolver(registry: FakeRegistry, clock: Clock) -> AsyncIterator[Resolver]:
    """A resolver: tags are fresh for 900 s (60 s if always), answers are kept for 86,400 s, backoff has no jitter."""
    resolver = Resolver(
        registry,
        size=1000,
        tag_seconds=900,
        stale_seconds=86_400,
        clock=clock,
        random=lambda: 0.0,
    )
    yield resolver
    await resolver.close()


@pytest.fixture
def finished(resolver: Resolver) -> Callable[[], Awaitable[None]]:
    """Waits until no lookup is in flight."""

    async def wait() -> None:
        await eventually(lambda: not resolver.counts()["in_flight"])

    return wait
