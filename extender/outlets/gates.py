"""The gate controller: holds gated pods until their images are known, and lets each go by one patch.

This file says when a pod is judged, and what follows an answer of the API server. `placement.release` decides how the
pod is changed. One replica at a time runs it (`cluster.leader_election`).
"""

import asyncio
import heapq
import itertools
from collections.abc import Awaitable, Callable, Hashable, Set

import msgspec
import structlog

from extender.budgets import Budget, declare_budget
from extender.circuit_breaker import Backoff
from extender.cluster.client import ClusterClient, ClusterRefused
from extender.cluster.gated_pods import (
    GATED_PODS,
    StoredPod,
    decode_stored_pod,
    list_unlabelled_pods,
    patch_pod,
    read_pod,
)
from extender.cluster.listwatch import AGE, ListWatch
from extender.errors import ClusterError
from extender.images.content import Answer, Content
from extender.images.platform import Platform
from extender.kubernetes.core_v1 import GatedPod, PodReference
from extender.metrics import counter, gauge, histogram
from extender.outlets.fair_queue import FairQueue
from extender.outlets.pod_events import PodEvents
from extender.outlets.pod_resolver import PodQuestion, PodResolver
from extender.placement.facts import facts_of
from extender.placement.release import Release, ReleaseOutcome, ReleasePlanner, bare_release

log = structlog.get_logger()

PATCHES_AT_ONCE = 16  # 32 give a fifth more patches a second, and three times the latency of each
NEW_SECONDS = 30.0  # a pod that is older than its limit when first seen is still looked up for so long
_FIRST_WAIT_SECONDS, _WAIT_SECONDS = 2.0, 30.0  # for lookups under way: soon an event tells why, then as they end
_FIRST_PACE_SECONDS, _LAST_PACE_SECONDS = 1.0, 5.0  # between two looks at the cache: failures have their own pace
_CONFIRMED_SECONDS = 1.0  # a pod that was held for longer goes by tags that were confirmed as lately as that
_CONFIRMATION_SECONDS = 5.0  # for these; then by what is known
_SETTLE_SECONDS = 0.05  # in which the pods whose images have become known are let go, as a rule
_TICK_SECONDS = 0.2
_SEARCH_SECONDS = 300.0  # between two searches for pods whose label somebody took off, each a list of pending pods
_RETRY = Backoff(first_seconds=0.5, max_seconds=5.0)
_MOST_EVENTS = 3  # about one pod that is held; the first tells why, and others follow when that changes

BARE = "bare"
_OUTCOMES = (*(outcome.value for outcome in ReleaseOutcome if outcome is not ReleaseOutcome.HOLD), BARE)
_SETTLED = (ReleaseOutcome.KNOWN, ReleaseOutcome.EXEMPT, ReleaseOutcome.OBSERVED)
RELEASES = counter(
    "multiarch_gates_releases_total",
    "Held pods that were let go, by what was decided; bare: the patch was invalid, so the gate alone was taken off.",
    "outcome",
    _OUTCOMES,
)
HELD_SECONDS = histogram(
    "multiarch_gates_held_seconds",
    "From a pod's creation, or from when it was first seen, until it was let go.",
    "outcome",
    _OUTCOMES,
    (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0),
)
REFUSALS = counter(
    "multiarch_gates_refused_patches_total",
    "Patches of held pods that did not succeed: the pod had changed, the patch was invalid, the pod was gone, we may "
    "not, or the API server could not be reached.",
    "why",
    ("conflict", "invalid", "gone", "forbidden", "unavailable"),
)
PODS = gauge(
    "multiarch_gates_pods",
    "Gated pods: held until their images are known, or about to be let go.",
    "state",
    ("held", "releasing"),
)
OLDEST = gauge(
    "multiarch_gates_oldest_seconds",
    "For how long the pod has been gated that has been so for longest.",
    "state",
    ("held",),
)

