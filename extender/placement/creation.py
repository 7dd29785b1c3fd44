"""A pod that is being created, as the value on which its mutation depends, and on nothing else.

Knows which parts of a pod a patch may touch or depend on; what is done about them is `mutation`'s.
"""

from collections.abc import Sequence
from typing import cast

import msgspec

from extender.images.platform import Platform
from extender.placement.annotations import ADDED, REASON, Wishes
from extender.placement.facts import ImageFact, Pending, PodImage, RunsOn, Unknown
from extender.placement.patch import JsonObject
from extender.placement.reasons import Constraint, refusal_text


class _Annotations(msgspec.Struct, frozen=True):
    """Ours. Others' are neither read nor changed, but it matters whether there are any to put ours beside."""

    added: msgspec.Raw | msgspec.UnsetType = msgspec.field(name=ADDED, default=msgspec.UNSET)
    reason: msgspec.Raw | msgspec.UnsetType = msgspec.field(name=REASON, default=msgspec.UNSET)


class _Metadata(msgspec.Struct, frozen=True):
    annotations: _Annotations | msgspec.UnsetType | None = msgspec.UNSET


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    tolerations: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    affinity: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    scheduler_name: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    node_selector: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _Touched(msgspec.Struct, frozen=True):
    """The parts of a pod that a patch depends on; all else is skipped, not read."""

    metadata: _Metadata | msgspec.UnsetType | None = msgspec.UNSET
    spec: _Spec | msgspec.UnsetType = msgspec.UNSET


class Creation(msgspec.Struct, frozen=True):
    """All that an answer depends on, besides the operator's settings; equal ones get equal answers.

    `touched` is JSON, `facts` are those of `images`, `cluster` has the platforms of the nodes there are.
    """

    touched: bytes
    images: tuple[PodImage, ...]
    facts: tuple[ImageFact, ...]
    wishes: Wishes
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


_TOUCHED = msgspec.json.Decoder(_Touched)
_ENCODER = msgspec.json.Encoder()


def read_creation(
    raw: bytes | msgspec.Raw,
    images: Sequence[tuple[PodImage, ImageFact]],
    wishes: Wishes,
    cluster: frozenset[Platform],
) -> Creation:
    """The creation of the pod whose JSON is `raw`. O(its length), and little else."""
    return Creation(
        _ENCODER.encode(_TOUCHED.decode(raw)),
        tuple(image for image, _ in images),
        tuple(fact for _, fact in images),
        wishes,
        cluster,
    )
