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
    AdmissionReview,
    decode_review,
    encode_response,
)
from extender.kubernetes.pod_templates import KubernetesObject, PodTemplate, pod_templates
from extender.metrics import counter
from extender.placement.bounds import PATCH_BYTES, POD_BYTES, TOUCHED_BYTES
from extender.placement.facts import facts_of
from extender.placement.mutation import Mutation
from extender.placement.node_kinds import NodeKind
from extender.placement.nodes import ClusterNodes
from extender.placement.patch import Operation, look, pointer
from extender.placement.policy import MODE, Mode
from extender.placement.template_problems import Problem, TemplateProblem, too_large
from extender.placement.templates import (
    ChangedTemplate,
    TemplateAnswer,
    TemplateOwner,
    TemplateQuestion,
    Templates,
    read_template,
)
from extender.resolver.pod_resolver import PodQuestion
from extender.server.routes import Reply

log = structlog.get_logger()

LOOKUP_SECONDS = 1.0
"""The longest time that whoever applies an object waits for lookups of its images."""
_MOST_TEMPLATES = 64  # of one object: more are left as they are
_TOO_LARGE = f"with those before it, its tolerations, affinity and selectors take more than {TOUCHED_BYTES // 1024} KiB"
_OBJECT = msgspec.json.Decoder(KubernetesObject)
_ENCODER = msgspec.json.Encoder()

WARNINGS = counter(
    "multiarch_workload_warnings_total",
    "Warnings about pod templates, by what is wrong.",
    "problem",
    tuple(Problem),
)


class _Asked(msgspec.Struct, frozen=True):
    """A template that has changed, and what to ask about it."""

    changed: ChangedTemplate
    question: PodQuestion


class _ReviewedWorkload(msgspec.Struct, frozen=True):
    """An object: the templates to ask about, and operations on the object that need no answer.

    `left` says that the other templates are left as they are; it is empty for nearly all objects.
    """

    owner: TemplateOwner
    asked: Sequence[_Asked]
    operations: Sequence[Operation]
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
        try:
            document, stored = _object(request.object), _object(request.old_object)
            if document is None or _is_left(document):
                return Reply(encode_response(review))
            workload = self._read(request.namespace or "", document, stored)
            resolved = (self._pods.resolve(each.question, LOOKUP_SECONDS) for each in workload.asked)
            decided = self._decide_all(workload, await asyncio.gather(*resolved))
        except UNDECODABLE as exc:
            kind = request.kind and request.kind.kind
            log.warning("workload.unreadable", namespace=request.namespace, kind=kind, why=str(exc))
            return Reply(
                encode_response(review, warnings=[f"multiarch-extender cannot read a pod template here: {exc}"])
            )
        return _reply(review, workload, decided)

    fallback = staticmethod(PodAdmission.fallback)

    def _read(self, namespace: str, document: KubernetesObject, stored: KubernetesObject | None) -> _ReviewedWorkload:
        labels = look(document, ("metadata", "labels"))
        owner = TemplateOwner(labels if isinstance(labels, dict) else {}, look(document, ("spec", "managedBy")))
        asked, operations, left = list[_Asked](), list[Operation](), list[TemplateProblem]()
        whole_bytes = touched_bytes = 0
        for template, old in _changed(document, stored):
            raw = _ENCODER.encode(template.template)
            whole_bytes += len(raw)
            if whole_bytes > POD_BYTES:  # of all its templates: a large one has some ten thousand
                left.append(too_large(template.place, f"with those before it, it takes more than {POD_BYTES} bytes"))
                break
            changed = ChangedTemplate(
                template, read_template(raw), read_template(_ENCODER.encode(old.template)) if old else None
            )
            touched_bytes += changed.touched_bytes
            if touched_bytes > TOUCHED_BYTES:
                left.append(too_large(template.place, _TOO_LARGE))
                break
            kept = self._templates.keep(changed)
            if kept is not None:
                operations += _placed(changed.template, kept)
                continue
            if template.missing:  # whoever gives the image changes the template again, or its pods
                continue
            question = self._pods.gather(changed.pod, namespace)
            if not isinstance(question, Mutation):
                asked.append(_Asked(changed, question))
        return _ReviewedWorkload(owner, asked, operations, left)

    def _decide_all(self, workload: _ReviewedWorkload, answers: Sequence[Sequence[Answer]]) -> list[TemplateAnswer]:
        cluster, kinds = self._cluster_nodes(), self._kinds()
        return [
            self._templates.review(
                each.changed,
                workload.owner,
                TemplateQuestion(each.changed.pod, each.question.overrides, each.question.images),
                facts_of(each.question.images, known, may_be_pending=True),
                cluster,
                kinds,
            )
            for each, known in zip(workload.asked, answers, strict=True)
        ]


def _changed(
    document: KubernetesObject, stored: KubernetesObject | None
) -> Iterator[tuple[PodTemplate, PodTemplate | None]]:
    """The templates that differ from the stored ones in their places, with these, up to the limit."""
    before = {template.path: template for template in pod_templates(stored)}
    for index, template in enumerate(pod_templates(document)):
        old = before.get(template.path)
        if index == _MOST_TEMPLATES:
            return
        if old is None or old.template != template.template:
            yield template, old


def _reply(review: AdmissionReview, workload: _ReviewedWorkload, decided: Sequence[TemplateAnswer]) -> Reply:
    operations = list(workload.operations)
    for each, answer in zip(workload.asked, decided, strict=True):
        operations += _placed(each.changed.template, answer.operations)
    problems = [*(problem for answer in decided for problem in answer.problems), *workload.left]
    patch = _ENCODER.encode(operations) if operations else b""
    if len(patch) > PATCH_BYTES:
        problems.append(too_large("all templates", f"their patch would have more than {PATCH_BYTES // 1024} KiB"))
        patch = b""
    for problem in problems:
        WARNINGS[problem.problem].inc()
    lines = list(dict.fromkeys(problem.line for problem in problems))
    return Reply(encode_response(review, patch=patch, warnings=lines))


def _placed(template: PodTemplate, operations: Sequence[Operation]) -> Iterator[Operation]:
    """A pod's operations as those of the object whose template the pod is."""
    place = pointer(template.path)
    for operation in operations:
        yield msgspec.structs.replace(operation, path=f"{place}{operation.path}")


def _object(raw: msgspec.Raw) -> KubernetesObject | None:
    """The object; None if there is none."""
    return _OBJECT.decode(raw) if bytes(memoryview(raw)[:1]) == b"{" else None


def _is_left(document: KubernetesObject) -> bool:
    """Whether the object's author wants it left alone, or a controller owns it and would fight over it."""
    owners = look(document, ("metadata", "ownerReferences"))
    is_owned = isinstance(owners, list) and any(isinstance(each, dict) and each.get("controller") for each in owners)
    return is_owned or look(document, ("metadata", "annotations", MODE)) == Mode.IGNORE