_GROUPS = declare_budget(
    "outlets.gates.groups",
    unit="sets of images that held pods wait for",
    total=2_000,
    most_each=500,
    why="as many as lookups in flight, a task each; pods of one template share one, and one that waits for no lookup "
    "is judged again every few seconds",
)
_DOCUMENTS = declare_budget(
    "outlets.gates.documents",
    unit="bytes of held pods",
    total=64 << 20,
    most_each=32 << 20,
    why="20,000 usual pods of 3 KB; a pod beyond that is read again when its turn comes",
)


class _ImageWait:
    """Held pods that wait for the same images with the same credentials. `answers` is None until a lookup has ended."""

    __slots__ = ("answers", "key", "members", "question", "tenant")

    def __init__(self, key: Hashable, question: PodQuestion, tenant: str) -> None:
        self.key = key
        self.question = question
        self.tenant = tenant
        self.members: dict[str, _HeldPod] = {}
        self.answers: list[Answer] | None = None


class _HeldPod:
    """A gated pod. `document` is empty if it must be read again; `told` is the text of the last event about it."""

    __slots__ = (
        "document",
        "events",
        "expires_at",
        "failures",
        "group",
        "is_busy",
        "is_queued",
        "reference",
        "since",
        "told",
        "version",
    )

    def __init__(self, reference: PodReference, since: float, expires_at: float) -> None:
        self.reference = reference
        self.version = ""
        self.document = b""
        self.since = since
        self.expires_at = expires_at
        self.group: _ImageWait | None = None
        self.is_queued = self.is_busy = False
        self.failures = 0
        self.told = ""
        self.events = 0

    @property
    def key(self) -> str:
        """The key by which the watch names the pod."""
        return f"{self.reference.namespace}/{self.reference.name}"


_POD = msgspec.json.Decoder(GatedPod)


