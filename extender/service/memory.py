"""Keeps the process within the memory that its container may have.

Caches and budgets are bounded one by one, and few clusters have need of them all. Where somebody fills many of them at
the same time they are more than a container has. So from 70 % of its limit on, whenever memory has grown, garbage is
collected and caches give up rows that can be had again. From 85 % on, budgets are a quarter of what they are otherwise,
and connections that are too many then are closed.
"""

import asyncio
import gc
from collections.abc import Callable

import structlog

from extender.budgets import SCARCITY
from extender.metrics import counter, gauge
from extender.service.allocator import give_back_free_memory
from extender.service.control_group import MemoryFigures, own_control_group
from extender.tables import shrinkable

log = structlog.get_logger()

BYTES = gauge(
    "multiarch_container_memory_bytes",
    "Memory of the container that cannot be reclaimed, and its limit; 0: there is none.",
    "of",
    ("used", "limit"),
)
SHORTAGES = counter(
    "multiarch_memory_shortages_total",
    "Times that memory was short, by what became smaller for it.",
    "what",
    ("caches", "budgets"),
)

# Of the limit. Memory grows by a few MB from look to look at most, but for the largest bodies of the scheduler,
# which have a budget.
_FULL, _SHORT, _NO_LONGER_SHORT = 0.70, 0.85, 0.80
# What is freed is used again, but most of it stays the process's. So what counts is whether memory still grows.
_GROWTH = 0.02
_EVICTED_SHARE = 4
_LOOK_SECONDS = 0.1
_BETWEEN_LOG_LINES_SECONDS = 60.0
# A collection of all garbage holds the event loop for up to half a second.
_BETWEEN_COLLECTIONS_SECONDS = 60.0
# Rows evicted before other work gets its turn, at most 3 µs each.
_ROWS_AT_ONCE = 128


async def stay_within_limit(
    measure: Callable[[], MemoryFigures | None] | None = None, look_seconds: float = _LOOK_SECONDS
) -> None:
    """Watches the container's memory every `look_seconds` until cancelled.

    Returns at once where the system tells no figures. `measure` may raise OSError and ValueError.
    """
    if measure is None:
        group = own_control_group()
        if group is None:
            return
        measure = group.figures
    watch = _MemoryWatch(measure, asyncio.get_running_loop().time)
    try:
        while True:
            await watch.look()
            await asyncio.sleep(look_seconds)
    finally:
        SCARCITY.set_on(False)


class _MemoryWatch:
    """What memory was when rows were evicted last, and when that is logged, and garbage collected, next."""

    def __init__(self, measure: Callable[[], MemoryFigures | None], clock: Callable[[], float]) -> None:
        self._measure = measure
        self._clock = clock
        self._least_bytes = 0
        self._next_log_line = self._next_collection = clock()

    async def look(self) -> None:
        """Does what the memory of this moment asks for."""
        figures = self._figures()
        BYTES["used"].set(figures.used_bytes if figures else 0)
        BYTES["limit"].set(figures.limit_bytes if figures else 0)
        if figures is None:
            return
        used, limit = figures
        self._set_short(used > limit * (_NO_LONGER_SHORT if SCARCITY.is_on else _SHORT))
        self._least_bytes = min(self._least_bytes, used)
        if used < limit * _FULL or used < self._least_bytes + limit * _GROWTH:
            return
        if self._clock() >= self._next_collection:
            self._next_collection = self._clock() + _BETWEEN_COLLECTIONS_SECONDS
            gc.collect()
        rows = await _evict()
        SHORTAGES["caches"].inc()
        if self._clock() >= self._next_log_line:
            self._next_log_line = self._clock() + _BETWEEN_LOG_LINES_SECONDS
            log.warning("memory.short", used_bytes=used, limit_bytes=limit, evicted_rows=rows)
        after = self._figures()
        self._least_bytes = after.used_bytes if after else used

    def _figures(self) -> MemoryFigures | None:
        try:
            return self._measure()
        except (OSError, ValueError):
            return None

    @staticmethod
    def _set_short(is_short: bool) -> None:
        if is_short and not SCARCITY.is_on:
            SHORTAGES["budgets"].inc()
        SCARCITY.set_on(is_short)


async def _evict() -> int:
    """Evicts a quarter of the rows of each cache that shrinks; returns how many."""
    evicted = 0
    for cache in shrinkable():
        left = -(-len(cache) // _EVICTED_SHARE)
        while left > 0 and (gone := cache.evict(min(left, _ROWS_AT_ONCE))):
            left -= gone
            evicted += gone
            await asyncio.sleep(0)
    give_back_free_memory()
    return evicted
