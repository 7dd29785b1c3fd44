"""A resolver with a fake registry and a fake clock."""

from collections.abc import AsyncIterator

import pytest

from testbed.clock import Clock
from tests.unit.resolver.fake_registry import World


@pytest.fixture
async def world() -> AsyncIterator[World]:
    opened = World()
    yield opened
    opened.open.set()
    await opened.resolver.close()


@pytest.fixture
def clock(world: World) -> Clock:
    return world.clock
