"""A pod that is being created, as the value on which its mutation depends, and on nothing else.

Knows which parts of a pod a patch may touch or depend on; what is done about them is `mutation`'s.
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
    """The parts of a pod that a patch depends on. Of the annotations ours, and whether there are any to put them by."""

    metadata: _Metadata | msgspec.UnsetType
    spec: _Spec


class Creation(msgspec.Struct, frozen=True):
    """All that an answer depends on, besides the operator's settings; equal ones get equal answers.

    `touched` is JSON, `facts` are those of `images`, `cluster` has the platforms of the nodes there are.
    """

    touched: bytes
    images: tuple[PodImage, ...]
    facts: tuple[ImageFact, ...]
    overrides: Overrides
    cluster: frozenset[Platform]

    def document(self) -> JsonObject:
        """The touched parts as plain JSON, the caller's to change."""
        return cast("JsonObject", msgspec.json.decode(self.touched))

    @property
    def constrained(self) -> bool:
        """Whether an image is known to run on some platforms only."""
        return any(isinstance(fact, RunsOn) for fact in self.facts)

    @property
    def refusal(self) -> str:
        """Why some nodes are none for this pod, in the words of the scheduler verbs, by what is known alone."""
        pairs = zip(self.images, self.facts, strict=True)
        return refusal_text(
            [Constraint(image.reference, fact.platforms) for image, fact in pairs if isinstance(fact, RunsOn)]
        )

    @property
    def unresolved(self) -> list[tuple[PodImage, Pending | Unknown]]:
        """The images of which nothing is known, and why."""
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
    """The creation of the pod."""
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
