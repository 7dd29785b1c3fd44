"""What becomes of a pod template when its object is created or changed: the words that it gets, and its problems.

The decision is that about pods (`mutation`). A template of a queue gets what its pods would get, since a queue plans by
it before there is a pod. A DaemonSet's template gets required words if the operator has DaemonSets guarded, since its
controller judges nodes by the template. Nothing is assumed, and no template gets a gate or a scheduler's name. What was
added is recorded in the template's annotations, so that it goes where the template goes, and back with a rollback.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast

import msgspec

from extender.kubernetes.core_v1 import CreatedPod
from extender.kubernetes.pod_templates import PodTemplate
from extender.kubernetes.reported_v1 import WrittenPod
from extender.kubernetes.type_problems import decode_written
from extender.placement.additions import ADDED_PATH, NOTHING, Additions, read_record, take_back
from extender.placement.affinity import AffinityMode
from extender.placement.facts import ImageFact, PodImage, images_of, is_unresolved
from extender.placement.gate import GateSettings
from extender.placement.mutation import AdmissionOutcome, Mutation, Mutator, excess_of, touched_bytes, touched_parts
from extender.placement.node_kinds import NodeKind
from extender.placement.node_match import demands_of
from extender.placement.nodes import NO_NODES, ClusterNodes
from extender.placement.patch import Json, JsonObject, Operation, diff, look
from extender.placement.pinned_nodes import wrong_nodes
from extender.placement.planning import AdmissionSettings
from extender.placement.policy import ADDED, SERVICE_KEYS, Mode, Overrides, Policy
from extender.placement.template_problems import JudgedTemplate, TemplateProblem, problems_of, too_large

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
"""The label of objects that Kueue plans."""
PREBUILT_LABEL = "kueue.x-k8s.io/prebuilt-workload-name"
"""The label of objects whose plan came from another cluster: Kueue ends one that differs from it in tolerations."""
_MULTI_KUEUE = "kueue.x-k8s.io/multikueue"
DAEMON_SET = "DaemonSet"

_OPERATIONS = msgspec.json.Decoder(list[Operation])
_ENCODER = msgspec.json.Encoder()
_IMPOSSIBLE = (AdmissionOutcome.IMPOSSIBLE, AdmissionOutcome.DENIED)
_SPEC = "spec"


class TemplateOwner(NamedTuple):
    """The object of a template, as far as it decides about it: its labels, and by what it is managed."""

    labels: Mapping[str, object]
    managed_by: object = None

    @property
    def is_queued(self) -> bool:
        """Whether a queue plans it."""
        return bool(self.labels.get(QUEUE_LABEL))

    @property
    def is_planned_elsewhere(self) -> bool:
        """Whether clusters compare its tolerations."""
        return PREBUILT_LABEL in self.labels or self.managed_by == _MULTI_KUEUE


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


class TemplateVerdict(msgspec.Struct, frozen=True):
    """What becomes of a template: operations below its path, and what its author must mend."""

    operations: tuple[Operation, ...] = ()
    problems: tuple[TemplateProblem, ...] = ()


def read_template(template: PodTemplate) -> CreatedPod:
    """The template as a pod. Raises msgspec.ValidationError for one that no API server would accept."""
    return decode_template(_ENCODER.encode(template.template))


def decode_template(raw: bytes) -> CreatedPod:
    """As `read_template`, of the template's JSON."""
    decode_written(raw, WrittenPod)  # a mutation relies on the types that the API server demands
    return msgspec.json.decode(raw, type=CreatedPod)


