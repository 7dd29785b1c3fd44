"""Garbage collections go through old objects seldom, and still do."""

import asyncio
import gc
import weakref
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


def living_circles(number: int) -> tuple[list[Circle], weakref.WeakSet[Circle]]:
    """Some circles, and those of them that are in memory."""
    living = [Circle() for _ in range(number)]
    return living, weakref.WeakSet(living)


def make_objects(number: int) -> list[list[object]]:
    """So many that can be part of a cycle."""
    return [[] for _ in range(number)]


async def test_objects_that_live_are_gone_through_a_few_times(process: FakeProcess) -> None:
    """However many there come. The interpreter alone would go through all of them with each quarter more."""
    kept, most = list[object](), 0
    for _ in range(500):
        kept.append(make_objects(1_000))
        most = max(most, len(gc.get_objects()))  # those that the next collection goes through
    assert most < 20_000
    assert gc.get_freeze_count() > 450_000
    process.bytes += 100
    await asyncio.sleep(3 * LOOK_SECONDS)
    assert len(gc.get_objects()) < 20_000


@pytest.mark.usefixtures("process")
async def test_cycles_of_old_objects_are_collected_without_growth() -> None:
    """Young collections have left these circles, since they lived then."""
    living, circles = living_circles(1_000)
    gc.collect(1)
    living.clear()
    assert len(circles) == 1_000
    kept = make_objects(50_000)
    assert len(circles) == 0, len(kept)


async def test_everything_is_collected_when_the_process_has_grown(process: FakeProcess) -> None:
    """All collections have left these circles, since they lived then. The next growth counts from there."""
    for _ in range(2):
        living, circles = living_circles(1_000)
        gc.collect()
        living.clear()
        kept = make_objects(50_000)
        process.bytes += 100
        await asyncio.sleep(3 * LOOK_SECONDS)
        assert len(circles) == 1_000, len(kept)
        process.bytes += 1
        await asyncio.sleep(3 * LOOK_SECONDS)
        assert len(circles) == 0


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
