"""Mappings of bounded size, and the declarations of all caches.

`LruTable` drops the row used longest ago, `Table` the row put longest ago. Each cache of the package is declared where
it is made, so that its key, lifetime, bound and what invalidates it stand beside the code and in one table in
docs/architecture.md. What is no cache is not declared: views of nodes and namespaces hold what a watch last said, all
of it, and change with the cluster instead of going out of date; a value that a function without parameters or an object
works out once needs no bound.

This module is pure: no clock, no task, no metric.
"""

from collections import OrderedDict
from collections.abc import Callable, ItemsView
from itertools import islice, takewhile
from typing import Generic, TypeVar

import msgspec

K = TypeVar("K")
V = TypeVar("V")


class _Rows(Generic[K, V]):
    """What both tables can do; `_rows` is in the order in which rows go."""

    def __init__(self, rows: dict[K, V], size: int) -> None:
        self._rows = rows
        self._size = size

    def __len__(self) -> int:
        return len(self._rows)

    def remove(self, key: K) -> None:
        """Removes the row; does nothing if there is none."""
        self._rows.pop(key, None)

    def remove_where(self, is_void: Callable[[K, V], bool]) -> None:
        """Removes all rows of which `is_void` is true. O(rows), a fifth of a microsecond each."""
        for key in [key for key, value in self._rows.items() if is_void(key, value)]:
            del self._rows[key]


class LruTable(_Rows[K, V]):
    """A mapping of at most `size` rows that drops the one used longest ago; reading a row uses it. O(1).

    A row costs some 120 bytes besides its key and value.
    """

    _rows: OrderedDict[K, V]

    def __init__(self, size: int) -> None:
        super().__init__(OrderedDict(), size)

    def peek(self, key: K) -> V | None:
        """Returns the row's value and makes it the last to go; None if there is no row."""
        value = self._rows.get(key)
        if value is not None:
            self._rows.move_to_end(key)
        return value

    def put(self, key: K, value: V) -> None:
        """Adds or replaces the row, which becomes the last to go."""
        self._rows[key] = value
        self._rows.move_to_end(key)
        if len(self._rows) > self._size:
            self._rows.popitem(last=False)


class Table(_Rows[K, V]):
    """A mapping of at most `size` rows that drops those put longest ago, read or not. O(1), amortised.

    A row costs some 50 bytes less than in an `LruTable`. Beyond 2,000 rows several go together, one in a thousand:
    finding the first row of a dictionary passes over all that were removed before it.
    """

    def __init__(self, size: int) -> None:
        super().__init__({}, size)

    def peek(self, key: K) -> V | None:
        """Returns the row's value; None if there is no row."""
        return self._rows.get(key)

    def items(self) -> ItemsView[K, V]:
        """Returns a view of keys and values, the first to go first."""
        return self._rows.items()

    def put(self, key: K, value: V) -> int:
        """Adds or replaces the row, which becomes the last to go. Returns how many rows went to make room."""
        self._rows.pop(key, None)
        return self.put_in_place(key, value)

    def put_in_place(self, key: K, value: V) -> int:
        """As `put`, but a row that is replaced keeps its place in the order."""
        self._rows[key] = value
        if len(self._rows) <= self._size:
            return 0
        gone = list(islice(self._rows, max(1, self._size // 1000)))
        for first in gone:
            del self._rows[first]
        return len(gone)

    def remove_first_while(self, is_void: Callable[[K, V], bool]) -> None:
        """Removes rows from the first to go up to one of which `is_void` is false. O(rows removed)."""
        for key, _ in list(takewhile(lambda row: is_void(*row), self._rows.items())):
            del self._rows[key]


class CacheSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The declaration of a cache, in words for people, from which the cache is made.

    `name` begins with the module that declares it. `bound` counts the rows of each object that has the cache; where a
    setting or another program bounds it, `bound` says so in words. Settings stand in backticks.
    """

    name: str
    key: str
    lifetime: str
    bound: int | str
    invalidated_by: str

    @property
    def rows(self) -> int:
        """How many rows the cache holds at most. Raises TypeError where a setting says so."""
        if isinstance(self.bound, str):
            raise TypeError(f"{self.name} is bounded by {self.bound}")
        return self.bound

    def table(self, size: int | None = None) -> Table[K, V]:
        """Makes the cache as a `Table`. `size` is its bound where a setting says so."""
        return Table(self.rows if size is None else size)

    def lru_table(self, size: int | None = None) -> LruTable[K, V]:
        """Makes the cache as an `LruTable`. `size` is its bound where a setting says so."""
        return LruTable(self.rows if size is None else size)


_DECLARED: dict[str, CacheSpec] = {}


def declare_cache(
    name: str, *, key: str, lifetime: str = "unlimited", bound: int | str, invalidated_by: str = "nothing"
) -> CacheSpec:
    """Declares a cache, once, when its module is imported. Raises ValueError for a name that stands for another."""
    spec = CacheSpec(name=name, key=key, lifetime=lifetime, bound=bound, invalidated_by=invalidated_by)
    if _DECLARED.setdefault(name, spec) != spec:
        raise ValueError(f"there are two caches named {name}")
    return spec


def caches() -> tuple[CacheSpec, ...]:
    """Returns the caches of all modules imported so far, by name."""
    return tuple(_DECLARED[name] for name in sorted(_DECLARED))
