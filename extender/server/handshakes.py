"""When the TLS handshakes of callers begin that have not shown who they are: a few of each at once, in turns.

A handshake takes a millisecond of processor time and more, so whoever makes 600 connections a second would have it all.
Callers that have shown who they are lately are not held up.
"""

from collections.abc import Callable, Hashable
from typing import NamedTuple

from extender.slowdown import Slowdown
from extender.tables import LruTable, declare_cache

# Handshakes of one caller, and of all: so many at once after a time of quiet, and then so many a second, or fewer while
# the event loop is busy. A second of handshakes takes a tenth of a core. An API server that has just started begins
# with fewer, and is known then.
BURST, EACH_BURST = 128, 32
PER_SECOND, EACH_PER_SECOND = 64.0, 32.0
# For how long a caller is known.
KNOWN_SECONDS = 3600.0

_ALLOWANCES = declare_cache(
    "server.handshakes.allowances", key="address", lifetime="unlimited", bound=4096, at_most="1 MB"
)
_KNOWN = declare_cache(
    "server.handshakes.known", key="address", lifetime=f"{KNOWN_SECONDS:g} s", bound=1024, at_most="300 KB"
)


class _Allowance(NamedTuple):
    """How many handshakes were allowed at a time."""

    left: float
    at: float

    def now(self, at: float, per_second: float, burst: int) -> float:
        return min(burst, self.left + (at - self.at) * per_second)


class Handshakes:
    """The handshakes of one listener that wait, each with the function that begins it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` gives monotonic seconds."""
        self._clock = clock
        self._all = _Allowance(BURST, clock())
        self._each: LruTable[str, _Allowance] = _ALLOWANCES.lru_table()
        self._known: LruTable[str, float] = _KNOWN.lru_table()
        self._waiting: dict[str, dict[Hashable, Callable[[], None]]] = {}  # by address, in the order of their turns
        self._slowdown = Slowdown()

    def __bool__(self) -> bool:
        """Whether any waits."""
        return bool(self._waiting)

    def add(self, address: str, connection: Hashable, begin: Callable[[], None]) -> None:
        """Calls `begin` when it is the caller's turn.

        That is at once if it is known, or if nobody waits and its allowance is not spent.
        """
        if self._is_known(address) or (not self._waiting and self._spend(address)):
            begin()
        else:
            self._waiting.setdefault(address, {})[connection] = begin

    def remove(self, address: str, connection: Hashable) -> None:
        """Forgets the handshake of a connection that has ended; does nothing if it does not wait."""
        waiting = self._waiting.get(address)
        if waiting and waiting.pop(connection, None) and not waiting:
            del self._waiting[address]

    def note_known(self, address: str) -> None:
        """Notes that the caller has shown who it is; begins what it has waiting."""
        self._known.put(address, self._clock())
        for begin in self._waiting.pop(address, {}).values():
            begin()

    def begin_some(self, late_seconds: float = 0.0) -> None:
        """Begins what may begin by now, one of each caller before a second of any.

        `late_seconds` is how late the event loop makes this call.
        """
        self._slowdown.note(late_seconds)
        blocked: set[str] = set()
        while len(blocked) < len(self._waiting):
            for address in [each for each in self._waiting if each not in blocked]:
                if not self._spend(address):
                    blocked.add(address)
                    continue
                waiting = self._waiting.pop(address)
                begin = waiting.pop(next(iter(waiting)))
                if waiting:
                    self._waiting[address] = waiting  # behind the others
                begin()

    def begin_all(self) -> None:
        """Begins all that wait, since nobody comes after them."""
        waiting, self._waiting = self._waiting, {}
        for connections in waiting.values():
            for begin in connections.values():
                begin()

    def _is_known(self, address: str) -> bool:
        since = self._known.peek(address)
        return since is not None and self._clock() - since < KNOWN_SECONDS

    def _spend(self, address: str) -> bool:
        now = self._clock()
        own = self._each.peek(address) or _Allowance(EACH_BURST, now)
        left = self._all.now(now, PER_SECOND / self._slowdown.divisor, BURST)
        left_each = own.now(now, EACH_PER_SECOND, EACH_BURST)
        if left < 1 or left_each < 1:
            return False
        self._all = _Allowance(left - 1, now)
        self._each.put(address, _Allowance(left_each - 1, now))
        return True
