"""The inputs of a pod's mutation as one value.

This file selects the parts of a pod that a patch may change or depend on. `mutation` decides what changes.
"""

from collections.abc import Mapping, Sequence
from typing import cast

import msgspec

from extender.kubernetes.core_v1 import CreatedPod, CreatedSpec
from extender.placement.additions import TERMS_PATH, Additions, is_recordable
from extender.placement.bounds import RECORD_CHARACTERS, REQUIREMENTS, TERMS, TOUCHED_BYTES
from extender.placement.facts import (
    MANY_IMAGES,
    MOST_IMAGES,
    ImageFact,
    Pending,
    PodImage,
    RunsOn,
    Unknown,
    is_unresolved,
)
from extender.placement.gate import GATED_LABEL
from extender.placement.nodes import ClusterNodes
from extender.placement.patch import JsonObject, look
from extender.placement.policy import SERVICE_KEYS, Overrides
from extender.placement.reasons import Constraint, refusal_text
from extender.placement.spread import replica_labels


class _Metadata(msgspec.Struct, frozen=True):
    annotations: Mapping[str, str] | msgspec.UnsetType | None
    labels: Mapping[str, str] | msgspec.UnsetType | None


class _OurLabel(msgspec.Struct, frozen=True):
    gated: str | msgspec.UnsetType = msgspec.field(name=GATED_LABEL, default=msgspec.UNSET)


_OUR_LABEL = msgspec.json.Decoder(_OurLabel | None)


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    tolerations: msgspec.Raw | msgspec.UnsetType
    affinity: msgspec.Raw | msgspec.UnsetType
    scheduler_name: msgspec.Raw | msgspec.UnsetType
    node_selector: msgspec.Raw | msgspec.UnsetType
    scheduling_gates: msgspec.Raw | msgspec.UnsetType
    topology_spread_constraints: msgspec.Raw | msgspec.UnsetType


class _Touched(msgspec.Struct, frozen=True):
    """The parts of a pod that a patch depends on.

    Of its annotations and labels only ours, or whether there are none at all. An annotation that is too long to be ours
    is empty.
    """

    metadata: _Metadata | msgspec.UnsetType
    spec: msgspec.Raw


class Creation(msgspec.Struct, frozen=True):
    """Everything that a mutation depends on, besides the operator's settings.

    `touched` is JSON, of which the spec has `spec_bytes`. `facts` are those of `images`. `cluster` has the cluster's
    nodes. `may_hold`: whether the pod may be held, since somebody will let it go. `replica_labels` select the pods of
    its workload if they are to be spread.
    """

    touched: bytes
    spec_bytes: int
    images: tuple[PodImage, ...]
    facts: tuple[ImageFact, ...]
    overrides: Overrides
    cluster: ClusterNodes
    may_hold: bool = False
    replica_labels: tuple[tuple[str, str], ...] = ()

    def document(self) -> JsonObject:
        """A new copy of the touched parts as plain JSON, which the caller may change."""
        return cast("JsonObject", msgspec.json.decode(self.touched))

    @property
    def excess(self) -> str:
        """What the pod has too much of to be decided about, in words for its author; empty for almost every pod."""
        if any(image.reference == MANY_IMAGES for image in self.images):
            return f"it names more than {MOST_IMAGES} images"
        return _SIZE if self.spec_bytes > TOUCHED_BYTES else _terms_excess(self.document())

    @property
    def constrained(self) -> bool:
        """Whether an image is known to run on some platforms only."""
        return any(isinstance(fact, RunsOn) for fact in self.facts)

    @property
    def constraints(self) -> list[Constraint]:
        """What the known images require, in pod order."""
        pairs = zip(self.images, self.facts, strict=True)
        return [
            Constraint(image.reference, fact.platforms, asked=fact.asked, denied=fact.denied)
            for image, fact in pairs
            if isinstance(fact, RunsOn)
        ]

    @property
    def refusal(self) -> str:
        """Why some nodes cannot run this pod, worded as in the scheduler verbs, by the known images alone."""
        return refusal_text(self.constraints)

    @property
    def unresolved(self) -> list[tuple[PodImage, Pending | Unknown]]:
        """The pending and unknown images with their facts, which tell why."""
        if not any(map(is_unresolved, self.facts)):
            return []
        pairs = zip(self.images, self.facts, strict=True)
        return [(image, fact) for image, fact in pairs if isinstance(fact, Pending | Unknown)]


