"""The time of the first request about each waiting pod, which limits how long its images may be *pending*."""

from collections.abc import Callable

from extender.kubernetes.core_v1 import PodUid
from extender.tables import Table, declare_cache

# A pod whose row is evicted only starts to wait again. The largest cluster Kubernetes is tested for has 150,000 pods.
_TIMES = declare_cache("outlets.first_seen.times", key="pod uid", bound=150_000)


class FirstSeen:
    """Monotonic times by pod uid; evicts the pod that was added first. Every call is O(1)."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since: Table[PodUid, float] = _TIMES.table()

    def seconds(self, uid: PodUid) -> float:
        """Seconds since the first call for `uid`; 0.0 at the first call."""
        now = self._clock()
        since = self._since.peek(uid)
        if since is None:
            since = now
            self._since.put(uid, now)
        return now - since
