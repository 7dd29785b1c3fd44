"""The inputs of a pod's mutation as one value, on which alone the mutation depends.

This file selects the parts of a pod that a patch may change or depend on. `mutation` decides what changes.
"""

from collections.abc import Mapping, Sequence
from typing import cast

import msgspec

from extender.images.platform import Platform
from extender.kubernetes.core_v1 import CreatedPod, CreatedSpec
from extender.placement.annotations import SERVICE_KEYS, Overrides
from extender.placement.facts import ImageFact, Pending, PodImage, RunsOn, Unknown
from extender.placement.patch import JsonObject
from extender.placement.reasons import Constraint, refusal_text


class _Metadata(msgspec.Struct, frozen=True):
    annotations: Mapping[str, str] | msgspec.UnsetType | None


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    tolerations: msgspec.Raw | msgspec.UnsetType
    affinity: msgspec.Raw | msgspec.UnsetType
    scheduler_name: msgspec.Raw | msgspec.UnsetType
    node_selector: msgspec.Raw | msgspec.UnsetType


class _Touched(msgspec.Struct, frozen=True):
    """The parts of a pod that a patch depends on. Of its annotations only ours, or whether there are none at all."""

    metadata: _Metadata | msgspec.UnsetType
    spec: _Spec


class Creation(msgspec.Struct, frozen=True):
    """Everything that a mutation depends on, besides the operator's settings. Equal creations get equal mutations.

    `touched` is JSON. `facts` are those of `images`. `cluster` holds the platforms of the cluster's nodes.
    """

    touched: bytes
    images: tuple[PodImage, ...]
    facts: tuple[ImageFact, ...]
    overrides: Overrides
    cluster: frozenset[Platform]

    def document(self) -> JsonObject:
        """A new copy of the touched parts as plain JSON, which the caller may change."""
        return cast("JsonObject", msgspec.json.decode(self.touched))

    @property
    def constrained(self) -> bool:
        """Whether an image is known to run on some platforms only."""
        return any(isinstance(fact, RunsOn) for fact in self.facts)

    @property
    def refusal(self) -> str:
        """Why some nodes cannot run this pod, worded as in the scheduler verbs, by the known images alone."""
        pairs = zip(self.images, self.facts, strict=True)
        return refusal_text(
            [Constraint(image.reference, fact.platforms) for image, fact in pairs if isinstance(fact, RunsOn)]
        )

    @property
    def unresolved(self) -> list[tuple[PodImage, Pending | Unknown]]:
        """The pending and unknown images with their facts, which tell why."""
        pairs = zip(self.images, self.facts, strict=True)
        return [(image, fact) for image, fact in pairs if isinstance(fact, Pending | Unknown)]


_ENCODER = msgspec.json.Encoder()


def read_creation(
    pod: CreatedPod,
    images: Sequence[PodImage],
    facts: Sequence[ImageFact],
    overrides: Overrides,
    cluster: frozenset[Platform],
) -> Creation:
    """The creation of `pod`; `facts` are those of `images`, in the same order."""
    spec = pod.spec or CreatedSpec()
    touched = _Touched(
        _Metadata(_ours(pod.metadata.annotations)) if pod.metadata else msgspec.UNSET,
        _Spec(spec.tolerations, spec.affinity, spec.scheduler_name, spec.node_selector),
    )
    return Creation(
        _ENCODER.encode(touched),
        tuple(images),
        tuple(facts),
        overrides,
        cluster,
    )


def _ours(annotations: Mapping[str, str] | msgspec.UnsetType | None) -> Mapping[str, str] | msgspec.UnsetType | None:
    if not annotations:
        return annotations
    return {key: annotations[key] for key in SERVICE_KEYS if key in annotations}
