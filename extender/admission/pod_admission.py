"""The webhook: from an AdmissionReview to the response, which allows unless the operator has impossible pods denied.

A review gathers what is known of the pod, decides, and encodes. `pod_reviews` says when to wait and for how long;
`placement.mutation` decides how the pod is changed.
"""

from collections.abc import Sequence

import msgspec
import structlog

from extender.admission.daemon_pods import DaemonPods, node_of_daemon_pod
from extender.admission.pod_reviews import PodReviews
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
from extender.placement.canary import mark_canary
from extender.placement.mutation import AdmissionOutcome, Mutation
from extender.placement.reasons import shown_reference
from extender.resolver.pod_resolver import PodQuestion
from extender.server.routes import Reply

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

# RecursionError: the parts of a pod that a mutation compares may be nested too deep, though the review could be read.
_UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
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
        if self._daemon_pods and gathered.node:
            await self._daemon_pods.find(gathered.node)
        return self._decide(gathered, await self._reviews.resolve(gathered.question))

    def review_nowait(self, body: bytes) -> Reply | None:
        """What `review` answers, or None if it has to look something up first. Raises InvalidRequest."""
        gathered = self._gather(body)
        if isinstance(gathered, Reply):
            return gathered
        if self._daemon_pods and gathered.node and not self._daemon_pods.knows(gathered.node):
            return None
        answers = self._reviews.fresh(gathered.question)
        return None if answers is None else self._decide(gathered, answers)

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
        except _UNDECODABLE as exc:
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
        except _UNDECODABLE as exc:
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
        pod=(metadata and (metadata.name or metadata.generate_name)) or "",
        image=shown_reference(image.reference),
        cause=fact.cause,
        why=mutation.reason,
    )


def _unreadable(review: AdmissionReview, exc: Exception) -> Reply:
    """Allows a pod that cannot be decoded, with a warning: the API server validates pods, we do not."""
    ADMISSIONS[_UNREADABLE].inc()
    log.warning("pod.unreadable", namespace=review.request.namespace, why=str(exc))
    return Reply(encode_response(review, warnings=[f"multiarch-extender cannot read this pod: {exc}"]))
