"""One fetcher as the service has it: the process, the questions that it has not answered, and when it is ended.

It is ended when it does not answer a ping, when it says what cannot be read, and when its socket ends. Then all that it
was asked fails with `FetcherEnded`.
"""

import asyncio
import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys

import msgspec

from extender.credentials.keyring import NO_OPERATOR
from extender.errors import ConfigError
from extender.fetcher.bounds import OVER_MEMORY, kill_session
from extender.fetcher.messages import (
    Channel,
    Look,
    OperatorIs,
    Ping,
    Pong,
    ProtocolError,
    Ready,
    Refused,
    ToQuestion,
    decode_from_fetcher,
)
from extender.fetcher.settings import FetcherSettings
from extender.metrics import add_sums
from extender.registry_metrics import set_gauges

MAIN, ALONE = "main", "alone"

_START_SECONDS = 20.0
_PING_SECONDS, _PONG_SECONDS = 1.0, 4.0
_REAP_SECONDS = 0.005
# The C library waits this long for a name server, so that a zone that hangs holds a thread no longer than a lookup. Its
# allocator gives the memory of a body back to the kernel, and keeps what threads free in reach of the others.
_ENVIRONMENT = {
    "RES_OPTIONS": "timeout:2 attempts:2",
    "MALLOC_ARENA_MAX": "2",
    "MALLOC_MMAP_THRESHOLD_": "131072",
    "MALLOC_TRIM_THRESHOLD_": "1048576",
}


class FetcherEnded(Exception):
    """The fetcher has ended before it answered. The text is the cause."""


class FetcherChild:
    """A fetcher's process. `cause` is why it has ended, empty before that.

    `operator_id` stands for the operator's credentials, as the process has said last.
    """

    def __init__(self, settings: FetcherSettings, name: str) -> None:
        """`name` is MAIN or ALONE."""
        self._settings = settings
        self.name = name
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._numbers = itertools.count(1)
        self._pending: dict[int, asyncio.Future[ToQuestion]] = {}
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pinging: asyncio.Task[None] | None = None
        self._socket_ended = asyncio.Event()
        self._finishing: asyncio.Task[None] | None = None
        self.cause = ""
        self.operator_id = NO_OPERATOR

    @property
    def pid(self) -> int:
        """The number of the process."""
        assert self._process is not None  # noqa: S101 - it has been started
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether it can be asked nothing any more."""
        return self._socket_ended.is_set() or self.cause != ""

    async def start(self) -> None:
        """Returns when questions can be asked.

        Raises:
            OSError: the program cannot be started.
            ConfigError: its settings cannot be used.
            ProtocolError: its settings are too long to be sent.
            FetcherEnded: it ended.
        """
        try:
            await self._open()
        except BaseException:
            self.kill("unstarted")
            raise
        try:
            async with asyncio.timeout(_START_SECONDS):
                await asyncio.shield(self._ready)
        except TimeoutError:
            self.kill("silent")
            raise FetcherEnded(self.cause) from None
        self._pinging = asyncio.create_task(self._ping())

    async def _open(self) -> None:
        """Starts the program, and sends it the settings."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = subprocess.Popen(  # noqa: ASYNC220, S603 - it takes a millisecond; our own program
                    [sys.executable, "-m", "extender.fetcher", str(theirs.fileno()), str(os.getpid())],
                    pass_fds=[theirs.fileno()], env={**_ENVIRONMENT, **os.environ}, start_new_session=True,
                )  # fmt: skip
            self._finishing = asyncio.create_task(self._finish(self._process))
            ours.setblocking(False)
            self._channel = await Channel.over(ours, self._receive, self._note_end)
        except BaseException:
            ours.close()
            raise
        self._channel.send(self._settings)

    async def ask(self, question: Look | Ping) -> ToQuestion:
        """Returns the answer.

        Raises:
            FetcherEnded: there will be none.
            ProtocolError: the question is too long to be sent.
        """
        if self._channel is None or self.has_ended:
            raise FetcherEnded(self.cause)
        number = next(self._numbers)
        numbered = msgspec.structs.replace(question, id=number)
        answer: asyncio.Future[ToQuestion] = asyncio.get_running_loop().create_future()
        self._channel.send(numbered)
        self._pending[number] = answer  # until it is answered, waited for or not
        return await answer

    async def wait_end(self) -> None:
        """Returns when the process has ended, with all that it has started; `cause` then says why."""
        if self._finishing:
            await asyncio.shield(self._finishing)

    async def end(self) -> None:
        """Ends the process."""
        self.kill("ended")
        await self.wait_end()

    def kill(self, cause: str) -> None:
        """Ends the process now."""
        self.cause = self.cause or cause
        if self._process and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._socket_ended.set()

    def _receive(self, message: bytes) -> None:
        answer = decode_from_fetcher(message)
        if isinstance(answer, (Ready, Refused)):
            self._conclude_start(answer)
            return
        if isinstance(answer, OperatorIs):
            self.operator_id = answer.credentials
            return
        pending = self._pending.pop(answer.id, None)
        if pending is None:
            raise ProtocolError("an answer to no question")
        if isinstance(answer, Pong):
            add_sums(answer.counted)
            set_gauges(answer.gauges)
        if not pending.done():
            pending.set_result(answer)

    def _conclude_start(self, answer: Ready | Refused) -> None:
        if self._ready.done():
            raise ProtocolError("a start that has been concluded")
        if isinstance(answer, Ready):
            self._ready.set_result(None)
        else:
            self.cause = "refused"
            self._ready.set_exception(ConfigError(answer.why))

    def _note_end(self) -> None:
        if self._channel and self._channel.is_garbled:
            self.cause = self.cause or "garbled"
        if not self._ready.done():
            self._ready.set_exception(FetcherEnded(self.cause))
            self._ready.exception()  # which is no news if nobody waits
        self._socket_ended.set()

    async def _finish(self, process: "subprocess.Popen[bytes]") -> None:
        """Waits for the end, has nothing of the process left, and fails what it was asked."""
        await self._socket_ended.wait()
        if self._channel:
            self._channel.close()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(RuntimeError):  # no thread can be started
            await asyncio.to_thread(kill_session, process.pid)
        while process.poll() is None:  # noqa: ASYNC110 - an exit is no event of the loop on all systems
            await asyncio.sleep(_REAP_SECONDS)
        self.cause = self.cause or ("over" if process.returncode == OVER_MEMORY else "ended")
        if self._pinging:
            self._pinging.cancel()
            await asyncio.gather(self._pinging, return_exceptions=True)
        pending, self._pending = self._pending, {}
        for each in pending.values():
            if not each.done():
                each.set_exception(FetcherEnded(self.cause))

    async def _ping(self) -> None:
        """Asks once a second how the process is, and ends it if it does not say."""
        while True:
            pong = asyncio.ensure_future(self.ask(Ping()))
            try:
                await asyncio.wait([pong], timeout=_PONG_SECONDS)
                if not pong.done():
                    self.kill("silent")
                    return
                pong.result()
            except FetcherEnded:
                return
            finally:
                pong.cancel()
            await asyncio.sleep(_PING_SECONDS)
