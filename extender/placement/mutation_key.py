"""Everything on which a mutation depends, as one value: pods of one template have the same.

A mutation is made from the value alone, so that what is not in it cannot matter, and the mutation of an equal value is
the same. Of annotations and labels it has those that the service writes, since most others differ between pods.
"""

from collections.abc import Sequence

import msgspec

from extender.images.platform import Platform
from extender.kubernetes.core_v1 import CreatedPod, CreatedSpec
from extender.kubernetes.meta_v1 import CreatedMeta, Wire
from extender.placement.annotations import SERVICE_KEYS, Annotations, Overrides
from extender.placement.facts import ImageFact, PodImage
from extender.placement.gate import GATED_LABEL
from extender.placement.mutation import Mutation, Mutator
from extender.placement.nodes import ClusterNodes

KEPT_BYTES = 3 * 1024
"""Of a key and its mutation with the names of all fields, about half of which is text: larger ones are not kept.

As objects, whose author chooses what they hold, they take 7 KB at most.
"""

_Part = msgspec.Raw | msgspec.UnsetType
_OURS = frozenset(SERVICE_KEYS)
_OTHERS = ""  # the key that stands for all annotations or labels of others
_OTHER_LABELS = msgspec.Raw(b'{"":""}')


class _Metadata(Wire, frozen=True):
    annotations: Annotations
    labels: _Part


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
    """A pod's parts as JSON, and the arguments of `Mutator.mutate`; `platforms` are those of the cluster's nodes."""

    pod: bytes
    images: tuple[PodImage, ...]
    facts: tuple[ImageFact, ...]
    overrides: Overrides
    platforms: frozenset[Platform]
    may_hold: bool

    def mutation(self, mutator: Mutator) -> Mutation:
        """The mutation of every pod that has this key."""
        pod, cluster = _POD.decode(self.pod), ClusterNodes(self.platforms)
        return mutator.mutate(pod, self.images, self.facts, self.overrides, cluster, may_hold=self.may_hold)

    def is_small_with(self, mutation: Mutation) -> bool:
        """Whether it takes less than `KEPT_BYTES` with this mutation."""
        return len(self.pod) < KEPT_BYTES and len(_PACKER.encode((self, mutation))) < KEPT_BYTES


_POD = msgspec.json.Decoder(CreatedPod)
_ENCODER = msgspec.json.Encoder()
_PACKER = msgspec.msgpack.Encoder()


def mutation_key(
    pod: CreatedPod,
    images: tuple[PodImage, ...],
    facts: Sequence[ImageFact],
    overrides: Overrides,
    cluster: ClusterNodes,
    *,
    may_hold: bool,
) -> MutationKey:
    """The key of a pod that has a spec; arguments are as for `Mutator.mutate`."""
    metadata, spec = pod.metadata, pod.spec or CreatedSpec()
    parts = _Parts(
        _Metadata(_annotations(metadata), _labels(metadata.labels)) if metadata else msgspec.UNSET,
        _Spec(
            spec.priority_class_name or msgspec.UNSET,
            spec.tolerations,
            spec.affinity,
            spec.scheduler_name,
            spec.node_selector,
            spec.scheduling_gates,
        ),
    )
    return MutationKey(_ENCODER.encode(parts), images, tuple(facts), overrides, cluster.platforms, may_hold)


def _annotations(metadata: CreatedMeta) -> Annotations:
    """Those that the service writes, in their order, and one for all others: whether there are any matters."""
    found = metadata.annotations
    if not found:
        return found
    if _OURS.isdisjoint(found):  # as of nearly all
        return {_OTHERS: ""}
    ours = {key: value for key, value in found.items() if key in _OURS}
    return ours if len(ours) == len(found) else {**ours, _OTHERS: ""}


def _labels(raw: _Part) -> _Part:
    """The labels, or one for all if ours cannot be among them."""
    if not isinstance(raw, msgspec.Raw):
        return raw
    text = bytes(raw)
    has_only_others = text[:1] == b"{" and b":" in text and b"\\" not in text and _GATED_LABEL not in text
    return _OTHER_LABELS if has_only_others else raw


_GATED_LABEL = GATED_LABEL.encode()