_ENCODER = msgspec.json.Encoder()
_OTHERS = ""  # no annotation's key: it keeps the map from being empty, and so from being taken back with the rest
_NULL = msgspec.Raw(b"null")


_SIZE = f"its tolerations, affinity, selectors and gates take more than {TOUCHED_BYTES // 1024} KiB"


def excess_with(added: Additions, document: JsonObject) -> str:
    """What a pod has too much of with what was `added` to its touched parts in `document`; empty for nearly all.

    Such a pod gets nothing: a later pass could not take it back.
    """
    if not is_recordable(added):
        return "the record of what it would get would be too long"
    if len(_ENCODER.encode(document["spec"])) > TOUCHED_BYTES:
        return f"with what it would get, {_SIZE}"
    found = _terms_excess(document)
    return found and f"with what it would get, {found}"


def _terms_excess(document: JsonObject) -> str:
    terms = look(document, TERMS_PATH)
    if not isinstance(terms, list):
        return ""
    if len(terms) > TERMS:
        return f"its required node affinity has more than {TERMS} terms"
    requirements = sum(
        len(found)
        for term in terms
        for found in (look(term, ("matchExpressions",)), look(term, ("matchFields",)))
        if isinstance(found, list)
    )
    is_beyond = requirements > REQUIREMENTS
    return f"its required node affinity has more than {REQUIREMENTS} requirements" if is_beyond else ""


def read_creation(
    pod: CreatedPod,
    images: Sequence[PodImage],
    facts: Sequence[ImageFact],
    overrides: Overrides,
    cluster: ClusterNodes,
    *,
    may_hold: bool = False,
) -> Creation:
    """The creation of `pod`; `facts` are those of `images`, in the same order."""
    spec = pod.spec or CreatedSpec()
    raw = _ENCODER.encode(
        _Spec(
            spec.tolerations,
            spec.affinity,
            spec.scheduler_name,
            spec.node_selector,
            spec.scheduling_gates,
            spec.topology_spread_constraints,
        )
    )
    touched = _Touched(
        _Metadata(_ours(pod.metadata.annotations), _our_label(pod.metadata.labels, spec))
        if pod.metadata
        else msgspec.UNSET,
        msgspec.Raw(raw),
    )
    return Creation(
        _ENCODER.encode(touched),
        len(raw),
        tuple(images),
        tuple(facts),
        overrides,
        cluster,
        may_hold,
        tuple(replica_labels(pod).items()) if overrides.spread else (),
    )


def _our_label(
    labels: msgspec.Raw | msgspec.UnsetType, spec: CreatedSpec
) -> Mapping[str, str] | msgspec.UnsetType | None:
    """Our label among the labels of a pod that has a gate; no other pod has it."""
    if isinstance(labels, msgspec.UnsetType):
        return msgspec.UNSET
    if spec.scheduling_gates is msgspec.UNSET:
        return None if labels == _NULL else {}
    found = _OUR_LABEL.decode(labels)
    return found and ({} if isinstance(found.gated, msgspec.UnsetType) else {GATED_LABEL: found.gated})


def _ours(annotations: Mapping[str, str] | msgspec.UnsetType | None) -> Mapping[str, str] | msgspec.UnsetType | None:
    if annotations is None or isinstance(annotations, msgspec.UnsetType):
        return annotations
    found = {key: annotations[key] for key in SERVICE_KEYS if key in annotations}
    found = {key: value if len(value) <= RECORD_CHARACTERS else "" for key, value in found.items()}
    if not annotations or len(found) < len(annotations):
        found[_OTHERS] = ""
    return found
