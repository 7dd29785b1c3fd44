"""The webhook: from an AdmissionReview to the response, which allows unless the operator has impossible pods denied.

A review gathers what is known of the pod, decides, and encodes. `PodReviews` says when to wait and for how long, for
templates too (`workload_admission`); `placement.mutation` decides how the pod is changed.
"""

from collections.abc import Callable, Sequence

import msgspec
import structlog

from extender.admission.daemon_pods import DaemonPods, node_of_daemon_pod
from extender.errors import UNDECODABLE
from extender.images.content import Answer
from extender.kubernetes.admission_v1 import (
    AdmissionReview,
    complete_response,
    decode_review,
    encode_response,
    is_pod_creation,
)
from extender.kubernetes.core_v1 import CreatedPod, NodeName
from extender.metrics import counter
from extender.placement.dry_run_mark import mark_canary
from extender.placement.facts import facts_of, is_unresolved
from extender.placement.gate import UnknownImages
from extender.placement.mutation import AdmissionOutcome, Mutation, Mutator
from extender.placement.nodes import ClusterNodes
from extender.placement.planning import AdmissionSettings
from extender.placement.reasons import NAME_CHARACTERS, shorten, shown_reference
from extender.resolver.pod_resolver import PodQuestion, PodResolver
from extender.server.routes import Reply
from extender.turns import Slots

# Reviews of one webhook that wait for lookups, and those of one tenant. Each holds a connection of the API server,
# which has some 600 requests that change something under way. One beyond that is answered from memory, while its
# lookups go on.
_WAITING, _WAITING_EACH = 1_000, 250


class PodReviews:
    """Gathers what is known of a pod in a review, and decides.

    A review waits `wait_seconds` at most.
    Reviews are the API server's, so the pull secrets that a review's pod names may be read. `cluster_nodes` gives
    the cluster's nodes, none if no cluster is watched. `can_gate` tells whether a gate controller
    provably lets go of pods at present; without one no pod is held.
    """

    def __init__(
        self,
        pod_resolver: PodResolver,
        admission: AdmissionSettings,
        *,
        cluster_nodes: Callable[[], ClusterNodes],
        wait_seconds: float,
        can_gate: Callable[[], bool] = lambda: False,
    ) -> None:
        self._pod_resolver = pod_resolver
        self._mutator = Mutator(pod_resolver.policy, admission)
        self._confirms = admission.node_affinity.required
        self._prefers = admission.node_affinity.preferred
        self._holds = admission.gate.unknown is UnknownImages.GATE
        self._waiting = Slots(_WAITING, _WAITING_EACH)
        self._cluster_nodes = cluster_nodes
        self._wait_seconds = wait_seconds
        self._can_gate = can_gate

    def gather(
        self, pod: CreatedPod, namespace: str, raw_pod: msgspec.Raw, *, draw: str = ""
    ) -> PodQuestion | Mutation:
        """What to ask about the pod; its mutation if nothing is asked. Arguments are as in `policy.overrides_of`.

        Where no preference is written, the pod's JSON is not searched for what turns a preference off. Without a
        namespace, as a template may be, its pull secrets are not read: its pods will be elsewhere.
        """
        searched = bytes(raw_pod) if self._prefers else b""
        overrides = self._pod_resolver.overrides_of(pod, namespace, searched, draw)
        skipped = self._mutator.skip(pod, overrides)
        if skipped:
            return skipped
        return self._pod_resolver.question(pod, namespace, overrides, may_read=bool(namespace))

    async def resolve(self, question: PodQuestion) -> list[Answer]:
        """One answer per image: at once if all are fresh, or if too many reviews of the tenant wait already."""
        tenant = question.keyring.tenant
        may_wait = self._waiting.take(tenant)
        try:
            wait_seconds = self._wait_seconds if may_wait else 0.0
            # A required affinity stays in the pod even if the image's tag moves, so a stale answer is confirmed first.
            return await self._pod_resolver.resolve(question, wait_seconds, revalidate=self._confirms)
        finally:
            if may_wait:
                self._waiting.give_back(tenant)

    def decide(self, pod: CreatedPod, question: PodQuestion, answers: Sequence[Answer]) -> Mutation:
        """What becomes of the pod. Raises msgspec.ValidationError and others for a pod that cannot be read."""
        nodes = self._cluster_nodes()
        facts = facts_of(question.images, answers, may_be_pending=True, lists=nodes.images.lists)
        may_hold = self._holds and any(map(is_unresolved, facts)) and self._can_gate()
        return self._mutator.mutate(pod, question.images, facts, question.overrides, nodes, may_hold=may_hold)


log = structlog.get_logger()

_SKIPPED, _UNREADABLE, _CANARY = "skipped", "unreadable", "canary"
ADMISSIONS = counter(
    "multiarch_admissions_total",
    "Reviews by what became of the pod; unresolved: an image was not known; skipped: no creation of a pod; "
    "unreadable: not the Pod that we know; canary: a dry run of ours.",
    "outcome",
    (*AdmissionOutcome, _SKIPPED, _UNREADABLE, _CANARY),
)

_WOULD_BE = tuple(each for each in AdmissionOutcome if each not in ("observed", "ignored", "left_alone"))
OBSERVED_ADMISSIONS = counter(
    "multiarch_observed_admissions_total",
    "Pods under observe that were created, by what would have become of them.",
    "outcome",
    _WOULD_BE,
)

