"""The attackers, as a program: `python -m benchmarks.siege.attackers FILE ATTACK …`.

It attacks from when it has printed its line until standard input is closed; then it writes to FILE what it has done.
"""

import asyncio
import contextlib
import logging
import os
import ssl
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from pathlib import Path

import aiohttp
import msgspec
import uvloop

from benchmarks.siege.attacks import ATTACKS, Attack, forged_pod
from benchmarks.siege.calls import PENDING_PODS, REVIEWS, CallFailed, call, new_session, review_of
from benchmarks.siege.network import ADMISSION_PORT, SERVICE, STRANGERS

FORGED_PER_SECOND = 1000.0
SLOW_CONNECTIONS, SLOW_BODY_BYTES, SLOW_PIECE_BYTES = 500, 8 << 20, 256 << 10
IDLE_CONNECTIONS = 4000  # of which half never begin their handshake
MOST_TENANTS, MOST_STRANGERS = 100, 32  # calls under way at once; a busy API server allows 200 reviews in all
TOGETHER = 2  # the attacks of all tenants together come as often as so many of them alone
TIMEOUT_SECONDS = 3.0
_OPENED_PER_SECOND, _AGAIN_SECONDS = 500.0, 0.5
_SLOW_HEAD = b"POST /admission/pods HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"


class Attackers:
    """Makes attacks at the same time, and counts their requests by what became of them."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._under_way: set[asyncio.Task[None]] = set()
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._tls.check_hostname, self._tls.verify_mode = False, ssl.CERT_NONE
        self._programs: dict[str, Callable[[], Coroutine[object, object, None]]] = {
            "forge": self._forge,
            "send_slowly": lambda: self._keep_connections(SLOW_CONNECTIONS, self._send_slowly),
            "idle": lambda: self._keep_connections(IDLE_CONNECTIONS, self._idle),
        }

    async def run(self, attacks: Sequence[Attack]) -> None:
        """Attacks until cancelled."""
        of_tenants = [attack for attack in attacks if attack.image]
        share = min(1.0, TOGETHER / max(len(of_tenants), 1))
        strangers = [self._programs[attack.program]() for attack in attacks if attack.program]
        await asyncio.gather(*strangers, *(self._besiege(attack, share) for attack in of_tenants))

    async def _besiege(self, attack: Attack, share: float) -> None:
        """Sends reviews, and tells the watch of pending pods, which are others."""
        async with new_session() as session:
            async for number in _paced(attack.pods_per_second * share):
                if len(self._under_way) < MOST_TENANTS:
                    self._start(self._call(session, REVIEWS, review_of(attack.pod(2 * number)), "reviews"))
                else:
                    self.counts["reviews not sent, too many under way"] += 1
                pending = msgspec.json.encode(attack.pod(2 * number + 1))
                await self._call(session, PENDING_PODS, pending, "pending pods")

    async def _forge(self) -> None:
        async with contextlib.AsyncExitStack() as stack:
            sessions = [await stack.enter_async_context(new_session(source)) for source in STRANGERS]
            limit = asyncio.Semaphore(MOST_STRANGERS)
            async for number in _paced(FORGED_PER_SECOND):
                await limit.acquire()
                body = review_of(forged_pod(number))
                task = self._start(self._call(sessions[number % len(sessions)], REVIEWS, body, "forged reviews"))
                task.add_done_callback(lambda _: limit.release())

    async def _call(self, session: aiohttp.ClientSession, url: str, body: bytes, what: str) -> None:
        try:
            await call(session, url, body, TIMEOUT_SECONDS)
        except CallFailed as exc:
            self.counts[f"{what}: {exc}"] += 1
        else:
            self.counts[f"{what} answered"] += 1

    def _start(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return task

    async def _keep_connections(self, number: int, use: Callable[[int], Awaitable[None]]) -> None:
        """Uses so many connections, each again and again."""

        async def keep(index: int) -> None:
            await asyncio.sleep(index / _OPENED_PER_SECOND)
            while True:
                with contextlib.suppress(OSError):
                    await use(index)
                await asyncio.sleep(_AGAIN_SECONDS)

        await asyncio.gather(*map(keep, range(number)))

    @contextlib.asynccontextmanager
    async def _connection(
        self, index: int, tls: ssl.SSLContext | None
    ) -> AsyncIterator[tuple[asyncio.Task[bytes], asyncio.StreamWriter]]:
        """Opens a connection from a stranger's address; the task ends when the service says something, or closes it."""
        source = (STRANGERS[index % len(STRANGERS)], 0)
        reader, writer = await asyncio.open_connection(SERVICE, ADMISSION_PORT, local_addr=source, ssl=tls)
        self.counts["connections opened"] += 1
        answered = asyncio.create_task(reader.read(1))
        try:
            yield answered, writer
        finally:
            answered.cancel()
            writer.transport.abort()

    async def _send_slowly(self, index: int) -> None:
        """Sends a head and the body's pieces, one a second; the last piece is held back for ever."""
        async with self._connection(index, self._tls) as (answered, writer):
            writer.write(_SLOW_HEAD % SLOW_BODY_BYTES + b'{"kind":"AdmissionReview","x":"')
            for _ in range(SLOW_BODY_BYTES // SLOW_PIECE_BYTES - 1):
                writer.write(b"x" * SLOW_PIECE_BYTES)
                done, _ = await asyncio.wait([answered], timeout=1.0)
                if done:
                    return
            await asyncio.wait([answered])

    async def _idle(self, index: int) -> None:
        """Sends nothing, before or after the handshake."""
        async with self._connection(index, self._tls if index % 2 else None) as (answered, _):
            await asyncio.wait([answered])


async def _paced(rate: float) -> AsyncIterator[int]:
    """Yields 0, 1, 2 …, `rate` a second; what is late is made up for in bursts of a tenth of a second at most."""
    started, number = time.monotonic(), 0
    while True:
        behind = time.monotonic() - started - number / rate
        await asyncio.sleep(max(-behind, 0.0))
        started += max(behind - 0.1, 0.0)
        yield number
        number += 1


async def _run(path: Path, names: Sequence[str]) -> None:
    attackers = Attackers()
    print("true", flush=True)
    attacking = asyncio.create_task(attackers.run([ATTACKS[name] for name in names]))
    ended = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    await asyncio.wait([attacking, ended], return_when=asyncio.FIRST_COMPLETED)
    if attacking.done():
        attacking.result()
    path.write_bytes(msgspec.json.encode(attackers.counts))
    os._exit(0)  # thousands of connections, which nobody waits for


if __name__ == "__main__":
    logging.getLogger("asyncio").disabled = True  # uvloop reports each TLS connection that is cut off
    uvloop.run(_run(Path(sys.argv[1]), sys.argv[2:]))
