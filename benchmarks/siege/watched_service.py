"""`multiarch-extender`, with a watch on its event loop: `python -m benchmarks.siege.watched_service serve …`.

The product is as it is: this program wraps `run_service`, so that a timer beats in the service's event loop, and a
thread looks where the main thread is when a beat is late. Late beats go to the file that $SIEGE_HOLDS names.
"""

import asyncio
import gc
import os
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Self
from unittest.mock import patch

from benchmarks.siege.records import HoldRecord, encode_record
from extender.cli import serve as command
from extender.cli.main import main
from extender.config.tree import Config
from extender.service.process import run_service

BEAT_SECONDS = 0.005
LATE_SECONDS = 0.02  # when the thread looks
NOTED_SECONDS = 0.01
_LOOK_AGAIN_SECONDS = 0.01
_LOOPS = ("asyncio/runners.py", "uvloop/")
_INSIDE = "the event loop's own code (sockets, TLS)"
HOLDS = "SIEGE_HOLDS"


class LoopWatch:
    """Notes when the running event loop runs a timer late, and where its thread was."""

    def __init__(self, path: Path) -> None:
        self._log = path.open("ab", buffering=0)
        self._schedule = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)
        self._thread = threading.get_ident()
        self._beaten_at = time.monotonic()
        self._cpu_seconds, self._waited_seconds = self._clocks()
        self._collected_seconds, self._collecting_since = 0.0, 0.0
        self._seen: Counter[str] = Counter()
        self._ended = threading.Event()
        self._looking = threading.Thread(target=self._look, name="loop-watch", daemon=True)

    def __enter__(self) -> Self:
        """Starts the beat and the thread."""
        gc.callbacks.append(self._note_collection)
        self._looking.start()
        self._next = asyncio.get_running_loop().call_later(BEAT_SECONDS, self._beat)
        return self

    def __exit__(self, *_: object) -> None:
        """Ends both."""
        self._next.cancel()
        self._ended.set()
        self._looking.join()
        gc.callbacks.remove(self._note_collection)
        self._log.close()
        os.close(self._schedule)

    def _beat(self) -> None:
        now, (cpu_seconds, waited_seconds) = time.monotonic(), self._clocks()
        waited = waited_seconds - self._waited_seconds
        held = now - self._beaten_at - BEAT_SECONDS - waited
        if held >= NOTED_SECONDS:
            record = HoldRecord(
                at=now,
                held_seconds=held,
                waited_seconds=waited,
                cpu_seconds=cpu_seconds - self._cpu_seconds,
                collected_seconds=self._collected_seconds,
                cause=self._seen.most_common(1)[0][0] if self._seen else "",
            )
            self._log.write(encode_record(record))
        self._beaten_at, self._cpu_seconds, self._waited_seconds = now, cpu_seconds, waited_seconds
        self._collected_seconds = 0.0
        self._seen = Counter()
        self._next = asyncio.get_running_loop().call_later(BEAT_SECONDS, self._beat)

    def _clocks(self) -> tuple[float, float]:
        """Returns the seconds that the main thread has run, and those that it has waited for a core."""
        ran, waited, _ = os.pread(self._schedule, 64, 0).split()
        return int(ran) / 1e9, int(waited) / 1e9

    def _look(self) -> None:
        """Sleeps until a beat is late, and then looks where the main thread is, until it is on time again."""
        _go_before_other_threads()
        left = 0.0
        while not self._ended.wait(left):
            left = self._beaten_at + BEAT_SECONDS + LATE_SECONDS - time.monotonic()
            if left <= 0:
                frame = sys._current_frames().get(self._thread)  # noqa: SLF001 - what it is for
                self._seen[cause_of(frame)] += 1
                left = _LOOK_AGAIN_SECONDS

    def _note_collection(self, phase: str, _info: dict[str, int]) -> None:
        if phase == "start":
            self._collecting_since = time.perf_counter()
        else:
            self._collected_seconds += time.perf_counter() - self._collecting_since


def _go_before_other_threads() -> None:
    """Raises this thread's priority if the process is in a real-time class, in which equals wait for each other."""
    if os.sched_getscheduler(0) == os.SCHED_RR:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(2))


def cause_of(frame: FrameType | None) -> str:
    """Returns the innermost function of the package, and what it called if that is not the package's."""
    while frame and frame.f_code.co_filename == __file__:  # the callback of a garbage collection
        frame = frame.f_back
    innermost = _named(frame) if frame else ""
    while frame and f"{os.sep}extender{os.sep}" not in frame.f_code.co_filename:
        frame = frame.f_back
    if frame is None or frame.f_code.co_name == "serve":
        return _INSIDE if innermost.startswith(_LOOPS) else innermost
    named = _named(frame)
    return named if named == innermost else f"{named} > {innermost}"


def _named(frame: FrameType) -> str:
    path = Path(frame.f_code.co_filename)
    return f"{path.parent.name}/{path.name}:{frame.f_code.co_qualname}"


async def run_watched(config: Config) -> None:
    """Runs the service with a watch on its event loop."""
    with LoopWatch(Path(os.environ[HOLDS])):
        await run_service(config)


if __name__ == "__main__":
    with patch.object(command, "run_service", run_watched):
        main()
