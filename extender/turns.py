"""Turns at what only so many may use at once: tenants and hosts take turns.

The tenant goes first whose last turn is longest ago, where all that is longer ago than a second counts as a second: who
asks seldom passes those who have work waiting all the time, and nobody is passed for longer than that. Its hosts go
round robin.

Work waits for its turns on behalf of everybody who wants it. Its `Interest` has the tenants of these callers and when
the last of them asked; it is in a context variable, so that no function passes it on. Work that nobody has asked for
again for some time loses its turn in the queue.
"""

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar

from extender.budgets import OPERATOR, BudgetSpec, Shares, use_of
from extender.errors import ExtenderError
from extender.slowdown import Slowdown

LAPSE_SECONDS = 60.0
"""Work that waits is dropped if nobody has asked for it again for so long. kube-scheduler asks every 10 s at least."""


REVOKE_SECONDS = 2.0
"""A turn that somebody holds beyond its share for so long is revoked when a tenant waits that has none of its own."""


_RECENT_SECONDS = 1.0


class TurnRevoked(ExtenderError):
    """The work held a turn for long, beyond its tenant's share, while another tenant waited for its first."""


class TurnLost(ExtenderError):
    """The work was dropped while it waited for a turn. That tells nothing about what it was to ask."""


class Interest:
    """The tenants that want one piece of work, the first of them first.

    `followers` are the interests of other works that this one waits for.
    """

    __slots__ = ("_ticket", "asked_at", "followers", "tenants")

    def __init__(self, tenant: str, asked_at: float) -> None:
        """`asked_at` is when the tenant asked, by the clock of the `Turns` where the work will wait."""
        self.tenants = {tenant: None}
        self.asked_at = asked_at
        self._ticket: _Ticket | None = None
        self.followers: list[Interest] = []

    @property
    def first(self) -> str:
        """The tenant that asked first, for whom what the work brings is kept."""
        return next(iter(self.tenants))

    @property
    def is_waiting(self) -> bool:
        """Whether the work waits for a turn."""
        return self._ticket is not None

    def add(self, tenant: str, asked_at: float) -> None:
        """Notes that this tenant has asked for the work too, or again."""
        if tenant in self.tenants and asked_at <= self.asked_at:
            return  # and each follower knows, even if two works have waited for each other
        self.asked_at = max(self.asked_at, asked_at)
        if tenant not in self.tenants:
            self.tenants[tenant] = None
            if self._ticket:
                self._ticket.add(tenant)
        for follower in self.followers:
            follower.add(tenant, asked_at)

    def join(self, other: "Interest") -> None:
        """Adds to this work the tenants of `other`, whose work waits for this one: those of today and those to come."""
        if other is self or self in other.followers:
            return
        other.followers.append(self)
        for tenant in tuple(other.tenants):
            self.add(tenant, other.asked_at)

    def drop(self) -> bool:
        """Ends the wait for a turn with `TurnLost`; returns False if the work does not wait for one."""
        if self._ticket is None:
            return False
        self._ticket.lose()
        return True


_INTEREST: ContextVar[Interest | None] = ContextVar("_INTEREST", default=None)


def current_interest() -> Interest:
    """Returns the interest of the work that runs now; that of the operator where nobody else has set one."""
    return _INTEREST.get() or Interest(OPERATOR, 0.0)


def set_interest(interest: Interest) -> None:
    """Makes `interest` that of the work in this context, and of the tasks that it starts from now on.

    It stays so until the context ends: that of a task, or one made for the call.
    """
    _INTEREST.set(interest)


class _Ticket:
    """One piece of work in the queues of all its tenants.

    `granted_to` is the tenant whose turn it got. It is None when `done` ends for work that was dropped: an error there
    would know the frame that waits for it, a circle for the garbage collector to find.
    """

    __slots__ = ("done", "granted_to", "host", "interest", "turns")

    def __init__(self, turns: "Turns", interest: Interest, host: str) -> None:
        self.turns = turns
        self.interest = interest
        self.host = host
        self.granted_to: str | None = None
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def add(self, tenant: str) -> None:
        self.turns.enqueue(self, tenant)

    def lose(self) -> None:
        self.turns.lose(self)


class _HeldTurn:
    """A turn that is held: by whom, since when, and the scope whose end revokes it."""

    __slots__ = ("host", "interest", "scope", "since", "tenant")

    def __init__(self, interest: Interest, tenant: str, host: str, since: float) -> None:
        self.interest = interest
        self.tenant = tenant
        self.host = host
        self.since = since
        self.scope = asyncio.timeout(None)

    def revoke(self) -> None:
        """Ends the work: where it waits for another turn with `TurnLost`, elsewhere with `TurnRevoked`."""
        if not self.interest.drop():
            self.scope.reschedule(asyncio.get_running_loop().time())


