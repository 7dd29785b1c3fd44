"""The connections of a listener and the bytes of its requests' bodies, by who holds them.

A caller is a remote address: of IPv6 the 64 bits that one machine may choose addresses in. A caller that has shown who
it is is another one than a stranger at the same address, and strangers never take from it. When connections or bytes
are spent, who holds most of them loses the one of least use, and others lose none.
"""

import enum
import functools
import heapq
import ipaddress
from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec
import structlog

from extender.budgets import SCARCITY, BudgetSpec, Use, declare_budget, use_of
from extender.server.handshakes import Handshakes
from extender.tables import declare_cache

log = structlog.get_logger()

# A caller with all the connections it may have gets a new one for one that has idled this long. It is enough for a
# handshake and a request, so that strangers at the address of a caller of ours cannot keep it out.
OWN_IDLE_SECONDS = 1.0
# After it a connection whose caller has not shown who it is, where callers can show it, is closed. Where they cannot,
# it is closed for a new one if there is no other to close.
STRANGER_IDLE_SECONDS = 60.0
# Connections that are closed before other work gets its turn, 30 µs each.
_CLOSED_AT_ONCE = 32
_BETWEEN_LOG_LINES_SECONDS = 60.0

CONNECTIONS = declare_budget(
    "server.callers.connections",
    unit="connections to a listener of operations",
    total=512,
    most_each=128,
    why="probes and Prometheus have one or two each; 10 KB each without TLS",
)
BODIES = declare_budget(
    "server.callers.bodies",
    unit="bytes of bodies, by default",
    total=1024 * 1024,
    most_each=256 * 1024,
    why="the listeners of operations read none",
)


class Proof(enum.Enum):
    """How the callers of a listener show that they are those it is for."""

    NONE = "they cannot"
    TOKEN = "by a token in the path of a request"  # noqa: S105  # it is none
    CERTIFICATE = "in the TLS handshake, which fails without a certificate"
    ADDRESS = "by being on this machine"


class BodyLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The bytes of bodies that callers may have here at a time; those of one request, and how long they may take.

    An incomplete body counts as `buffers_bytes` more: what its connection takes besides, from the first large read on.
    """

    budget: BudgetSpec
    request_bytes: int
    seconds: float
    buffers_bytes: int = 0


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one listener. `strangers_bodies` are for callers that have not shown who they are."""

    connections: BudgetSpec = CONNECTIONS
    proof: Proof = Proof.NONE
    bodies: BodyLimits = BodyLimits(budget=BODIES, request_bytes=BODIES.most_each, seconds=30.0)
    strangers_bodies: BodyLimits | None = None


class Peer(Protocol):
    """What this module asks of the protocol object of a connection."""

    @property
    def idle_since(self) -> float | None:
        """When the last request was answered, or the connection made; None while a whole request is being answered."""

    @property
    def has_request(self) -> bool:
        """Whether the head of a request has arrived, ever."""

    def refuse_body(self) -> None:
        """Drops what has arrived of a body and answers that there is no room for it."""


