"""Mappings of bounded size.

`LruTable` evicts the row used longest ago, and `remembered` keeps what a pure function gave in one. `ShareTable` counts
what its rows cost and evicts the rows of owners that hold more than their part. This module is pure: no clock, no task,
no metric.
"""

from collections import OrderedDict
from collections.abc import Callable, ItemsView
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class LruTable(Generic[K, V]):
    """A mapping of at most `size` rows that evicts the row used longest ago; `get` uses a row. O(1).

    A row costs some 120 bytes besides its key and value.
    """

    def __init__(self, size: int) -> None:
        self._rows: OrderedDict[K, V] = OrderedDict()
        self._size = size

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, key: K) -> V | None:
        """The row's value; None if there is none. The row becomes the last to be evicted."""
        value = self._rows.get(key)
        if value is not None:
            self._rows.move_to_end(key)
        return value

    def peek(self, key: K) -> V | None:
        """The row's value, without a use of the row; None if there is none."""
        return self._rows.get(key)

    def items(self) -> ItemsView[K, V]:
        """A view of keys and values in eviction order; reading it uses no row."""
        return self._rows.items()

    def put(self, key: K, value: V) -> int:
        """Adds or replaces the row, which becomes the last to be evicted. Returns how many rows were evicted for it."""
        self._rows[key] = value
        self._rows.move_to_end(key)
        if len(self._rows) <= self._size:
            return 0
        self._rows.popitem(last=False)
        return 1

    def remove(self, key: K) -> None:
        self._rows.pop(key, None)

    def remove_where(self, is_void: Callable[[K, V], bool]) -> None:
        """Removes the rows of which `is_void` is true. A fifth of a microsecond for each that there is."""
        for key in [key for key, value in self._rows.items() if is_void(key, value)]:
            self.remove(key)


def remembered(work: Callable[[K], V], *, rows: int, is_kept: Callable[[K, V], bool]) -> Callable[[K], V]:
    """`work`, a pure function that never gives None, with its results for the `rows` arguments that were used last.

    Only those are kept of which `is_kept` is true: it bounds what an argument and its result may hold.
    """
    table: LruTable[K, V] = LruTable(rows)

    def answer(argument: K) -> V:
        found = table.get(argument)
        if found is None:
            found = work(argument)
            if is_kept(argument, found):
                table.put(argument, found)
        return found

    return answer


# Rows that one `put` of a `ShareTable` may pass over, a quarter of a microsecond each.
_MOST_PASSED = 64


# Most hosts, repositories, tags and digests that name a row have less together.
_ORDINARY_CHARACTERS = 128


class ShareTable(LruTable[K, V]):
    """A mapping of rows that cost at most `size` in all, whose owners cannot evict each other's part of it.

    The part of an owner is `size` divided by the number of owners that have rows. When the rows cost too much, the row
    used longest ago goes whose owner holds more than its part. Rows of other owners before it count as just used; after
    64 of them the new row itself goes, or the next in order if the new row's owner holds no more than its part. So:

    - With one owner the table is an `LruTable` whose rows differ in cost.
    - An owner that holds more than its part, its new row included, evicts no row of an owner within its part, whatever
      it puts or reads.
    - An owner within its part evicts a row of another such owner only if the first 64 rows in the order of use all
      belong to such owners. In a table of 64 rows or fewer it never does.

    `get` costs what it costs in an `LruTable`; `put` is O(1), amortised. Besides the rows, the table keeps one number
    for each owner: owner and cost are worked out from the row whenever they are needed, so they must not change.
    """

    def __init__(
        self, size: int, *, owner_of: Callable[[K, V], str], cost_of: Callable[[K, V], int] = lambda *_: 1
    ) -> None:
        """A row costs `cost_of` its key and value, 1 at least; one that costs more than `size` counts as `size`."""
        super().__init__(size)
        self._owner_of = owner_of
        self._cost_of = cost_of
        self._held: dict[str, int] = {}
        self._cost = 0

    @property
    def cost(self) -> int:
        """What all rows cost together; at most `size`."""
        return self._cost

    def put(self, key: K, value: V) -> int:
        """Adds or replaces the row, which becomes the last to be evicted. It may be evicted at once, as said above."""
        self.remove(key)
        self._rows[key] = value
        self._count(key, value, 1)
        before = len(self._rows)
        self._evict(key, self._size)
        return before - len(self._rows)

    def remove(self, key: K) -> None:
        value = self._rows.pop(key, None)
        if value is not None:
            self._count(key, value, -1)

    def _count(self, key: K, value: V, sign: int) -> None:
        owner, cost = self._owner_of(key, value), sign * min(max(self._cost_of(key, value), 1), self._size)
        self._cost += cost
        held = self._held.get(owner, 0) + cost
        if held:
            self._held[owner] = held
        else:
            del self._held[owner]

    def _holds_more_than_its_part(self, key: K, size: int) -> bool:
        """Whether the row's owner does, as some owner does while the table costs more than `size`."""
        return self._held[self._owner_of(key, self._rows[key])] * len(self._held) > size

    def _evict(self, newest: K, size: int) -> None:
        """Removes rows until the rest costs `size` or less, which `put` has reached without `newest` at the latest."""
        passed = 0
        while self._cost > size:
            first = next(iter(self._rows))
            if self._holds_more_than_its_part(first, size):
                self.remove(first)
            elif passed < _MOST_PASSED:
                self._rows.move_to_end(first)
                passed += 1
            else:
                self.remove(newest if self._holds_more_than_its_part(newest, size) else first)


def text_cost(*texts: str | bytes) -> int:
    """The cost of a row that holds these texts and values of fixed size: 1 for texts of 128 characters."""
    return 1 + sum(map(len, texts)) // _ORDINARY_CHARACTERS
