"""What happens to pod templates: in manifests that are fixed, and in objects that are created or changed.

The decision is that about pods (`mutation`), and nothing is assumed in it. A template of a manifest gets what its pods
would get, and no annotation of the service: pods made of it then ask for what they need by themselves. A template of a
queue gets it when its object is created, since a queue plans by it before there is a pod, and a DaemonSet's template
gets required affinity if the operator has DaemonSets guarded, since its controller chooses nodes by it. What was added
to these is recorded in the template's annotations, so that it goes where the template goes, and back with a rollback.
"""

import enum
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from extender.kubernetes.core_v1 import CreatedPod, NodeSelectorRequirement
from extender.kubernetes.documents import JsonObject, map_at, pruned, value_at
from extender.kubernetes.pod_templates import PodTemplate
from extender.kubernetes.reported_v1 import ReportedPod
from extender.kubernetes.type_problems import decode_written
from extender.placement.additions import ADDED_PATH, NOTHING, Additions, read_record, take_back
from extender.placement.affinity import AffinityMode
from extender.placement.annotations import ADDED, SERVICE_KEYS, Mode, Overrides, overrides_of
from extender.placement.facts import ImageFact, Pending, PodImage, Unknown, images_of
from extender.placement.gate import GateSettings
from extender.placement.mutation import AdmissionOutcome, Mutation, Mutator, read_parts
from extender.placement.node_kinds import NodeKind
from extender.placement.nodes import NO_NODES, USUAL_NODES, ClusterNodes
from extender.placement.patch import Operation, apply, diff
from extender.placement.planning import AdmissionSettings
from extender.placement.policy import Policy
from extender.placement.reasons import shown_reference
from extender.placement.resolved_pod import ResolvedPod
from extender.placement.template_problems import TemplateProblem, problems_of, too_large
from extender.placement.tolerations import toleration_text

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
"""The label of objects that Kueue plans."""
PREBUILT_LABEL = "kueue.x-k8s.io/prebuilt-workload-name"
"""The label of objects whose plan came from another cluster: Kueue ends one that differs from it in tolerations."""
_MULTI_KUEUE = "kueue.x-k8s.io/multikueue"


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


class TemplateQuestion(NamedTuple):
    """What decides about a template, besides the facts of its images. No images: nothing is decided about it."""

    pod: CreatedPod
    overrides: Overrides
    images: tuple[PodImage, ...]


class ChangedTemplate(msgspec.Struct, frozen=True):
    """A template of an object that is created or changed, and the pod of the stored one at its path, if there is one.

    `owner` is the object.
    """

    template: PodTemplate
    owner: TemplateOwner
    question: TemplateQuestion
    stored: CreatedPod | None = None

    @property
    def pod(self) -> CreatedPod:
        """The pod that the template describes."""
        return self.question.pod

    @property
    def has_same_images(self) -> bool:
        """Whether the stored template has the same images, for the same RuntimeClass."""
        stored = self.stored
        return (
            stored is not None and images_of(stored) == images_of(self.pod) and _runtime(stored) == _runtime(self.pod)
        )

    @property
    def is_recorded(self) -> bool:
        """Whether something was added to the stored template, or to the one from which this was made."""
        return any(_record_of(pod) is not None for pod in (self.stored, self.pod))


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
    decode_written(raw, ReportedPod)  # a mutation relies on the types that the API server demands
    return msgspec.json.decode(raw, type=CreatedPod)


