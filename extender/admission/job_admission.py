"""The webhook for Jobs that a queue plans by their template: the template gets what its pods would get.

Kueue chooses nodes for a Job before there is a pod, so what the webhook gives to pods comes too late for it. Only Jobs
with a queue's label are changed. Pods of their templates come to the pods' webhook as well, which finds what it would
add and adds nothing.
"""

from collections.abc import Sequence

import msgspec
import structlog

from extender.admission.pod_reviews import PodReviews
from extender.images.content import Answer
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
from extender.placement.gate import GatePolicy
from extender.placement.mutation import AdmissionOutcome, Mutation
from extender.placement.planning import AdmissionPolicy
from extender.resolver.pod_resolver import PodQuestion
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


def for_templates(admission: AdmissionPolicy) -> AdmissionPolicy:
    """The operator's settings as they hold for templates.

    No template gets a gate, which would hold each of its pods, or a scheduler's name. One with an image that is not
    known is left as it is, and nothing is assumed: its pods are decided about when they are created. They are told the
    platforms of their images then, which the template's tags may have changed by that time.
    """
    return msgspec.structs.replace(
        admission, gate=GatePolicy(may_assume=False), scheduler_name="", platforms_annotation=False
    )


class JobAdmission:
    """Answers reviews of Jobs that are being created; `reviews` decides by settings `for_templates`."""

    def __init__(self, reviews: PodReviews) -> None:
        self._reviews = reviews

    async def review(self, body: bytes) -> Reply:
        """The AdmissionReview with the response to the one in `body`. Raises InvalidRequest."""
        gathered = self._gather(body)
        if isinstance(gathered, Reply):
            return gathered
        return self._decide(gathered, await self._reviews.resolve(gathered.question))

    @staticmethod
    def fallback(body: bytes, event_id: str) -> bytes:
        """A response that allows without a patch; the audit annotations have the event's id."""
        return encode_response(decode_review(body), audit_annotations={"internal-error": event_id})

    def _gather(self, body: bytes) -> _JobCreation | Reply:
        review = decode_review(body)
        if not is_job_creation(review.request):
            return _skipped(review)
        try:
            job = _JOB.decode(review.request.object)
            labels = (job.metadata and job.metadata.labels) or {}
            if not labels.get(QUEUE_LABEL) or job.spec is None or not bytes(job.spec.template):
                return _skipped(review)
            template = _POD.decode(job.spec.template)
            question = self._reviews.gather(template, review.request.namespace or "", job.spec.template)
        except _UNDECODABLE as exc:
            return _unreadable(review, exc)
        return _reply(review, question) if isinstance(question, Mutation) else _JobCreation(review, template, question)

    def _decide(self, creation: _JobCreation, answers: Sequence[Answer]) -> Reply:
        try:
            mutation = self._reviews.decide(creation.template, creation.question, answers)
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
