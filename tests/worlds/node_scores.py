"""How kube-scheduler's score plugins rate nodes on which a pod fits.

It is written from kubernetes 1.36, pkg/scheduler/framework/plugins: tainttoleration (weight 3), nodeaffinity (2) and
noderesources' LeastAllocated (1), with their normalisation to 0..100. Limits: the other plugins rate all nodes equal.
"""

from collections.abc import Sequence
from typing import Any

from tests.worlds.node_rules import NodeInfo, Resources, allocatable, pod_requests, preferred_weight, untolerated

Json = dict[str, Any]

_DEFAULT_REQUESTS = {"cpu": 100, "memory": 200 << 20}  # of a container that states none (schedutil.GetNonzeroRequests)


def score_nodes(pod: Json, nodes: Sequence[NodeInfo]) -> dict[str, int]:
    """Returns the sum of the weighted scores by node."""
    taints = [len(untolerated(pod["spec"], info.node, ["PreferNoSchedule"])) for info in nodes]
    affinities = [preferred_weight(pod["spec"], info.node) for info in nodes]
    most_taints, most_affinity = max(taints), max(affinities)
    return {
        info.name: 3 * (100 - 100 * taint // most_taints if most_taints else 100)
        + 2 * (100 * affinity // most_affinity if most_affinity else 0)
        + _least_allocated(pod, info)
        for info, taint, affinity in zip(nodes, taints, affinities, strict=True)
    }


def _least_allocated(pod: Json, info: NodeInfo) -> int:
    offered = allocatable(info.node)
    total: Resources = dict.fromkeys(_DEFAULT_REQUESTS, 0)
    for each in (*info.pods.values(), pod):
        requests = pod_requests(each)
        for name, least in _DEFAULT_REQUESTS.items():
            total[name] += requests.get(name) or least
    scores = [
        (offered[name] - amount) * 100 // offered[name] if amount <= offered[name] else 0
        for name, amount in total.items()
        if offered.get(name)
    ]
    return sum(scores) // len(scores) if scores else 0
