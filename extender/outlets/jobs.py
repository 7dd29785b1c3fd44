"""The webhook for Jobs that a queue plans by their template: the template gets what its pods would get.

Kueue chooses nodes for a Job before there is a pod, so what the webhook gives to pods comes too late for it. Only Jobs
with a queue's label are changed. Pods of their templates come to the pods' webhook as well, which finds what it would
add and adds nothing.
"""

from collections.abc import Callable, Sequence

import msgspec
import structlog

from extender.budgets import Budget, declare_budget
from extender.images.content import Answer
from extender.images.platform import Platform
from extender.kubernetes.admission_v1 import (
    AdmissionReview,
    complete_response,
    decode_review,
    encode_fields,
    encode_response,
    is_job_creation,
)
from extender.kubernetes.batch_v1 import Job
from extender.kubernetes.core_v1 import CreatedPod
from extender.metrics import counter
from extender.outlets.pod_resolver import PodQuestion, PodResolver
from extender.placement.facts import facts_of
from extender.placement.gate import GatePolicy, UnknownImages
from extender.placement.mutation import AdmissionOutcome, Mutation, Mutator
from extender.placement.planning import AdmissionPolicy
from extender.server.routes import Reply

log = structlog.get_logger()

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
"""The label of Jobs that Kueue plans."""

_SKIPPED, _UNREADABLE = "skipped", "unreadable"
JOBS = counter(
    "multiarch_job_admissions_total",
    "Reviews of Jobs by what became of the template; unresolved: left as it is, as an image was not known; skipped: no "
    "creation of a Job with a queue's label; unreadable: not the Job that we know.",
    "outcome",
    (*(outcome for outcome in AdmissionOutcome if outcome is not AdmissionOutcome.GATED), _SKIPPED, _UNREADABLE),
)

_WAITING = declare_budget(
    "outlets.jobs.waiting",
    unit="reviews of Jobs that wait for lookups",
    total=200,
    most_each=50,
    why="each holds a connection of the API server; a review beyond that is answered from memory",
)

_TEMPLATE = "/spec/template"
_UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_JOB = msgspec.json.Decoder(Job)
_POD = msgspec.json.Decoder(CreatedPod)
_PATCH = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])


class _JobCreation(msgspec.Struct, frozen=True):
    """A review of a Job that is being created, its template as a pod, and what to ask about it."""

    review: AdmissionReview
    template: CreatedPod
    question: PodQuestion


class JobAdmission:
    """Answers reviews of Jobs that are being created; the arguments are those of `PodAdmission`.

    No template gets a gate, which would hold each of its pods, or a scheduler's name. One with an image that is not
    known is left as it is: its pods are decided about when they are created.
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
        if admission.gate.unknown is UnknownImages.GATE:
            admission = msgspec.structs.replace(admission, gate=GatePolicy())
        admission = msgspec.structs.replace(admission, scheduler_name="")
        self._pod_resolver = pod_resolver
        self._mutator = Mutator(pod_resolver.policy, admission)
        self._confirms = admission.node_affinity.required
        self._cluster_platforms = cluster_platforms
        self._wait_seconds = wait_seconds
        self._may_read_secrets = may_read_secrets
        self._waiting = Budget(_WAITING)

    async def review(self, body: bytes) -> Reply:
        """The AdmissionReview with the response to the one in `body`. Raises InvalidRequest."""
        gathered = self._gather(body)
        if isinstance(gathered, Reply):
            return gathered
        question, tenant = gathered.question, gathered.question.keyring.tenant
        may_wait = self._waiting.take(tenant)
        try:
            wait_seconds = self._wait_seconds if may_wait else 0.0
            answers = await self._pod_resolver.resolve(question, wait_seconds, revalidate=self._confirms)
        finally:
            if may_wait:
                self._waiting.give_back(tenant)
        return self._decide(gathered, answers)

    @staticmethod
    def fallback(body: bytes, event_id: str) -> bytes:
        """A response that allows without a patch; the audit annotations have the event's id."""
        return encode_response(decode_review(body), audit_annotations={"internal-error": event_id})

    def _gather(self, body: bytes) -> _JobCreation | Reply:
        review = decode_review(body)
        if not is_job_creation(review.request):
            return _skipped(review)
        namespace = review.request.namespace or ""
        try:
            job = _JOB.decode(review.request.object)
            labels = (job.metadata and job.metadata.labels) or {}
            if not labels.get(QUEUE_LABEL) or job.spec is None or not bytes(job.spec.template):
                return _skipped(review)
            template = _POD.decode(job.spec.template)
            overrides = self._pod_resolver.overrides_of(template, namespace)
            skipped = self._mutator.skip(template, overrides)
        except _UNDECODABLE as exc:
            return _unreadable(review, exc)
        if skipped:
            return _reply(review, skipped)
        question = self._pod_resolver.question(template, namespace, overrides, may_read=self._may_read_secrets)
        return _JobCreation(review, template, question)

    def _decide(self, creation: _JobCreation, answers: Sequence[Answer]) -> Reply:
        question = creation.question
        facts = facts_of(question.images, answers, may_be_pending=True)
        try:
            mutation = self._mutator.mutate(
                creation.template, question.images, facts, question.overrides, self._cluster_platforms()
            )
        except _UNDECODABLE as exc:
            return _unreadable(creation.review, exc)
        return _reply(creation.review, mutation)


def _reply(review: AdmissionReview, mutation: Mutation) -> Reply:
    JOBS[mutation.outcome].inc()
    patch = b"" if mutation.outcome is AdmissionOutcome.UNRESOLVED else _in_template(mutation.patch)
    denial = mutation.reason if mutation.outcome is AdmissionOutcome.DENIED else ""
    fields = encode_fields(patch, mutation.warnings, mutation.audit_annotations, denial=denial)
    return Reply(complete_response(review, fields))


def _in_template(patch: bytes) -> bytes:
    """A pod's JSON Patch as one of the Job whose template the pod is."""
    if not patch:
        return b""
    operations = _PATCH.decode(patch)
    for operation in operations:
        path = msgspec.json.decode(operation["path"], type=str)
        operation["path"] = msgspec.Raw(msgspec.json.encode(f"{_TEMPLATE}{path}"))
    return msgspec.json.encode(operations)


def _skipped(review: AdmissionReview) -> Reply:
    JOBS[_SKIPPED].inc()
    return Reply(encode_response(review))


def _unreadable(review: AdmissionReview, exc: Exception) -> Reply:
    JOBS[_UNREADABLE].inc()
    log.warning("job.unreadable", namespace=review.request.namespace, why=str(exc))
    return Reply(encode_response(review, warnings=[f"multiarch-extender cannot read this Job: {exc}"]))
