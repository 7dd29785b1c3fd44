"""Full garbage collections come seldom, and still come."""

import asyncio
import gc
from collections.abc import AsyncIterator

import pytest

from extender.service.garbage import collect_seldom, resident_bytes

LOOK_SECONDS = 0.01


class Circle:
    """An object that only a collection frees."""

    def __init__(self) -> None:
        self.itself = self


class FakeProcess:
    """A process of as much memory as a test says."""

    def __init__(self) -> None:
        self.bytes = 1000

    def measure(self) -> int:
        """Returns it."""
        return self.bytes


@pytest.fixture
async def process() -> AsyncIterator[FakeProcess]:
    """What is measured while garbage is collected seldom: after 100 bytes more."""
    thresholds, process = gc.get_threshold(), FakeProcess()
    task = asyncio.create_task(collect_seldom(LOOK_SECONDS, process.measure, 100))
    await asyncio.sleep(0)
    yield process
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert gc.get_threshold() == thresholds


def full_collections() -> int:
    """How many there have been."""
    return int(gc.get_stats()[2]["collections"])


def circles() -> int:
    """How many circles are in memory."""
    return sum(type(each) is Circle for each in gc.get_objects())


async def test_living_objects_cause_no_full_collection(process: FakeProcess) -> None:
    """However many there come. The interpreter alone would go through all of them several times."""
    before, kept = full_collections(), list[list[object]]()
    for _ in range(100):
        kept += [[] for _ in range(5_000)]
    process.bytes += 100
    await asyncio.sleep(3 * LOOK_SECONDS)
    assert full_collections() == before


async def test_everything_is_collected_when_the_process_has_grown(process: FakeProcess) -> None:
    """Young collections have left these circles, since they lived then. The next growth counts from there."""
    living = [Circle() for _ in range(1_000)]
    gc.collect(1)
    living.clear()
    assert circles() == 1_000
    for _ in range(2):
        before = full_collections()
        process.bytes += 101
        await asyncio.sleep(3 * LOOK_SECONDS)
        assert full_collections() == before + 1
    assert circles() == 0


async def test_without_a_measure_the_interpreter_collects() -> None:
    """Systems other than Linux have no /proc."""

    def measure() -> int:
        raise FileNotFoundError

    before = gc.get_threshold()
    await asyncio.wait_for(collect_seldom(LOOK_SECONDS, measure), 1)
    assert gc.get_threshold() == before


def test_resident_memory_is_in_bytes() -> None:
    """It grows by what is allocated and written."""
    before = resident_bytes()
    block = bytearray(b"x") * (64 << 20)
    assert (60 << 20) < resident_bytes() - before < (100 << 20)
    assert len(block) == 64 << 20