class CallerConnection:
    """One accepted connection, from before its TLS handshake on. `peer` is None until the handshake ends.

    `close` ends it without waiting for the other side; whoever accepts the connection sets it.
    """

    __slots__ = (
        "_callers",
        "accepted_at",
        "body_began",
        "body_bytes",
        "caller",
        "close",
        "is_proven",
        "peer",
    )

    def __init__(self, callers: "Callers", caller: "_Holder", accepted_at: float) -> None:
        self._callers = callers
        self.caller = caller
        self.is_proven = caller.group.is_proven
        self.accepted_at = accepted_at
        self.peer: Peer | None = None
        self.close: Callable[[], object] = bool
        self.body_bytes = 0
        self.body_began = 0.0

    @property
    def body_limits(self) -> BodyLimits:
        """The limits of bodies that hold for its caller now."""
        return self.caller.group.bodies

    @property
    def is_counted(self) -> bool:
        """Whether it is open, as far as is known here."""
        return self in self.caller.connections

    def hold(self, size: int) -> bool:
        """Counts bytes of a request that have arrived and are kept. Returns False if they are refused and not kept.

        They are refused where the caller holds more than it may, and this request has taken the longest of its
        requests; `refuse_body` of its peer has then been called.
        """
        caller = self.caller
        group = caller.group
        if not self.body_bytes:
            self.body_began = self._callers.clock()
            size += group.bodies.buffers_bytes
        self.body_bytes += size
        caller.body_bytes += size
        group.body_bytes += size
        group.bodies_use.in_use += size
        is_within = caller.body_bytes <= group.body_share_bytes and group.body_bytes <= group.body_total_bytes
        return is_within or self._callers.refuse_bodies_for(self)

    def give_back(self) -> None:
        """Counts the bytes of `hold` as kept no longer."""
        size, self.body_bytes = self.body_bytes, 0
        self.caller.body_bytes -= size
        self.caller.group.body_bytes -= size
        self.caller.group.bodies_use.in_use -= size

    def end(self) -> None:
        """Counts its body as kept no longer, and forgets its protocol and its transport.

        They know it too, and TLS buffers would otherwise stay until the garbage collector finds the circle.
        """
        self.give_back()
        self.peer = None
        self.close = bool

    def set_proven(self) -> None:
        """Notes that its caller has shown who it is."""
        self._callers.set_proven(self)

    def leave(self) -> None:
        """Counts the connection as closed, and forgets how to close it; calls after the first have no effect."""
        self.close = bool
        self._callers.remove(self)


class _Holder:
    """One caller, and what it holds."""

    __slots__ = ("address", "body_bytes", "connections", "group", "none_idle_before")

    def __init__(self, address: str, group: "_Group") -> None:
        self.address = address
        self.group = group
        self.connections: dict[CallerConnection, None] = {}  # in the order of their arrival
        self.body_bytes = 0
        self.none_idle_before = 0.0  # no connection of its own has idled for OWN_IDLE_SECONDS before this time


class _Group:
    """The callers that have shown who they are, or all others."""

    def __init__(self, bodies: BodyLimits, *, is_proven: bool) -> None:
        self.is_proven = is_proven
        self.callers: dict[str, _Holder] = {}
        self.bodies = bodies
        self.bodies_use = use_of(bodies.budget)
        self.body_bytes = 0

    @property
    def body_total_bytes(self) -> int:
        """What all of them may have here now."""
        return SCARCITY.scaled(self.bodies.budget.total)

    @property
    def body_share_bytes(self) -> int:
        """What each of them may have here now."""
        return SCARCITY.scaled(self.bodies.budget.most_each)

    def find(self, address: str) -> _Holder:
        """The caller at an address, who is counted once it has a connection."""
        return self.callers.get(address) or _Holder(address, self)

    def add(self, connection: CallerConnection, caller: _Holder) -> None:
        self.callers[caller.address] = caller
        caller.connections[connection] = None
        connection.caller = caller
        connection.is_proven = self.is_proven

    @staticmethod
    def remove(connection: CallerConnection) -> None:
        caller = connection.caller
        del caller.connections[connection]
        if not caller.connections:
            del caller.group.callers[caller.address]


