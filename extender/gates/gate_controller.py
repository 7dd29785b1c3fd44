"""The gate controller: finds out what held pods run on, and removes the gate of each by one patch.

This file says when there is a decision about a pod, and what follows an answer of the API server. `placement.ungating`
decides how the pod is changed. Every replica runs it, and one at a time is responsible (`cluster.leader_election`).

Beside the workers, which decide, one task finds the pods that are past their limit and one removes their gates. These
two need neither nodes nor images nor a leader, so a pod is held for no longer whatever else fails.
"""

import asyncio
import math
from collections.abc import Callable
from typing import Literal

import msgspec
import structlog

from extender.background import outlive_defects
from extender.circuit_breaker import Backoff
from extender.cluster.client import ClusterClient, ClusterRefused
from extender.cluster.gated_pods import (
    HELD_PODS,
    decode_stored_pod,
    is_held,
    patch_pod,
    read_pod,
    unlabelled_pods,
)
from extender.cluster.listwatch import ListWatch
from extender.cluster.pod_events import PodEvents
from extender.errors import ClusterError
from extender.gates.held_pods import HeldPod, HeldPods
from extender.gates.image_waits import ImageWaits
from extender.gates.work_queue import WorkQueue
from extender.images.content import Answer
from extender.kubernetes.core_v1 import CreatedPod
from extender.metrics import counter, gauge
from extender.placement.facts import facts_of, is_unresolved
from extender.placement.gate import encode_ungating
from extender.placement.nodes import ClusterNodes
from extender.placement.planning import Outcome
from extender.placement.reasons import shown_reference
from extender.placement.resolved_pod import ResolvedPod
from extender.placement.ungating import Ungating, UngatingPlanner
from extender.resolver.pod_resolver import PodQuestion, PodResolver

log = structlog.get_logger()

WORKERS = 8  # each decides about a pod and patches it; a renewal of the Lease waits behind as many patches at most
# Between two checks whether this replica is responsible, and which pods are past their limit; where no pod is held.
_CHECK_SECONDS, _IDLE_SECONDS = 1.0, 4.0
_ABLE_SECONDS = 5.0  # for how long such a check counts
_REMOVAL_SECONDS = 5.0  # that a removal takes at most while the API server makes removals
# For which a pod past its limit is left to the worker or the replica that would remove its gate with what is known.
_GRACE_SECONDS = 10.0
_LAST_LOOKUP_SECONDS = 2.0  # for a pod past its limit whose images this replica has not looked up yet
_DEFECT_SECONDS = 30.0  # before another try after a mistake of ours
_REFUSED_SECONDS = 5.0  # before another look at a pod whose namespace has spent its share of waits
_SEARCH_SECONDS = 300.0  # between two searches for pods whose label somebody took off, each a list of pending pods
_RETRY = Backoff(first_seconds=0.5, max_seconds=5.0)
_MOST_EVENTS = 3  # about one pod that is held; the first says why, and others follow when that changes

BARE, FAILED = "bare", "failed"
_SETTLED = (Outcome.KNOWN, Outcome.EXEMPT, Outcome.OBSERVED)
_FAILURES = ("conflict", "invalid", "gone", "forbidden", "unavailable")
REMOVALS = counter(
    "multiarch_gates_removals_total",
    "Gates removed, by what was decided; bare: the gate alone, as the rest was refused; failed: the gate alone at the "
    "limit, as nothing could be decided; and patches that failed: conflict, invalid, gone, forbidden, unavailable.",
    "outcome",
    (*(outcome.value for outcome in Outcome if outcome is not Outcome.HOLD), BARE, FAILED, *_FAILURES),
)
PODS = gauge(
    "multiarch_gates_pods",
    "Held pods, as the leader sees them; seen: as each replica does.",
    "state",
    ("held", "removing", "seen"),
)
OLDEST = gauge(
    "multiarch_gates_oldest_seconds",
    "Age of the oldest gate.",
    "state",
    ("held",),
)

_POD = msgspec.json.Decoder(CreatedPod)

_REASONS = {400: "forbidden", 403: "forbidden", 404: "gone", 409: "conflict", 422: "invalid"}
# The API server's words for a patch that a policy or a webhook of the cluster refuses. These choose the status, and 403
# is also for a right that we lack.
_REFUSALS = ("denied request", "denied the request")


def _outcome_of(exc: ClusterError) -> str:
    """The outcome in `REMOVALS` of a patch that failed."""
    return _REASONS.get(exc.status if isinstance(exc, ClusterRefused) else 0, "unavailable")


def _is_final(refusal: ClusterRefused) -> bool:
    """Whether the API server would refuse the patch again: it is invalid, or the cluster's own rules are against it."""
    return refusal.status == 422 or (refusal.status < 500 and any(text in refusal.said for text in _REFUSALS))


