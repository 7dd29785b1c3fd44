"""How tenants share what there is too little of: a queue, slots, and turns at what only so many may use at once.

A tenant is the namespace of a pod, and one with much to do leaves room for the others. Queues go round robin over
tenants, turns over a tenant's hosts too.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator
from typing import Generic, TypeVar

from extender.errors import ExtenderError

T = TypeVar("T")


class FairQueue(Generic[T]):
    """Items by tenant, first in first out within a tenant. O(1)."""

    def __init__(self) -> None:
        self._items: dict[str, deque[T]] = {}  # by tenant, the next one first
        self._has_items = asyncio.Event()

    def __len__(self) -> int:
        return sum(map(len, self._items.values()))

    def put(self, tenant: str, item: T) -> None:
        """Adds the item as the tenant's last."""
        self._items.setdefault(tenant, deque()).append(item)
        self._has_items.set()

    async def get(self) -> T:
        """Waits for an item, and removes and returns the first one of the tenant whose turn it is."""
        while not self._items:
            self._has_items.clear()
            await self._has_items.wait()
        tenant = next(iter(self._items))
        items = self._items.pop(tenant)
        item = items.popleft()
        if items:
            self._items[tenant] = items
        return item


OPERATOR = ""
"""The tenant of what the operator starts, from the command line for example. No limit of one tenant holds for it."""
UNAUTHENTICATED = "?"
"""The tenant of all callers who have not shown who they are. No namespace has this name."""


class Slots:
    """`total` slots, of which a tenant may hold `each`. Whoever holds none finds the last quarter of them reserved."""

    __slots__ = ("_each", "_held_by", "_shared", "_total", "held")

    def __init__(self, total: int, each: int) -> None:
        self.held = 0
        self._total = total
        self._shared = total - total // 4
        self._each = each
        self._held_by: dict[str, int] = {}

    def admits(self, tenant: str, slots: int = 1) -> bool:
        """Whether `take` would take so many now."""
        held = self.held + slots
        if tenant == OPERATOR or tenant not in self._held_by:
            return held <= self._total
        return held <= self._shared and self._held_by[tenant] + slots <= self._each

    def take(self, tenant: str, slots: int = 1) -> bool:
        """Takes so many for the tenant until `give_back`. Returns False, and takes none, if that is too much."""
        if not self.admits(tenant, slots):
            return False
        self.held += slots
        self._held_by[tenant] = self._held_by.get(tenant, 0) + slots
        return True

    def give_back(self, tenant: str, slots: int = 1) -> None:
        self.held -= slots
        left = self._held_by[tenant] - slots
        if left:
            self._held_by[tenant] = left
        else:
            del self._held_by[tenant]


_WAIT_SECONDS = 60.0  # kube-scheduler asks for a pod every 10 s at least: who waits for longer is asked for again


class NoTurn(ExtenderError):
    """The work had no turn within a minute and was dropped. That says nothing about what it was to ask."""


class Turns:
    """Up to `total` turns at a time, `each` of one tenant, and up to `at_host` at one host.

    The last quarter of the turns, in all and at a host, is reserved for tenants that hold none there. Waiting tenants
    are served round robin.
    """

    def __init__(self, *, total: int, each: int, at_host: int, wait_seconds: float = _WAIT_SECONDS) -> None:
        self._slots = Slots(total, each)
        self._at_host = at_host
        self._wait_seconds = wait_seconds
        self._hosts: dict[str, Slots] = {}  # those where somebody holds a turn
        # By tenant, then host, the next one first.
        self._waiting: dict[str, dict[str, deque[asyncio.Future[None]]]] = {}

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
