"""The played controllers, beside the played API server and a kubelet that runs everything at once."""

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

from testbed.memory_network import run_in_memory
from tests.worlds.api_kinds import Document
from tests.worlds.api_server import MERGE_PATCH, ApiServer
from tests.worlds.installation import put_in_place
from tests.worlds.jobs import QUEUE_LABEL
from tests.worlds.trace import Trace
from tests.worlds.workloads import Workloads

T = TypeVar("T")
ARCH = "kubernetes.io/arch"
TAINT = {"key": "special", "effect": "NoSchedule"}


class Cluster:
    """An API server with controllers. Pods run and are ready as soon as they are made, but for images that crash."""

    def __init__(self, network: Any) -> None:
        self.trace = Trace(network.loop.time)
        self.api = ApiServer(network, self.trace, random.Random(1))
        self.workloads = Workloads(self.api, self.trace, random.Random(2))
        put_in_place(self.api, "Namespace", {"metadata": {"name": "default"}})
        for name, architecture in (("a", "amd64"), ("b", "amd64"), ("c", "arm64")):
            self.add_node(name, architecture)
        self.api.subscribe("Pod", self._run)
        self.tasks: list[asyncio.Task[None]] = []

    def add_node(self, name: str, architecture: str, *taints: Document) -> None:
        spec = {"taints": list(taints)} if taints else {}
        put_in_place(self.api, "Node", {"metadata": {"name": name, "labels": {ARCH: architecture}}, "spec": spec})

    def _run(self, change: str, _before: Document | None, pod: Document | None) -> None:
        if change == "ADDED" and pod:
            asyncio.get_running_loop().call_later(0.1, self._start, pod)

    def _start(self, pod: Document) -> None:
        name = pod["metadata"]["name"]
        if self.api.get("Pod", "default", name) is None:
            return
        crashes = "crash" in pod["spec"]["containers"][0]["image"]
        ready = {"conditions": [{"type": "Ready", "status": "True"}]}
        self.api.set_status("Pod", "default", name, {"phase": "Failed"} if crashes else {"phase": "Running", **ready})

    async def make(self, kind: str, name: str, **spec: Any) -> None:
        labels = {"app": name}
        template = {"metadata": {"labels": labels}, "spec": {"containers": [container(name)]}, **spec.pop("more", {})}
        whole = {"selector": {"matchLabels": labels}, "template": template, **spec}
        if kind == "Job":
            del whole["selector"]
        queued = {QUEUE_LABEL: "main"} if spec.get("suspend") else {}
        await self.api.create(kind, {"metadata": {"name": name, "labels": queued}, "spec": whole}, user="author")

    async def patch(self, kind: str, name: str, **spec: Any) -> None:
        await self.api.patch(kind, "default", name, {"spec": spec}, MERGE_PATCH, user="author")

    def images(self) -> list[str]:
        return [pod["spec"]["containers"][0]["image"] for pod in self.api.list("Pod")]


def container(image: str) -> Document:
    return {"name": "app", "image": image}


def image(name: str) -> Document:
    return {"template": {"spec": {"containers": [container(name)]}}}


def play(script: Callable[[Cluster], Awaitable[T]]) -> T:
    async def main(network: Any) -> T:
        cluster = Cluster(network)
        running = asyncio.create_task(cluster.workloads.run())
        try:
            return await script(cluster)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    return run_in_memory(main)


def test_deployment_makes_pods_and_replaces_them() -> None:
    async def script(cluster: Cluster) -> tuple[list[str], list[int], list[str]]:
        await cluster.make("Deployment", "web", replicas=4)
        await asyncio.sleep(5)
        first, counts = cluster.images(), []
        cluster.api.subscribe("Pod", lambda *_: counts.append(len(cluster.images())))
        await cluster.patch("Deployment", "web", **image("new"))
        await asyncio.sleep(20)
        return first, counts, cluster.images()

    first, counts, last = play(script)

    assert first == ["web"] * 4
    assert last == ["new"] * 4
    assert min(counts) >= 3
    assert max(counts) <= 5


