"""Garbage collections that hold the event loop for a short time.

The interpreter's full collection goes through every object that can be part of a reference cycle, 0.2 to 0.5 µs each.
In a service with thousands of connections and lookups that is a tenth of a second, every few seconds, and nearly always
in vain: what ends here is freed by its reference counts. So it is left until the process has grown.
"""

import asyncio
import gc
import os
from collections.abc import Callable
from pathlib import Path

_STATM = Path("/proc/self/statm")  # proc_pid_statm(5)
_NEVER = 2**31 - 1
# The interpreter counts objects made less objects ended, old ones too. So under load a collection of the middle
# generation goes through many more than 250 times 3 new objects: 4 ms at most in the siege, and 20 ms with (700, 5).
_YOUNG = (250, 2)
_LOOK_SECONDS = 0.5
# What cycles may take at most, where there are any. Before a container's memory is spent, `memory` collects them too.
_GROWTH_BYTES = 256 << 20


def resident_bytes() -> int:
    """The memory that the process has resident. Raises OSError where the system does not tell."""
    return int(_STATM.read_bytes().split()[1]) * os.sysconf("SC_PAGESIZE")


async def collect_seldom(
    look_seconds: float = _LOOK_SECONDS, measure: Callable[[], int] = resident_bytes, growth_bytes: int = _GROWTH_BYTES
) -> None:
    """Collects everything only when the process has grown by `growth_bytes` since the last time.

    Looks every `look_seconds` until cancelled; then the interpreter collects as before. Young objects are collected all
    the time. What lives at the start is frozen. Returns at once where `measure` raises OSError.
    """
    try:
        most_bytes = measure() + growth_bytes
    except OSError:
        return
    thresholds = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(*_YOUNG, _NEVER)
    try:
        while True:
            await asyncio.sleep(look_seconds)
            if measure() > most_bytes:
                gc.collect()
                most_bytes = measure() + growth_bytes
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