class GateController:
    """Removes the gates of held pods while `run` and the `watch` run.

    It decides about pods while it `is_responsible` for them, as this replica leads or none does, and `is_ready`: it has
    the rights, and namespaces and nodes are in view. `cluster_nodes` gives the nodes. After `limit_seconds` the gate of
    a pod that no other gate holds is removed in any case.
    """

    def __init__(  # noqa: PLR0913 - parts and clocks, each by its name
        self,
        client: ClusterClient,
        pod_resolver: PodResolver,
        planner: UngatingPlanner,
        events: PodEvents,
        *,
        cluster_nodes: Callable[[], ClusterNodes],
        is_responsible: Callable[[], bool],
        is_ready: Callable[[], bool],
        limit_seconds: float,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        random: Callable[[], float],
    ) -> None:
        self._client = client
        self._pod_resolver = pod_resolver
        self._planner = planner
        self._events = events
        self._cluster_nodes = cluster_nodes
        self._is_responsible = is_responsible
        self._is_ready = is_ready
        self._clock = clock
        self._random = random
        self._queue = WorkQueue[HeldPod](lambda pod: pod.namespace)
        self._limits = WorkQueue[HeldPod](lambda pod: pod.namespace)
        self._waits = ImageWaits(pod_resolver, self._queue.add, clock=clock)
        self._pods = HeldPods(
            self._on_change,
            self._on_gone,
            is_live=lambda: self.watch.is_live,
            limit_seconds=limit_seconds,
            clock=clock,
            wall_clock=wall_clock,
        )
        self.watch = ListWatch(client, HELD_PODS, self._pods, clock=clock, random=random)
        self._tasks = asyncio.TaskGroup()
        self._works = False  # whether the workers run
        self._decides = False  # whether they decide about all pods, at the last check
        self._search_at = -math.inf
        self._removed_at = -math.inf
        self._able_until = -math.inf

    @property
    def held(self) -> int:
        """How many pods are held, as far as the watch has shown them."""
        return len(self._pods)

    def is_able(self) -> bool:
        """Whether this replica would remove a gate now.

        Its workers run, it sees the held pods, and the last removals have succeeded, or none was due. A watch that
        missed a pod has to bring something first.
        """
        sees = self.watch.is_seen and not (self._pods.were_late and not self.watch.is_live)
        return self._works and sees and self._clock() < self._able_until

    async def run(self) -> None:
        """Removes gates until cancelled, also after ClusterErrors and mistakes of ours."""
        PODS["held"].set_function(lambda: len(self._waits))
        PODS["removing"].set_function(lambda: len(self._pods) - len(self._waits) if self._decides else 0)
        OLDEST["held"].set_function(self._pods.oldest_seconds)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep_working())
            tasks.create_task(self._keep_checking())
            tasks.create_task(self._enforce_limits())

    async def _keep_working(self) -> None:
        while True:
            with outlive_defects("gate.failed"):
                async with asyncio.TaskGroup() as self._tasks:
                    for _ in range(WORKERS):
                        self._tasks.create_task(self._work())
                    self._works = True
            self._works = False
            await asyncio.sleep(_DEFECT_SECONDS)

    async def _keep_checking(self) -> None:
        while True:
            with outlive_defects("gate.failed"):
                self._check()
            await asyncio.sleep(_CHECK_SECONDS if len(self._pods) else _IDLE_SECONDS)

    def _check(self) -> None:
        """Enqueues all pods if this replica begins or ceases to decide about them, and those past their limit.

        Also starts the search for pods without the label, or forgets them where others remove gates; and notes whether
        it is able to remove gates.
        """
        is_responsible, decides = self._is_responsible(), self._may_decide()
        if decides != self._decides:
            self._decides = decides
            for pod in self._pods:
                self._waits.leave(pod)
                self._queue.add(pod)
        if self.watch.is_live:
            self._pods.were_late = False
        now = self._clock()
        for pod in self._pods:
            is_left_to_others = pod in self._queue or not is_responsible
            limit = pod.expires_at + (_GRACE_SECONDS if is_left_to_others else 0.0)
            if limit <= now and pod not in self._limits:
                self._limits.add(pod)
        if not is_responsible:
            self._pods.keep_unlabelled(frozenset())
            self._search_at = -math.inf
        elif self._works and self._search_at <= now:
            self._tasks.create_task(self._find_unlabelled())
            self._search_at = now + _SEARCH_SECONDS
        self._able_until = -math.inf if any(self._is_stuck(pod) for pod in self._pods) else now + _ABLE_SECONDS

    def _may_decide(self) -> bool:
        return self._works and self._is_responsible() and self._is_ready()

    def _is_ours(self, pod: HeldPod) -> bool:
        """Whether the workers decide about the pod. One whose gate cannot be removed shows when it can again."""
        return self._may_decide() or (pod.removing_since is not None and self._is_ready())

    def _is_stuck(self, pod: HeldPod) -> bool:
        """Whether no gate could be removed for some seconds, this pod's among them.

        What the API server refuses may be due to the pod, so it counts only while no other gate has been removed since.
        """
        since = pod.removing_since
        if since is None:
            return False
        if pod.is_refused and self._removed_at >= since:
            return False
        return max(since, self._removed_at) <= self._clock() - _REMOVAL_SECONDS

    def _on_change(self, pod: HeldPod) -> None:
        """Begins anew with a pod that is new or has changed: it may have other images now."""
        pod.removing_since = None
        self._queue.add(pod)

    def _on_gone(self, pod: HeldPod) -> None:
        self._waits.leave(pod)
        self._queue.discard(pod)
        self._limits.discard(pod)

    async def _find_unlabelled(self) -> None:
        """Finds the pods that have the gate and not its label, which the watch does not show."""
        with outlive_defects("gate.failed"):
            await self._search()

    async def _search(self) -> None:
        found = set[str]()
        try:
            async for document in unlabelled_pods(self._client):
                stored = decode_stored_pod(document)
                self._pods.add_unlabelled(stored, document)
                found.add(stored.key)
        except ClusterError as exc:
            log.info("gate.search_failed", why=str(exc))
        else:
            self._pods.keep_unlabelled(found)

    async def _work(self) -> None:
        """Decides about the pods of the queue, one after the other, and about each once more at its limit.

        A removal that fails then is tried again until `_enforce_limits` removes the gate alone.
        """
        while True:
            pod = await self._queue.get()
            was_expired = pod.expires_at <= self._clock()
            seconds = math.inf if was_expired else _DEFECT_SECONDS
            try:
                with outlive_defects("gate.failed", pod=pod.key):
                    seconds = await self._decide_or_retry(pod)
            finally:
                self._queue.done(pod)
            if not was_expired:  # its limit may have come meanwhile
                seconds = min(seconds, max(0.0, pod.expires_at - self._clock()))
            if pod in self._pods:
                self._queue.add_after(pod, seconds)

    async def _decide_or_retry(self, pod: HeldPod) -> float:
        """Returns after how many seconds to decide again if nothing changes."""
        if not self._is_ours(pod):
            return math.inf if pod.removing_since is None else _RETRY.max_seconds
        try:
            await self._decide(pod)
        except ClusterError as exc:
            return self._retry(pod, exc)
        return math.inf

    async def _decide(self, held: HeldPod) -> None:
        """Removes the gate if that is decided; else has the pod wait for its images. Raises ClusterError."""
        document = held.document or await self._read(held)
        if not document:
            return
        version = held.version
        pod = _POD.decode(document)
        namespace = held.namespace
        overrides = self._pod_resolver.overrides_of(pod, namespace)
        skipped = self._planner.skip(pod, overrides)
        if skipped:
            await self._ungate(held, version, skipped)
            return
        question = self._pod_resolver.question(pod, namespace, overrides, may_read=True)
        is_expired = self._clock() >= held.expires_at
        answers = self._answers(held, question)
        if is_expired and (answers is None or held not in self._waits):
            # No lookup of this replica has ended: it led only now, or was not responsible. Or none was for this pod.
            answers = await self._pod_resolver.resolve(question, _LAST_LOOKUP_SECONDS)
        if answers is None:
            return
        nodes = self._cluster_nodes()
        facts = facts_of(question.images, answers, may_be_pending=not is_expired, lists=nodes.images.lists)
        resolved = ResolvedPod(pod, question.images, facts, overrides, nodes)
        ungating = self._planner.plan(resolved, expired=is_expired)
        if ungating.outcome is Outcome.HOLD:
            held.removing_since = None
            self._report_held(held, ungating.reason)
            return
        await self._ungate(held, version, ungating)
        unknown = [image for image, fact in zip(question.images, facts, strict=True) if is_unresolved(fact)]
        if is_expired and unknown:
            image = shown_reference(unknown[0].reference)
            log.warning("gate.limit_reached", pod=held.key, image=image, why=ungating.reason)

    async def _ungate(self, held: HeldPod, version: str, ungating: Ungating) -> None:
        """Removes the gate of the pod as it was decided for that version of it."""
        self._begin_removal(held)
        try:
            await patch_pod(self._client, held.namespace, held.reference.name, ungating.patch)
        except ClusterRefused as exc:
            if not _is_final(exc):
                raise
            await self._remove_gate_alone(held, version, exc)
        else:
            self._note_removed(held, ungating.outcome, ungating.reason)

    def _answers(self, held: HeldPod, question: PodQuestion) -> list[Answer] | None:
        """What lookups have found of the pod's images; None before one has ended, for which the pod then waits.

        It waits until its time is over at the longest. What memory has is enough if its namespace has spent its share.
        """
        if held not in self._pods:  # it is gone, or another one of its name has come
            return None
        if not self._waits.join(held, question, self._tasks):
            self._queue.add_after(held, _REFUSED_SECONDS)
            return self._pod_resolver.peek(question)
        return self._waits.answers_for(held)

    async def _read(self, held: HeldPod) -> bytes:
        """The pod as it is now; empty if there is nothing to do about it."""
        document = await read_pod(self._client, held.namespace, held.reference.name)
        if document is None:
            self._pods.forget(held)
            return b""
        seen = decode_stored_pod(document)
        if seen.metadata.uid != held.reference.uid or not is_held(seen):
            self._pods.forget(held)
            self._pods.update(seen, document)
            return b""
        if held in self._pods:
            self._pods.store(held, seen, document)
        return document

    async def _remove_gate_alone(self, held: HeldPod, version: str, refusal: ClusterRefused) -> None:
        """Removes the gate alone of a pod whose patch is refused, unless the pod has changed since that version."""
        REMOVALS[_outcome_of(refusal)].inc()
        if not await self._read(held):
            return
        if held.version != version:
            self._queue.add(held)
            return
        log.warning("gate.patch_refused", pod=held.key, why=str(refusal))
        why = f"the API server refused what its images need, so only the gate was taken off: {refusal}"
        await self._remove_alone(held, BARE, why)

    async def _enforce_limits(self) -> None:
        """Removes the gate alone of pods past their limit: no worker has removed it with what is known."""
        while True:
            pod = await self._limits.get()
            with outlive_defects("gate.failed", pod=pod.key):
                if pod.expires_at <= self._clock():
                    await self._remove_at_limit(pod)
            self._limits.done(pod)
            if pod in self._pods:
                self._limits.add_after(pod, _RETRY.seconds(pod.failures + 1, self._random))

    async def _remove_at_limit(self, pod: HeldPod) -> None:
        self._begin_removal(pod)
        try:
            await self._remove_alone(pod, FAILED, "it was held for as long as allowed, and nothing could be decided")
        except ClusterError as exc:
            self._note_failure(pod, exc)

    async def _remove_alone(self, held: HeldPod, outcome: str, why: str) -> None:
        patch = encode_ungating(held.reference.uid)
        await patch_pod(self._client, held.namespace, held.reference.name, patch)
        self._note_removed(held, outcome, why)

    def _begin_removal(self, held: HeldPod) -> None:
        if held.removing_since is None:
            held.removing_since = self._clock()

    def _note_removed(self, held: HeldPod, outcome: str, reason: str) -> None:
        self._removed_at = self._clock()
        self._pods.forget(held)
        REMOVALS[outcome].inc()
        is_known = outcome in _SETTLED
        if held.events or not is_known:
            text = f"gate removed ({outcome}): {reason}" if reason else f"gate removed ({outcome})"
            self._events.record(held.reference, "ImagePlatformsKnown" if is_known else "ImagePlatformsUnresolved", text,
                              "Normal" if is_known else "Warning")  # fmt: skip

    def _report_held(self, held: HeldPod, reason: str, kind: Literal["Normal", "Warning"] = "Normal") -> None:
        if reason != held.last_event and held.events < _MOST_EVENTS:
            held.last_event = reason
            held.events += 1
            self._events.record(held.reference, "WaitingForImagePlatforms", f"held: {reason}", kind)

    def _retry(self, held: HeldPod, exc: ClusterError) -> float:
        """Returns after how many seconds to decide again: at once after a conflict, since the pod has changed."""
        self._begin_removal(held)
        self._note_failure(held, exc)
        self._pods.drop_document(held)  # it is read again, as it may have changed
        if _outcome_of(exc) == "conflict" and held.failures == 1:
            self._queue.add(held)
        return _RETRY.seconds(max(held.failures, 1), self._random)

    def _note_failure(self, held: HeldPod, exc: ClusterError) -> None:
        """Counts a removal that failed; an event says so if it is more than a moment's."""
        why = _outcome_of(exc)
        REMOVALS[why].inc()
        if why == "gone":
            self._pods.forget(held)
            return
        held.failures += 1
        held.is_refused = why in ("forbidden", "invalid")
        if held.is_refused:
            log.warning("gate.patch_refused", pod=held.key, why=str(exc))
            self._report_held(held, f"the API server refuses to have its gate removed: {exc}", "Warning")
        elif held.failures > 1:
            log.warning("gate.patch_failed", pod=held.key, why=str(exc))
            self._report_held(held, f"its gate could not be removed: {exc}", "Warning")
