"""Resolves host names to addresses: in threads of its own, one lookup per name at a time, in turns of the tenants.

Whoever can create a pod chooses names, and whoever owns a name's zone chooses how slowly its servers answer. Therefore
each tenant has a share of the threads, and names that have resolved before have threads that other names cannot fill.
Which addresses may be connected to is not decided here.

The threads call the C library, so that a name resolves as in every other program of the machine: by its hosts file,
name service switch and search domains. A resolver without threads (c-ares) reads not all of that, and a limit on its
queries would need turns as well.
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

from extender.budgets import declare_budget
from extender.registry.transport import NAME, note_wait
from extender.shared_calls import SharedCalls
from extender.tables import ShareTable, declare_cache
from extender.turns import TurnLost, Turns, current_interest

_FRESH_SECONDS = 10.0
# Shorter than the first wait after which a failed image is looked up again, so that each such lookup asks the zone.
_FAILED_SECONDS = 5.0
# Two attempts of the C library at a name server, with its default of 5 s each.
_RESOLVE_SECONDS = 10.0
_THREADS = 48
# Of them, those for names that have resolved before, as many for other names, and of these those for one tenant alone.
_THREADS_FOR_EITHER = 32
_THREADS_EACH = 8
_KNOWN, _OTHER = "known", "other"
# Addresses of one name that are used, the first ones: a zone could name thousands, of 400 bytes each.
_MOST_ADDRESSES = 32
_MOST_KEPT = 4000  # of all names

_Key = tuple[str, socket.AddressFamily]
Lookup = Callable[[str, int, socket.AddressFamily], list[ResolveResult]]

_LOOKUPS = declare_budget(
    "registry.names.lookups",
    unit="host names being resolved",
    total=_THREADS,
    most_each=2 * _THREADS_EACH,
    why=f"a thread each, of some 40 KB; {_THREADS_FOR_EITHER} at most for names that have resolved before, and as many "
    f"for others; of either {_THREADS_EACH} for one tenant alone, since a slow zone holds a thread for 10 s and more",
)
_ADDRESSES = declare_cache(
    "registry.names.addresses",
    key="host, address family",
    lifetime=f"{_FAILED_SECONDS:g} s or {_FRESH_SECONDS:g} s",
    bound=f"{_MOST_KEPT:,} addresses",
    at_most="2 MB",
    invalidated_by="the next lookup",
)


class _Resolved(msgspec.Struct, frozen=True):
    """The outcome of a lookup: addresses, or the error if there are none. `tenant` is the first that wanted it."""

    tenant: str
    fresh_until: float
    addresses: list[ResolveResult]
    error: str = ""


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
    """As many threads as lookups run at once. They are daemons, so that one that hangs does not hold up the end."""

    def __init__(self, look_up: Lookup) -> None:
        self._look_up = look_up
        self._jobs: queue.SimpleQueue[tuple[Future[list[ResolveResult]], _Key] | None] = queue.SimpleQueue()
        self._started = 0
        self._busy = 0

    async def run(self, key: _Key) -> list[ResolveResult]:
        """Returns what the lookup of `key` returns."""
        job: Future[list[ResolveResult]] = Future()
        self._jobs.put((job, key))
        self._busy += 1
        if self._busy > self._started:
            self._started += 1
            threading.Thread(target=self._work, name="resolve-names", daemon=True).start()
        try:
            return await asyncio.wrap_future(job)
        finally:
            self._busy -= 1
            del job  # it keeps the error, whose frames include this one: the garbage collector would find the circle

    def close(self) -> None:
        """Ends each thread after the lookup it has."""
        for _ in range(self._started):
            self._jobs.put(None)

    def _work(self) -> None:
        while item := self._jobs.get():
            job, key = item
            if not job.set_running_or_notify_cancel():
                continue
            try:
                job.set_result(self._look_up(key[0], 0, key[1]))
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
        self._resolved: ShareTable[_Key, _Resolved] = _ADDRESSES.share_table(
            _MOST_KEPT, owner_of=lambda _, row: row.tenant, cost_of=lambda _, row: max(1, len(row.addresses))
        )
        turns = Turns(_LOOKUPS, clock, at_host=_THREADS_FOR_EITHER, most_each_at_host=_THREADS_EACH)
        self._calls: SharedCalls[_Key, _Resolved] = SharedCalls(turns)
        self._threads = _Threads(look_up)
        weakref.finalize(self, self._threads.close)  # aiohttp does not close a resolver that it is given

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Returns the host's addresses, at most 10 s old; an error of the last 5 s is raised again.

        A lookup that no caller waits for any more is dropped if it has not begun. One that has begun continues, and
        later callers join it.
        """
        key = (host, family)
        row = self._resolved.peek(key)
        if row is None or self._clock() >= row.fresh_until:
            row = await self._share(key, _KNOWN if row and row.addresses else _OTHER)
        if not row.addresses:
            raise socket.gaierror(socket.EAI_NONAME, row.error)
        return [{**address, "port": port} for address in row.addresses]

    async def close(self) -> None:
        """Drops all lookups; a thread ends after the one it has begun."""
        await self._calls.close()
        self._threads.close()

    async def _share(self, key: _Key, names: str) -> _Resolved:
        """Waits for the outcome of the one lookup of the name, which takes its turn among `names`."""
        note_wait(NAME)
        try:
            async with asyncio.timeout(self._resolve_seconds):
                row = await self._calls.join(key, lambda: self._look_up(key), host=names)
        except (TimeoutError, TurnLost):
            raise socket.gaierror(socket.EAI_AGAIN, "the name has not resolved in time") from None
        note_wait("")
        return row

    async def _look_up(self, key: _Key) -> _Resolved:
        """Looks the name up in a thread, and remembers what came of it."""
        tenant = current_interest().first
        try:
            addresses, error = (await self._threads.run(key))[:_MOST_ADDRESSES], "it has no addresses"
        except OSError as exc:
            addresses, error = [], exc.strerror or ""
        kept_seconds = _FRESH_SECONDS if addresses else _FAILED_SECONDS
        row = _Resolved(tenant, self._clock() + kept_seconds, addresses, error)
        self._resolved.put(key, row)
        return row
