"""An API server of which an audit lists everything: pods of 2 KB in thousands, their owners, and nodes.

`python -m benchmarks.listed_cluster CORE PODS REGISTRY IMAGES` pins itself to a core, prints its address as JSON, and
ends when standard input is closed. Twenty pods belong to a Deployment, through a ReplicaSet.
"""

import asyncio
import os
import sys
from typing import Any

import msgspec
import uvloop
from aiohttp import web

PODS_OF_ONE = 20
NODES = 200
NAMESPACES = 50


class ListedCluster:
    """Makes the objects of each list from their numbers."""

    def __init__(self, pods: int, hosts: list[str], images: int) -> None:
        self._hosts = hosts
        self._images = images
        owners = max(pods // PODS_OF_ONE, 1)
        self._lists = {
            "/api/v1/pods": (pods, self._pod),
            "/apis/apps/v1/deployments": (owners, self._deployment),
            "/apis/apps/v1/replicasets": (owners, self._replica_set),
            "/api/v1/nodes": (NODES, self._node),
        }

    async def answer(self, request: web.Request) -> web.Response:
        """One page of a list; kinds that this cluster lacks have an empty one."""
        number, make = self._lists.get(request.path, (0, self._node))
        start, limit = int(request.query.get("continue", 0)), int(request.query.get("limit", 500))
        end = min(start + limit, number)
        body = {
            "metadata": {"resourceVersion": "1", **({"continue": str(end)} if end < number else {})},
            "items": [make(index) for index in range(start, end)],
        }
        return web.Response(body=msgspec.json.encode(body), content_type="application/json")

    def _spec(self, owner: int) -> dict[str, Any]:
        environment = [{"name": f"SETTING_{index}", "value": "x" * 40} for index in range(12)]
        container = {"env": environment, "resources": {"requests": {"cpu": "250m", "memory": "256Mi"}}}
        images = (owner % self._images, (owner * 7 + 1) % self._images)
        return {
            "containers": [
                {**container, "name": f"c{number}", "image": self._image(index)} for number, index in enumerate(images)
            ],
            "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}],
            "volumes": [{"name": "token", "projected": {"sources": []}}],
        }

    def _image(self, index: int) -> str:
        return f"{self._hosts[index % len(self._hosts)]}/team/app-{index}:1.0"

    def _meta(self, owner: int, name: str, above: str = "", above_name: str = "") -> dict[str, Any]:
        metadata: dict[str, Any] = {"name": name, "namespace": f"team-{owner % NAMESPACES}", "uid": f"uid-{name}"}
        if above:
            reference = {"apiVersion": "apps/v1", "kind": above, "name": above_name, "uid": "u", "controller": True}
            metadata["ownerReferences"] = [reference]
        return metadata

    def _pod(self, index: int) -> dict[str, Any]:
        owner = index // PODS_OF_ONE
        metadata = self._meta(owner, f"app-{owner}-1-{index}", "ReplicaSet", f"app-{owner}-1")
        spec = {**self._spec(owner), "nodeName": f"node-{index % NODES}"}
        return {"metadata": metadata, "spec": spec, "status": {"phase": "Running"}}

    def _deployment(self, index: int) -> dict[str, Any]:
        template = {"metadata": {"labels": {"app": str(index)}}, "spec": self._spec(index)}
        return {"metadata": self._meta(index, f"app-{index}"), "spec": {"replicas": PODS_OF_ONE, "template": template}}

    def _replica_set(self, index: int) -> dict[str, Any]:
        deployment = self._deployment(index)
        return {**deployment, "metadata": self._meta(index, f"app-{index}-1", "Deployment", f"app-{index}")}

    def _node(self, index: int) -> dict[str, Any]:
        architecture = ("amd64", "arm64")[index % 2]
        labels = {"kubernetes.io/arch": architecture, "kubernetes.io/os": "linux"}
        status = {"nodeInfo": {"architecture": architecture, "operatingSystem": "linux"}}
        return {
            "metadata": {"name": f"node-{index}", "labels": labels},
            "status": {**status, "allocatable": {"cpu": "32", "memory": "128Gi"}},
        }


async def _serve(cluster: ListedCluster) -> None:
    application = web.Application()
    application.router.add_get("/{path:.*}", cluster.answer)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(msgspec.json.encode(f"http://127.0.0.1:{runner.addresses[0][1]}").decode(), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await runner.cleanup()


if __name__ == "__main__":
    os.sched_setaffinity(0, {int(sys.argv[1])})
    uvloop.run(_serve(ListedCluster(int(sys.argv[2]), sys.argv[3].split(","), int(sys.argv[4]))))