class Callers:
    """The connections of one listener. `clock` is that of the event loop; `name` is the listener's, for logs.

    `handshakes` has those that have not begun.
    """

    def __init__(self, name: str, limits: Limits, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.proof = limits.proof
        self._name = name
        self._connections = limits.connections
        self._use = use_of(limits.connections)
        self._strangers = _Group(limits.strangers_bodies or limits.bodies, is_proven=False)
        self._proven = _Group(limits.bodies, is_proven=True)
        self._count = 0
        self._none_long_idle_before = 0.0
        self._next_log_line: dict[str, float] = {}
        self.handshakes = Handshakes(clock)

    @property
    def count(self) -> int:
        """The number of connections."""
        return self._count

    @property
    def _total(self) -> int:
        return SCARCITY.scaled(self._connections.total)

    @property
    def _share(self) -> int:
        return SCARCITY.scaled(self._connections.most_each)

    def admit(self, host: str) -> CallerConnection | None:
        """Counts a new connection from an address; None if it has to be closed.

        Where the caller has its share, or all connections are in use, it is admitted for one that is closed.
        """
        group = self._proven if self.proof is Proof.ADDRESS else self._strangers
        caller = group.find(caller_address(host))
        now = self.clock()
        if len(caller.connections) >= self._share or self._count >= self._total:
            displaced = self._displaced_by(caller, now)
            self._refuse("connections", self._use, displaced.caller if displaced else caller, now)
            if displaced is None:
                return None
            self._end(displaced)
        connection = CallerConnection(self, caller, now)
        group.add(connection, caller)
        self._count += 1
        self._use.in_use += 1
        return connection

    def remove(self, connection: CallerConnection) -> None:
        """Counts a connection as closed, with what it holds; calls after the first have no effect."""
        if not connection.is_counted:
            return
        connection.give_back()
        self.handshakes.remove(connection.caller.address, connection)
        _Group.remove(connection)
        self._count -= 1
        self._use.in_use -= 1

    def set_proven(self, connection: CallerConnection) -> None:
        """Moves a connection to the callers that have shown who they are.

        It stays with the strangers if the caller has its share already and none of its connections idles.
        """
        self.handshakes.note_known(connection.caller.address)
        if connection.is_proven or not connection.is_counted:
            return
        caller = self._proven.find(connection.caller.address)
        if len(caller.connections) >= self._share:
            displaced = self._own_idle(caller, self.clock())
            if displaced is None:
                return
            self._end(displaced)
        held, began = connection.body_bytes, connection.body_began
        connection.give_back()
        _Group.remove(connection)
        self._proven.add(connection, caller)
        if held:
            connection.hold(held)
            connection.body_began = began

    def close_idle(self) -> None:
        """Closes the connections of strangers that have idled for long, where callers can show who they are."""
        if self.proof is not Proof.TOKEN:
            return
        before = self.clock() - STRANGER_IDLE_SECONDS
        for connection in [each for caller in self._strangers.callers.values() for each in caller.connections]:
            rank = _rank(connection)
            # A body that is arriving has a deadline of its own; a head that is never ended has this one.
            allowed = self._strangers.bodies.seconds if connection.body_bytes else 0.0
            if rank and rank[1] <= before - allowed:
                self._end(connection)

    def close_some(self) -> None:
        """Closes some of the connections that are too many, if memory has become short: first those of strangers.

        Only connections that idle are closed, those without a request ever before the others, and the longest idle
        before those.
        """
        excess = min(self._count - self._total, _CLOSED_AT_ONCE)
        for group in (self._strangers, self._proven):
            if excess <= 0:
                return
            idle = [
                (rank, number, connection)
                for number, connection in enumerate(
                    each for caller in group.callers.values() for each in caller.connections
                )
                if (rank := _rank(connection)) is not None
            ]
            for _, _, connection in heapq.nsmallest(excess, idle):
                self._end(connection)
                self._use.refusals += 1
                excess -= 1

    def refuse_bodies_for(self, connection: CallerConnection) -> bool:
        """Refuses bodies until the others are within the limits. Returns whether that of `connection` is kept.

        Where one caller holds more than its share, it is one of its own, else one of the caller that holds most. Of
        its requests, the one that has been arriving for longest is refused first.
        """
        group = connection.caller.group
        while connection.body_bytes:
            caller = connection.caller
            if caller.body_bytes <= group.body_share_bytes:
                if group.body_bytes <= group.body_total_bytes:
                    return True
                caller = max(group.callers.values(), key=lambda each: each.body_bytes)
            arriving = [
                each
                for each in caller.connections
                if each.body_bytes and each.peer and each.peer.idle_since is not None
            ]
            refused = min(arriving, key=lambda each: each.body_began, default=connection)
            self._refuse("bodies", group.bodies_use, refused.caller, self.clock())
            refused.give_back()
            if refused.peer:
                refused.peer.refuse_body()
        return False

    def _displaced_by(self, caller: _Holder, now: float) -> CallerConnection | None:
        """The connection that is closed for a new one of this caller; None if there is none."""
        group, held = caller.group, len(caller.connections)
        if held < self._share:
            others = [other for other in group.callers.values() if other is not caller]
            own_group = sum(len(other.connections) for other in others) + held
            fair = (self._total - self._count + own_group) // (len(others) + 1)
            if held < fair:
                larger = [other for other in others if len(other.connections) > held]
                larger.sort(key=lambda other: len(other.connections), reverse=True)
                for other in larger:
                    if found := _longest_idle(other.connections):
                        return found
        return self._own_idle(caller, now) or (self._long_idle(group, now) if held < self._share else None)

    @staticmethod
    def _own_idle(caller: _Holder, now: float) -> CallerConnection | None:
        """The connection of the caller that has idled longest, if that is OWN_IDLE_SECONDS."""
        if now < caller.none_idle_before:
            return None
        found = _longest_idle(caller.connections, now - OWN_IDLE_SECONDS)
        if found is None:
            caller.none_idle_before = now + OWN_IDLE_SECONDS / 10  # so that a flood does not cost a search for each
        return found

    def _long_idle(self, group: _Group, now: float) -> CallerConnection | None:
        """The connection of any caller that has idled longest, if that is STRANGER_IDLE_SECONDS."""
        if now < self._none_long_idle_before:
            return None
        connections = (each for caller in group.callers.values() for each in caller.connections)
        found = _longest_idle(connections, now - STRANGER_IDLE_SECONDS)
        if found is None:
            self._none_long_idle_before = now + OWN_IDLE_SECONDS
        return found

    @staticmethod
    def _end(connection: CallerConnection) -> None:
        close = connection.close
        connection.leave()
        close()

    def _refuse(self, what: str, use: Use, caller: _Holder, now: float) -> None:
        use.refusals += 1
        if now >= self._next_log_line.get(what, now):
            self._next_log_line[what] = now + _BETWEEN_LOG_LINES_SECONDS
            log.warning(
                "callers.refused",
                listener=self._name,
                of=what,
                address=caller.address,
                connections=len(caller.connections),
                body_bytes=caller.body_bytes,
            )


_ADDRESSES = declare_cache("server.callers.addresses", key="address of a peer", bound=1024, at_most="0.4 MB")


@functools.lru_cache(_ADDRESSES.rows)
def caller_address(host: str) -> str:
    """Returns the caller that an address belongs to: the address itself, or its network of 64 bits if it is IPv6."""
    if ":" not in host:
        return host
    address = ipaddress.IPv6Address(host.partition("%")[0])
    if address.ipv4_mapped:
        return str(address.ipv4_mapped)
    return f"{ipaddress.IPv6Address(int(address) >> 64 << 64)}/64"


def _rank(connection: CallerConnection) -> tuple[bool, float] | None:
    """Whether it has ever had a request, and since when it idles; None if it is answering one."""
    peer = connection.peer
    if peer is None:
        return False, connection.accepted_at
    since = peer.idle_since
    return None if since is None else (peer.has_request, since)


def _longest_idle(connections: Iterable[CallerConnection], before: float = float("inf")) -> CallerConnection | None:
    """Of the connections that idle since `before`, one without a request ever if there is one, then the longest."""
    found, least = None, (True, float("inf"))
    for connection in connections:
        rank = _rank(connection)
        if rank is not None and rank[1] <= before and rank < least:
            found, least = connection, rank
    return found
