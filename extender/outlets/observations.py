"""What would have become of pods that are only observed, by workload, in memory until the process ends.

A tenant that fills the table loses its own rows first, and no row grows with what a pod or an image states. Counts are
those of one process: several replicas see parts of the pods, and a restart begins again, which the time in `since`
shows.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

import msgspec

from extender.kubernetes.core_v1 import Pod, PodUid
from extender.metrics import counter
from extender.placement.mutation import AdmissionOutcome, ObservedOutcome
from extender.placement.scheduling import REFUSED, Decision, Verdict
from extender.reports.observed import Observations, ObservedWorkload, workload_of
from extender.reports.workloads import WorkloadKey
from extender.tables import ShareTable, declare_cache, text_cost

_WOULD_BE = tuple(each for each in AdmissionOutcome if each not in ("observed", "ignored", "left_alone"))
OBSERVED_ADMISSIONS = counter(
    "multiarch_observed_admissions_total",
    "Pods under observe that were created, by what would have become of them.",
    "outcome",
    _WOULD_BE,
)
_PASSED, _NARROWED, _REFUSED, _RETRIED = "passed", "narrowed", "refused", "retried"
OBSERVED_FILTERS = counter(
    "multiarch_observed_filters_total",
    "Filter requests about pods under observe, by what the answer would have been: every node passed, some refused "
    "or left out (narrowed), all refused, or to be retried.",
    "outcome",
    (_PASSED, _NARROWED, _REFUSED, _RETRIED),
)

_IMPOSSIBLE = (AdmissionOutcome.IMPOSSIBLE, AdmissionOutcome.DENIED)
_MOST_NAME = 253  # RFC 1123; a review may state anything
# Three times what the platforms of the largest official images take. A decision tells 32, of 98 characters at most.
_MOST_PLATFORMS = 1024
_TOLD_AT_ONCE = 200  # workloads, in some 2 ms; then whatever else is to be done has its turn
_WORKLOADS = declare_cache("outlets.observations.workloads", key="namespace, kind, name", bound=5_000, at_most="20 MB")
_PODS = declare_cache("outlets.observations.pods", key="pod uid", bound=20_000, at_most="8 MB")


class _Row(msgspec.Struct):
    first_at: float
    last_at: float
    reviewed: dict[str, int]
    filtered: dict[str, int]
    refused: int = 0
    is_refused: bool = False
    platforms: str | None = None  # one text, as each of them would take 49 bytes more
    reason: str = ""


class ObservedPods:
    """Collects what is decided about observed pods. `wall_clock` gives seconds since 1970.

    `restricts` as in `Observations`. A call takes some microseconds.
    """

    def __init__(self, *, restricts: bool, wall_clock: Callable[[], float]) -> None:
        self._restricts = restricts
        self._wall_clock = wall_clock
        self._since = wall_clock()
        self._left_out = 0
        self._rows: ShareTable[WorkloadKey, _Row] = _WORKLOADS.share_table(
            owner_of=lambda key, _: key.namespace, cost_of=lambda key, _: text_cost(*key)
        )
        self._counted: ShareTable[PodUid, str] = _PODS.share_table(
            owner_of=lambda _, namespace: namespace, cost_of=text_cost
        )

    def note_review(self, pod: Pod, namespace: str, would: ObservedOutcome) -> None:
        """Counts a pod that is being created."""
        OBSERVED_ADMISSIONS[would.outcome].inc()
        row = self._row(pod, namespace)
        row.reviewed[would.outcome] = row.reviewed.get(would.outcome, 0) + 1
        row.is_refused = would.is_nowhere or would.outcome in _IMPOSSIBLE
        row.refused += row.is_refused
        row.platforms, row.reason = _kept(would.platforms), would.reason

    def note_filter(
        self, pod: Pod, uid: PodUid, namespace: str, decision: Decision, verdicts: Mapping[Verdict, int]
    ) -> None:
        """Counts a pod that the scheduler asks about, once; later requests about it change no count of pods."""
        outcome = _outcome_of(verdicts)
        OBSERVED_FILTERS[outcome].inc()
        row = self._row(pod, namespace)
        row.platforms, row.reason = _kept(decision.platforms), decision.refusal
        if self._counted.peek(uid) is not None:
            return
        self._counted.put(uid, namespace)
        row.filtered[outcome] = row.filtered.get(outcome, 0) + 1
        if not row.reviewed:
            row.is_refused = outcome == _REFUSED
            row.refused += row.is_refused

    def read(self, namespace: str = "") -> Observations:
        """What was observed in the namespace, or in all if that is empty. O(workloads), 10 µs each."""
        return self._observations([_told(*each) for each in self._sorted_rows(namespace)])

    def count(self, namespace: str = "") -> int:
        """How many workloads `read` tells of."""
        return sum(key.namespace == namespace for key, _ in self._rows.items()) if namespace else len(self._rows)

    async def encode(self, namespace: str = "") -> bytes:
        """What `read` gives, as JSON. Other work goes on meanwhile, and is in the answer where it came in time."""
        rows = self._sorted_rows(namespace)
        parts: list[bytes] = []
        for first in range(0, len(rows), _TOLD_AT_ONCE):
            parts += [msgspec.json.encode(_told(*each)) for each in rows[first : first + _TOLD_AT_ONCE]]
            await asyncio.sleep(0)
        around = msgspec.json.encode(self._observations([])).removesuffix(b"]}")
        return b"".join((around, b",".join(parts), b"]}"))

    def _observations(self, workloads: list[ObservedWorkload]) -> Observations:
        return Observations(
            since=_time(self._since),
            until=_time(self._wall_clock()),
            restricts=self._restricts,
            left_out=self._left_out,
            workloads=workloads,
        )

    def _sorted_rows(self, namespace: str) -> Sequence[tuple[WorkloadKey, _Row]]:
        rows = [each for each in self._rows.items() if not namespace or each[0].namespace == namespace]
        return sorted(rows, key=lambda each: each[0])

    def _row(self, pod: Pod, namespace: str) -> _Row:
        key, now = _workload_of(pod, namespace), self._wall_clock()
        row = self._rows.peek(key)
        if row is None:
            row = _Row(now, now, {}, {})
            rows = len(self._rows)
            self._rows.put(key, row)
            self._left_out += rows + 1 - len(self._rows)
        row.last_at = now
        return row


def _workload_of(pod: Pod, namespace: str) -> WorkloadKey:
    metadata = pod.metadata
    if metadata is None:
        return workload_of(namespace[:_MOST_NAME], None, "", "")
    owner = next((each for each in metadata.owner_references or () if each.controller), None)
    return workload_of(
        namespace[:_MOST_NAME],
        (owner.kind[:_MOST_NAME], owner.name[:_MOST_NAME]) if owner else None,
        (metadata.name or "")[:_MOST_NAME],
        (metadata.generate_name or "")[:_MOST_NAME],
    )


def _kept(platforms: Sequence[str] | None) -> str | None:
    """The platforms as one text; None if that is too long, which says nothing about where the pod runs."""
    text = None if platforms is None else ",".join(platforms)
    return text if text is None or len(text) <= _MOST_PLATFORMS else None


def _outcome_of(verdicts: Mapping[Verdict, int]) -> str:
    if Verdict.RETRY in verdicts:
        return _RETRIED
    if REFUSED.issuperset(verdicts):
        return _REFUSED if verdicts else _PASSED
    return _NARROWED if any(verdict in REFUSED or verdict is Verdict.LEFT_OUT for verdict in verdicts) else _PASSED


def _told(key: WorkloadKey, row: _Row) -> ObservedWorkload:
    return ObservedWorkload(
        namespace=key.namespace,
        kind=key.kind,
        name=key.name,
        first_seen=_time(row.first_at),
        last_seen=_time(row.last_at),
        reviewed=dict(row.reviewed),
        filtered=dict(row.filtered),
        refused=row.refused,
        is_refused=row.is_refused,
        platforms=None if row.platforms is None else [each for each in row.platforms.split(",") if each],
        reason=row.reason,
    )


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
