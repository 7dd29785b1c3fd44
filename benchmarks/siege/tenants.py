"""The honest tenants: pods of ten namespaces with new images, which are reviewed and then filtered.

`python -m benchmarks.siege.tenants CORE RATE TOKEN FILE` creates RATE pods a second from now on, each at its own time
whatever became of those before, and writes records to FILE. It prints a line when it starts, and ends when standard
input is closed and the last pods have got their answers.

A pod is reviewed first, with a timeout of three seconds as in the shipped webhook. Then it is pending, and is filtered:
one call at a time over all pods, as kube-scheduler asks, with its timeout of two seconds, and again after 1, 2 and 4 s
if the answer was an error or none.
"""

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import IO, Any

import msgspec
import uvloop

from benchmarks.siege.answers import Judgement, judge_filter, judge_review
from benchmarks.siege.api_server import LOGIN, PODS
from benchmarks.siege.callers import Caller, CallFailed, any_certificate
from benchmarks.siege.images import honest_image, platforms_of_image
from benchmarks.siege.network import ADMISSION_PORT, API_PORT, API_SERVER, SCHEDULER_PORT, SERVICE
from benchmarks.siege.pods import filter_of, honest_namespace, new_pod, review_of
from benchmarks.siege.records import GENERATOR, PodRecord, Record, encode_record
from benchmarks.siege.timers import go_first, note_delays

REVIEW_SECONDS, FILTER_SECONDS = 3.0, 2.0  # webhook timeoutSeconds and extender httpTimeout, as shipped
CALLS = 4
FIRST_RETRY_SECONDS = 1.0  # kube-scheduler's podInitialBackoffSeconds
LAST_SECONDS = 30.0  # more than all timeouts of a pod together


class Tenants:
    """Creates pods and follows each through its review and its filter calls."""

    def __init__(self, path: str, log: IO[bytes]) -> None:
        """`path` is that of the webhook."""
        self._reviews = Caller(SERVICE, ADMISSION_PORT, source=API_SERVER, tls=any_certificate())
        self._filters = Caller("127.0.0.1", SCHEDULER_PORT)
        self._cluster = Caller(API_SERVER, API_PORT)
        self._path, self._log = path, log
        self._scheduler = asyncio.Lock()  # it has one call under way
        self._pods: set[asyncio.Task[None]] = set()

    async def run(self, rate: float, ended: asyncio.Event) -> None:
        """Creates pods until `ended`, then waits for those under way."""
        started, number = time.monotonic(), int(time.monotonic() * 1000) % 10_000_000 * 100
        first = number
        while not ended.is_set():
            due = started + (number - first) / rate
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            task = asyncio.create_task(self._follow(number, due))
            self._pods.add(task)
            task.add_done_callback(self._pods.discard)
            number += 1
        if self._pods:
            await asyncio.wait(self._pods, timeout=LAST_SECONDS)

    async def _follow(self, number: int, due: float) -> None:
        namespace = number % 10
        image = honest_image(namespace, number)
        secrets = [LOGIN] if namespace % 2 else []
        pod = new_pod(honest_namespace(namespace), number, [image], secrets)
        platforms = platforms_of_image(image)
        seconds, judged = await self._review(pod, platforms, due)
        await self._cluster.ask(PODS, msgspec.json.encode(pod), FILTER_SECONDS)
        calls, settled = await self._schedule(pod, platforms)
        self.write(
            PodRecord(
                at=due,
                review_seconds=seconds,
                review=judged,
                filter_seconds=tuple(took for took, _ in calls),
                filters=tuple(said for _, said in calls),
                settled_seconds=settled,
            )
        )

    async def _review(self, pod: dict[str, Any], platforms: tuple[str, ...], due: float) -> tuple[float | None, str]:
        try:
            answer = await self._reviews.ask(self._path, review_of(pod), REVIEW_SECONDS)
        except CallFailed as exc:
            return None, f"lost: review {exc}"
        seconds = time.monotonic() - due
        return seconds, judge_review(answer, pod, platforms)

    async def _schedule(
        self, pod: dict[str, Any], platforms: tuple[str, ...]
    ) -> tuple[list[tuple[float, str]], float | None]:
        """Returns each call's seconds and judgement, and the seconds until the image was known."""
        body, calls, first = filter_of(pod), list[tuple[float, str]](), time.monotonic()
        for call in range(CALLS):
            due = time.monotonic()
            async with self._scheduler:
                said = await self._filter(body, platforms)
            calls.append((time.monotonic() - due, said))
            if said in (Judgement.KNOWN, Judgement.WRONG):
                return calls, time.monotonic() - first if said == Judgement.KNOWN else None
            if call < CALLS - 1:
                await asyncio.sleep(FIRST_RETRY_SECONDS * 2**call)
        return calls, None

    async def _filter(self, body: bytes, platforms: tuple[str, ...]) -> str:
        try:
            answer = await self._filters.ask("/scheduler/filter", body, FILTER_SECONDS)
        except CallFailed as exc:
            return f"lost: filter {exc}"
        return judge_filter(answer, platforms)

    def write(self, record: Record) -> None:
        """Writes a record down."""
        self._log.write(encode_record(record))


async def _run(rate: float, path: Path) -> None:
    ended = asyncio.Event()
    with path.open("ab", buffering=0) as log:
        tenants = Tenants("/admission/pods", log)
        beating = asyncio.create_task(note_delays(GENERATOR, tenants.write))
        print("true", flush=True)
        running = asyncio.create_task(tenants.run(rate, ended))
        await asyncio.to_thread(sys.stdin.read)
        ended.set()
        await running
        beating.cancel()


def main() -> None:
    """Runs the tenants."""
    core, rate, path = sys.argv[1:]
    os.sched_setaffinity(0, {int(core)})
    go_first()
    uvloop.run(_run(float(rate), Path(path)))


if __name__ == "__main__":
    main()
