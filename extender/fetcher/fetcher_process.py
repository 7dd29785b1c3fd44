"""The fetcher's process: answers the service's questions until the service ends, or one of the bounds is reached.

It has asyncio's own event loop, since uvloop resolves names in four threads. It ends by `os._exit` always, so that a
thread that waits for a name server holds nothing up.
"""

import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn

import msgspec
import structlog

from extender.background import background_problem
from extender.credentials.keyring import NO_OPERATOR
from extender.errors import ConfigError, RegistryNotAsked, RegistryUnavailable
from extender.fetcher.bounds import bound_tls, end_too_large, end_with, kill_session, stay_within
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
    decode_to_fetcher,
    failed_of,
)
from extender.fetcher.settings import PATIENCE_SECONDS, FetcherSettings
from extender.fetcher.sources import LocalSources, open_local_sources
from extender.logs import configure_logs
from extender.machine import THIS_MACHINE
from extender.metrics import sums
from extender.registry_metrics import gauge_values

log = structlog.get_logger()

# One for each lookup that the service has under way; a name server that hangs holds a thread for four seconds.
_THREADS = 320


def run(descriptor: int, parent: int) -> NoReturn:
    """Serves the other end of the socket `descriptor`, and ends the process, at the latest when its parent ends."""
    end_with(parent)
    try:
        asyncio.run(_serve(socket.socket(fileno=descriptor)))
    except MemoryError:
        end_too_large()
    finally:
        _end(1)


async def _serve(end: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(_THREADS))
    loop.set_exception_handler(_end_without_memory)
    bound_tls()
    async with contextlib.AsyncExitStack() as stack:
        server = _Server(stack)
        server.channel = await Channel.over(end, server.receive, lambda: _end(0))
        await asyncio.Event().wait()


def _end(status: int) -> NoReturn:
    """Ends the process, and the programs that it has started."""
    kill_session(os.getpid())
    os._exit(status)


def _end_without_memory(loop: asyncio.AbstractEventLoop, context: Mapping[str, Any]) -> None:
    if isinstance(context.get("exception"), MemoryError):
        end_too_large()
    loop.default_exception_handler(dict(context))


class _Server:
    """Answers each question in a task of its own. The first message has the settings."""

    channel: Channel

    def __init__(self, stack: contextlib.AsyncExitStack) -> None:
        """`stack` closes what is opened for the settings."""
        self._stack = stack
        self._sources: LocalSources | None = None
        self._operator = NO_OPERATOR  # as the service knows it
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_asked = threading.Event()
        self._sent: dict[tuple[str, ...], float] = {}

    def receive(self, message: bytes) -> None:
        """Begins to do what a message says. Raises ProtocolError."""
        match decode_to_fetcher(message):
            case Ping(id=number):
                if background_problem():  # files are not read again; the next fetcher does so
                    _end(1)
                self._send_operator()
                self.channel.send(self._pong(number))
            case FetcherSettings() as settings:
                self._begin(self._open(settings))
            case Look() as look:
                self._begin(self._answer(look))

    def _begin(self, work: Any) -> None:  # noqa: ANN401 - a coroutine
        task = asyncio.create_task(work)
        self._tasks.add(task)
        self._is_asked.set()
        task.add_done_callback(self._end_task)

    def _end_task(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not self._tasks:
            self._is_asked.clear()

    async def _open(self, settings: FetcherSettings) -> None:
        configure_logs(settings.log_level, None)
        if settings.resident_bytes:
            stay_within(settings.resident_bytes, self._is_asked)
        try:
            opening = open_local_sources(
                settings.registry, settings.id_key, machine=THIS_MACHINE, patience_seconds=PATIENCE_SECONDS
            )
            self._sources = await self._stack.enter_async_context(opening)
            self._send_operator()
        except Exception as exc:  # noqa: BLE001 - whatever it is, the service is answered
            why = str(exc) if isinstance(exc, ConfigError) else f"the fetcher cannot start: {type(exc).__name__}"
            self.channel.send(Refused(why))
            self.channel.close()
        else:
            self.channel.send(Ready())

    def _send_operator(self) -> None:
        """Sends what stands for the operator's credentials, if that has changed."""
        if self._sources and self._sources.operator_id != self._operator:
            self._operator = self._sources.operator_id
            self.channel.send(OperatorIs(self._operator))

    async def _answer(self, look: Look) -> None:
        try:
            if self._sources is None:
                answer: ToQuestion = failed_of(RegistryNotAsked("the fetcher has not opened its files"))
            else:
                answer = await self._sources.look(look)
            self._send_operator()
            self.channel.send(msgspec.structs.replace(answer, id=look.id))
        except MemoryError:
            end_too_large()
        except ProtocolError:
            self._fail(look, "the answer is too long")
        except Exception:  # a defect of ours must not leave the question without an answer
            log.exception("fetcher.crashed")
            self._fail(look, "asking for it failed")

    def _fail(self, look: Look, why: str) -> None:
        self.channel.send(msgspec.structs.replace(failed_of(RegistryUnavailable(why)), id=look.id))

    def _pong(self, number: int) -> Pong:
        """Returns the answer to a ping, with what was counted since the last one."""
        before, self._sent = self._sent, sums()
        counted = {key: value - before.get(key, 0.0) for key, value in self._sent.items()}
        return Pong(number, {key: value for key, value in counted.items() if value}, gauge_values())
