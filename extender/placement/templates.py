"""What happens to pod templates: in manifests that are fixed, and in objects that are created or changed.

The decision is that about pods (`mutation`), and nothing is assumed in it. A template of a manifest gets what its pods
would get, and no annotation of the service: pods made of it then ask for what they need by themselves. A template of a
queue gets it when its object is created, since a queue plans by it before there is a pod, and a DaemonSet's template
gets required affinity if the operator has DaemonSets guarded, since its controller chooses nodes by it. What was added
to these is recorded in the template's annotations, so that it goes where the template goes, and back with a rollback.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, cast

import msgspec

from extender.kubernetes.core_v1 import CreatedPod, NodeSelectorRequirement
from extender.kubernetes.documents import JsonObject, copy_of, map_at, pruned, value_at
from extender.kubernetes.pod_templates import PodTemplate
from extender.kubernetes.reported_v1 import WrittenPod
from extender.kubernetes.type_problems import decode_written
from extender.placement.additions import ADDED_PATH, NOTHING, Additions, read_record, take_back
from extender.placement.affinity import AffinityMode
from extender.placement.annotations import ADDED, SERVICE_KEYS, Mode, Overrides, overrides_of
from extender.placement.facts import ImageFact, Pending, PodImage, Unknown, images_of, is_unresolved
from extender.placement.gate import GateSettings
from extender.placement.mutation import AdmissionOutcome, Mutation, Mutator, read_parts, touched_bytes
from extender.placement.node_kinds import NodeKind
from extender.placement.node_match import demands_of
from extender.placement.nodes import NO_NODES, USUAL_NODES, ClusterNodes
from extender.placement.patch import Operation, apply, diff
from extender.placement.planning import AdmissionSettings, Outcome
from extender.placement.policy import Policy
from extender.placement.reasons import shown_reference
from extender.placement.template_problems import ReviewedTemplate, TemplateProblem, problems_of, too_large
from extender.placement.tolerations import toleration_text

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
"""The label of objects that Kueue plans."""
PREBUILT_LABEL = "kueue.x-k8s.io/prebuilt-workload-name"
"""The label of objects whose plan came from another cluster: Kueue ends one that differs from it in tolerations."""
_MULTI_KUEUE = "kueue.x-k8s.io/multikueue"
DAEMON_SET = "DaemonSet"


_OPERATIONS = msgspec.json.Decoder(list[Operation])
_ENCODER = msgspec.json.Encoder()
_IMPOSSIBLE = (AdmissionOutcome.IMPOSSIBLE, AdmissionOutcome.REFUSED)
_SPEC, _OF_POD, _ANNOTATIONS = "spec", "/spec/", ("metadata", "annotations")


class TemplateOwner(NamedTuple):
    """The object of a template, as far as it decides about it.

    `is_queued`: a queue plans it. `is_planned_elsewhere`: clusters compare its tolerations.
    """

    is_queued: bool = False
    is_planned_elsewhere: bool = False


def owner_of(document: Mapping[str, object]) -> TemplateOwner:
    """What an object is to its templates."""
    labels = map_at(document, "metadata", "labels")
    is_managed_elsewhere = value_at(document, "spec", "managedBy") == _MULTI_KUEUE
    return TemplateOwner(bool(labels.get(QUEUE_LABEL)), PREBUILT_LABEL in labels or is_managed_elsewhere)


class ChangedTemplate(msgspec.Struct, frozen=True):
    """A template, its pod, and the pod of the stored template in its place, None if there is none."""

    template: PodTemplate
    pod: CreatedPod
    stored: CreatedPod | None = None

    @property
    def touched_bytes(self) -> int:
        """The size of what may be changed, as JSON."""
        return touched_bytes(self.pod)

    @property
    def has_same_images(self) -> bool:
        """Whether the stored template has the same images, for the same RuntimeClass."""
        stored = self.stored
        return (
            stored is not None and images_of(stored) == images_of(self.pod) and _runtime(stored) == _runtime(self.pod)
        )


class TemplateQuestion(NamedTuple):
    """What decides about a template, besides the facts of its images. No images: nothing is decided about it."""

    pod: CreatedPod
    overrides: Overrides
    images: tuple[PodImage, ...]


class TemplateAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What happens to a template: operations below its path, and what its author must fix.

    Of an object that is created or changed, `problems` say that. Of a manifest, `added` says in words what the
    operations add, `unknown` has a sentence for each image that is not known, by which the template is left as it is,
    and `warnings` has what its author should fix. `gap` says which images a template lacks that is left as it is,
    since somebody gives them later. Of one that is relaxed, `removed` says what the operations take out, and `kept` of
    each other constraint on architecture why it stays.
    """

    operations: tuple[Operation, ...] = ()
    problems: tuple[TemplateProblem, ...] = ()
    added: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    gap: str = ""
    removed: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()