def test_pods_of_a_replica_set_have_no_name_at_admission() -> None:
    async def script(cluster: Cluster) -> list[Document]:
        await cluster.make("ReplicaSet", "web", replicas=2)
        await asyncio.sleep(1)
        return cluster.api.list("Pod")

    found = play(script)

    assert [pod["metadata"]["generateName"] for pod in found] == ["web-", "web-"]
    assert {pod["metadata"]["ownerReferences"][0]["kind"] for pod in found} == {"ReplicaSet"}


@pytest.mark.parametrize("ready", [0, 1, 2])
def test_scaling_down_deletes_what_is_not_ready_first(ready: int) -> None:
    async def script(cluster: Cluster) -> list[str]:
        await cluster.make("ReplicaSet", "web", replicas=3)
        await asyncio.sleep(1)
        names = [pod["metadata"]["name"] for pod in cluster.api.list("Pod")]
        kept = names.pop(ready)
        for name in names:
            cluster.api.set_status("Pod", "default", name, {"phase": "Running"})
        labelled = {"metadata": {"labels": {"touched": "last"}}}
        await cluster.api.patch("Pod", "default", kept, labelled, MERGE_PATCH, user="author")
        await cluster.patch("ReplicaSet", "web", replicas=1)
        await asyncio.sleep(1)
        return [kept, *(pod["metadata"]["name"] for pod in cluster.api.list("Pod"))]

    kept, left = play(script)

    assert left == kept


def test_refused_creation_is_tried_again() -> None:
    async def script(cluster: Cluster) -> int:
        more = {"spec": {"containers": [container("web")], "runtimeClassName": "missing"}}
        await cluster.make("ReplicaSet", "web", replicas=2, more=more)
        await asyncio.sleep(3)
        assert cluster.images() == []
        put_in_place(cluster.api, "RuntimeClass", {"metadata": {"name": "missing"}})
        await asyncio.sleep(10)
        return len(cluster.images())

    assert play(script) == 2


def test_after_a_refused_creation_no_further_batch_is_tried() -> None:
    async def script(cluster: Cluster) -> int:
        more = {"spec": {"containers": [container("web")], "runtimeClassName": "missing"}}
        await cluster.make("ReplicaSet", "web", replicas=8, more=more)
        await asyncio.sleep(0.001)
        return sum(each.event == "refused" for each in cluster.trace)

    assert play(script) == 2  # the status that is written after the first one has it synced again


@pytest.mark.parametrize(("effect", "left"), [("NoSchedule", 3), ("NoExecute", 2)])
def test_pod_of_a_daemon_set_stays_on_a_node_that_is_tainted_unless_it_may_not(effect: str, left: int) -> None:
    async def script(cluster: Cluster) -> int:
        await cluster.make("DaemonSet", "agent")
        await asyncio.sleep(2)
        cluster.add_node("a", "amd64", {"key": "special", "effect": effect})
        await asyncio.sleep(2)
        return len(cluster.images())

    assert play(script) == left


def test_queued_job_takes_no_flavour_whose_taint_its_template_does_not_tolerate() -> None:
    async def script(cluster: Cluster) -> list[Document]:
        for name in ("a", "b"):
            cluster.add_node(name, "amd64", TAINT)
        more = {"spec": {"containers": [container("job")], "restartPolicy": "Never"}}
        await cluster.make("Job", "job", suspend=True, more=more)
        await asyncio.sleep(3)
        return [pod["spec"]["nodeSelector"] for pod in cluster.api.list("Pod")]

    assert play(script) == [{ARCH: "arm64"}]


def test_daemon_set_runs_where_its_template_allows() -> None:
    async def script(cluster: Cluster) -> list[list[str]]:
        def nodes() -> list[str]:
            terms = [
                pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
                    "nodeSelectorTerms"
                ]
                for pod in cluster.api.list("Pod")
            ]
            return sorted(each[0]["matchFields"][0]["values"][0] for each in terms)

        cluster.add_node("d", "arm64", TAINT)
        await cluster.make("DaemonSet", "agent")
        await asyncio.sleep(2)
        found = [nodes()]
        cluster.add_node("e", "arm64")
        await asyncio.sleep(2)
        found.append(nodes())
        await cluster.patch("DaemonSet", "agent", template={"spec": {"nodeSelector": {ARCH: "amd64"}}})
        await asyncio.sleep(5)
        found.append(nodes())
        return found

    assert play(script) == [["a", "b", "c"], ["a", "b", "c", "e"], ["a", "b"]]