class GateController:
    """Lets gated pods go while `run` runs. A `Handler` for the watch of `GATED_PODS`.

    `cluster_platforms` gives the platforms of the cluster's nodes. `is_ready`: namespaces and nodes are in view, so
    that nothing is decided without the annotations of a namespace. After `limit_seconds` a pod is let go in any case.
    """

    def __init__(  # noqa: PLR0913 - parts and clocks, each by its name
        self,
        client: ClusterClient,
        pod_resolver: PodResolver,
        planner: ReleasePlanner,
        events: PodEvents,
        *,
        cluster_platforms: Callable[[], frozenset[Platform]],
        is_ready: Callable[[], bool],
        limit_seconds: float,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        random: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._client = client
        self._pod_resolver = pod_resolver
        self._planner = planner
        self._events = events
        self._cluster_platforms = cluster_platforms
        self._is_ready = is_ready
        self._limit_seconds = limit_seconds
        self._clock = clock
        self._wall_clock = wall_clock
        self._random = random
        self._sleep = sleep
        self._group_budget = Budget(_GROUPS)
        self._document_budget = Budget(_DOCUMENTS)
        self._pods: dict[str, _HeldPod] = {}
        self._forget_all()

    async def run(self) -> None:
        """Watches gated pods and lets them go until cancelled, also after ClusterErrors."""
        self._forget_all()
        watch = ListWatch(self._client, GATED_PODS, self, clock=self._clock, random=self._random, sleep=self._sleep)
        PODS["held"].set_function(lambda: sum(pod.group is not None for pod in self._pods.values()))
        PODS["releasing"].set_function(lambda: sum(pod.group is None for pod in self._pods.values()))
        OLDEST["held"].set_function(self._oldest_seconds)
        try:
            while not self._is_ready():  # views have no event
                await self._sleep(_TICK_SECONDS)
            async with self._tasks as tasks:
                tasks.create_task(watch.run())
                tasks.create_task(self._tick())
                tasks.create_task(self._events.run())
                tasks.create_task(self._find_unlabelled())
                for _ in range(PATCHES_AT_ONCE):
                    tasks.create_task(self._work())
        finally:
            self._forget_all()
            AGE[GATED_PODS.name].set_function(float)

    def upsert(self, document: msgspec.Raw) -> None:
        """Takes in the state of a pod, and has it judged if that is new. Raises ClusterError if it is no pod."""
        self._take_in(decode_stored_pod(document), document)

    def delete(self, key: str) -> None:
        """Forgets the pod: it is gone, or nothing of ours holds it any more."""
        pod = self._pods.get(key)
        if pod:
            self._forget(pod)

    def keep_only(self, keys: Set[str]) -> None:
        """Forgets all pods but these."""
        for key in self._pods.keys() - keys:
            self.delete(key)
        self._is_synced = True

    def _forget(self, pod: _HeldPod) -> None:
        if self._is_current(pod):
            del self._pods[pod.key]
            self._leave_group(pod)
            self._drop_document(pod)

    def _forget_all(self) -> None:
        for pod in list(self._pods.values()):
            self._forget(pod)
        self._groups: dict[Hashable, _ImageWait] = {}
        self._queue: FairQueue[_HeldPod] = FairQueue()
        self._timers: list[tuple[float, int, _HeldPod]] = []
        self._numbers = itertools.count()
        self._tasks = asyncio.TaskGroup()
        self._is_synced = False

    def _take_in(self, seen: StoredPod, document: bytes | msgspec.Raw) -> None:
        pod = self._pods.get(seen.key)
        if pod and (pod.reference.uid != seen.metadata.uid or not seen.is_held):
            self.delete(seen.key)
            pod = None
        if not seen.is_held or (pod and pod.version == seen.metadata.resource_version):
            return
        if pod is None:
            pod = self._pods[seen.key] = self._new_pod(seen)
        pod.version = seen.metadata.resource_version
        self._leave_group(pod)
        self._keep_document(pod, document)
        self._enqueue(pod)

    def _new_pod(self, seen: StoredPod) -> _HeldPod:
        """A pod whose time began at its creation if it is older than our watch, else now: clocks may differ."""
        metadata, now = seen.metadata, self._clock()
        created = metadata.creation_timestamp
        age = 0.0 if self._is_synced or created is None else max(0.0, self._wall_clock() - created.timestamp())
        expires_at = max(now - age + self._limit_seconds, now + min(NEW_SECONDS, self._limit_seconds))
        return _HeldPod(PodReference(metadata.namespace, metadata.name, metadata.uid), now - age, expires_at)

    def _keep_document(self, pod: _HeldPod, document: bytes | msgspec.Raw) -> None:
        self._drop_document(pod)
        size = len(bytes(document))
        if self._document_budget.take(pod.reference.namespace, size):
            pod.document = bytes(document)

    def _drop_document(self, pod: _HeldPod) -> None:
        if pod.document:
            self._document_budget.give_back(pod.reference.namespace, len(pod.document))
        pod.document = b""

    def _is_current(self, pod: _HeldPod) -> bool:
        return self._pods.get(pod.key) is pod

    def _enqueue(self, pod: _HeldPod) -> None:
        if not pod.is_queued:
            pod.is_queued = True
            self._queue.put(pod.reference.namespace, pod)

    def _later(self, pod: _HeldPod, seconds: float) -> None:
        heapq.heappush(self._timers, (self._clock() + seconds, next(self._numbers), pod))

    async def _tick(self) -> None:
        """Judges pods again whose time has come."""
        while True:
            await self._sleep(_TICK_SECONDS)
            while self._timers and self._timers[0][0] <= self._clock():
                pod = heapq.heappop(self._timers)[2]
                if self._is_current(pod):
                    self._enqueue(pod)

    async def _find_unlabelled(self) -> None:
        """Takes in pods that have the gate and not its label, so that the watch does not show them."""
        while True:
            try:
                for document in await list_unlabelled_pods(self._client):
                    self._take_in(decode_stored_pod(document), document)
            except ClusterError as exc:
                log.info("gate.search_failed", why=str(exc))
            await self._sleep(_SEARCH_SECONDS)

    async def _work(self) -> None:
        while True:
            pod = await self._queue.get()
            pod.is_queued = False
            if not self._is_current(pod):
                continue
            if pod.is_busy:  # another worker has it, and its answer comes first
                self._later(pod, _TICK_SECONDS)
                continue
            pod.is_busy = True
            try:
                await self._judge(pod)
            except ClusterError as exc:
                self._retry(pod, exc)
            except Exception:
                log.exception("gate.failed", pod=pod.key)
                self._later(pod, _WAIT_SECONDS)
            finally:
                pod.is_busy = False

    async def _judge(self, held: _HeldPod) -> None:
        """Lets the pod go if that is decided; else has it wait for its images. Raises ClusterError."""
        document = held.document or await self._read(held)
        if not document:
            return
        pod = _POD.decode(document)
        namespace = held.reference.namespace
        overrides = self._pod_resolver.overrides_of(pod, namespace)
        skipped = self._planner.skip(pod, overrides)
        if skipped:
            await self._let_go(held, pod, skipped)
            return
        question = self._pod_resolver.question(pod, namespace, overrides, may_read=True)
        is_expired = self._clock() >= held.expires_at
        answers = self._answers(held, question, peek=is_expired)
        if answers is None:
            self._wait(held, question)
            return
        facts = facts_of(question.images, answers, may_be_pending=not is_expired)
        release = self._planner.plan_release(
            pod, question.images, facts, overrides, self._cluster_platforms(), expired=is_expired
        )
        if release.outcome is ReleaseOutcome.HOLD:
            self._tell_held(held, release.reason)
            self._wait(held, question)
        else:
            await self._let_go(held, pod, release)

    async def _let_go(self, held: _HeldPod, pod: GatedPod, release: Release) -> None:
        try:
            await self._send(held, release.patch)
        except ClusterRefused as exc:
            if exc.status != 422:
                raise
            await self._release_bare(held, pod, exc)
        else:
            self._done(held, release.outcome, release.reason)

    def _answers(self, held: _HeldPod, question: PodQuestion, *, peek: bool) -> list[Answer] | None:
        """What is known of the pod's images; None if a lookup has to tell first."""
        answers = self._pod_resolver.fresh(question)
        if answers is None and held.group:
            answers = held.group.answers
        return self._pod_resolver.peek(question) if answers is None and peek else answers

    async def _read(self, held: _HeldPod) -> bytes:
        """The pod as it is now; empty if there is nothing to do about it."""
        document = await read_pod(self._client, held.reference.namespace, held.reference.name)
        if document is None:
            self._forget(held)
            return b""
        seen = decode_stored_pod(document)
        if seen.metadata.uid != held.reference.uid or not seen.is_held:
            self._forget(held)
            self._take_in(seen, document)
            return b""
        if self._is_current(held):
            held.version = seen.metadata.resource_version
            self._keep_document(held, document)
        return document

    async def _send(self, held: _HeldPod, patch: bytes) -> None:
        await patch_pod(self._client, held.reference.namespace, held.reference.name, patch)

    async def _release_bare(self, held: _HeldPod, pod: GatedPod, refusal: ClusterRefused) -> None:
        """Takes the gate alone off a pod whose patch is invalid, unless the pod is another one by now."""
        REFUSALS["invalid"].inc()
        version = held.version
        if not await self._read(held):
            return
        if held.version != version:
            self._enqueue(held)
            return
        log.warning("gate.patch_refused", pod=held.key, why=str(refusal))
        await self._send(held, bare_release(pod))
        why = f"the API server refused what its images need, so only the gate was taken off: {refusal}"
        self._done(held, BARE, why)

    def _done(self, held: _HeldPod, outcome: str, reason: str) -> None:
        RELEASES[outcome].inc()
        HELD_SECONDS[outcome].observe(self._clock() - held.since)
        is_known = outcome in _SETTLED
        if held.events or not is_known:
            text = f"let go ({outcome}): {reason}" if reason else f"let go ({outcome})"
            self._events.tell(held.reference, "ImagePlatformsKnown" if is_known else "ImagePlatformsUnresolved", text,
                              "Normal" if is_known else "Warning")  # fmt: skip
        self._forget(held)

    def _tell_held(self, held: _HeldPod, reason: str) -> None:
        if reason != held.told and held.events < _MOST_EVENTS:
            held.told = reason
            held.events += 1
            self._events.tell(held.reference, "WaitingForImagePlatforms", f"held: {reason}")

    def _retry(self, held: _HeldPod, exc: ClusterError) -> None:
        """Has the pod judged again: at once after a conflict, since it has changed; else later and later."""
        status = exc.status if isinstance(exc, ClusterRefused) else 0
        why = {404: "gone", 409: "conflict", 422: "invalid", 403: "forbidden"}.get(status, "unavailable")
        REFUSALS[why].inc()
        if status == 404:
            self._forget(held)
            return
        held.failures += 1
        self._drop_document(held)  # it is read again, as it may have changed
        if why == "conflict" and held.failures == 1:
            self._enqueue(held)
            return
        if why in ("forbidden", "invalid"):
            log.warning("gate.patch_refused", pod=held.key, why=str(exc))
        self._later(held, _RETRY.seconds(held.failures, self._random))

    def _wait(self, held: _HeldPod, question: PodQuestion) -> None:
        """Has the pod judged again when its images' lookups tell something new, and when its time is over."""
        if held.group:
            return
        namespace = held.reference.namespace
        key = (question.images, question.keyring.identity, namespace)
        group = self._groups.get(key)
        if group is None:
            if not self._group_budget.take(namespace):
                self._later(held, _LAST_PACE_SECONDS)
                return
            group = self._groups[key] = _ImageWait(key, question, namespace)
            self._tasks.create_task(self._follow(group))
        elif group.answers is not None:
            self._later(held, 0.0)  # what it waits for has been told to others already
        group.members[held.key] = held
        held.group = group

    def _leave_group(self, held: _HeldPod) -> None:
        if held.group:
            held.group.members.pop(held.key, None)
            held.group = None

    async def _follow(self, group: _ImageWait) -> None:
        """Looks the group's images up until it has no members."""
        try:
            await self._look_up(group)
        except Exception:
            log.exception("gate.failed", images=[image.reference for image in group.question.images])
            for held in list(group.members.values()):
                self._leave_group(held)
                self._later(held, _WAIT_SECONDS)
        finally:
            self._group_budget.give_back(group.tenant)
            del self._groups[group.key]

    async def _look_up(self, group: _ImageWait) -> None:
        """Has the members judged whenever the answers change, and those whose time is over."""
        began, wait_seconds, pace_seconds = self._clock(), _FIRST_WAIT_SECONDS, _FIRST_PACE_SECONDS
        while group.members:
            started = self._clock()
            left = min(held.expires_at for held in group.members.values()) - started
            answers = await self._resolve(group, max(0.0, min(wait_seconds, left)), started - began)
            is_new = answers != group.answers
            group.answers = answers
            for held in group.members.values():
                if is_new or held.expires_at <= self._clock():
                    self._enqueue(held)
            await self._sleep(_SETTLE_SECONDS)
            if group.members and self._clock() - started < wait_seconds / 2:  # else lookups are still under way
                await self._sleep(pace_seconds)
                pace_seconds = min(pace_seconds * 1.5, _LAST_PACE_SECONDS)
            wait_seconds = _WAIT_SECONDS

    async def _resolve(self, group: _ImageWait, wait_seconds: float, waited_seconds: float) -> list[Answer]:
        """The answers for a group that has waited so long; a tag that may have moved meanwhile is confirmed first."""
        answers = await self._pod_resolver.resolve(group.question, wait_seconds, revalidate=True)
        is_known = all(isinstance(answer, Content) for answer in answers)
        if is_known and answers != group.answers and waited_seconds > _CONFIRMED_SECONDS:
            await self._pod_resolver.confirm(group.question, _CONFIRMED_SECONDS, _CONFIRMATION_SECONDS)
            answers = await self._pod_resolver.resolve(group.question, 0.0)
        return answers

    def _oldest_seconds(self) -> float:
        now = self._clock()
        return now - min((pod.since for pod in self._pods.values()), default=now)
