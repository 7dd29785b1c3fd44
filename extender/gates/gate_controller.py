"""The gate controller: finds out what held pods run on, and removes the gate of each by one patch.

This file says when there is a decision about a pod, and what follows an answer of the API server. `placement.ungating`
decides how the pod is changed. One replica at a time runs it (`cluster.leader_election`).
"""

import asyncio
import math
from collections.abc import Callable
from typing import Literal

import msgspec
import structlog

from extender.circuit_breaker import Backoff
from extender.cluster.client import ClusterClient, ClusterRefused
from extender.cluster.gated_pods import (
    GATED_PODS,
    decode_stored_pod,
    is_held,
    patch_pod,
    read_pod,
    unlabelled_pods,
)
from extender.cluster.listwatch import AGE, ListWatch
from extender.cluster.pod_events import PodEvents
from extender.errors import ClusterError
from extender.gates.held_pods import HeldPod, HeldPods
from extender.gates.image_waits import ImageWaits
from extender.images.content import Answer
from extender.kubernetes.core_v1 import CreatedPod
from extender.metrics import counter, gauge
from extender.placement.facts import facts_of, is_unresolved
from extender.placement.gate import encode_ungating
from extender.placement.nodes import ClusterNodes
from extender.placement.reasons import shown_reference
from extender.placement.ungating import Ungating, UngatingOutcome, UngatingPlanner
from extender.resolver.pod_resolver import PodQuestion, PodResolver
from extender.turns import FairQueue

log = structlog.get_logger()

WORKERS = 8  # each decides about a pod and patches it; a renewal of the Lease waits behind as many patches at most
_SYNC_SECONDS = 0.2  # between two looks whether the cluster is in view yet
_DEFECT_SECONDS = 30.0  # before another try after a mistake of ours
_REFUSED_SECONDS = 5.0  # before another look at a pod whose namespace has spent its share of waits
_SEARCH_SECONDS = 300.0  # between two searches for pods whose label somebody took off, each a list of pending pods
_RETRY = Backoff(first_seconds=0.5, max_seconds=5.0)
_MOST_EVENTS = 3  # about one pod that is held; the first says why, and others follow when that changes

