"""The fair queue: turns at what only so many may use at once, round robin over tenants and over a tenant's hosts."""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator

from extender.errors import ExtenderError
from extender.slots import OPERATOR, Slots

_WAIT_SECONDS = 60.0  # kube-scheduler asks for a pod every 10 s at least: who waits for longer is asked for again


class NoTurn(ExtenderError):
    """The work had no turn within a minute and was dropped. That tells nothing about what it was to ask."""


class Turns:
    """Up to `total` turns at a time, `each` of one tenant, and up to `at_host` at one host.

    A tenant that holds none, in all or at the host, finds a quarter of the turns there left to such tenants. Of those
    that wait, the tenant goes first whose turn was before the others' turns, or that has waited for longest. Whoever
    may have a turn gets it at once: those that wait may not.
    """

    def __init__(self, *, total: int, each: int, at_host: int, wait_seconds: float = _WAIT_SECONDS) -> None:
        self._slots = Slots(total, each)
        self._at_host = at_host
        self._wait_seconds = wait_seconds
        self._hosts: dict[str, Slots] = {}  # those where somebody holds a turn
        self._waiting: dict[
            str, dict[str, deque[asyncio.Future[None]]]
        ] = {}  # by tenant, then host, the next one first

    @contextlib.asynccontextmanager
    async def turn(self, tenant: str, host: str = "") -> AsyncIterator[None]:
        """Waits for a turn of the tenant at the host, and holds it until the context is left.

        Raises:
            NoTurn: none has come within a minute. The operator waits for as long as it takes.
        """
        if not self._take(tenant, host):
            await self._wait(tenant, host)
        try:
            yield
        finally:
            self._give_back(tenant, host)

    @property
    def waiting(self) -> int:
        """How many wait."""
        return sum(len(queue) for hosts in self._waiting.values() for queue in hosts.values())

    async def _wait(self, tenant: str, host: str) -> None:
        ticket: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, {}).setdefault(host, deque()).append(ticket)
        try:
            await asyncio.wait([ticket], timeout=None if tenant == OPERATOR else self._wait_seconds)
        except asyncio.CancelledError:
            if ticket.done():
                self._give_back(tenant, host)  # the turn came at the same moment
            else:
                self._leave(tenant, host, ticket)
            raise
        if not ticket.done():
            self._leave(tenant, host, ticket)
            raise NoTurn("it was dropped while it waited for its turn")

    def _take(self, tenant: str, host: str) -> bool:
        at_host = self._hosts.get(host)
        if not self._slots.admits(tenant) or not (at_host is None or at_host.admits(tenant)):
            return False
        if at_host is None:
            at_host = self._hosts[host] = Slots(self._at_host, self._at_host)
        return self._slots.take(tenant) and at_host.take(tenant)

    def _give_back(self, tenant: str, host: str) -> None:
        self._slots.give_back(tenant)
        at_host = self._hosts[host]
        at_host.give_back(tenant)
        if not at_host.held:
            del self._hosts[host]
        while found := self._take_next():
            ticket = self._leave(*found)
            self._move_to_end(*found)
            ticket.set_result(None)

    def _take_next(self) -> tuple[str, str] | None:
        """Takes a turn for the first tenant that may have one, at the first host where it may. O(all that wait)."""
        for tenant, hosts in self._waiting.items():
            if self._slots.admits(tenant):
                for host in hosts:
                    if self._take(tenant, host):
                        return tenant, host
        return None

    def _leave(self, tenant: str, host: str, ticket: asyncio.Future[None] | None = None) -> asyncio.Future[None]:
        """Removes the ticket from the queue, by default the next one."""
        hosts = self._waiting[tenant]
        queue = hosts[host]
        if ticket is None:
            ticket = queue.popleft()
        else:
            queue.remove(ticket)
        if not queue:
            del hosts[host]
            if not hosts:
                del self._waiting[tenant]
        return ticket

    def _move_to_end(self, tenant: str, host: str) -> None:
        hosts = self._waiting.pop(tenant, None)
        if hosts:
            self._waiting[tenant] = hosts
            if host in hosts:
                hosts[host] = hosts.pop(host)
