"""The webhook: from an AdmissionReview to the response, which allows unless the operator has impossible pods denied.

A review gathers what is known of the pod, decides, and encodes. This file says when to wait and for how long;
`placement.mutation` decides how the pod is changed.
"""

from collections.abc import Callable, Sequence

import msgspec
import structlog

from extender.budgets import UNAUTHENTICATED, Budget, declare_budget
from extender.images.content import Answer
from extender.images.platform import Platform
from extender.kubernetes.admission_v1 import (
    AdmissionReview,
    complete_response,
    decode_review,
    encode_response,
    is_pod_creation,
)
from extender.kubernetes.core_v1 import CreatedPod
from extender.metrics import counter
from extender.outlets.pod_resolver import PodQuestion, PodResolver
from extender.placement.facts import facts_of, is_unresolved
from extender.placement.gate import UnknownImages
from extender.placement.mutation import AdmissionOutcome, Mutation, Mutator
from extender.placement.planning import AdmissionPolicy
from extender.placement.reasons import shown_reference
from extender.server.routes import Reply
from extender.turns import Interest, Turns, set_interest

log = structlog.get_logger()

_SKIPPED, _UNREADABLE = "skipped", "unreadable"
ADMISSIONS = counter(
    "multiarch_admissions_total",
    "Reviews by what became of the pod; unresolved: let through though an image was not known; skipped: no creation "
    "of a pod; unreadable: not the Pod that we know.",
    "outcome",
    (*AdmissionOutcome, _SKIPPED, _UNREADABLE),
)

_WAITING = declare_budget(
    "outlets.admission.waiting",
    unit="reviews that wait for lookups",
    total=1_000,
    most_each=250,
    why="each holds a connection of the API server, which has some 600 requests that change something under way; "
    "a review beyond that is answered from memory, while its lookups go on",
)

_STRANGERS_PER_SECOND = 200.0
_STRANGERS = declare_budget(
    "outlets.admission.strangers",
    unit="reviews of strangers at once, others wait",
    total=200,
    most_each=200,
    why=f"a review takes 0.2 ms of processor time, and {_STRANGERS_PER_SECOND:g} of them a second are answered to "
    "callers without the token where one is used",
)

# RecursionError: the parts of a pod that a mutation compares may be nested too deep, though the review could be read.
_UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_POD = msgspec.json.Decoder(CreatedPod)


class _PodCreation(msgspec.Struct, frozen=True):
    """A review of a pod that is being created, and what to ask about the pod."""

    review: AdmissionReview
    pod: CreatedPod
    question: PodQuestion


class PodAdmission:
    """Answers reviews of pods that are being created.

    `cluster_platforms` gives the platforms of the cluster's nodes, none if no cluster is watched. `may_read_secrets`:
    only the API server can reach the webhook, so the pull secrets that a review's pod names may be read. Any other
    caller could name another tenant's secrets, and gets what is public and what the operator's credentials open.
    `clock` gives monotonic seconds. `can_gate` tells whether a gate controller provably lets go of pods at present;
    without one no pod is held.
    """

    def __init__(
        self,
        pod_resolver: PodResolver,
        admission: AdmissionPolicy,
        *,
        cluster_platforms: Callable[[], frozenset[Platform]],
        wait_seconds: float,
        clock: Callable[[], float],
        may_read_secrets: bool = False,
        can_gate: Callable[[], bool] = lambda: False,
    ) -> None:
        self._pod_resolver = pod_resolver
        self._clock = clock
        self._strangers = Turns(_STRANGERS, clock, per_second=_STRANGERS_PER_SECOND)
        self._mutator = Mutator(pod_resolver.policy, admission)
        self._confirms = admission.node_affinity.required
        self._cluster_platforms = cluster_platforms
        self._wait_seconds = wait_seconds
        self._may_read_secrets = may_read_secrets
        self._holds = admission.gate.unknown is UnknownImages.GATE
        self._can_gate = can_gate
        self._waiting = Budget(_WAITING)

    async def review(self, body: bytes) -> Reply:
        """The AdmissionReview with the response to the one in `body`. Raises InvalidRequest."""
        gathered = self._gather(body)
        if isinstance(gathered, Reply):
            return gathered
        # A required affinity stays in the pod even if the image's tag moves, so a stale answer is confirmed first.
        question, tenant = gathered.question, gathered.question.keyring.tenant
        may_wait = self._waiting.take(tenant)
        try:
            wait_seconds = self._wait_seconds if may_wait else 0.0
            answers = await self._pod_resolver.resolve(question, wait_seconds, revalidate=self._confirms)
        finally:
            if may_wait:
                self._waiting.give_back(tenant)
        return self._decide(gathered, answers)

    def review_nowait(self, body: bytes) -> Reply | None:
        """What `review` answers, or None if it has to look something up first. Raises InvalidRequest."""
        gathered = self._gather(body)
        if isinstance(gathered, Reply):
            return gathered
        answers = self._pod_resolver.fresh(gathered.question)
        return None if answers is None else self._decide(gathered, answers)

    async def review_from_cache(self, body: bytes) -> Reply:
        """As `review_from_cache_nowait`, when it is the turn of a caller that has not shown who it is."""
        set_interest(Interest(UNAUTHENTICATED, self._clock()))
        async with self._strangers.turn():
            return self.review_from_cache_nowait(body)

    def review_from_cache_nowait(self, body: bytes) -> Reply:
        """What `review` answers without a lookup: an image that is not in the cache is not known.

        Raises:
            InvalidRequest: `body` is no AdmissionReview.
        """
        gathered = self._gather(body)
        if isinstance(gathered, Reply):
            return gathered
        return self._decide(gathered, self._pod_resolver.peek(gathered.question))

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
        namespace = review.request.namespace or ""
        try:
            pod = _POD.decode(review.request.object)
            overrides = self._pod_resolver.overrides_of(pod, namespace)
            skipped = self._mutator.skip(pod, overrides)
        except _UNDECODABLE as exc:
            return _unreadable(review, exc)
        if skipped:
            return _reply(review, skipped)
        question = self._pod_resolver.question(pod, namespace, overrides, may_read=self._may_read_secrets)
        return _PodCreation(review, pod, question)

    def _decide(self, creation: _PodCreation, answers: Sequence[Answer]) -> Reply:
        question = creation.question
        facts = facts_of(question.images, answers, may_be_pending=True)
        may_hold = self._holds and any(map(is_unresolved, facts)) and self._can_gate()
        try:
            mutation = self._mutator.mutate(
                creation.pod, question.images, facts, question.overrides, self._cluster_platforms(), may_hold=may_hold
            )
        except _UNDECODABLE as exc:
            return _unreadable(creation.review, exc)
        if mutation.unresolved:
            _log_unresolved(creation, mutation)
        return _reply(creation.review, mutation)


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