def read_template(raw: bytes) -> CreatedPod:
    """A template's JSON as a pod. Raises msgspec.ValidationError for one that no API server would accept."""
    decode_written(raw, WrittenPod)  # a mutation relies on the types that the API server demands
    return msgspec.json.decode(raw, type=CreatedPod)


class Templates:
    """Applies the operator's settings to templates. Its results depend on the arguments and these settings alone."""

    def __init__(
        self, policy: Policy, settings: AdmissionSettings, *, guards: bool = False, cluster: ClusterNodes = USUAL_NODES
    ) -> None:
        """`guards`: whether the templates of DaemonSets that are created or changed get required affinity.

        `cluster` has the nodes for which manifests are fixed.
        """
        self._cluster = cluster
        self._policy = policy = msgspec.structs.replace(policy, assume=frozenset())
        self._guards = guards
        self._offered = [rule.toleration for rule in settings.tolerations]
        mode = AffinityMode.REQUIRED if settings.node_affinity.required else AffinityMode.NONE
        self._fixed = Mutator(
            policy, msgspec.structs.replace(settings, gate=GateSettings(), platforms_annotation=False)
        )
        # A DaemonSet's controller chooses the node of each pod, and its pods keep their scheduler.
        self._fixed_daemons = self._fixed.varied(node_affinity=mode, scheduler_name="")
        self._queued = self._fixed.varied(scheduler_name="")
        self._planned_elsewhere = self._queued.varied(tolerations=())
        self._required = self._queued.varied(node_affinity=AffinityMode.REQUIRED)
        self._guarded = self._required.varied(tolerations=())
        self._unguarded = self._guarded.varied(node_affinity=AffinityMode.NONE)

    def question(self, template: PodTemplate, namespace: Mapping[str, str] | None) -> TemplateQuestion:
        """What decides about a manifest's template; `namespace` has the annotations of its namespace.

        Raises msgspec.ValidationError for a template that no API server would accept.
        """
        pod = read_template(_ENCODER.encode(template.template))
        overrides = overrides_of(pod, template.namespace, namespace, self._policy.overrides)
        is_left = self._fixed.skip(pod, overrides) or template.missing
        return TemplateQuestion(pod, overrides, () if is_left else images_of(pod, self._policy.runtime_classes))

    def fix(self, template: PodTemplate, question: TemplateQuestion, facts: Sequence[ImageFact]) -> TemplateAnswer:
        """What happens to a manifest's template; `facts` are those of the question's images, in order.

        One whose pods no node could run is left for its author to fix, where a pod can only wait or be refused.
        """
        if not question.images:
            return TemplateAnswer(warnings=question.overrides.problems, gap=template.gap)
        if unknown := tuple(unknown_images(question.images, facts)):
            return TemplateAnswer(unknown=unknown, warnings=question.overrides.problems)
        mutator = self._fixed_daemons if template.kind == DAEMON_SET else self._fixed
        mutation = mutator.mutate(question.pod, question.images, facts, question.overrides, self._cluster)
        operations = _operations_of(mutation)
        if not _annotation(question.pod):  # the record of one that was made from a patched pod is kept true
            operations = tuple(operation for operation in operations if operation.path.startswith(_OF_POD))
        record = read_record(mutation.audit_annotations.get("added")) if operations else None
        added = tuple(_words(record or NOTHING))
        if operations and not template.takes_constraints:
            untaken = f"its pods at {template.place} need {', '.join(added)}, which cannot be written there"
            return TemplateAnswer(warnings=(*mutation.warnings, untaken))
        return TemplateAnswer(operations=operations, added=added, warnings=mutation.warnings)

    def gets_additions(self, changed: ChangedTemplate, owner: TemplateOwner) -> bool:
        """Whether something may be added to the template of an object that is created or changed.

        A stored template of a queue that has no additions gets none while its images stay, as it may be immutable.
        """
        if not changed.template.takes_constraints:
            return False
        if _is_recorded(changed):
            return True
        if changed.template.kind == DAEMON_SET:
            return self._guards
        return owner.is_queued and not changed.has_same_images

    def keep(self, changed: ChangedTemplate, question: TemplateQuestion) -> tuple[Operation, ...] | None:
        """The operations that give a template of the same images what the stored one was given; None if that changes.

        So applying a manifest again changes nothing, whatever of the additions the apply overwrites. No image is looked
        up, as the object may be immutable. A DaemonSet's can be changed, so there what the images have become counts:
        `review` decides. It is None too where the author has changed what the additions depend on, and for an object
        that is only observed.
        """
        return None if changed.template.kind == DAEMON_SET else self._put_back(changed, question)

    def _put_back(self, changed: ChangedTemplate, question: TemplateQuestion) -> tuple[Operation, ...] | None:
        stored = changed.stored
        record = _record_of(stored)
        is_observed = question.overrides.mode is not Mode.ENFORCE
        if stored is None or record is None or is_observed or not changed.has_same_images:
            return None
        (before, excess), (after, stored_excess) = read_parts(changed.pod, ()), read_parts(stored, ())
        if excess or stored_excess:
            return None
        own, own_stored = cast("JsonObject", copy_of(before)), cast("JsonObject", copy_of(after))
        present = take_back(own, record, self._offered, "")
        take_back(own_stored, record, self._offered, "")
        if present == record and value_at(before, *ADDED_PATH) == value_at(after, *ADDED_PATH):
            return ()
        if pruned(own.get(_SPEC)) != pruned(own_stored.get(_SPEC)):
            return None
        return tuple(diff(before, _with_additions_of(before, after)))

    def review(
        self,
        changed: ChangedTemplate,
        owner: TemplateOwner,
        question: TemplateQuestion,
        facts: Sequence[ImageFact],
        cluster: ClusterNodes = NO_NODES,
        kinds: Mapping[NodeKind, int] | None = None,
    ) -> TemplateAnswer:
        """What happens to the template of an object; `facts` are those of the question's images, in order.

        `kinds` are the nodes of the cluster, None where they are not known.
        """
        pod, images, template = changed.pod, question.images, changed.template
        _, excess = read_parts(pod, images)
        if excess:
            return TemplateAnswer(problems=(too_large(template.place, excess),))
        gets, operations = self.gets_additions(changed, owner), tuple[Operation, ...]()
        is_known = not any(map(is_unresolved, facts))
        if gets and template.kind == DAEMON_SET:
            operations = self._put_back(changed, question) or ()
            pod = _patched(changed.pod, operations)
        is_taken_back = template.kind == DAEMON_SET and not self._guards
        if gets and (is_known or is_taken_back or (_is_recorded(changed) and not changed.has_same_images)):
            mutation = self._mutator_of(template, owner).mutate(pod, images, facts, question.overrides, cluster)
            operations += _operations_of(mutation, impossible=template.kind != DAEMON_SET)
            if mutation.excess:
                return TemplateAnswer(operations=operations, problems=(too_large(template.place, mutation.excess),))
        is_guarded = gets and is_known and self._guards and template.kind == DAEMON_SET
        reviewed = self._reviewed(changed, question, facts, cluster)
        problems = problems_of(reviewed, self._policy.compatibility, None if is_guarded else kinds)
        return TemplateAnswer(operations=operations, problems=tuple(problems))

    def _mutator_of(self, template: PodTemplate, owner: TemplateOwner) -> Mutator:
        if template.kind == DAEMON_SET:
            return self._guarded if self._guards else self._unguarded
        return self._planned_elsewhere if owner.is_planned_elsewhere else self._queued

    def _reviewed(
        self, changed: ChangedTemplate, question: TemplateQuestion, facts: Sequence[ImageFact], cluster: ClusterNodes
    ) -> ReviewedTemplate:
        template, spec = changed.template, changed.pod.spec
        assert spec is not None  # noqa: S101 -- a template has a PodSpec
        plan = self._required.plan(changed.pod, question.images, facts, question.overrides, cluster)
        is_daemon_set = template.kind == DAEMON_SET
        return ReviewedTemplate(
            place=template.place,
            images=question.images,
            facts=facts,
            demands=demands_of(spec),
            tolerations=() if is_daemon_set else plan.additions.tolerations,
            contradicts=plan.outcome is Outcome.IMPOSSIBLE,
            names_secrets=bool(spec.image_pull_secrets and template.namespace),
            is_daemon_set=is_daemon_set,
            host_network=bool(spec.host_network),
        )