def test_daemon_set_waits_until_a_new_node_is_ready() -> None:
    async def script(cluster: Cluster) -> tuple[list[float], list[Document]]:
        await cluster.make("DaemonSet", "agent", more={"spec": {"containers": [container("agent")]}})
        await asyncio.sleep(5)
        made: list[float] = []
        cluster.api.subscribe("Pod", lambda change, *_: made.append(cluster.api.time()) if change == "ADDED" else None)
        node = {"metadata": {"name": "new"}, "spec": {"taints": [TAINT]}}
        await cluster.api.create("Node", node, user="system:node:new")
        await cluster.api.create("Node", {"metadata": {"name": "newer"}}, user="system:node:newer")
        await asyncio.sleep(20)
        return made, [node["spec"] for node in cluster.api.list("Node") if "new" in node["metadata"]["name"]]

    made, specs = play(script)

    assert len(made) == 1
    assert 5 + 2 <= made[0] <= 5 + 8
    assert specs == [{"taints": [TAINT]}, {}]


def test_failed_pod_of_a_daemon_set_is_replaced_later_and_later() -> None:
    async def script(cluster: Cluster) -> list[float]:
        made: list[float] = []
        cluster.api.subscribe("Pod", lambda change, *_: made.append(cluster.api.time()) if change == "ADDED" else None)
        await cluster.make("DaemonSet", "crash", more={"spec": {"containers": [container("crash")], "nodeName": "a"}})
        await asyncio.sleep(30)
        return made

    made = play(script)
    gaps = [round(later - earlier) for earlier, later in itertools.pairwise(made[1:])]

    assert gaps[:3] == [1, 2, 4]


def test_stateful_set_makes_its_pods_in_order() -> None:
    async def script(cluster: Cluster) -> list[str]:
        made: list[str] = []
        cluster.api.subscribe(
            "Pod", lambda change, _, pod: made.append((pod or {})["metadata"]["name"]) if change == "ADDED" else None
        )
        await cluster.make("StatefulSet", "db", replicas=3)
        await asyncio.sleep(5)
        await cluster.patch("StatefulSet", "db", **image("new"))
        await asyncio.sleep(5)
        return made

    assert play(script) == ["db-0", "db-1", "db-2", "db-2", "db-1", "db-0"]


def test_queued_job_runs_on_a_flavour_that_its_template_allows() -> None:
    async def script(cluster: Cluster) -> tuple[int, list[Document]]:
        more = {"spec": {"containers": [container("job")], "nodeSelector": {ARCH: "arm64"}, "restartPolicy": "Never"}}
        await cluster.make("Job", "job", suspend=True, parallelism=2, completions=2, more=more)
        await asyncio.sleep(0.5)
        before = len(cluster.images())
        await asyncio.sleep(3)
        return before, cluster.api.list("Pod")

    before, pods = play(script)

    assert before == 0
    assert [pod["spec"]["nodeSelector"] for pod in pods] == [{ARCH: "arm64"}] * 2


def test_job_ends_after_its_completions() -> None:
    async def script(cluster: Cluster) -> tuple[list[str], int]:
        more = {"spec": {"containers": [container("job")], "restartPolicy": "Never"}}
        await cluster.make("Job", "job", parallelism=1, completions=2, more=more)
        for _ in range(2):
            await asyncio.sleep(1)
            for pod in cluster.api.list("Pod"):
                cluster.api.set_status("Pod", "default", pod["metadata"]["name"], {"phase": "Succeeded"})
        await asyncio.sleep(1)
        job = cluster.api.get("Job", "default", "job") or {}
        return [each["type"] for each in job["status"]["conditions"]], len(cluster.images())

    assert play(script) == (["Complete"], 2)


@pytest.mark.parametrize("kind", ["Deployment", "DaemonSet", "StatefulSet"])
def test_pods_go_with_their_owner(kind: str) -> None:
    async def script(cluster: Cluster) -> tuple[int, int]:
        await cluster.make(kind, "web")
        await asyncio.sleep(5)
        before = len(cluster.images())
        await cluster.api.delete(kind, "default", "web", user="author")
        await asyncio.sleep(5)
        return before, len(cluster.images()) + len(cluster.api.list("ReplicaSet"))

    before, after = play(script)

    assert before > 0
    assert after == 0
