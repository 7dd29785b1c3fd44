"""Which autoscalers a cluster is seen to have: by the APIs that are served, and by marks on nodes."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from extender.cluster.autoscalers import Autoscaler, find_autoscalers
from extender.cluster.client import ClusterRefused
from extender.kubernetes.apidiscovery_v2 import MEDIA_TYPE


class Apis:
    """An API server that serves these resources of each group, or refuses to say."""

    def __init__(self, groups: Mapping[str, list[str]] | None) -> None:
        self.groups = groups
        self.accepted = ""

    async def get(self, path: str, query: Mapping[str, str] | None = None, *, accept: str = "") -> bytes:
        """What /apis answers."""
        assert (path, query) == ("/apis", None)
        self.accepted = accept
        if self.groups is None:
            raise ClusterRefused("/apis: forbidden", 403)
        items = [
            {"metadata": {"name": group}, "versions": [{"resources": [{"resource": name} for name in names]}]}
            for group, names in self.groups.items()
        ]
        return msgspec.json.encode({"kind": "APIGroupDiscoveryList", "items": items})


def node(**fields: Any) -> bytes:
    """A node of that name, and with these fields."""
    return msgspec.json.encode({"metadata": {"name": "n1", **fields.pop("metadata", {})}, **fields})


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ({"karpenter.sh": ["nodepools"]}, {Autoscaler.KARPENTER: "API group karpenter.sh"}),
        (
            {"autoscaling.x-k8s.io": ["provisioningrequests"]},
            {Autoscaler.CLUSTER_AUTOSCALER: "API autoscaling.x-k8s.io/provisioningrequests"},
        ),
        ({"autoscaling.x-k8s.io": ["capacitybuffers"]}, {}),
        ({"autoscaling": ["horizontalpodautoscalers"], "apps": ["deployments"]}, {}),
        ({}, {}),
    ],
)
async def test_an_autoscaler_is_seen_by_its_api(
    groups: Mapping[str, list[str]], expected: Mapping[Autoscaler, str]
) -> None:
    """The group that Cluster Autoscaler shares with others is no sign of it."""
    apis = Apis(groups)
    assert await find_autoscalers(apis, []) == expected
    assert apis.accepted == MEDIA_TYPE


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (
            node(metadata={"labels": {"karpenter.sh/nodepool": "general"}}),
            {Autoscaler.KARPENTER: "label karpenter.sh/nodepool of node n1"},
        ),
        (
            node(metadata={"annotations": {"cluster-autoscaler.kubernetes.io/scale-down-disabled": "true"}}),
            {
                Autoscaler.CLUSTER_AUTOSCALER: "annotation cluster-autoscaler.kubernetes.io/scale-down-disabled"
                " of node n1"
            },
        ),
        (
            node(spec={"taints": [{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]}),
            {Autoscaler.CLUSTER_AUTOSCALER: "taint ToBeDeletedByClusterAutoscaler of node n1"},
        ),
        (node(metadata={"annotations": {"note": "not karpenter.sh/nodepool, nor ClusterAutoscaler"}}), {}),
        (node(metadata={"labels": {"kubernetes.io/arch": "arm64"}}), {}),
        (node(metadata={"labels": ["karpenter.sh/nodepool"]}), {}),
    ],
)
async def test_an_autoscaler_is_seen_by_its_marks_on_a_node(
    document: bytes, expected: Mapping[Autoscaler, str]
) -> None:
    """Even where nobody says which APIs are served; the words alone, elsewhere in a node, are no mark."""
    assert await find_autoscalers(Apis(None), [document]) == expected


async def test_the_first_mark_counts_and_an_api_is_the_better_sign() -> None:
    """Other nodes take nothing back."""
    nodes = [node(metadata={"labels": {"karpenter.sh/nodepool": "general"}}), node()]
    assert await find_autoscalers(Apis({}), nodes) == {Autoscaler.KARPENTER: "label karpenter.sh/nodepool of node n1"}
    served = Apis({"karpenter.sh": ["nodepools"]})
    assert await find_autoscalers(served, nodes) == {Autoscaler.KARPENTER: "API group karpenter.sh"}