def _operations_of(mutation: Mutation, *, impossible: bool = False) -> tuple[Operation, ...]:
    """Those of the patch; unless `impossible`, none where no node is right, which the author must fix."""
    if not mutation.patch or (mutation.outcome in _IMPOSSIBLE and not impossible):
        return ()
    return tuple(_OPERATIONS.decode(mutation.patch))


def _patched(pod: CreatedPod, operations: Sequence[Operation]) -> CreatedPod:
    if not operations:
        return pod
    document = apply(msgspec.json.decode(_ENCODER.encode(pod)), operations)
    return msgspec.json.decode(_ENCODER.encode(document), type=CreatedPod)


def _is_recorded(changed: ChangedTemplate) -> bool:
    """Whether something was added to the stored template, or to the one from which this was made."""
    return any(_record_of(pod) is not None for pod in (changed.stored, changed.pod))


def _record_of(pod: CreatedPod | None) -> Additions | None:
    return read_record(_annotation(pod)) if pod else None


def _annotation(pod: CreatedPod) -> str | None:
    annotations = pod.metadata.annotations if pod.metadata else None
    return annotations.get(ADDED) if isinstance(annotations, dict) else None


def _runtime(pod: CreatedPod) -> str:
    return (pod.spec and pod.spec.runtime_class_name) or ""