class Turns:
    """Up to `spec.total` turns at the same time, and up to `at_host` of them at one host.

    Of several tenants that want turns, in all or at one host, each may hold as many as `Shares` says. Whoever may have
    a turn and need not wait for a host gets it at once. Nothing is held while work waits.

    Tenants that came while they were fewer hold more than their shares. When a tenant waits that holds none, and work
    of theirs has held a turn for `REVOKE_SECONDS`, the oldest of the largest holder ends.
    """

    def __init__(
        self,
        spec: BudgetSpec,
        clock: Callable[[], float],
        *,
        total: int | None = None,
        at_host: int | None = None,
        most_each_at_host: int | None = None,
        per_second: float = math.inf,
        burst: int | None = None,
    ) -> None:
        """`clock` gives monotonic seconds. `at_host` and `most_each_at_host` are the total without a limit.

        `per_second` turns begin in a second, a quarter of that while the event loop is busy, and `burst` after a time
        of quiet, by default the total. The operator's begin whenever they may.
        """
        size = spec.total if total is None else total
        self._shares = Shares(size, max(1, spec.most_each * size // spec.total))
        self._at_host = size if at_host is None else at_host
        self._most_each_at_host = self._at_host if most_each_at_host is None else most_each_at_host
        self._use = use_of(spec)
        self._clock = clock
        self._hosts: dict[str, Shares] = {}  # those where somebody holds or waits for a turn
        self._per_second = per_second
        self._burst = float(size if burst is None else burst)
        self._left, self._left_at = self._burst, 0.0
        self._later: asyncio.TimerHandle | None = None
        self._slowdown = Slowdown()
        self._held: dict[_HeldTurn, None] = {}  # the oldest first
        self._waiting: dict[str, dict[str, deque[_Ticket]]] = {}  # by tenant, then by host, in the order of turns
        self._last: dict[str, float] = {}  # when tenants had a turn, of the last second
        self._last_when_lined_up: dict[str, float] = {}  # the same of those that wait, by which they do

    @contextlib.asynccontextmanager
    async def turn(self, host: str = "") -> AsyncIterator[None]:
        """Waits for a turn of the current interest at `host`, and holds it until the context is left.

        Raises:
            TurnLost: the work was dropped from the queue.
            TurnRevoked: others waited for a turn of their own.
        """
        interest = current_interest()
        tenant = self._take_nowait(interest, host)
        if tenant is None:
            tenant = await self._wait(interest, host)
        held = _HeldTurn(interest, tenant, host, self._clock())
        self._held[held] = None
        try:
            async with held.scope:
                yield
        except TimeoutError:
            if held.scope.expired():
                raise TurnRevoked("it held its turn for long while others waited") from None
            raise
        finally:
            del self._held[held]
            self._give_back(tenant, host)

    @property
    def waiting(self) -> int:
        """How many pieces of work wait, counted once for each tenant that wants them."""
        return sum(len(queue) for hosts in self._waiting.values() for queue in hosts.values())

    def _take_nowait(self, interest: Interest, host: str) -> str | None:
        """Takes a turn for the first of the tenants that may have one; None if none may.

        Nobody is passed by: as long as turns are free, all who wait hold their share, or wait for another host.
        """
        shares = self._shares_at(host)
        for tenant in interest.tenants:
            if self._later and tenant != OPERATOR:
                continue  # others wait until a turn may begin
            if self._shares.admits(tenant) and shares.admits(tenant) and self._may_begin(tenant):
                self._want(tenant, host)
                self._take(tenant, host)
                return tenant
        if shares.is_idle:
            del self._hosts[host]
        return None

    async def _wait(self, interest: Interest, host: str) -> str:
        ticket = _Ticket(self, interest, host)
        for tenant in tuple(interest.tenants):
            self.enqueue(ticket, tenant)
        outer, interest._ticket = interest._ticket, ticket  # noqa: SLF001 - the two classes are one mechanism
        try:
            while not ticket.done.done():
                await asyncio.wait([ticket.done], timeout=self._revoke_for(ticket))
        except BaseException:
            if ticket.granted_to is not None:
                self._give_back(ticket.granted_to, host)  # cancelled just as the turn came
            else:
                self._leave(ticket)
                self._grant()  # with one tenant less, the others' shares may be larger
            raise
        finally:
            interest._ticket = outer  # noqa: SLF001
        if ticket.granted_to is None:
            self._grant()
            raise TurnLost("it was dropped while it waited for its turn")
        return ticket.granted_to

    def enqueue(self, ticket: _Ticket, tenant: str) -> None:
        """Adds the ticket to the tenant's queue for its host, and grants what can be granted."""
        self._want(tenant, ticket.host)
        if tenant not in self._waiting:
            self._line_up(tenant)
        self._waiting[tenant].setdefault(ticket.host, deque()).append(ticket)
        self._grant()

    def lose(self, ticket: _Ticket) -> None:
        """Drops the ticket from all queues; its work gets `TurnLost`."""
        if not ticket.done.done():
            self._use.refusals += 1
            ticket.done.set_result(None)
            self._leave(ticket)

    def _revoke_for(self, ticket: _Ticket) -> float | None:
        """Revokes a turn if a tenant of the ticket has none; returns in how many seconds to try again, None for not."""
        at_host = self._shares_at(ticket.host)
        for tenant in ticket.interest.tenants:
            is_total = self._shares.held >= self._shares.total
            shares = self._shares if is_total else at_host
            if tenant == OPERATOR or shares.held_by(tenant) or shares.held < shares.total:
                continue
            largest = shares.largest_holder()
            if shares.held_by(largest) <= shares.share_of(largest):
                continue
            for held in self._held:
                if held.tenant == largest and (is_total or held.host == ticket.host) and not held.scope.expired():
                    age_seconds = self._clock() - held.since
                    if age_seconds < REVOKE_SECONDS:
                        return REVOKE_SECONDS - age_seconds
                    held.revoke()
                    return REVOKE_SECONDS
        return None

    def _grant(self) -> None:
        while self._shares.held < self._shares.total:
            ticket, tenant = self._next()
            if ticket is None:
                return
            if ticket.done.done():  # cancelled, and about to leave
                self._leave(ticket)
            elif self._clock() - ticket.interest.asked_at > LAPSE_SECONDS and OPERATOR not in ticket.interest.tenants:
                self.lose(ticket)
            elif not self._may_begin(tenant):
                return
            else:
                self._leave(ticket)
                self._want(tenant, ticket.host)
                self._take(tenant, ticket.host)
                ticket.granted_to = tenant
                ticket.done.set_result(None)
                self._move_to_end(tenant, ticket.host)

    def _may_begin(self, tenant: str) -> bool:
        """Whether a turn may begin now by `per_second`; if not, those that wait are looked at again when one may."""
        if self._per_second == math.inf or tenant == OPERATOR:
            return True
        loop = asyncio.get_running_loop()
        now = loop.time()
        per_second = self._per_second / self._slowdown.divisor
        self._left = min(self._burst, self._left + (now - self._left_at) * per_second)
        self._left_at = now
        if self._left >= 1:
            self._left -= 1
            return True
        if self._later is None:
            due = now + (1 - self._left) / per_second
            self._later = loop.call_at(due, self._grant_later, due)
        return False

    def _grant_later(self, due: float) -> None:
        self._later = None
        self._slowdown.note(asyncio.get_running_loop().time() - due)
        self._grant()

    def _next(self) -> tuple[_Ticket | None, str]:
        """The first ticket whose tenant may have a turn there, tenants and hosts in the order of their turns."""
        for tenant, hosts in self._waiting.items():
            if self._shares.admits(tenant):
                for host, queue in hosts.items():
                    if self._hosts[host].admits(tenant):
                        return queue[0], tenant
        return None, ""

    def _line_up(self, tenant: str) -> None:
        """Adds a tenant to those that wait, before those whose last turn is later. O(tenants that wait)."""
        last = self._last.get(tenant, 0.0)
        last = self._last_when_lined_up[tenant] = max(last, self._clock() - _RECENT_SECONDS)
        later = [each for each in self._waiting if self._last_when_lined_up[each] > last]
        self._waiting[tenant] = {}
        for each in later:
            self._waiting[each] = self._waiting.pop(each)

    def _move_to_end(self, tenant: str, host: str) -> None:
        hosts = self._waiting.pop(tenant, None)
        if hosts is not None:
            self._waiting[tenant] = hosts
            self._last_when_lined_up[tenant] = self._clock()
            queue = hosts.pop(host, None)
            if queue is not None:
                hosts[host] = queue

    def _leave(self, ticket: _Ticket) -> None:
        """Removes the ticket from the queues of all its tenants."""
        for tenant in ticket.interest.tenants:
            hosts = self._waiting.get(tenant, {})
            queue = hosts.get(ticket.host)
            if queue is None or ticket not in queue:
                continue
            queue.remove(ticket)
            if not queue:
                del hosts[ticket.host]
                if not hosts:
                    del self._waiting[tenant], self._last_when_lined_up[tenant]
            self._unwant(tenant, ticket.host)

    def _shares_at(self, host: str) -> Shares:
        shares = self._hosts.get(host)
        if shares is None:
            shares = self._hosts[host] = Shares(self._at_host, self._most_each_at_host)
        return shares

    def _want(self, tenant: str, host: str) -> None:
        self._shares.want(tenant)
        self._shares_at(host).want(tenant)

    def _unwant(self, tenant: str, host: str) -> None:
        self._shares.unwant(tenant)
        shares = self._hosts[host]
        shares.unwant(tenant)
        if shares.is_idle:
            del self._hosts[host]

    def _take(self, tenant: str, host: str) -> None:
        now = self._clock()
        self._last.pop(tenant, None)
        self._last[tenant] = now
        while self._last[first := next(iter(self._last))] < now - _RECENT_SECONDS:
            del self._last[first]
        self._shares.take(tenant)
        self._hosts[host].take(tenant)
        self._use.in_use += 1

    def _give_back(self, tenant: str, host: str) -> None:
        self._shares.give_back(tenant)
        self._hosts[host].give_back(tenant)
        self._use.in_use -= 1
        self._unwant(tenant, host)
        self._grant()
