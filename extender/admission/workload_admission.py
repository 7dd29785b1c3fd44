"""The webhook for everything that has pod templates: warnings to its author, and constraints for queues and DaemonSets.

Pods are created by controllers, which show warnings to nobody; whoever applies the object is still there. A queue plans
by the template before there is a pod, and a DaemonSet's controller chooses nodes by it. `placement.templates`
decides. Every object is allowed.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec
import structlog

from extender.admission.pod_admission import PodAdmission
from extender.errors import UNDECODABLE
from extender.images.content import Answer
from extender.kubernetes.admission_v1 import (
    AdmissionRequest,
    AdmissionReview,
    decode_review,
    encode_response,
)
from extender.kubernetes.core_v1 import CreatedPod
from extender.kubernetes.documents import list_at, value_at
from extender.kubernetes.pod_templates import KubernetesObject, PodTemplate, pod_templates
from extender.metrics import counter
from extender.placement.annotations import MODE, Mode
from extender.placement.bounds import OBJECT_BYTES, OBJECT_VALUES, PATCH_BYTES, POD_BYTES, TOUCHED_BYTES
from extender.placement.facts import facts_of
from extender.placement.mutation import touched_bytes
from extender.placement.node_kinds import NodeKind
from extender.placement.nodes import ClusterNodes
from extender.placement.patch import Operation, pointer
from extender.placement.template_problems import Problem, TemplateProblem, too_large
from extender.placement.templates import (
    ChangedTemplate,
    TemplateAnswer,
    TemplateOwner,
    TemplateQuestion,
    Templates,
    owner_of,
    read_template,
)
from extender.resolver.pod_resolver import PodQuestion
from extender.server.routes import Reply

log = structlog.get_logger()

LOOKUP_SECONDS = 1.0
"""The longest time that whoever applies an object waits for lookups of its images."""
_MOST_TEMPLATES = 64  # of one object: more are left as they are
_TOO_LARGE = f"with those before it, its tolerations, affinity and selectors take more than {TOUCHED_BYTES // 1024} KiB"
_OBJECT_TOO_LARGE = (
    f"with what it was before, it takes more than {OBJECT_BYTES // 1024} KiB, or has more than {OBJECT_VALUES} values"
)
_OBJECT = msgspec.json.Decoder(KubernetesObject)
_ENCODER = msgspec.json.Encoder()

WARNINGS = counter(
    "multiarch_workload_warnings_total",
    "Warnings about pod templates, by what is wrong.",
    "problem",
    tuple(Problem),
)


class _Asked(msgspec.Struct, frozen=True):
    """A template that has changed, and what to ask about it: the template and the stored one as JSON."""

    template: PodTemplate
    raw: bytes
    stored: bytes | None
    question: PodQuestion

    def changed(self, owner: TemplateOwner, pod: CreatedPod) -> ChangedTemplate:
        """It as a template of the object, with the decoded pod. Raises msgspec.ValidationError."""
        asked = TemplateQuestion(pod, self.question.overrides, self.question.images)
        return ChangedTemplate(self.template, owner, asked, read_template(self.stored) if self.stored else None)


class _ReviewedWorkload(msgspec.Struct, frozen=True):
    """An object: the templates to ask about, and operations on the object that need no answer, as JSON.

    It is kept while images are looked up, so nothing in it is decoded: that takes many times the bytes of the object.
    `left` says that the other templates are left as they are; it is empty for nearly all objects.
    """

    owner: TemplateOwner
    asked: Sequence[_Asked]
    operations: Sequence[msgspec.Raw]
    left: Sequence[TemplateProblem] = ()


class WorkloadAdmission:
    """Answers reviews of objects that are created or changed; `pods` looks up images, `templates` decides.

    `kinds` gives the nodes of the cluster, None while they are not known.
    """

    def __init__(
        self,
        pods: PodAdmission,
        templates: Templates,
        *,
        cluster_nodes: Callable[[], ClusterNodes],
        kinds: Callable[[], Mapping[NodeKind, int] | None],
    ) -> None:
        self._pods = pods
        self._templates = templates
        self._cluster_nodes = cluster_nodes
        self._kinds = kinds

    async def review(self, body: bytes) -> Reply:
        """The AdmissionReview with the response to the one in `body`. Raises InvalidRequest."""
        review = decode_review(body)
        request = review.request
        if request.operation not in ("CREATE", "UPDATE") or request.sub_resource:
            return Reply(encode_response(review))
        if _is_too_large(request):
            return _reply(review, (), [too_large("the object", _OBJECT_TOO_LARGE)])
        try:
            workload = self._read(request)
            if workload is None:
                return Reply(encode_response(review))
            resolved = (self._pods.resolve(each.question, LOOKUP_SECONDS) for each in workload.asked)
            decided = self._decide_all(workload, await asyncio.gather(*resolved))
        except UNDECODABLE as exc:
            kind = request.kind and request.kind.kind
            log.warning("workload.unreadable", namespace=request.namespace, kind=kind, why=str(exc))
            return Reply(
                encode_response(review, warnings=[f"multiarch-extender cannot read a pod template here: {exc}"])
            )
        operations = [*workload.operations]
        for each, answer in zip(workload.asked, decided, strict=True):
            operations += _placed(each.template, answer.operations)
        problems = [*(problem for answer in decided for problem in answer.problems), *workload.left]
        return _reply(review, operations, problems)

    fallback = staticmethod(PodAdmission.fallback)

    def _read(self, request: AdmissionRequest) -> _ReviewedWorkload | None:
        """What is to be decided about the object; None for one that is left alone."""
        document, stored = _object(request.object), _object(request.old_object)
        if document is None or _is_left(document):
            return None
        asked, operations, left = list[_Asked](), list[msgspec.Raw](), list[TemplateProblem]()
        whole_bytes = part_bytes = 0
        owner = owner_of(document)
        for template, old in _changed(document, stored):
            raw, old_raw = _ENCODER.encode(template.template), _ENCODER.encode(old.template) if old else None
            whole_bytes += len(raw)
            if whole_bytes > POD_BYTES:  # of all its templates: a large one has some ten thousand
                left.append(
                    too_large(template.field_path, f"with those before it, it takes more than {POD_BYTES} bytes")
                )
                break
            pod = read_template(raw)
            part_bytes += touched_bytes(pod)
            if part_bytes > TOUCHED_BYTES:
                left.append(too_large(template.field_path, _TOO_LARGE))
                break
            gathered = self._pods.gather(pod, request.namespace or "")
            if gathered.skipped:
                continue
            found = _Asked(template, raw, old_raw, gathered.question)
            # A DaemonSet's template can be changed, so what its images have become counts.
            kept = None if template.is_daemon_set else self._templates.keep(found.changed(owner, pod))
            if kept is not None:
                operations += _placed(template, kept)
            elif not template.missing:  # else whoever gives the image changes the template again, or its pods
                asked.append(msgspec.structs.replace(found, template=msgspec.structs.replace(template, template={})))
        return _ReviewedWorkload(owner, asked, operations, left)

    def _decide_all(self, workload: _ReviewedWorkload, answers: Sequence[Sequence[Answer]]) -> list[TemplateAnswer]:
        cluster, kinds = self._cluster_nodes(), self._kinds()
        return [
            self._templates.review(
                asked.changed(workload.owner, read_template(asked.raw)),
                facts_of(asked.question.images, known, may_be_pending=True),
                cluster,
                kinds,
            )
            for asked, known in zip(workload.asked, answers, strict=True)
        ]


def _changed(
    document: KubernetesObject, stored: KubernetesObject | None
) -> Iterator[tuple[PodTemplate, PodTemplate | None]]:
    """The templates that differ from the stored ones at their paths, with these, up to the limit."""
    before = {template.path: template for template in pod_templates(stored)}
    for index, template in enumerate(pod_templates(document)):
        old = before.get(template.path)
        if index == _MOST_TEMPLATES:
            return
        if old is None or old.template != template.template:
            yield template, old


def _reply(review: AdmissionReview, operations: Sequence[msgspec.Raw], problems: list[TemplateProblem]) -> Reply:
    patch = _ENCODER.encode(operations) if operations else b""
    if len(patch) > PATCH_BYTES:
        problems.append(too_large("all templates", f"their patch would have more than {PATCH_BYTES // 1024} KiB"))
        patch = b""
    for problem in problems:
        WARNINGS[problem.problem].inc()
    lines = list(dict.fromkeys(problem.line for problem in problems))
    return Reply(encode_response(review, patch=patch, warnings=lines))


def _placed(template: PodTemplate, operations: Sequence[Operation]) -> Iterator[msgspec.Raw]:
    """A pod's operations as those of the object whose template the pod is, as JSON."""
    prefix = pointer(template.path)
    for operation in operations:
        yield msgspec.Raw(_ENCODER.encode(msgspec.structs.replace(operation, path=f"{prefix}{operation.path}")))


def _is_too_large(request: AdmissionRequest) -> bool:
    """Whether the object and what it was before are too much to be decoded."""
    both = bytes(request.object), bytes(request.old_object)
    if sum(map(len, both)) > OBJECT_BYTES:
        return True
    return sum(raw.count(mark) for raw in both for mark in (b"{", b"[", b",")) > OBJECT_VALUES


def _object(raw: msgspec.Raw) -> KubernetesObject | None:
    """The object; None if there is none."""
    return _OBJECT.decode(raw) if bytes(memoryview(raw)[:1]) == b"{" else None


def _is_left(document: KubernetesObject) -> bool:
    """Whether the object's author wants it left alone, or a controller owns it and would fight over it."""
    is_owned = any(value_at(each, "controller") for each in list_at(document, "metadata", "ownerReferences"))
    return is_owned or value_at(document, "metadata", "annotations", MODE) == Mode.IGNORE
