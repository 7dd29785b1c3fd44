"""A clock that stands still, and a way to let tasks run."""

import asyncio

import pytest

from testbed.clock import Clock


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.fixture
def clock() -> Clock:
    return Clock()
