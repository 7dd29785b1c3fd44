"""A cache of the last second's decisions by pod template, since pods of one template come by the hundred."""

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

import msgspec

from extender.tables import Table, declare_cache

_Decision = TypeVar("_Decision")

# A change of a tag, a secret or a namespace's annotations takes effect after this time at the latest.
FRESH_SECONDS = 1.0
# Some 2 KB each; a scheduler works on few templates at a time. A template is not kept if it is longer than 8 KB when
# encoded, which is enough for fifty containers. In memory it takes four times that, and its decision as much again, so
# 512 of the worst take 32 MB. A pod may have 1.5 MiB, which is etcd's limit, and a body of the scheduler 122 MiB.
_MOST_KEPT_BYTES = 8192
DECISIONS = declare_cache(
    "outlets.decision_cache.decisions",
    key="namespace, pod spec",
    lifetime=f"{FRESH_SECONDS:g} s",
    bound=512,
    at_most="32 MB",
    shrinks=True,
)


_ENCODER = msgspec.msgpack.Encoder()


class _Row(msgspec.Struct, Generic[_Decision], frozen=True):
    decision: _Decision
    until: float


class DecisionCache(Generic[_Decision]):
    """Decisions of the last second by template; `clock` gives monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._rows: Table[Hashable, _Row[_Decision]] = DECISIONS.table()

    def __len__(self) -> int:
        """How many decisions are kept, expired ones included; at most `DECISIONS.rows`."""
        return len(self._rows)

    def find(self, template: Hashable | None) -> _Decision | None:
        """The decision kept for this template within the last second, if any; None if `template` is None."""
        row = self._rows.peek(template)
        return row.decision if row and self._clock() < row.until else None

    def keep(self, template: Hashable, decision: _Decision) -> None:
        """Keeps the decision for a second unless the template is large; evicts the oldest if the table is full."""
        if len(_ENCODER.encode(template)) <= _MOST_KEPT_BYTES:
            self._rows.put(template, _Row(decision, self._clock() + FRESH_SECONDS))
