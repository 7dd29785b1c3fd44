"""Keeps the replicas of a workload on both architectures, by topology constraints on the label of the architecture.

kube-scheduler weighs such a constraint and refuses no node for it, so a replica never waits for an architecture that is
full or gone.
"""

from collections.abc import Mapping

import msgspec

from extender.kubernetes.core_v1 import CreatedPod, LabelSelector, TopologySpreadConstraint
from extender.placement.bounds import TOUCHED_BYTES
from extender.placement.nodes import ARCHITECTURE

WEIGHED = "ScheduleAnyway"
# kube-scheduler has constraints for hosts and zones on pods without any of their own, which they lose with the first.
# The one for hosts is written too. One for zones would be worse than none: constraints that weigh nodes are void on
# nodes that lack the label of any of them, and not every cluster has zones.
_HOST, _HOST_SKEW = "kubernetes.io/hostname", 3
KEYS = frozenset({ARCHITECTURE, _HOST})
"""The labels that our constraints are about."""

# What a controller writes alike on all pods of one version of a workload, and on no other pod of the namespace.
_OF_WORKLOAD = (
    "pod-template-hash",
    "rollouts-pod-template-hash",
    "controller-revision-hash",
    "batch.kubernetes.io/controller-uid",
    "controller-uid",
)
_OF_POD = frozenset(
    {
        "statefulset.kubernetes.io/pod-name",
        "apps.kubernetes.io/pod-index",
        "batch.kubernetes.io/job-completion-index",
    }
)
_LABELS = msgspec.json.Decoder(dict[str, str] | None)


def replica_labels(pod: CreatedPod) -> Mapping[str, str]:
    """The labels that select the pods of this version of the workload; empty for a pod without a controller.

    Empty too for one with kilobytes of labels.
    """
    metadata = pod.metadata
    if metadata is None or isinstance(metadata.labels, msgspec.UnsetType) or len(metadata.labels) > TOUCHED_BYTES:
        return {}
    if not any(owner.controller for owner in metadata.owner_references or ()):
        return {}
    labels = _LABELS.decode(metadata.labels) or {}
    for key in _OF_WORKLOAD:
        if key in labels:
            return {key: labels[key]}
    return {key: value for key, value in sorted(labels.items()) if key not in _OF_POD}


def plan_spread(
    labels: Mapping[str, str], existing: tuple[TopologySpreadConstraint, ...]
) -> tuple[TopologySpreadConstraint, ...]:
    """The constraints to add to those that the pod has: none if one of them is about architectures.

    A pod without any gets the one for hosts too, which kube-scheduler has given it until then.
    """
    if not labels or any(each.topology_key == ARCHITECTURE for each in existing):
        return ()
    selector = LabelSelector(dict(labels))
    ours = TopologySpreadConstraint(1, ARCHITECTURE, WEIGHED, selector, "Honor")
    hosts = TopologySpreadConstraint(_HOST_SKEW, _HOST, WEIGHED, selector)
    return (ours,) if existing else (ours, hosts)
