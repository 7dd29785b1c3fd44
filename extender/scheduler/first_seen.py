"""The time of the first request about each waiting pod, which limits how long its images may be *pending*."""

from collections.abc import Callable

import msgspec

from extender.kubernetes.core_v1 import PodUid
from extender.tables import ShareTable, declare_cache, text_cost

# A pod whose row is evicted only starts to wait again. The largest cluster Kubernetes is tested for has 150,000 pods.
_TIMES = declare_cache("scheduler.first_seen.times", key="pod uid", rows=20_000, most_mb=8)


class _Row(msgspec.Struct, frozen=True, gc=False):
    since: float
    namespace: str


class FirstSeen:
    """Monotonic times by pod uid, for the pods about which was asked last. Every call is O(1).

    A namespace whose pods fill the table evicts its own before those of others.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._rows: ShareTable[PodUid, _Row] = _TIMES.share_table(
            owner_of=lambda _, row: row.namespace, cost_of=lambda uid, row: text_cost(uid, row.namespace)
        )

    def seconds(self, uid: PodUid, namespace: str) -> float:
        """Seconds since the first call for `uid`, a pod of this namespace; 0.0 at the first call."""
        now = self._clock()
        row = self._rows.peek(uid)
        if row is None:
            row = _Row(now, namespace)
            self._rows.put(uid, row)
        return now - row.since
