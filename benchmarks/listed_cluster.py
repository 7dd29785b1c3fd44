"""An API server of which an audit lists everything: pods of 3 KB in thousands, their owners, and nodes.

`python -m benchmarks.listed_cluster CORE NODES PODS IMAGES HOST…` runs it, as `benchmarks.quiet_cluster` does. Twenty
pods belong to a Deployment, through a ReplicaSet; the images are spread over the hosts.
"""

from collections.abc import Callable, Mapping
from typing import Any

from benchmarks import payloads
from benchmarks.quiet_cluster import Collections, main

PODS_OF_ONE = 20
NAMESPACES = 50
Image = Callable[[int], str]
Object = Mapping[str, Any]


class ListedCluster(Collections):
    """Has pods, ReplicaSets and Deployments beside the nodes."""

    def __init__(self, nodes: int, pods: int, image: Image) -> None:
        super().__init__(nodes)
        owners = range(max(pods // PODS_OF_ONE, 1))
        self.add("/api/v1/pods", (_pod(index, image, payloads.node_name(index % nodes)) for index in range(pods)))
        self.add("/apis/apps/v1/replicasets", (_replica_set(owner, image) for owner in owners))
        self.add("/apis/apps/v1/deployments", (_deployment(owner, image) for owner in owners))


def _pod(index: int, image: Image, node: str = "") -> dict[str, Any]:
    owner = index // PODS_OF_ONE
    pod = payloads.pod((image(owner), image(owner * 7 + 1)), serial=f"{index:08}", template=f"{owner:08}")
    del pod["spec"]["nodeSelector"]  # no node has it
    metadata = {**pod["metadata"], "namespace": f"team-{owner % NAMESPACES}"}
    return {"metadata": metadata, "spec": {**pod["spec"], "nodeName": node}, "status": {"phase": "Running"}}


def _replica_set(owner: int, image: Image) -> Object:
    deployment = _deployment(owner, image)
    name = deployment["metadata"]["name"]
    above = {"apiVersion": "apps/v1", "kind": "Deployment", "name": name, "uid": "u", "controller": True}
    return {
        **deployment,
        "metadata": {**deployment["metadata"], "name": f"{name}-7c9f8d6b5", "ownerReferences": [above]},
    }


def _deployment(owner: int, image: Image) -> Object:
    pod = _pod(owner * PODS_OF_ONE, image)
    name = pod["metadata"]["labels"]["app"]
    template = {"metadata": {"labels": pod["metadata"]["labels"]}, "spec": pod["spec"]}
    return {
        "metadata": {"name": name, "namespace": pod["metadata"]["namespace"], "uid": f"uid-{name}"},
        "spec": {"replicas": PODS_OF_ONE, "selector": {"matchLabels": {"app": name}}, "template": template},
    }


def _main(nodes: str, pods: str, images: str, *hosts: str) -> ListedCluster:
    def image(index: int) -> str:
        number = index % int(images)
        return f"{hosts[number % len(hosts)]}/team/app-{number}:1.0"

    return ListedCluster(int(nodes), int(pods), image)


if __name__ == "__main__":
    main(_main)
