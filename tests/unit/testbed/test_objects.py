"""The manifests of fake nodes, pods and namespaces."""

import msgspec

from extender.kubernetes.core_v1 import Node
from testbed.objects import fake_node, namespace, pod


def test_a_fake_node_states_its_platform_twice() -> None:
    """By label, as affinity sees it, and by nodeInfo, as our decisions do."""
    node = msgspec.json.decode(msgspec.json.encode(fake_node("n", "arm64", labels={"zone": "a"})), type=Node)
    assert node.metadata is not None
    assert node.metadata.labels is not None
    assert (node.metadata.labels["kubernetes.io/arch"], node.metadata.labels["zone"]) == ("arm64", "a")
    assert node.status is not None
    assert node.status.node_info is not None
    assert (node.status.node_info.architecture, node.status.node_info.operating_system) == ("arm64", "linux")


def test_a_fake_node_is_ready_and_has_room() -> None:
    """What NodeResourcesFit reads, and what kwok knows it by."""
    node = fake_node("n", "amd64", cpu="2", memory="1Gi", pods=3, taints=[{"key": "a", "effect": "NoSchedule"}])
    assert node["status"]["allocatable"] == {"cpu": "2", "memory": "1Gi", "pods": "3"}
    assert node["status"]["conditions"] == [{"type": "Ready", "status": "True", "reason": "Fake"}]
    assert node["spec"]["taints"] == [{"key": "a", "effect": "NoSchedule"}]
    assert node["metadata"]["annotations"] == {"kwok.x-k8s.io/node": "fake"}


def test_a_pod_has_a_container_per_image_and_ends_at_once() -> None:
    """Without a kubelet, an evicted pod with a grace period would never go."""
    made = pod("p", "a:1", "b:2", namespace="team", cpu="1", spec={"priority": 5})
    assert [container["image"] for container in made["spec"]["containers"]] == ["a:1", "b:2"]
    assert (made["spec"]["terminationGracePeriodSeconds"], made["spec"]["priority"]) == (0, 5)
    assert made["metadata"]["namespace"] == "team"


def test_what_is_made_here_does_not_share_its_labels() -> None:
    """A test that edits one manifest must not edit the next one."""
    namespace("a")["metadata"]["labels"]["edited"] = "yes"
    assert "edited" not in namespace("b")["metadata"]["labels"]
