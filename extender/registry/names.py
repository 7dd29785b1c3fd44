"""Resolves host names to addresses, in threads of its own and with one lookup per name at a time.

Whoever can create a pod chooses names, and whoever owns a name's zone chooses how slowly its servers answer. Names that
have resolved before have threads that other names cannot fill. Which addresses may be connected to is not decided here.
"""

import asyncio
import queue
import socket
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future

import msgspec
from aiohttp.abc import AbstractResolver, ResolveResult

from extender.registry.transport import NAME, note_wait
from extender.tables import Table, declare_cache

_FRESH_SECONDS = 10.0
# Two attempts of the C library at a name server, with its default of 5 s each.
_RESOLVE_SECONDS = 10.0
_THREADS = 8  # for names that have resolved before, and as many for all others

_Key = tuple[str, int, socket.AddressFamily]
Lookup = Callable[[str, int, socket.AddressFamily], list[ResolveResult]]

_ADDRESSES = declare_cache(
    "registry.names.addresses",
    key="host, port",
    lifetime=f"{_FRESH_SECONDS:g} s",
    bound=1000,
    invalidated_by="a failed lookup of the name",
)


class _Resolved(msgspec.Struct, frozen=True):
    addresses: list[ResolveResult]
    fresh_until: float


class _Call(msgspec.Struct):
    job: "Future[list[ResolveResult]]"
    result: "asyncio.Future[list[ResolveResult]]"
    waiters: int = 0


def look_up_addresses(host: str, port: int, family: socket.AddressFamily) -> list[ResolveResult]:
    """Returns the addresses of a host by the C library. Blocks; raises OSError if there are none."""
    found = socket.getaddrinfo(host, port, family=family, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    return [
        ResolveResult(
            hostname=host,
            host=_text_of(address),
            port=int(address[1]),
            family=kind,
            proto=protocol,
            flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
        )
        for kind, _, protocol, _, address in found
        if not isinstance(address[0], int)  # as Python without IPv6 gives an IPv6 address
    ]


def _text_of(address: tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]) -> str:
    """Returns the address as text, with the scope of a link-local IPv6 address."""
    scope = address[3] if len(address) > 3 else 0
    return f"{address[0]!s}%{scope!s}" if scope else str(address[0])


class _Threads:
    """Up to `size` threads for lookups. They are daemons, so that one that hangs does not hold up the process's end."""

    def __init__(self, size: int, look_up: Lookup) -> None:
        self._size = size
        self._look_up = look_up
        self._jobs: queue.SimpleQueue[tuple[Future[list[ResolveResult]], _Key] | None] = queue.SimpleQueue()
        self._started = 0

    def submit(self, key: _Key) -> "Future[list[ResolveResult]]":
        """Returns the lookup of `key`, which can be cancelled until a thread begins it."""
        job: Future[list[ResolveResult]] = Future()
        self._jobs.put((job, key))
        if self._started < self._size:
            self._started += 1
            threading.Thread(target=self._run, name="resolve-names", daemon=True).start()
        return job

    def close(self) -> None:
        """Drops the lookups that have not begun, and ends each thread after the lookup it has."""
        while not self._jobs.empty():
            item = self._jobs.get()
            if item:
                item[0].cancel()
        for _ in range(self._started):
            self._jobs.put(None)

    def _run(self) -> None:
        while item := self._jobs.get():
            job, key = item
            if not job.set_running_or_notify_cancel():
                continue
            try:
                job.set_result(self._look_up(*key))
            except Exception as exc:  # noqa: BLE001 - whatever it is, the waiting caller gets it
                job.set_exception(exc)


class NameResolver(AbstractResolver):
    """Resolves names for aiohttp. Raises OSError if a name does not resolve, or not in time."""

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        look_up: Lookup = look_up_addresses,
        resolve_seconds: float = _RESOLVE_SECONDS,
    ) -> None:
        """`clock` gives monotonic seconds. `look_up` runs in a thread; a caller waits `resolve_seconds` at most."""
        self._clock = clock
        self._resolve_seconds = resolve_seconds
        self._known: Table[_Key, _Resolved] = _ADDRESSES.table()
        self._calls: dict[_Key, _Call] = {}
        self._for_known = _Threads(_THREADS, look_up)
        self._for_others = _Threads(_THREADS, look_up)
        for threads in (self._for_known, self._for_others):
            weakref.finalize(self, threads.close)  # aiohttp does not close a resolver that it is given

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Returns the host's addresses, at most 10 s old.

        A lookup that no caller waits for any more is dropped if it has not begun. One that has begun continues, and
        later callers join it.
        """
        key = (host, port, family)
        known = self._known.peek(key)
        if known and self._clock() < known.fresh_until:
            return known.addresses
        call = self._calls.get(key) or self._start(key)
        call.waiters += 1
        note_wait(NAME)
        try:
            await asyncio.wait([call.result], timeout=self._resolve_seconds)
        finally:
            call.waiters -= 1
            if not call.waiters and call.job.cancel():
                self._calls.pop(key, None)
        note_wait("")
        if not call.result.done() or call.result.cancelled():
            raise socket.gaierror(socket.EAI_AGAIN, "the name has not resolved in time")
        return call.result.result()

    async def close(self) -> None:
        """Drops all lookups; a thread ends after the one it has begun."""
        for call in self._calls.values():
            call.result.cancel()
        self._for_known.close()
        self._for_others.close()

    def _start(self, key: _Key) -> _Call:
        job = (self._for_known if self._known.peek(key) else self._for_others).submit(key)
        call = self._calls[key] = _Call(job, asyncio.wrap_future(job))
        call.result.add_done_callback(lambda _: self._end(key, call))
        return call

    def _end(self, key: _Key, call: _Call) -> None:
        if self._calls.get(key) is call:
            del self._calls[key]
        if call.result.cancelled():
            return
        if call.result.exception():
            self._known.remove(key)
        else:
            self._known.put(key, _Resolved(call.result.result(), self._clock() + _FRESH_SECONDS))
