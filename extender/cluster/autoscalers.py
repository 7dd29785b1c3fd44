"""Which cluster autoscalers a cluster has, by what they leave in it: APIs that are served, and marks on nodes.

It takes no right beyond listing nodes: every authenticated account may read which APIs are served.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from enum import StrEnum

import msgspec
import structlog

from extender.cluster.listwatch import Getter
from extender.errors import ClusterError
from extender.kubernetes.apidiscovery_v2 import MEDIA_TYPE, APIGroupDiscoveryList
from extender.kubernetes.reported_v1 import MarkedMeta, MarkedNode

_KARPENTER_GROUP = "karpenter.sh"
_KARPENTER_LABEL = "karpenter.sh/nodepool"
# Karpenter and Kueue serve other resources of this group.
_CLUSTER_AUTOSCALER_API = ("autoscaling.x-k8s.io", "provisioningrequests")
_CLUSTER_AUTOSCALER_ANNOTATION = "cluster-autoscaler.kubernetes.io/"
_CLUSTER_AUTOSCALER_TAINTS = ("ToBeDeletedByClusterAutoscaler", "DeletionCandidateOfClusterAutoscaler")
# A node without these bytes has no mark; few have one, so that few are decoded a second time.
_BYTES_OF_MARKS = (b"karpenter.sh/nodepool", b"cluster-autoscaler.kubernetes.io/", b"ClusterAutoscaler")

_NODE = msgspec.json.Decoder(MarkedNode)
_APIS = msgspec.json.Decoder(APIGroupDiscoveryList)
log = structlog.get_logger()


class Autoscaler(StrEnum):
    """A program that buys nodes for pods that wait."""

    KARPENTER = "karpenter"
    CLUSTER_AUTOSCALER = "cluster-autoscaler"


class AutoscalerSigns:
    """The autoscalers of a cluster, each with the first sign of it. What has been seen on a node stays."""

    def __init__(self) -> None:
        self._on_nodes: dict[Autoscaler, str] = {}
        self._unread = ""

    def look_at(self, document: msgspec.Raw | bytes) -> None:
        """Looks for marks on a node. O(bytes of the node), until both autoscalers have been seen.

        A node that cannot be read has no marks.
        """
        if len(self._on_nodes) == len(Autoscaler):
            return
        text = bytes(document)
        if any(mark in text for mark in _BYTES_OF_MARKS):
            with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                for autoscaler, mark in _marks(_NODE.decode(text)):
                    self._on_nodes.setdefault(autoscaler, mark)

    async def find(self, reader: Getter) -> Mapping[Autoscaler, str]:
        """Returns the autoscalers and their signs. APIs that cannot be read are no failure: marks on nodes remain."""
        try:
            served = _APIS.decode(await reader.get("/apis", accept=MEDIA_TYPE))
        except (ClusterError, msgspec.DecodeError, UnicodeDecodeError) as exc:
            if str(exc) != self._unread:
                log.info("apis.unread", error=str(exc))
            self._unread = str(exc)
            return dict(self._on_nodes)
        return {**self._on_nodes, **_serving(served)}


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
