"""What the webhook would add to the pods of a template, as operations on the template itself.

The decision is the webhook's own (`mutation`). Three things differ. A template gets no annotation of the service: pods
made of it then ask for what they need by themselves, the webhook adds nothing to them, and has nothing to record. A
DaemonSet's template, whose pods the webhook leaves to their controller, is decided about like any other. And a template
whose pods no node could run is left for its author to mend, where a pod can only wait or be refused.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from extender.kubernetes.core_v1 import CreatedPod, NodeSelectorRequirement, Toleration
from extender.kubernetes.pod_templates import PodTemplate
from extender.kubernetes.reported_v1 import WrittenPod
from extender.kubernetes.type_problems import decode_written
from extender.placement.additions import NOTHING, Additions, read_record
from extender.placement.affinity import AffinityMode
from extender.placement.facts import ImageFact, Pending, PodImage, Unknown, images_of
from extender.placement.mutation import AdmissionOutcome, Mutator
from extender.placement.patch import Operation
from extender.placement.planning import AdmissionSettings
from extender.placement.policy import ADDED, Overrides, Policy, overrides_of
from extender.placement.reasons import shown_reference

_OF_POD = "/spec/"
_IMPOSSIBLE = (AdmissionOutcome.IMPOSSIBLE, AdmissionOutcome.DENIED)
_OPERATIONS = msgspec.json.Decoder(list[Operation])
_ENCODER = msgspec.json.Encoder()


class TemplateQuestion(NamedTuple):
    """What decides about a template, besides the facts of its images. No images: nothing is decided about it."""

    pod: CreatedPod
    overrides: Overrides
    images: tuple[PodImage, ...]


class TemplateChange(msgspec.Struct, frozen=True):
    """What becomes of one template.

    `added` says in words what the operations add. `unknown` has a sentence for each image that is not known; such a
    template is left as it is. `warnings` has what its author should mend, such as a selector that allows no node. `gap`
    says which images a template lacks that is left as it is, since somebody gives them later.
    """

    operations: tuple[Operation, ...] = ()
    added: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    gap: str = ""


class TemplateMutator:
    """Applies the operator's settings to pod templates. Its results depend on the arguments and these settings alone.

    A DaemonSet keeps its scheduler and gets no preferred affinity: its controller chooses the node of each pod.
    """

    def __init__(self, policy: Policy, admission: AdmissionSettings) -> None:
        mode = AffinityMode.REQUIRED if admission.node_affinity.required else AffinityMode.NONE
        self._policy = policy
        self._usual = Mutator(policy, admission)
        self._of_daemon_sets = Mutator(
            policy, msgspec.structs.replace(admission, node_affinity=mode, scheduler_name="")
        )

    def question(self, template: PodTemplate, namespace: Mapping[str, str] | None) -> TemplateQuestion:
        """What decides about the template; `namespace` has the annotations of its namespace.

        Raises msgspec.ValidationError for a template that no API server would accept.
        """
        raw = _ENCODER.encode(template.template)
        decode_written(raw, WrittenPod)  # a mutation relies on the types that the API server demands
        pod = msgspec.json.decode(raw, type=CreatedPod)
        overrides = overrides_of(pod, raw, template.namespace, namespace, self._policy)
        skipped = self._mutator_of(template).skip(pod, overrides)
        is_left = skipped or template.missing
        return TemplateQuestion(pod, overrides, () if is_left else images_of(pod, self._policy.runtime_classes))

    def change(self, template: PodTemplate, question: TemplateQuestion, facts: Sequence[ImageFact]) -> TemplateChange:
        """What becomes of the template; `facts` are those of the question's images, in order."""
        if not question.images:
            return TemplateChange(warnings=question.overrides.problems, gap=template.gap)
        if unknown := tuple(_unknown(question.images, facts)):
            return TemplateChange(unknown=unknown, warnings=question.overrides.problems)
        mutation = self._mutator_of(template).mutate(question.pod, question.images, facts, question.overrides)
        if mutation.outcome in _IMPOSSIBLE:
            return TemplateChange(warnings=mutation.warnings)
        operations = tuple(_OPERATIONS.decode(mutation.patch)) if mutation.patch else ()
        if not _has_record(question.pod):
            operations = tuple(operation for operation in operations if operation.path.startswith(_OF_POD))
        added = read_record(mutation.audit_annotations.get("added")) if operations else None
        words = tuple(_words(added or NOTHING))
        if operations and not template.takes_words:
            untaken = f"its pods at {template.place} need {', '.join(words)}, which cannot be written there"
            return TemplateChange(warnings=(*mutation.warnings, untaken))
        return TemplateChange(operations, words, (), mutation.warnings)

    def _mutator_of(self, template: PodTemplate) -> Mutator:
        return self._of_daemon_sets if template.kind == "DaemonSet" else self._usual


def _has_record(pod: CreatedPod) -> bool:
    """Whether the template was made from a pod that the webhook has patched; then its record is kept true."""
    annotations = pod.metadata.annotations if pod.metadata else None
    return isinstance(annotations, dict) and ADDED in annotations


def _unknown(images: Sequence[PodImage], facts: Sequence[ImageFact]) -> Iterator[str]:
    for image, fact in zip(images, facts, strict=True):
        if isinstance(fact, Pending | Unknown):
            yield f"image {shown_reference(image.reference)} is not known ({fact.cause}): {fact.detail}"


def _words(added: Additions) -> Iterator[str]:
    if added.node_selector:
        entries = ", ".join(f"{key}={value}" for key, value in added.node_selector.items())
        yield f"nodeSelector {entries}"
    if added.required:
        alternatives = dict.fromkeys(_expressions(term.match_expressions) for term in added.required)
        yield f"node affinity {' or '.join(alternatives)}"
    for term in added.preferred:
        yield f"preferred node affinity {_expressions(term.preference.match_expressions or ())}"
    for toleration in added.tolerations:
        yield f"toleration {_toleration(toleration)}"
    if added.scheduler_name_was is not None:
        yield "schedulerName"


def _expressions(requirements: Sequence[NodeSelectorRequirement]) -> str:
    return " and ".join(f"{item.key} {item.operator} [{', '.join(item.values or ())}]" for item in requirements)


def _toleration(toleration: Toleration) -> str:
    value = f"={toleration.value}" if toleration.value else ""
    effect = f":{toleration.effect}" if toleration.effect else ""
    return f"{toleration.key or 'every key'}{value}{effect}"
