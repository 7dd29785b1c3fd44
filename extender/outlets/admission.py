"""The webhook: from an AdmissionReview through image facts and the mutation to the answer, which always allows.

Knows when to wait and for how long; what a pod is given is `placement.mutation`'s business.
"""

from collections.abc import Callable, Sequence

import msgspec
import structlog

from extender.credentials.keyring import Keyring
from extender.images.content import Answer
from extender.images.platform import Platform
from extender.kubernetes.admission_v1 import (
    AdmissionReview,
    complete_response,
    decode_review,
    encode_response,
    is_pod_creation,
)
from extender.metrics import counter
from extender.outlets.pod_resolver import PodResolver
from extender.placement.annotations import Overrides
from extender.placement.creation import CreatedPod
from extender.placement.facts import PodImage, fact_of, images_of
from extender.placement.mutation import AdmissionOutcome, AdmissionPolicy, Mutation, Mutator
from extender.server.routes import Reply

log = structlog.get_logger()

_SKIPPED, _UNREADABLE = "skipped", "unreadable"
ADMISSIONS = counter(
    "multiarch_admissions_total",
    "Reviews by what became of the pod; skipped: no creation of a pod; unreadable: not the Pod that we know.",
    "outcome",
    (*AdmissionOutcome, _SKIPPED, _UNREADABLE),
)

_UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError)
_POD = msgspec.json.Decoder(CreatedPod)


class _Question(msgspec.Struct, frozen=True):
    """The creation of a pod that is our business."""

    review: AdmissionReview
    pod: CreatedPod
    overrides: Overrides
    images: tuple[PodImage, ...]
    keyring: Keyring


class PodAdmission:
    """Reviews of pods that are being created.

    `cluster_platforms` gives the platforms of the cluster's nodes, none where none is watched. `may_read_secrets`: only
    the API server can reach us, so a review may make us read the pull secrets its pod names; anyone else could name
    another tenant's.
    """

    def __init__(
        self,
        pod_resolver: PodResolver,
        admission: AdmissionPolicy,
        *,
        cluster_platforms: Callable[[], frozenset[Platform]],
        wait_seconds: float,
        may_read_secrets: bool = False,
    ) -> None:
        self._pod_resolver = pod_resolver
        self._mutator = Mutator(pod_resolver.policy, admission)
        self._confirms = admission.node_affinity.required
        self._cluster_platforms = cluster_platforms
        self._wait_seconds = wait_seconds
        self._may_read_secrets = may_read_secrets

    async def review(self, body: bytes) -> Reply:
        """AdmissionReview for AdmissionReview. Raises InvalidRequest."""
        question = self._read(body)
        if isinstance(question, Reply):
            return question
        # A required affinity outlives the fact it was made of, so a stale one is confirmed first.
        answers = await self._pod_resolver.resolve(
            question.images, question.keyring, self._wait_seconds, revalidate=self._confirms
        )
        return self._conclude(question, answers)

    def review_nowait(self, body: bytes) -> Reply | None:
        """What `review` answers, or None if it has to look something up first. Raises InvalidRequest."""
        question = self._read(body)
        if isinstance(question, Reply):
            return question
        answers = self._pod_resolver.recall(question.images, question.keyring)
        return None if answers is None else self._conclude(question, answers)

    @staticmethod
    def fallback(body: bytes, event_id: str) -> bytes:
        """Allowed without a patch; the event's id is in the audit log."""
        return encode_response(decode_review(body), audit_annotations={"internal-error": event_id})

    def _read(self, body: bytes) -> "_Question | Reply":
        """What there is to decide, or the answer where there is nothing."""
        review = decode_review(body)
        if not is_pod_creation(review.request):
            ADMISSIONS[_SKIPPED].inc()
            return Reply(encode_response(review))
        namespace = review.request.namespace or ""
        try:
            pod = _POD.decode(review.request.object)
            overrides = self._pod_resolver.overrides_of(pod, namespace)
            left = self._mutator.leave(pod, overrides)
        except _UNDECODABLE as exc:
            return _unreadable(review, exc)
        if left:
            return _reply(review, left)
        keyring = self._pod_resolver.keyring_of(pod, namespace, may_read=self._may_read_secrets)
        return _Question(review, pod, overrides, images_of(pod), keyring)

    def _conclude(self, question: "_Question", answers: Sequence[Answer]) -> Reply:
        facts = [
            (image, fact_of(image, answer, may_be_pending=True))
            for image, answer in zip(question.images, answers, strict=True)
        ]
        try:
            mutation = self._mutator.mutate(question.pod, facts, question.overrides, self._cluster_platforms())
        except _UNDECODABLE as exc:
            return _unreadable(question.review, exc)
        return _reply(question.review, mutation)


def _reply(review: AdmissionReview, mutation: Mutation) -> Reply:
    ADMISSIONS[mutation.outcome].inc()
    return Reply(complete_response(review, mutation.fields))


def _unreadable(review: AdmissionReview, exc: Exception) -> Reply:
    """The API server knows better what a Pod is."""
    ADMISSIONS[_UNREADABLE].inc()
    log.warning("pod.unreadable", namespace=review.request.namespace, why=str(exc))
    return Reply(encode_response(review, warnings=[f"multiarch-extender cannot read this pod: {exc}"]))
