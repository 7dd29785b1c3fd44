"""How late the timers of a process are: what it measures may be late by as much without the service's doing."""

import asyncio
import contextlib
import os
import time
from collections.abc import Callable

from benchmarks.siege.records import DelayRecord

BEAT_SECONDS = 0.005


async def note_delays(who: str, write: Callable[[DelayRecord], object]) -> None:
    """Writes once a second how late this event loop's timers were. Runs until cancelled."""
    late, noted = list[float](), time.monotonic()
    while True:
        due = time.monotonic() + BEAT_SECONDS
        await asyncio.sleep(BEAT_SECONDS)
        now = time.monotonic()
        late.append(round(max(0.0, now - due), 5))
        if now - noted >= 1:
            write(DelayRecord(now, who, tuple(late)))
            late.clear()
            noted = now


def go_first() -> None:
    """Puts this process into a real-time class, so that it is on time whatever else its core does; if it may."""
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