class TemplateJudge:
    """Applies the operator's settings to templates. Its results depend on the arguments and these settings alone."""

    def __init__(self, policy: Policy, admission: AdmissionSettings, *, guards: bool) -> None:
        """`guards`: whether templates of DaemonSets get words."""
        settings = msgspec.structs.replace(
            admission,
            gate=GateSettings(),
            scheduler_name="",
            platforms_annotation=False,
        )
        required = msgspec.structs.replace(settings, node_affinity=AffinityMode.REQUIRED)
        guard = msgspec.structs.replace(required, tolerations=(), keeps_selector=True)
        policy = msgspec.structs.replace(policy, assume=frozenset())
        self._policy = policy
        self._guards = guards
        self._offered = [rule.toleration for rule in admission.tolerations]
        self._required = Mutator(policy, required)
        self._of_queues = Mutator(policy, settings)
        self._planned_elsewhere = Mutator(policy, msgspec.structs.replace(settings, tolerations=()))
        self._of_daemon_sets = Mutator(policy, guard)

    def gets_words(self, changed: ChangedTemplate, owner: TemplateOwner) -> bool:
        """Whether words are written into the template.

        A stored template of a queue that has none gets none while its images stay, as it may be immutable.
        """
        if not changed.template.takes_words:
            return False
        if self._is_recorded(changed):
            return True
        if changed.template.kind == DAEMON_SET:
            return self._guards
        return owner.is_queued and not changed.has_same_images

    def keep(self, changed: ChangedTemplate) -> tuple[Operation, ...] | None:
        """The operations that give a template of the same images what the stored one was given; None if that changes.

        So applying a manifest again changes nothing, whatever of the additions the apply overwrites. No image is looked
        up. It is None too where the author has changed what the additions depend on.
        """
        stored = changed.stored
        record = self._record_of(stored)
        if stored is None or record is None or not changed.has_same_images:
            return None
        if any(excess_of(pod, ()) for pod in (changed.pod, stored)):
            return None
        before, after = touched_parts(changed.pod), touched_parts(stored)
        own, own_stored = touched_parts(changed.pod), touched_parts(stored)
        present = take_back(own, record, self._offered, "")
        take_back(own_stored, record, self._offered, "")
        if present.same_as(record) and look(before, ADDED_PATH) == look(after, ADDED_PATH):
            return ()
        if _pruned(own.get(_SPEC)) != _pruned(own_stored.get(_SPEC)):
            return None
        return tuple(diff(before, _with_additions_of(before, after)))

    def judge(
        self,
        changed: ChangedTemplate,
        owner: TemplateOwner,
        images: Sequence[PodImage],
        facts: Sequence[ImageFact],
        overrides: Overrides,
        cluster: ClusterNodes = NO_NODES,
        kinds: Mapping[NodeKind, int] | None = None,
    ) -> TemplateVerdict:
        """What becomes of the template; `facts` are those of `images`, in order.

        `kinds` are the nodes of the cluster, None where they are not known.
        """
        enforced = msgspec.structs.replace(overrides, mode=Mode.ENFORCE)
        required = self._required.mutate(changed.pod, images, facts, enforced, cluster, may_hold=True)
        if required.excess:
            return TemplateVerdict(problems=(too_large(changed.template.place, required.excess),))
        words = self.gets_words(changed, owner)
        unresolved = words and any(map(is_unresolved, facts))
        operations: tuple[Operation, ...] = ()
        if words and not (unresolved and (changed.has_same_images or not self._is_recorded(changed))):
            mutator = self._mutator_of(changed.template, owner)
            mutation = mutator.mutate(changed.pod, images, facts, overrides, cluster, may_hold=True)
            operations = _operations_of(mutation, changed.template)
            if mutation.excess:
                return TemplateVerdict(operations, (too_large(changed.template.place, mutation.excess),))
        is_guarded = words and not unresolved and changed.template.kind == DAEMON_SET
        judged = self._judged(changed, images, facts, required, cluster)
        problems = tuple(problems_of(judged, self._policy.compatibility, None if is_guarded else kinds))
        return TemplateVerdict(operations, problems)

    def _is_recorded(self, changed: ChangedTemplate) -> bool:
        """Whether something was added to the stored template, or to the one from which this was made."""
        return any(self._record_of(pod) is not None for pod in (changed.stored, changed.pod))

    def _record_of(self, pod: CreatedPod | None) -> Additions | None:
        annotations = pod.metadata.annotations if pod and pod.metadata else None
        return read_record(annotations.get(ADDED)) if isinstance(annotations, dict) else None

    def _mutator_of(self, template: PodTemplate, owner: TemplateOwner) -> Mutator:
        if template.kind == DAEMON_SET:
            return self._of_daemon_sets
        return self._planned_elsewhere if owner.is_planned_elsewhere else self._of_queues

    def _judged(
        self,
        changed: ChangedTemplate,
        images: Sequence[PodImage],
        facts: Sequence[ImageFact],
        mutation: Mutation,
        cluster: ClusterNodes,
    ) -> JudgedTemplate:
        template, spec = changed.template, changed.pod.spec
        assert spec is not None  # noqa: S101 -- a template has a PodSpec
        added = read_record(mutation.audit_annotations.get("added")) or NOTHING
        is_daemon_set = template.kind == DAEMON_SET
        demands = demands_of(spec)
        return JudgedTemplate(
            place=template.place,
            images=images,
            facts=facts,
            demands=demands,
            wrong_nodes=wrong_nodes(demands, facts, self._policy.compatibility, cluster.by_name),
            tolerations=() if is_daemon_set else added.tolerations,
            contradicts=mutation.outcome in _IMPOSSIBLE,
            names_secrets=bool(spec.image_pull_secrets and template.namespace),
            is_daemon_set=is_daemon_set,
            host_network=bool(template.template[_SPEC].get("hostNetwork")),
        )


def _operations_of(mutation: Mutation, template: PodTemplate) -> tuple[Operation, ...]:
    """Those of the pod's patch; none for a DaemonSet that no node is right for, which its author must mend."""
    if not mutation.patch or (template.kind == DAEMON_SET and mutation.outcome in _IMPOSSIBLE):
        return ()
    return tuple(_OPERATIONS.decode(mutation.patch))


def _runtime(pod: CreatedPod) -> str:
    return (pod.spec and pod.spec.runtime_class_name) or ""


def _with_additions_of(document: JsonObject, stored: JsonObject) -> JsonObject:
    """A copy of the document with the spec of the stored one, and our annotations of it."""
    metadata = {**cast("JsonObject", document.get("metadata") or {})}
    annotations = {**cast("JsonObject", metadata.get("annotations") or {})}
    for key in SERVICE_KEYS:
        annotations.pop(key, None)
        if (value := look(stored, (*ADDED_PATH[:-1], key))) is not None:
            annotations[key] = value
    return {**document, "metadata": {**metadata, "annotations": annotations}, _SPEC: stored[_SPEC]}


def _pruned(value: Json) -> Json:
    """The value without empty maps and lists, which mean as much as missing ones."""
    if isinstance(value, dict):
        kept = {key: _pruned(inner) for key, inner in value.items()}
        return {key: inner for key, inner in kept.items() if inner not in ({}, [], None)}
    return [_pruned(inner) for inner in value] if isinstance(value, list) else value
