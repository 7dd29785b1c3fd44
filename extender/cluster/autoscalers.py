"""Which cluster autoscalers a cluster has, by what they leave in it: APIs that are served, and marks on nodes.

It takes no right beyond listing nodes: every authenticated account may read which APIs are served.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from enum import StrEnum

import msgspec

from extender.cluster.listwatch import Getter
from extender.errors import UNDECODABLE, ClusterError
from extender.kubernetes.apidiscovery_v2 import MEDIA_TYPE, APIGroupDiscoveryList
from extender.kubernetes.reported_v1 import MarkedMeta, MarkedNode

_KARPENTER_GROUP = "karpenter.sh"
_KARPENTER_LABEL = "karpenter.sh/nodepool"
# Karpenter and Kueue serve other resources of this group.
_CLUSTER_AUTOSCALER_API = ("autoscaling.x-k8s.io", "provisioningrequests")
_CLUSTER_AUTOSCALER_ANNOTATION = "cluster-autoscaler.kubernetes.io/"
_CLUSTER_AUTOSCALER_TAINTS = ("ToBeDeletedByClusterAutoscaler", "DeletionCandidateOfClusterAutoscaler")

_NODE = msgspec.json.Decoder(MarkedNode)
_APIS = msgspec.json.Decoder(APIGroupDiscoveryList)


class Autoscaler(StrEnum):
    """A program that buys nodes for pods that wait."""

    KARPENTER = "karpenter"
    CLUSTER_AUTOSCALER = "cluster-autoscaler"


async def find_autoscalers(reader: Getter, nodes: Iterable[msgspec.Raw | bytes]) -> Mapping[Autoscaler, str]:
    """The autoscalers of a cluster with these nodes, each with a sign of it.

    APIs and nodes that cannot be read are no signs, and no failure.
    """
    found: dict[Autoscaler, str] = {}
    for document in nodes:
        with suppress(*UNDECODABLE):
            for autoscaler, mark in _marks(_NODE.decode(document)):
                found.setdefault(autoscaler, mark)
    with suppress(ClusterError, *UNDECODABLE):
        found |= _serving(_APIS.decode(await reader.get("/apis", accept=MEDIA_TYPE)))
    return found


def _marks(node: MarkedNode) -> Iterator[tuple[Autoscaler, str]]:
    meta = node.metadata or MarkedMeta()
    if _KARPENTER_LABEL in (meta.labels or {}):
        yield Autoscaler.KARPENTER, f"label {_KARPENTER_LABEL} of node {meta.name}"
    for key in meta.annotations or {}:
        if key.startswith(_CLUSTER_AUTOSCALER_ANNOTATION):
            yield Autoscaler.CLUSTER_AUTOSCALER, f"annotation {key} of node {meta.name}"
    for taint in (node.spec and node.spec.taints) or ():
        if taint.key in _CLUSTER_AUTOSCALER_TAINTS:
            yield Autoscaler.CLUSTER_AUTOSCALER, f"taint {taint.key} of node {meta.name}"


def _serving(served: APIGroupDiscoveryList) -> Mapping[Autoscaler, str]:
    resources = {
        (group.metadata.name if group.metadata else None, resource.resource)
        for group in served.items or ()
        for version in group.versions or ()
        for resource in version.resources or ()
    }
    found = {}
    if any(group == _KARPENTER_GROUP for group, _ in resources):
        found[Autoscaler.KARPENTER] = f"API group {_KARPENTER_GROUP}"
    if _CLUSTER_AUTOSCALER_API in resources:
        found[Autoscaler.CLUSTER_AUTOSCALER] = f"API {'/'.join(_CLUSTER_AUTOSCALER_API)}"
    return found
