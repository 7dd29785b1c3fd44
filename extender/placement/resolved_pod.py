"""A pod with what is known of it: the one value that the webhook, the gate, templates and reports decide about."""

import functools
from collections.abc import Sequence, Set

import msgspec

from extender.images.platform import Platform
from extender.kubernetes.core_v1 import CreatedPod
from extender.placement.annotations import Overrides
from extender.placement.facts import ImageFact, Pending, PodImage, Unknown, known_platforms
from extender.placement.gate import Unresolved
from extender.placement.nodes import NO_NODES, ClusterNodes
from extender.placement.reasons import constraints_of, refusal_text, system_text


class ResolvedPod(msgspec.Struct, frozen=True, dict=True):
    """What decides about a pod besides the settings.

    `facts` are those of `images`, in order. `cluster` has the cluster's nodes, none if they are not watched.
    """

    pod: CreatedPod
    images: Sequence[PodImage]
    facts: Sequence[ImageFact]
    overrides: Overrides
    cluster: ClusterNodes = NO_NODES

    @functools.cached_property
    def known(self) -> frozenset[frozenset[Platform]]:
        """The sets of platforms of the images that run on some platforms only; empty if none is known to."""
        return frozenset(known_platforms(self.facts))

    @functools.cached_property
    def unresolved(self) -> list[Unresolved]:
        """The pending and unknown images with their facts, which say why."""
        pairs = zip(self.images, self.facts, strict=True)
        return [(image, fact) for image, fact in pairs if isinstance(fact, (Pending, Unknown))]

    def refusal(self, assumed: Set[PodImage] = frozenset(), assume: frozenset[Platform] = frozenset()) -> str:
        """The one reason for all nodes that the pod cannot run on; arguments are as in `constraints_of`."""
        constraints = constraints_of(self.images, self.facts, assumed, assume)
        return refusal_text(constraints) or system_text(self.images, self.facts)
