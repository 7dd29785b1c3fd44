"""The honest tenants: pods of ten namespaces with new images, which are reviewed and then filtered.

`python -m benchmarks.siege.tenants RATE FILE` creates RATE pods a second from now on, each at its own time
whatever became of those before, and writes a line of JSON for each to FILE. It prints a line when it starts, and ends
when standard input is closed and the last pods have got their answers.

A pod is reviewed first, with a timeout of three seconds as in the shipped webhook. Then it is pending, and is filtered:
one call at a time over all pods, as kube-scheduler asks, with its timeout of two seconds, and again after 1, 2, 4, 8
and 10 s if the answer was an error or none.
"""

import asyncio
import contextlib
import sys
import time
from collections.abc import Awaitable, Callable, Collection, Iterator
from pathlib import Path
from typing import IO

import aiohttp
import msgspec
import uvloop

from benchmarks.siege.answers import Judgement, judge_filter, judge_review
from benchmarks.siege.api_server import LOGIN_SECRET
from benchmarks.siege.attacks import HONEST_NAMESPACES
from benchmarks.siege.calls import (
    FILTER,
    PENDING_PODS,
    REVIEWS,
    CallFailed,
    call,
    filter_of,
    new_pod,
    new_session,
    review_of,
)
from benchmarks.siege.images import honest_image, platforms_of_image

REVIEW_SECONDS, FILTER_SECONDS = 3.0, 2.0  # webhook timeoutSeconds and extender httpTimeout, as shipped
RETRY_SECONDS = (1.0, 2.0, 4.0, 8.0, 10.0, 10.0)  # kube-scheduler's podInitialBackoffSeconds up to podMaxBackoffSeconds
MOST_SECONDS = 28.0  # from when a pod was due; the last ones are done before this program is killed


class PodRecord(msgspec.Struct):
    """An honest pod: when it was due, how late it was created, and what became of its review and its filter calls.

    `filter_seconds` has each call, from when the pod was due in kube-scheduler's queue. `known_seconds` is the time
    from the pod's creation to the right answer of a filter call, None if none came.
    """

    at: float
    late_seconds: float
    review_seconds: float
    filter_seconds: list[float]
    answers: list[str]  # of the review and of each call: a Judgement, or why there is none
    known_seconds: float | None = None

    @property
    def wrong(self) -> int:
        """The number of answers that were not right."""
        return self.answers.count(Judgement.WRONG)

    @property
    def lost(self) -> list[str]:
        """Why answers were lost, one entry each."""
        return [answer for answer in self.answers if answer.startswith("lost")]


_DECODER = msgspec.json.Decoder(PodRecord)


def read_pods(path: Path) -> Iterator[PodRecord]:
    """Yields the records of a file, without a last line that is not whole."""
    for line in path.read_bytes().splitlines(keepends=True):
        if line.endswith(b"\n"):
            yield _DECODER.decode(line)


class Tenants:
    """Creates pods and follows each through its review and its filter calls."""

    def __init__(self, session: aiohttp.ClientSession, scheduler: aiohttp.ClientSession, log: IO[bytes]) -> None:
        self._session, self._scheduler, self._log = session, scheduler, log
        self._turn = asyncio.Lock()  # kube-scheduler has one call under way

    async def run(self, rate: float, ended: asyncio.Event) -> None:
        """Creates pods until `ended`, then waits for those under way."""
        started, first, count = time.monotonic(), int(time.monotonic() * 1000) % 10_000_000 * 100, 0
        async with asyncio.TaskGroup() as pods:
            while not ended.is_set():
                due = started + count / rate
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                pods.create_task(self._follow(first + count, due))
                count += 1

    async def _follow(self, number: int, due: float) -> None:
        late = time.monotonic() - due
        namespace = number % len(HONEST_NAMESPACES)
        image = honest_image(namespace, number)
        pod = new_pod(HONEST_NAMESPACES[namespace], number, [image], [LOGIN_SECRET] if namespace % 2 else [])
        platforms = platforms_of_image(image)
        review = await _judged(
            call(self._session, REVIEWS, review_of(pod), REVIEW_SECONDS),
            lambda answer: judge_review(answer, pod, platforms),
        )
        record = PodRecord(due, late, time.monotonic() - due, [], [review])
        await call(self._session, PENDING_PODS, msgspec.json.encode(pod), REVIEW_SECONDS)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, due + MOST_SECONDS - time.monotonic())):
                await self._schedule(filter_of(pod), platforms, record)
        if record.answers[-1] == Judgement.KNOWN and record.filter_seconds:
            record.known_seconds = time.monotonic() - due
        self._log.write(msgspec.json.encode(record) + b"\n")

    async def _schedule(self, body: bytes, platforms: Collection[str], record: PodRecord) -> None:
        """Has the pod filtered until the image is known."""
        for pause in RETRY_SECONDS:
            began = time.monotonic()
            try:
                async with self._turn:
                    said = await _judged(
                        call(self._scheduler, FILTER, body, FILTER_SECONDS),
                        lambda answer: judge_filter(answer, platforms),
                    )
            finally:
                record.filter_seconds.append(time.monotonic() - began)
            record.answers.append(said)
            if said in (Judgement.KNOWN, Judgement.WRONG):
                return
            await asyncio.sleep(pause)


async def _judged(call: Awaitable[bytes], judge: Callable[[bytes], Judgement]) -> str:
    """Returns what the answer is worth, or why there is none."""
    try:
        return judge(await call)
    except CallFailed as exc:
        return f"lost: {exc}"


async def _run(rate: float, path: Path) -> None:
    ended = asyncio.Event()
    with path.open("wb", buffering=0) as log:
        async with new_session() as session, new_session("127.0.0.1") as scheduler:
            print("true", flush=True)
            running = asyncio.create_task(Tenants(session, scheduler, log).run(rate, ended))
            await asyncio.to_thread(sys.stdin.read)
            ended.set()
            await running


if __name__ == "__main__":
    uvloop.run(_run(float(sys.argv[1]), Path(sys.argv[2])))