def _with_additions_of(document: JsonObject, stored: JsonObject) -> JsonObject:
    """A copy of the document with the spec of the stored one, and our annotations of it."""
    theirs = {key: each for key, each in map_at(document, *_ANNOTATIONS).items() if key not in SERVICE_KEYS}
    ours = {key: each for key in SERVICE_KEYS if (each := value_at(stored, *_ANNOTATIONS, key)) is not None}
    return {
        **document,
        "metadata": {**map_at(document, "metadata"), "annotations": theirs | ours},
        _SPEC: stored[_SPEC],
    }


def unknown_images(images: Sequence[PodImage], facts: Sequence[ImageFact]) -> Iterator[str]:
    """A sentence for each image that is not known."""
    for image, fact in zip(images, facts, strict=True):
        if isinstance(fact, Pending | Unknown):
            yield f"image {shown_reference(image.reference)} is not known ({fact.cause}): {fact.detail}"


def _words(added: Additions) -> Iterator[str]:
    if added.required:
        alternatives = dict.fromkeys(_expressions(term.match_expressions) for term in added.required)
        yield f"node affinity {' or '.join(alternatives)}"
    for term in added.preferred:
        yield f"preferred node affinity {_expressions(term.preference.match_expressions or ())}"
    for toleration in added.tolerations:
        yield f"toleration {toleration_text(toleration)}"
    if added.scheduler_name_was is not None:
        yield "schedulerName"


def _expressions(requirements: Sequence[NodeSelectorRequirement]) -> str:
    return " and ".join(f"{item.key} {item.operator} [{', '.join(item.values or ())}]" for item in requirements)
