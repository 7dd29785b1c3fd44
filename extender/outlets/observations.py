"""What would have become of pods that are only observed, by workload, in memory until the process ends.

A tenant that fills the table loses its own rows first. Counts are those of one process: several replicas see parts of
the pods, and a restart begins again, which the time in `since` shows.
"""

from collections.abc import Callable, Mapping
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
_WORKLOADS = declare_cache("outlets.observations.workloads", key="namespace, kind, name", bound=5_000, at_most="20 MB")
_PODS = declare_cache("outlets.observations.pods", key="pod uid", bound=20_000, at_most="8 MB")


class _Row(msgspec.Struct):
    first_at: float
    last_at: float
    reviewed: dict[str, int]
    filtered: dict[str, int]
    refused: int = 0
    is_refused: bool = False
    platforms: tuple[str, ...] | None = None
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
        row.platforms, row.reason = would.platforms, would.reason

    def note_filter(
        self, pod: Pod, uid: PodUid, namespace: str, decision: Decision, verdicts: Mapping[Verdict, int]
    ) -> None:
        """Counts a pod that the scheduler asks about, once; later requests about it change no count of pods."""
        outcome = _outcome_of(verdicts)
        OBSERVED_FILTERS[outcome].inc()
        row = self._row(pod, namespace)
        row.platforms, row.reason = decision.platforms, decision.refusal
        if self._counted.peek(uid) is not None:
            return
        self._counted.put(uid, namespace)
        row.filtered[outcome] = row.filtered.get(outcome, 0) + 1
        if not row.reviewed:
            row.is_refused = outcome == _REFUSED
            row.refused += row.is_refused

    def read(self, namespace: str = "") -> Observations:
        """What was observed in the namespace, or in all if that is empty."""
        rows = [_told(key, row) for key, row in self._rows.items() if not namespace or key.namespace == namespace]
        return Observations(
            since=_time(self._since),
            until=_time(self._wall_clock()),
            restricts=self._restricts,
            left_out=self._left_out,
            workloads=sorted(rows, key=lambda row: row.key),
        )

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
        platforms=None if row.platforms is None else list(row.platforms),
        reason=row.reason,
    )


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
