"""The time at which each waiting pod was first asked about, so that *pending* has an end."""

from collections.abc import Callable

from extender.kubernetes.core_v1 import PodUid
from extender.tables import Table, declare_cache

# A pod whose row is dropped only starts to wait again: 150,000 pods are the largest cluster Kubernetes is tested for.
_TIMES = declare_cache("outlets.first_seen.times", key="pod uid", bound=150_000)


class FirstSeen:
    """Keeps monotonic times by pod uid, and forgets the pod known longest first. Every call is O(1)."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since: Table[PodUid, float] = _TIMES.table()

    def seconds(self, uid: PodUid) -> float:
        """Returns how long ago `uid` was first asked about: 0.0 the first time."""
        now = self._clock()
        since = self._since.peek(uid)
        if since is None:
            since = now
            self._since.put(uid, now)
        return now - since