_POD = msgspec.json.Decoder(CreatedPod)


class _PodCreation(msgspec.Struct, frozen=True):
    """A review of a pod that is being created, and what to ask about the pod.

    `node` is the one for which a DaemonSet's pod is made, and `alone` what becomes of such a pod that runs there.
    """

    review: AdmissionReview
    pod: CreatedPod
    question: PodQuestion
    node: NodeName | None = None
    alone: Mutation | None = None


class PodAdmission:
    """Answers reviews of pods that are being created.

    `installation` is the name by which canaries are marked. Without `daemon_pods` pods of DaemonSets are left alone.
    """

    def __init__(self, reviews: PodReviews, *, daemon_pods: DaemonPods | None = None, installation: str = "") -> None:
        self._reviews = reviews
        self._daemon_pods = daemon_pods
        self._installation = installation

    async def review(self, body: bytes) -> Reply:
        """The AdmissionReview with the response to the one in `body`. Raises InvalidRequest."""
        gathered = self._gather(body)
        if isinstance(gathered, Reply):
            return gathered
        if self._daemon_pods and gathered.node and not self._daemon_pods.knows(gathered.node):
            await self._daemon_pods.find(gathered.node)
        return self._decide(gathered, await self._reviews.resolve(gathered.question))

    @staticmethod
    def fallback(body: bytes, event_id: str) -> bytes:
        """A response that allows without a patch; the audit annotations have the event's id."""
        return encode_response(decode_review(body), audit_annotations={"internal-error": event_id})

    def _gather(self, body: bytes) -> _PodCreation | Reply:
        """The creation to decide about, or the reply if there is nothing to decide. Raises InvalidRequest."""
        review = decode_review(body)
        if not is_pod_creation(review.request):
            ADMISSIONS[_SKIPPED].inc()
            return Reply(encode_response(review))
        try:
            pod = _POD.decode(review.request.object)
            if review.request.dry_run and (marked := self._mark_canary(review, pod)):
                return marked
            question = self._reviews.gather(
                pod, review.request.namespace or "", review.request.object, draw=review.request.uid or ""
            )
            if not isinstance(question, Mutation):
                return _PodCreation(review, pod, question)
            return self._gather_daemon_pod(review, pod, question) or _reply(review, question)
        except UNDECODABLE as exc:
            return _unreadable(review, exc)

    def _gather_daemon_pod(self, review: AdmissionReview, pod: CreatedPod, alone: Mutation) -> _PodCreation | None:
        """What to ask about a pod that is left alone if its node runs it; None for those that are in any case."""
        node = node_of_daemon_pod(pod) if self._daemon_pods and alone.outcome is AdmissionOutcome.EXEMPT else None
        question = (
            self._daemon_pods.question(pod, review.request.namespace or "") if self._daemon_pods and node else None
        )
        return _PodCreation(review, pod, question, node, alone) if question else None

    def _mark_canary(self, review: AdmissionReview, pod: CreatedPod) -> Reply | None:
        """The reply to a canary, which anyone may send: it takes no lookup, and is in no cache or log."""
        patch = mark_canary(pod.metadata.annotations if pod.metadata else None, self._installation)
        if patch is None:
            return None
        ADMISSIONS[_CANARY].inc()
        return Reply(encode_response(review, patch=patch, audit_annotations={"verdict": "a canary"}))

    def _decide(self, creation: _PodCreation, answers: Sequence[Answer]) -> Reply:
        try:
            mutation = self._judge(creation, answers)
        except UNDECODABLE as exc:
            return _unreadable(creation.review, exc)
        if mutation.unresolved:
            _log_unresolved(creation, mutation)
        if mutation.would_be and not creation.review.request.dry_run:
            OBSERVED_ADMISSIONS[mutation.would_be].inc()
        return _reply(creation.review, mutation)

    def _judge(self, creation: _PodCreation, answers: Sequence[Answer]) -> Mutation:
        if creation.alone is None or creation.node is None or self._daemon_pods is None:
            return self._reviews.decide(creation.pod, creation.question, answers)
        judged = self._daemon_pods.judge(
            creation.pod, creation.node, creation.question, answers, creation.review.request
        )
        return judged or creation.alone


def _reply(review: AdmissionReview, mutation: Mutation) -> Reply:
    ADMISSIONS[mutation.outcome].inc()
    return Reply(complete_response(review, mutation.fields))


def _log_unresolved(creation: _PodCreation, mutation: Mutation) -> None:
    metadata = creation.pod.metadata
    image, fact = mutation.unresolved[0]
    log.warning(
        "pod.admitted_unresolved",
        namespace=creation.review.request.namespace,
        pod=shorten((metadata and (metadata.name or metadata.generate_name)) or "", NAME_CHARACTERS),
        image=shown_reference(image.reference),
        cause=fact.cause,
        why=mutation.reason,
    )


def _unreadable(review: AdmissionReview, exc: Exception) -> Reply:
    """Allows a pod that cannot be decoded, with a warning: the API server validates pods, we do not."""
    ADMISSIONS[_UNREADABLE].inc()
    log.warning("pod.unreadable", namespace=review.request.namespace, why=str(exc))
    return Reply(encode_response(review, warnings=[f"multiarch-extender cannot read this pod: {exc}"]))
