"""How late the timers of a process are: what it measures may be late by as much without the service's doing."""

import asyncio
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
