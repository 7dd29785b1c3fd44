"""One leader among replicas, by a Lease of coordination.k8s.io/v1; every replica can say whether there is a leader.

The rules are those of client-go's leaderelection: a replica trusts no other's clock, and takes the lease over when it
has seen no change of it for as long as the lease says. Unlike there, the leader changes only its own fields of the
Lease, a leader that is no longer able gives the lease up, and a replica that starts takes a lease over at once that was
renewed before `DEAD_SECONDS`: all replicas were gone. Should a clock differ by more, the holder finds at its next
renewal that it leads no more.
Specification: https://kubernetes.io/docs/concepts/architecture/leases/#leader-election
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from datetime import UTC, datetime

import msgspec
import structlog

from extender.cluster.client import MERGE_PATCH, ClusterClient, ClusterRefused, decode_answer
from extender.errors import ClusterError
from extender.kubernetes.api_groups import Lease, LeaseSpec

log = structlog.get_logger()

LEASE_SECONDS = (
    10  # a standby takes over 16 s after the last renewal at most: it reads that one 3 s late, and its end 3 s late
)
FRESH_SECONDS = 20.0  # after which nobody leads: longer than a takeover, in which a standby must not think so
# Between two renewals by the leader, and between two readings by a standby: the longest with which a leader that is
# answered again tries twice before it steps down, and a takeover ends within `FRESH_SECONDS`.
RENEW_SECONDS = 3.0
STEP_DOWN_SECONDS = 7.0  # after its last renewal a leader stops leading, well before another replica may begin
DEAD_SECONDS = 60.0  # more than clocks of one cluster differ by, since certificates and tokens would not hold either
_REQUEST_SECONDS = 3.0

_LEASE = msgspec.json.Decoder(Lease)


class LeaderElection:
    """A candidate in the election for the Lease `name` in `namespace` while `run` runs.

    Needs the verbs get and patch on this Lease, and create on leases in the namespace. `identity` must be that of no
    other replica. `clock` gives monotonic seconds, `wall_clock` those since 1970, for people who read the Lease.
    """

    def __init__(
        self,
        client: ClusterClient,
        *,
        namespace: str,
        name: str,
        identity: str,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._client = client
        self._collection = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._path = f"{self._collection}/{name}"
        self.name = name
        self._identity = identity
        self._clock = clock
        self._wall_clock = wall_clock
        self._sleep = sleep
        self._lease: Lease | None = None  # as last seen
        self._is_current = False  # whether `_lease` is as the last request left it, so that it may be renewed unseen
        self._observed_at = 0.0  # when a change of the lease was last seen, or it was first seen
        self._renewed_at: float | None = None  # as `_observed_at`, but only of changes that happened while we ran
        self._leads_until = 0.0
        self._is_lost = False
        self._is_able: Callable[[], bool] = lambda: False

    @property
    def is_leader(self) -> bool:
        """Whether this replica leads now."""
        return self._clock() < self._leads_until

    def is_led(self) -> bool:
        """Whether some replica leads, or did within `FRESH_SECONDS` and another takes over. True on standbys too."""
        return self._renewed_at is not None and self._clock() < self._renewed_at + FRESH_SECONDS

    async def run(
        self, lead: Callable[[], Coroutine[None, None, None]], is_able: Callable[[], bool] = lambda: True
    ) -> None:
        """Runs `lead` whenever this replica leads, until cancelled; cancels it when another one may begin to lead.

        It leads only while `is_able` says so. When cancelled or no longer able it gives the lease up, so that another
        replica leads within `RENEW_SECONDS`. If `lead` returns or raises, that ends this call too. Continues after
        ClusterErrors.
        """
        self._is_able = is_able
        hands_over = False
        try:
            while True:
                await self._campaign()
                await self._lead(lead)
                if not is_able():
                    await self._release(hands_over=False)
        except asyncio.CancelledError:
            hands_over = True
            raise
        finally:
            await self._release(hands_over=hands_over)

    async def _campaign(self) -> None:
        """Returns when this replica leads."""
        while not self.is_leader:
            await self._acquire_or_renew()
            if not self.is_leader:
                await self._sleep(RENEW_SECONDS)

    async def _lead(self, lead: Callable[[], Coroutine[None, None, None]]) -> None:
        log.info("lease.acquired", lease=self.name, identity=self._identity)
        leading, renewing = asyncio.create_task(lead()), asyncio.create_task(self._renew())
        try:
            await asyncio.wait([leading, renewing], return_when=asyncio.FIRST_COMPLETED)
        finally:
            leading.cancel()
            renewing.cancel()
            await asyncio.gather(leading, renewing, return_exceptions=True)
        if not leading.cancelled():
            leading.result()
            raise RuntimeError("what a leader does has ended")
        log.warning("lease.lost", lease=self.name, identity=self._identity)

    async def _renew(self) -> None:
        """Returns when this replica leads no more."""
        while self.is_leader:
            await self._sleep(RENEW_SECONDS)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, self._leads_until - self._clock())):
                    await self._acquire_or_renew()

    async def _acquire_or_renew(self) -> None:
        """Reads the lease, or renews it or takes it over where that is ours to do; outlives ClusterErrors."""
        try:
            if not (self._is_current and self.is_leader):
                await self._read()
            if self._may_write():
                await self._acquire()
            else:
                self._leads_until = 0.0
        except ClusterError as exc:
            self._is_current = False
            if not (self._is_lost or _is_conflict(exc)):
                self._is_lost = True
                log.warning("lease.unreachable", lease=self.name, error=str(exc))
        else:
            self._is_lost = False

    async def _read(self) -> None:
        lease = await self._client.find(self._path, _LEASE, timeout_seconds=_REQUEST_SECONDS)
        if lease is None:
            self._lease = None
        elif self._lease is None:
            self._observe(lease, is_change=False)
            age_seconds = self._stated_age_seconds(lease)
            if abs(age_seconds) < FRESH_SECONDS:
                self._renewed_at = self._clock() - max(0.0, age_seconds)
            elif age_seconds > DEAD_SECONDS:
                self._observed_at -= age_seconds
        elif lease.metadata.resource_version != self._lease.metadata.resource_version:
            self._observe(lease, is_change=True)

    def _stated_age_seconds(self, lease: Lease) -> float:
        """How long ago a lease was renewed by its holder's clock; FRESH_SECONDS if it does not say."""
        try:
            stated = datetime.fromisoformat((lease.spec and lease.spec.renew_time) or "")
            return self._wall_clock() - stated.timestamp()
        except (ValueError, OverflowError):
            return FRESH_SECONDS

    def _observe(self, lease: Lease, *, is_change: bool) -> None:
        self._lease = lease
        self._observed_at = self._clock()
        if lease.spec and lease.spec.renew_time is None:
            self._renewed_at = None
        elif is_change:
            self._renewed_at = self._observed_at

    def _may_write(self) -> bool:
        if not self._is_able():
            return False
        lease = self._lease
        if lease is None or lease.spec is None or lease.spec.holder_identity in (None, "", self._identity):
            return True
        return self._clock() >= self._observed_at + _duration_seconds(lease)

    async def _acquire(self) -> None:
        """Creates, renews or takes over the lease. Leadership counts from before the request was sent."""
        started_at, now = self._clock(), self._now()
        before, is_ours = (self._lease and self._lease.spec) or LeaseSpec(), self._is_ours()
        spec = LeaseSpec(
            holder_identity=self._identity,
            lease_duration_seconds=LEASE_SECONDS,
            acquire_time=before.acquire_time if is_ours else now,
            renew_time=now,
            lease_transitions=(before.lease_transitions or 0) + (self._lease is not None and not is_ours),
        )
        self._observe(await self._write(spec), is_change=True)
        self._is_current = True
        self._leads_until = started_at + STEP_DOWN_SECONDS

    async def _write(self, spec: LeaseSpec) -> Lease:
        document: dict[str, object] = {"spec": spec}
        if self._lease is None:
            document |= {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": self.name}}
            sent = self._client.send(
                "POST", self._collection, msgspec.json.encode(document), timeout_seconds=_REQUEST_SECONDS
            )
        else:
            document["metadata"] = {"resourceVersion": self._lease.metadata.resource_version}
            sent = self._client.send(
                "PATCH", self._path, msgspec.json.encode(document), MERGE_PATCH, timeout_seconds=_REQUEST_SECONDS
            )
        return decode_answer(_LEASE, await sent, "Lease")

    async def _release(self, *, hands_over: bool) -> None:
        """Gives the lease up if it is ours, so that a standby need not wait until it expires.

        While it `hands_over` somebody is still said to lead; else nobody is, until a replica takes the lease.
        """
        self._leads_until = 0.0
        if not hands_over:
            self._renewed_at = None
        if not self._is_ours():
            return
        try:
            if not self._is_current:
                await self._read()
            if self._lease and self._lease.spec and self._is_ours():
                renew_time = self._now() if hands_over else None
                released = {"holder_identity": "", "lease_duration_seconds": 1, "renew_time": renew_time}
                self._lease = await self._write(msgspec.structs.replace(self._lease.spec, **released))
                log.info("lease.released", lease=self.name, identity=self._identity)
        except ClusterError as exc:
            log.warning("lease.unreachable", lease=self.name, error=str(exc))

    def _is_ours(self) -> bool:
        spec = self._lease.spec if self._lease else None
        return spec is not None and spec.holder_identity == self._identity

    def _now(self) -> str:
        return datetime.fromtimestamp(self._wall_clock(), UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _duration_seconds(lease: Lease) -> int:
    return (lease.spec and lease.spec.lease_duration_seconds) or LEASE_SECONDS


def _is_conflict(exc: ClusterError) -> bool:
    """Whether another replica was faster; the next reading shows which."""
    return isinstance(exc, ClusterRefused) and exc.status == 409
