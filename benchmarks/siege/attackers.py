"""The attackers, as a program: `python -m benchmarks.siege.attackers ATTACK CORE SHARE TOKEN FILE`.

It begins when it has printed its line, does SHARE of what the attack does alone, and ends when standard input is
closed; then it writes to FILE what it has done. It has the lowest priority, so that the honest load keeps its times.
"""

import asyncio
import contextlib
import logging
import os
import ssl
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path

import msgspec
import uvloop

from benchmarks.siege.api_server import PODS
from benchmarks.siege.attacks import ATTACKS, StrangersAttack, TenantsAttack, forged_pod
from benchmarks.siege.callers import Caller, CallFailed, any_certificate, request_head
from benchmarks.siege.network import ADMISSION_PORT, API_PORT, API_SERVER, SERVICE, STRANGERS
from benchmarks.siege.pods import review_of
from benchmarks.siege.records import AttackRecord, encode_record

FORGED_PER_SECOND = 1000.0
SLOW_CONNECTIONS, SLOW_BODY_BYTES, SLOW_PIECE_BYTES = 500, 8 << 20, 256 << 10
IDLE_CONNECTIONS = 4000  # of which half never end their handshake
REVIEWS = 100  # under way at once, of which a busy API server allows 200 in all
TIMEOUT_SECONDS = 3.0
_NICE = 15
_FORGERS = 32
_OPENED_PER_SECOND = 500.0
_AGAIN_SECONDS = 0.5


class Attackers:
    """Does one attack, and counts its requests by what became of them."""

    def __init__(self, share: float) -> None:
        self.counts: Counter[str] = Counter()
        self._share = share
        self._tls = any_certificate()
        self._under_way: set[asyncio.Task[None]] = set()

    async def run(self, attack: TenantsAttack | StrangersAttack) -> None:
        """Attacks until cancelled."""
        programs = {
            "forge": self._forge,
            "send_slowly": self._send_slowly,
            "idle": self._idle,
        }
        await (self._besiege(attack) if isinstance(attack, TenantsAttack) else programs[attack.program]())

    async def _besiege(self, attack: TenantsAttack) -> None:
        """Sends reviews, and tells the watch of pending pods, which are others."""
        reviews = Caller(SERVICE, ADMISSION_PORT, source=API_SERVER, tls=self._tls)
        cluster = Caller(API_SERVER, API_PORT)
        path, most = "/admission/pods", max(int(REVIEWS * self._share), 5)
        async for number in _paced(attack.pods_per_second * self._share):
            if len(self._under_way) < most:
                self._start(self._ask(reviews, path, review_of(attack.pod(2 * number)), "reviews"))
            else:
                self.counts["reviews not sent, too many under way"] += 1
            pending = attack.pod(2 * number + 1)
            self._start(self._ask(cluster, PODS, msgspec.json.encode(pending), "pending pods"))

    async def _forge(self) -> None:
        """Sends reviews from strangers' addresses."""
        callers = [Caller(SERVICE, ADMISSION_PORT, source=source, tls=self._tls) for source in STRANGERS]
        async for number in _paced(FORGED_PER_SECOND * self._share):
            if len(self._under_way) >= _FORGERS:
                self.counts["reviews not sent, too many under way"] += 1
                await asyncio.sleep(0)
                continue
            caller = callers[number % len(callers)]
            self._start(self._ask(caller, "/admission/pods", review_of(forged_pod(number)), "reviews"))

    async def _send_slowly(self) -> None:
        """Keeps connections on which large bodies arrive in pieces and never end."""
        connections = int(SLOW_CONNECTIONS * self._share)
        await asyncio.gather(*(self._keep_sending(number) for number in range(connections)))

    async def _keep_sending(self, number: int) -> None:
        await asyncio.sleep(number / _OPENED_PER_SECOND)
        while True:
            with contextlib.suppress(OSError):
                await self._send_one_body(STRANGERS[number % len(STRANGERS)])
            await asyncio.sleep(_AGAIN_SECONDS)

    async def _send_one_body(self, source: str) -> None:
        """Sends a head and the body's pieces, one a second; the last piece is held back for ever."""
        reader, writer = await asyncio.open_connection(
            SERVICE, ADMISSION_PORT, local_addr=(source, 0), ssl=self._tls, ssl_shutdown_timeout=1
        )
        self.counts["connections opened"] += 1
        writer.write(request_head("/admission/pods", SLOW_BODY_BYTES) + b'{"kind":"AdmissionReview","x":"')
        answered = asyncio.create_task(reader.read(1))
        try:
            for _ in range(SLOW_BODY_BYTES // SLOW_PIECE_BYTES - 1):
                writer.write(b"x" * SLOW_PIECE_BYTES)
                self.counts["pieces sent"] += 1
                done, _ = await asyncio.wait([answered], timeout=1.0)
                if done:
                    return
            await asyncio.wait([answered])
        finally:
            answered.cancel()
            writer.transport.abort()

    async def _idle(self) -> None:
        """Keeps connections that send nothing: half of them before the handshake, half of them after it."""
        connections = int(IDLE_CONNECTIONS * self._share)
        await asyncio.gather(*(self._keep_idle(number) for number in range(connections)))

    async def _keep_idle(self, number: int) -> None:
        await asyncio.sleep(number / _OPENED_PER_SECOND)
        tls = self._tls if number % 2 else None
        while True:
            with contextlib.suppress(OSError):
                await self._idle_once(STRANGERS[number % len(STRANGERS)], tls)
            await asyncio.sleep(_AGAIN_SECONDS)

    async def _idle_once(self, source: str, tls: ssl.SSLContext | None) -> None:
        reader, writer = await asyncio.open_connection(SERVICE, ADMISSION_PORT, local_addr=(source, 0), ssl=tls)
        self.counts["connections opened"] += 1
        try:
            await reader.read(1)
        finally:
            writer.transport.abort()

    async def _ask(self, caller: Caller, path: str, body: bytes, what: str) -> None:
        try:
            await caller.ask(path, body, TIMEOUT_SECONDS)
        except CallFailed as exc:
            self.counts[f"{what}: {exc}"] += 1
        else:
            self.counts[f"{what} answered"] += 1

    def _start(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)


async def _paced(rate: float) -> AsyncIterator[int]:
    """Yields 0, 1, 2 …, `rate` a second; what is late is made up for in bursts of a tenth of a second at most."""
    started, number = time.monotonic(), 0
    while True:
        behind = time.monotonic() - started - number / rate
        if behind < 0:
            await asyncio.sleep(max(-behind, 0.002))
        elif behind > 0.1:
            started += behind - 0.1
        yield number
        number += 1


async def _run(name: str, share: float, path: Path) -> None:
    attackers = Attackers(share)
    print("true", flush=True)
    attacking = asyncio.create_task(attackers.run(ATTACKS[name]))
    ended = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    await asyncio.wait([attacking, ended], return_when=asyncio.FIRST_COMPLETED)
    if attacking.done():
        attacking.result()
    with path.open("ab") as log:
        log.write(encode_record(AttackRecord(name, dict(attackers.counts))))
    os._exit(0)  # thousands of connections, which nobody waits for


def main() -> None:
    """Runs the attackers of one attack."""
    name, core, share, path = sys.argv[1:]
    os.sched_setaffinity(0, {int(core)})
    os.setpriority(os.PRIO_PROCESS, 0, _NICE)
    logging.getLogger("asyncio").disabled = True  # uvloop reports each TLS connection that is cut off
    uvloop.run(_run(name, float(share), Path(path)))


if __name__ == "__main__":
    main()
