"""Everything on which a mutation depends, as one value: pods of one template have the same.

A mutation is made from the value alone, so that what is not in it cannot matter, and the mutation of an equal value is
the same. Of annotations and labels it has those that the service writes, since most others differ between pods.
"""

import msgspec

from extender.images.platform import Platform
from extender.kubernetes.core_v1 import CreatedPod, CreatedSpec
from extender.kubernetes.meta_v1 import Wire
from extender.placement.annotations import SERVICE_KEYS, Annotations, Overrides
from extender.placement.facts import ImageFact, PodImage
from extender.placement.gate import GATED_LABEL, PROBE_LABEL
from extender.placement.mutation import Mutation, Mutator
from extender.placement.nodes import ClusterNodes
from extender.placement.resolved_pod import ResolvedPod

KEPT_BYTES = 3 * 1024
"""Of a key and its mutation with the names of all fields, about half of which is text: larger ones are not kept.

As objects, whose author chooses what they hold, they take 7 KB at most.
"""

_Part = msgspec.Raw | msgspec.UnsetType
_OURS, _OUR_LABELS = frozenset(SERVICE_KEYS), frozenset((GATED_LABEL, PROBE_LABEL))
_OTHERS = ""  # the key that stands for all annotations or labels of others


class _Metadata(Wire, frozen=True):
    annotations: Annotations
    labels: Annotations


class _Spec(Wire, frozen=True):
    priority_class_name: str | msgspec.UnsetType
    tolerations: _Part
    affinity: _Part
    scheduler_name: _Part
    node_selector: _Part
    scheduling_gates: _Part


class _Parts(Wire, frozen=True):
    metadata: _Metadata | msgspec.UnsetType
    spec: _Spec


class MutationKey(msgspec.Struct, frozen=True):
    """A pod's parts as JSON, and what else decides; `platforms` are those of the cluster's nodes."""

    pod: bytes
    images: tuple[PodImage, ...]
    facts: tuple[ImageFact, ...]
    overrides: Overrides
    platforms: frozenset[Platform]
    may_hold: bool

    def mutation(self, mutator: Mutator) -> Mutation:
        """The mutation of every pod that has this key."""
        pod, cluster = _POD.decode(self.pod), ClusterNodes(self.platforms)
        resolved = ResolvedPod(pod, self.images, self.facts, self.overrides, cluster)
        return mutator.mutate(resolved, may_hold=self.may_hold)

    def is_small_with(self, mutation: Mutation) -> bool:
        """Whether it takes less than `KEPT_BYTES` with this mutation."""
        return len(self.pod) < KEPT_BYTES and len(_PACKER.encode((self, mutation))) < KEPT_BYTES


_POD = msgspec.json.Decoder(CreatedPod)
_ENCODER = msgspec.json.Encoder()
_PACKER = msgspec.msgpack.Encoder()


def mutation_key(resolved: ResolvedPod, *, may_hold: bool) -> MutationKey:
    """The key of a pod that has a spec; `may_hold` as in `Mutator.mutate`."""
    metadata, spec = resolved.pod.metadata, resolved.pod.spec or CreatedSpec()
    parts = _Parts(
        _Metadata(_known(metadata.annotations, _OURS), _known(metadata.labels, _OUR_LABELS))
        if metadata
        else msgspec.UNSET,
        _Spec(
            spec.priority_class_name or msgspec.UNSET,
            spec.tolerations,
            spec.affinity,
            spec.scheduler_name,
            spec.node_selector,
            spec.scheduling_gates,
        ),
    )
    return MutationKey(
        _ENCODER.encode(parts),
        tuple(resolved.images),
        tuple(resolved.facts),
        resolved.overrides,
        resolved.cluster.platforms,
        may_hold,
    )


def _known(found: Annotations, ours: frozenset[str]) -> Annotations:
    """Those of annotations or labels that are ours, in their order, and one for all others: whether any matter."""
    if not found:
        return found
    if ours.isdisjoint(found):  # as of nearly all
        return {_OTHERS: ""}
    kept = {key: value for key, value in found.items() if key in ours}
    return kept if len(kept) == len(found) else {**kept, _OTHERS: ""}
