"""What is given up as a container's memory is spent."""

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator

import pytest
import structlog

from extender.budgets import SCARCITY
from extender.metrics import REGISTRY
from extender.service import memory
from extender.service.control_group import MemoryFigures
from extender.service.memory import SHORTAGES, stay_within_limit
from extender.tables import Shrinkable, Table

LIMIT = 1_000


def full_collections() -> int:
    """How many there have been."""
    return int(gc.get_stats()[2]["collections"])


class Container:
    """One whose figures a test sets."""

    def __init__(self) -> None:
        self.used = 100
        self.limit: int | None = LIMIT
        self.is_readable = True
        self.looks = 0

    def measure(self) -> MemoryFigures | None:
        """Returns them."""
        self.looks += 1
        if not self.is_readable:
            raise OSError("no such file")
        return None if self.limit is None else MemoryFigures(self.used, self.limit)

    async def use(self, used: int) -> None:
        """Uses so much, and waits until somebody has looked twice."""
        self.used, before = used, self.looks
        while self.looks < before + 3:
            await asyncio.sleep(0)


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch) -> Table[int, int]:
    """The one cache that shrinks, of 1,000 rows."""
    table: Table[int, int] = Table(1_000)
    for number in range(1_000):
        table.put(number, number)

    def shrinkable() -> tuple[Shrinkable, ...]:
        return (table, Table[int, int](1))

    monkeypatch.setattr(memory, "shrinkable", shrinkable)
    return table


@pytest.fixture(autouse=True)
def _nothing_is_short() -> Iterator[None]:
    yield
    assert not SCARCITY.is_on


def shown() -> tuple[float, float]:
    """What the metrics say of memory: used, and the limit."""
    amounts = {
        sample.labels["of"]: sample.value
        for family in REGISTRY.collect()
        for sample in family.samples
        if sample.name == "multiarch_container_memory_bytes"
    }
    return amounts["used"], amounts["limit"]


@pytest.fixture
async def container() -> AsyncIterator[Container]:
    """One whose memory is watched; in the end budgets are as large as ever."""
    container = Container()
    task = asyncio.create_task(stay_within_limit(container.measure, 0))
    await asyncio.sleep(0)
    yield container
    assert not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_with_memory_enough_nothing_is_given_up(container: Container, cache: Table[int, int]) -> None:
    """Up to seven tenths of the limit."""
    await container.use(699)
    assert len(cache) == 1_000
    assert shown() == (699, 1_000)


async def test_each_time_that_memory_has_grown_rows_are_given_up(container: Container, cache: Table[int, int]) -> None:
    """A quarter of those that are left, oldest first; what was freed may stay the process's."""
    before = SHORTAGES["caches"].value
    await container.use(700)
    assert [key for key, _ in cache.items()] == list(range(250, 1_000))
    await container.use(719)
    assert len(cache) == 750
    await container.use(721)
    assert len(cache) == 562
    await container.use(650)
    await container.use(700)
    assert len(cache) == 421
    assert SHORTAGES["caches"].value == before + 3
    await container.use(900)
    for used in range(920, 1_500, 20):
        await container.use(used)
    assert len(cache) <= 1


async def test_garbage_is_collected_once_a_minute(container: Container, cache: Table[int, int]) -> None:
    """Before rows are given up, since it may be what memory is spent for."""
    before = full_collections()
    await container.use(700)
    assert full_collections() == before + 1
    await container.use(730)
    assert full_collections() == before + 1
    assert len(cache) == 562


async def test_budgets_are_smaller_until_memory_is_enough_again(container: Container, cache: Table[int, int]) -> None:
    """For a while longer than it took, so that they do not change all the time."""
    before = SHORTAGES["budgets"].value
    states = []
    for used in (849, 851, 810, 799, 849, 851):
        await container.use(used)
        states.append(SCARCITY.is_on)
    assert states == [False, True, True, False, False, True]
    assert SHORTAGES["budgets"].value == before + 2
    assert len(cache) < 1_000


async def test_it_is_logged_once_a_minute(container: Container, cache: Table[int, int]) -> None:
    """Though rows are given up more often."""
    with structlog.testing.capture_logs() as logs:
        for used in (700, 730, 760):
            await container.use(used)
    assert logs == [
        {"event": "memory.short", "log_level": "warning", "used_bytes": 700, "limit_bytes": 1_000, "evicted_rows": 250}
    ]
    assert len(cache) < 500


@pytest.mark.parametrize("is_readable", [True, False])
async def test_without_a_limit_nothing_is_given_up(
    container: Container, cache: Table[int, int], is_readable: bool
) -> None:
    """Nor while figures cannot be read; they are read again."""
    await container.use(900)
    assert SCARCITY.is_on
    container.limit, container.is_readable = None, is_readable
    rows = len(cache)
    await container.use(990)
    assert len(cache) == rows
    assert shown() == (0, 0)
    container.limit, container.is_readable = LIMIT, True
    await container.use(950)
    assert len(cache) < rows