class _Use(enum.Enum):
    """What a template is for, by which its pods get more or less of what the settings name."""

    MANIFEST = enum.auto()
    MANIFEST_OF_DAEMONS = enum.auto()
    QUEUED = enum.auto()
    PLANNED_ELSEWHERE = enum.auto()
    DAEMON_SET = enum.auto()
    ADVICE = enum.auto()
    """Its pods get all that the webhook may give them; nothing is written."""


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
        # A queue plans by the template before a scheduler is chosen, and the controller of a DaemonSet, whose pods keep
        # their scheduler, chooses the node of each pod.
        of_daemons, guarding = (
            AffinityMode.REQUIRED if is_required else AffinityMode.NONE
            for is_required in (settings.node_affinity.required, guards)
        )
        changes: Mapping[_Use, Mapping[str, object]] = {
            _Use.MANIFEST: {},
            _Use.MANIFEST_OF_DAEMONS: {"scheduler_name": "", "node_affinity": of_daemons},
            _Use.QUEUED: {"scheduler_name": ""},
            _Use.PLANNED_ELSEWHERE: {"scheduler_name": "", "tolerations": ()},
            _Use.DAEMON_SET: {"scheduler_name": "", "tolerations": (), "node_affinity": guarding},
            _Use.ADVICE: {"scheduler_name": "", "node_affinity": AffinityMode.REQUIRED},
        }
        settings = msgspec.structs.replace(settings, gate=GateSettings(), platforms_annotation=False)
        mutator = Mutator(policy, settings)
        self._mutators = {use: mutator.varied(**changed) for use, changed in changes.items()}

    def question(self, template: PodTemplate, namespace: Mapping[str, str] | None) -> TemplateQuestion:
        """What decides about a manifest's template; `namespace` has the annotations of its namespace.

        Raises msgspec.ValidationError for a template that no API server would accept.
        """
        pod = read_template(_ENCODER.encode(template.template))
        overrides = overrides_of(pod, template.namespace, namespace, self._policy.overrides)
        is_left = self._mutators[_Use.MANIFEST].skip(pod, overrides) or template.missing
        return TemplateQuestion(pod, overrides, () if is_left else images_of(pod, self._policy.runtime_classes))

    def fix(self, template: PodTemplate, question: TemplateQuestion, facts: Sequence[ImageFact]) -> TemplateAnswer:
        """What happens to a manifest's template; `facts` are those of the question's images, in order.

        One whose pods no node could run is left for its author to fix, where a pod can only wait or be refused.
        """
        if not question.images:
            return TemplateAnswer(warnings=question.overrides.problems, gap=template.gap)
        if unknown := tuple(unknown_images(question.images, facts)):
            return TemplateAnswer(unknown=unknown, warnings=question.overrides.problems)
        mutator = self._mutators[_Use.MANIFEST_OF_DAEMONS if template.is_daemon_set else _Use.MANIFEST]
        resolved = ResolvedPod(question.pod, question.images, facts, question.overrides, self._cluster)
        mutation = mutator.mutate(resolved)
        operations = _operations_of(mutation)
        if not question.pod.annotations.get(ADDED):  # the record of one that was made from a patched pod is kept true
            operations = tuple(operation for operation in operations if operation.path.startswith(_OF_POD))
        record = read_record(mutation.audit_annotations.get("added")) if operations else None
        added = tuple(_words(record or NOTHING))
        if operations and not template.takes_constraints:
            untaken = f"its pods at {template.field_path} need {', '.join(added)}, which cannot be written there"
            return TemplateAnswer(warnings=(*mutation.warnings, untaken))
        return TemplateAnswer(operations=operations, added=added, warnings=mutation.warnings)

    def keep(self, changed: ChangedTemplate) -> tuple[Operation, ...] | None:
        """The operations that give a template of the same images what the stored one was given; None if that changes.

        So applying a manifest again changes nothing, whatever of the additions the apply overwrites. No image is looked
        up. It is None too where the author has changed what the additions depend on, and for an object that is only
        observed.
        """
        stored = changed.stored
        record = _record_of(stored)
        is_observed = changed.question.overrides.mode is not Mode.ENFORCE
        if stored is None or record is None or is_observed or not changed.has_same_images:
            return None
        (before, why_left), (after, stored_why_left) = read_parts(changed.pod, ()), read_parts(stored, ())
        if why_left or stored_why_left:
            return None
        own, present = take_back(before, record, self._offered, "")
        own_stored, _ = take_back(after, record, self._offered, "")
        if present == record and value_at(before, *ADDED_PATH) == value_at(after, *ADDED_PATH):
            return ()
        if pruned(own.get(_SPEC)) != pruned(own_stored.get(_SPEC)):
            return None
        return tuple(diff(before, _with_additions_of(before, after)))

    def review(
        self,
        changed: ChangedTemplate,
        facts: Sequence[ImageFact],
        cluster: ClusterNodes = NO_NODES,
        kinds: Mapping[NodeKind, int] | None = None,
    ) -> TemplateAnswer:
        """What happens to the template of an object; `facts` are those of the question's images, in order.

        `kinds` are the nodes of the cluster, None where they are not known.
        """
        template, (pod, overrides, images) = changed.template, changed.question
        resolved = ResolvedPod(pod, images, facts, overrides, cluster)
        is_known, is_daemon_set = not resolved.unresolved, template.is_daemon_set
        _, why_left = read_parts(pod, images)
        if why_left:
            return TemplateAnswer(problems=(too_large(template.field_path, why_left),))
        use = self._use_of(changed)
        operations = (self.keep(changed) or ()) if use else ()
        if use and (is_known or self._is_to_be_taken_back(changed)):
            patched = _patched(pod, operations)  # with the record, by which what was added is taken back
            mutation = self._mutators[use].mutate(msgspec.structs.replace(resolved, pod=patched))
            operations += _operations_of(mutation, impossible=not is_daemon_set)
            if mutation.why_left:
                return TemplateAnswer(
                    operations=operations, problems=(too_large(template.field_path, mutation.why_left),)
                )
        plan = self._mutators[_Use.ADVICE].plan(resolved)
        is_guarded = use is _Use.DAEMON_SET and is_known and self._guards
        nodes = {} if is_guarded else kinds or {}
        problems = problems_of(template, resolved, plan, self._policy.compatibility, nodes)
        return TemplateAnswer(operations=operations, problems=tuple(problems))

    def _use_of(self, changed: ChangedTemplate) -> _Use | None:
        """What a template is for to which something may be added; None for any other.

        A stored template of a queue that has no additions gets none while its images stay, as it may be immutable.
        """
        is_daemon_set, owner = changed.template.is_daemon_set, changed.owner
        is_new = self._guards if is_daemon_set else owner.is_queued and not changed.has_same_images
        if not changed.template.takes_constraints or not (is_new or changed.is_recorded):
            return None
        if is_daemon_set:
            return _Use.DAEMON_SET
        return _Use.PLANNED_ELSEWHERE if owner.is_planned_elsewhere else _Use.QUEUED

    def _is_to_be_taken_back(self, changed: ChangedTemplate) -> bool:
        """Whether what was added goes though not all images are known now."""
        is_unguarded = changed.template.is_daemon_set and not self._guards
        return is_unguarded or (changed.is_recorded and not changed.has_same_images)


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


def _record_of(pod: CreatedPod | None) -> Additions | None:
    return read_record(pod.annotations.get(ADDED)) if pod else None


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
