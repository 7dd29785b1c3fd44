"""The webhook: from an AdmissionReview through image facts and the mutation to the answer, which always allows.

Knows when to wait and for how long; what a pod is given is `placement.mutation`'s business.
"""

from collections.abc import Callable

import msgspec
import structlog

from extender.images.platform import Platform
from extender.kubernetes.admission_v1 import (
    AdmissionRequest,
    complete_response,
    decode_review,
    encode_response,
    is_pod_creation,
)
from extender.metrics import counter
from extender.placement.creation import CreatedPod
from extender.placement.facts import fact_of, images_of
from extender.placement.mutation import AdmissionPolicy, Mutation, Mutator, Outcome
from extender.server.endpoints import Reply
from extender.server.knowledge import Knowledge

log = structlog.get_logger()

_SKIPPED, _UNREADABLE = "skipped", "unreadable"
ADMISSIONS = counter(
    "multiarch_admissions_total",
    "Reviews by what became of the pod; skipped: no creation of a pod; unreadable: not the Pod that we know.",
    "outcome",
    (*Outcome, _SKIPPED, _UNREADABLE),
)

_POD = msgspec.json.Decoder(CreatedPod)


class PodAdmission:
    """Reviews of pods that are being created.

    `cluster_platforms` gives the platforms of the cluster's nodes, none where none is watched. `may_read_secrets`: only
    the API server can reach us, so a review may make us read the pull secrets its pod names; anyone else could name
    another tenant's.
    """

    def __init__(
        self,
        knowledge: Knowledge,
        admission: AdmissionPolicy,
        *,
        cluster_platforms: Callable[[], frozenset[Platform]],
        wait_seconds: float,
        may_read_secrets: bool = False,
    ) -> None:
        self._knowledge = knowledge
        self._mutator = Mutator(knowledge.policy, admission)
        self._confirms = admission.node_affinity.required
        self._cluster_platforms = cluster_platforms
        self._wait_seconds = wait_seconds
        self._may_read_secrets = may_read_secrets

    async def review(self, body: bytes) -> Reply:
        """AdmissionReview for AdmissionReview. Raises InvalidRequest."""
        review = decode_review(body)
        if not is_pod_creation(review.request):
            ADMISSIONS[_SKIPPED].inc()
            return Reply(encode_response(review))
        try:
            mutation = await self._mutate(review.request, _POD.decode(review.request.object))
        except (msgspec.DecodeError, UnicodeDecodeError) as exc:  # the API server knows better what a Pod is
            ADMISSIONS[_UNREADABLE].inc()
            log.warning("pod.unreadable", namespace=review.request.namespace, why=str(exc))
            return Reply(encode_response(review, warnings=[f"multiarch-extender cannot read this pod: {exc}"]))
        ADMISSIONS[mutation.outcome].inc()
        return Reply(complete_response(review, mutation.fields))

    @staticmethod
    def harmless(body: bytes, event_id: str) -> bytes:
        """Allowed without a patch; the event's id is in the audit log."""
        return encode_response(decode_review(body), audit_annotations={"internal-error": event_id})

    async def _mutate(self, request: AdmissionRequest, pod: CreatedPod) -> Mutation:
        namespace = request.namespace or ""
        wishes = self._knowledge.wishes_of(pod, namespace)
        left = self._mutator.leave(pod, wishes)
        if left:
            return left
        images = images_of(pod)
        keyring = self._knowledge.keyring_of(pod, namespace, may_read=self._may_read_secrets)
        # A required affinity outlives the fact it was made of, so a stale one is confirmed first.
        answers = self._knowledge.recall(images, keyring) or await self._knowledge.resolve(
            images, keyring, self._wait_seconds, revalidate=self._confirms
        )
        facts = [
            (image, fact_of(image, answer, may_be_pending=True)) for image, answer in zip(images, answers, strict=True)
        ]
        return self._mutator.mutate(pod, facts, wishes, self._cluster_platforms())