BARE = "bare"
_SETTLED = (UngatingOutcome.KNOWN, UngatingOutcome.EXEMPT, UngatingOutcome.OBSERVED)
_FAILURES = ("conflict", "invalid", "gone", "forbidden", "unavailable")
REMOVALS = counter(
    "multiarch_gates_removals_total",
    "Gates removed, by what was decided; bare: the gate alone; and patches that failed: conflict, invalid, gone, "
    "forbidden, unavailable.",
    "outcome",
    (*(outcome.value for outcome in UngatingOutcome if outcome is not UngatingOutcome.HOLD), BARE, *_FAILURES),
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
# What the API server says of a patch that a policy or a webhook of the cluster refuses. Both choose the status of that,
# and 403 is also for a right that we lack.
_REFUSALS = ("denied request", "denied the request")


def _reason_of(status: int) -> str:
    """The outcome in `REMOVALS` for the status of an answer; 0 for none."""
    return _REASONS.get(status, "unavailable")


def _is_final(refusal: ClusterRefused) -> bool:
    """Whether the API server would refuse the patch again: it is invalid, or the cluster's own rules are against it."""
    return refusal.status == 422 or (refusal.status < 500 and any(text in refusal.said for text in _REFUSALS))


class GateController:
    """Removes the gates of held pods while `run` runs.

    `cluster_nodes` gives the cluster's nodes. `is_ready`: namespaces and nodes are in view, so that nothing is decided
    without the annotations of a namespace. After `limit_seconds` the gate of a pod that no other gate holds is removed
    in any case.
    """

    def __init__(  # noqa: PLR0913 - parts and clocks, each by its name
        self,
        client: ClusterClient,
        pod_resolver: PodResolver,
        planner: UngatingPlanner,
        events: PodEvents,
        *,
        cluster_nodes: Callable[[], ClusterNodes],
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
        self._is_ready = is_ready
        self._clock = clock
        self._random = random
        self._waits = ImageWaits(pod_resolver, self._hand, clock=clock)
        self._pods = HeldPods(
            self._take_up, self._waits.leave, limit_seconds=limit_seconds, clock=clock, wall_clock=wall_clock
        )
        self._begin()

    async def run(self) -> None:
        """Watches held pods and removes their gates until cancelled, also after ClusterErrors."""
        self._begin()
        watch = ListWatch(self._client, GATED_PODS, self._pods, clock=self._clock, random=self._random)
        PODS["held"].set_function(lambda: len(self._waits))
        PODS["removing"].set_function(lambda: len(self._pods) - len(self._waits))
        OLDEST["held"].set_function(self._pods.oldest_seconds)
        try:
            while not self._is_ready():  # noqa: ASYNC110  # views have no event
                await asyncio.sleep(_SYNC_SECONDS)
            async with self._tasks as tasks:
                tasks.create_task(watch.run())
                tasks.create_task(self._find_unlabelled())
                for _ in range(WORKERS):
                    tasks.create_task(self._work())
        finally:
            self._pods.forget_all()
            AGE[GATED_PODS.name].set_function(float)

    def _begin(self) -> None:
        self._pods.forget_all()
        self._queue: FairQueue[HeldPod] = FairQueue()
        self._tasks = asyncio.TaskGroup()

    def _take_up(self, pod: HeldPod) -> None:
        """Has a worker look at a pod that is new or has changed: it may have other images now."""
        self._waits.leave(pod)
        self._hand(pod)

    def _hand(self, pod: HeldPod) -> None:
        """Has a worker decide about the pod; where one does so now, again afterwards."""
        pod.is_changed = True
        if not pod.is_handed:
            pod.is_handed, pod.due_at = True, math.inf
            self._queue.put(pod.namespace, pod)

    def _later(self, pod: HeldPod, seconds: float) -> None:
        """Hands the pod out again after so many seconds at the latest."""
        pod.due_at = min(pod.due_at, self._clock() + seconds)

    async def _find_unlabelled(self) -> None:
        """Takes in pods that have the gate and not its label, so that the watch does not show them."""
        while True:
            try:
                async for document in unlabelled_pods(self._client):
                    self._pods.take_in(decode_stored_pod(document), document)
            except ClusterError as exc:
                log.info("gate.search_failed", why=str(exc))
            await asyncio.sleep(_SEARCH_SECONDS)

    async def _work(self) -> None:
        """Decides about the pods that are handed out, one after the other."""
        while True:
            pod = await self._queue.get()
            if pod not in self._pods:
                continue
            pod.is_changed, pod.due_at = False, pod.expires_at if pod.expires_at > self._clock() else math.inf
            await self._decide_safely(pod)
            pod.is_handed = False
            if pod not in self._pods:
                continue
            if pod.is_changed or pod.due_at <= self._clock():
                self._hand(pod)
            elif pod not in self._waits:
                self._waits.join(pod, None, self._tasks)

    async def _decide_safely(self, pod: HeldPod) -> None:
        try:
            await self._decide(pod)
        except ClusterError as exc:
            self._retry(pod, exc)
        except Exception:
            log.exception("gate.failed", pod=pod.key)
            self._later(pod, _DEFECT_SECONDS)

    async def _decide(self, held: HeldPod) -> None:
        """Removes the gate if that is decided; else has the pod wait for its images. Raises ClusterError."""
        document = held.document or await self._read(held)
        if not document:
            return
        pod = _POD.decode(document)
        namespace = held.namespace
        overrides = self._pod_resolver.overrides_of(pod, namespace)
        skipped = self._planner.skip(pod, overrides)
        if skipped:
            await self._ungate(held, pod, skipped)
            return
        question = self._pod_resolver.question(pod, namespace, overrides, may_read=True)
        answers = self._answers(held, question)
        if answers is None:
            return
        is_expired = self._clock() >= held.expires_at
        nodes = self._cluster_nodes()
        facts = facts_of(question.images, answers, may_be_pending=not is_expired, lists=nodes.images.lists)
        ungating = self._planner.plan(pod, question.images, facts, overrides, nodes, expired=is_expired)
        if ungating.outcome is UngatingOutcome.HOLD:
            self._report_held(held, ungating.reason)
            return
        await self._ungate(held, pod, ungating)
        unknown = [image for image, fact in zip(question.images, facts, strict=True) if is_unresolved(fact)]
        if is_expired and unknown:
            image = shown_reference(unknown[0].reference)
            log.warning("gate.limit_reached", pod=held.key, image=image, why=ungating.reason)

    async def _ungate(self, held: HeldPod, pod: CreatedPod, ungating: Ungating) -> None:
        try:
            await patch_pod(self._client, held.namespace, held.reference.name, ungating.patch)
        except ClusterRefused as exc:
            if not _is_final(exc):
                raise
            await self._remove_gate_alone(held, pod, exc)
        else:
            self._done(held, ungating.outcome, ungating.reason)

    def _answers(self, held: HeldPod, question: PodQuestion) -> list[Answer] | None:
        """What lookups have found of the pod's images; None before one has ended, for which the pod then waits.

        It waits until its time is over at the longest. What memory has is enough if its namespace has spent its share.
        """
        if held not in self._pods:  # it is gone, or another one of its name has come
            return None
        if not self._waits.join(held, question, self._tasks):
            self._later(held, _REFUSED_SECONDS)
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
            self._pods.take_in(seen, document)
            return b""
        if held in self._pods:
            self._pods.keep(held, seen, document)
        return document

    async def _remove_gate_alone(self, held: HeldPod, pod: CreatedPod, refusal: ClusterRefused) -> None:
        """Takes the gate alone off a pod whose patch is refused, unless the pod is another one by now."""
        REMOVALS[_reason_of(refusal.status)].inc()
        version = held.version
        if not await self._read(held):
            return
        if held.version != version:
            self._later(held, 0.0)
            return
        log.warning("gate.patch_refused", pod=held.key, why=str(refusal))
        patch = encode_ungating(pod.metadata.uid if pod.metadata else None)
        await patch_pod(self._client, held.namespace, held.reference.name, patch)
        why = f"the API server refused what its images need, so only the gate was taken off: {refusal}"
        self._done(held, BARE, why)

    def _done(self, held: HeldPod, outcome: str, reason: str) -> None:
        REMOVALS[outcome].inc()
        is_known = outcome in _SETTLED
        if held.events or not is_known:
            text = f"gate removed ({outcome}): {reason}" if reason else f"gate removed ({outcome})"
            self._events.record(held.reference, "ImagePlatformsKnown" if is_known else "ImagePlatformsUnresolved", text,
                              "Normal" if is_known else "Warning")  # fmt: skip
        self._pods.forget(held)

    def _report_held(self, held: HeldPod, reason: str, kind: Literal["Normal", "Warning"] = "Normal") -> None:
        if reason != held.said and held.events < _MOST_EVENTS:
            held.said = reason
            held.events += 1
            self._events.record(held.reference, "WaitingForImagePlatforms", f"held: {reason}", kind)

    def _retry(self, held: HeldPod, exc: ClusterError) -> None:
        """Hands the pod out again: at once after a conflict, since it has changed; else later and later."""
        why = _reason_of(exc.status if isinstance(exc, ClusterRefused) else 0)
        REMOVALS[why].inc()
        if why == "gone":
            self._pods.forget(held)
            return
        held.failures += 1
        self._pods.drop_document(held)  # it is read again, as it may have changed
        if why == "conflict" and held.failures == 1:
            self._later(held, 0.0)
            return
        if why in ("forbidden", "invalid"):
            log.warning("gate.patch_refused", pod=held.key, why=str(exc))
            self._report_held(held, f"the API server refuses to have its gate removed: {exc}", "Warning")
        self._later(held, _RETRY.seconds(held.failures, self._random))
