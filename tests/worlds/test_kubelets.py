"""The played kubelets, against what a real one (1.36.3, beside containerd 2.3.7) was seen to do and to write."""

import asyncio
import base64
import random
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from testbed.memory_network import Network, run_in_memory
from tests.worlds.api_errors import ApiError
from tests.worlds.api_server import STRATEGIC_MERGE_PATCH, ApiServer
from tests.worlds.installation import put_in_place
from tests.worlds.kubelets import Kubelets
from tests.worlds.plan import Image, Node
from tests.worlds.registries import Registries
from tests.worlds.trace import Trace

Json = dict[str, Any]
HOST = "registry.example.com"
MULTI = Image(host=HOST, repository="multi", platforms=("linux/amd64", "linux/arm64"))
OTHER = Image(host=HOST, repository="other", platforms=("linux/amd64", "linux/arm64"), revision=1)
ARM = Image(host=HOST, repository="arm", form="manifest", platforms=("linux/arm64",))
ARM_INDEX = Image(host=HOST, repository="arm-index", platforms=("linux/arm64",))
CHART = Image(host=HOST, repository="chart", form="artifact")
PRIVATE = Image(host=HOST, repository="private", platforms=("linux/amd64",), login="a:one")
LATE = Image(host=HOST, repository="late", platforms=("linux/amd64",))


class Cluster:
    """Two nodes, amd64 and arm64, with their kubelets."""

    def __init__(self, network: Network) -> None:
        self.trace = Trace(network.loop.time)
        self.api = ApiServer(network, self.trace, random.Random(1))
        self.registries = Registries(network, [MULTI, OTHER, ARM, ARM_INDEX, CHART, PRIVATE], random.Random(1))
        self.kubelets = Kubelets(network, self.api, self.registries, self.trace, random.Random(1))
        put_in_place(self.api, "Namespace", {"metadata": {"name": "shop"}})

    async def add(self, name: str, *images: str, node: str = "amd64", **spec: Any) -> None:
        containers = [{"name": f"c{number}", "image": image} for number, image in enumerate(images)]
        made = {"metadata": {"name": name, "namespace": "shop"}, "spec": {"containers": containers, **spec}}
        await self.api.create("Pod", made, user="author")
        await self.api.bind("shop", name, node)

    def status(self, name: str) -> Json:
        found = self.api.get("Pod", "shop", name)
        assert found
        status: Json = found["status"]
        return status

    def waiting(self, name: str) -> tuple[str, str]:
        state = self.status(name)["containerStatuses"][0]["state"]["waiting"]
        return state["reason"], state.get("message", "")

    def outcomes(self, name: str) -> list[str]:
        return [str(each.outcome) for each in self.kubelets.ran if each.pod == name]


def play(test: Callable[[Cluster], Awaitable[None]]) -> None:
    async def main(network: Network) -> None:
        cluster = Cluster(network)
        for architecture in ("amd64", "arm64"):
            await cluster.kubelets.add_node(Node(name=architecture, architecture=architecture))
        running = asyncio.ensure_future(cluster.kubelets.run())
        await asyncio.sleep(0)
        try:
            await test(cluster)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    run_in_memory(main)


def test_what_fits_runs_on_both_nodes() -> None:
    async def test(cluster: Cluster) -> None:
        for node in ("amd64", "arm64"):
            await cluster.add(f"on-{node}", MULTI.reference, node=node)
        await asyncio.sleep(1)
        for node in ("amd64", "arm64"):
            status = cluster.status(f"on-{node}")
            assert status["phase"] == "Running"
            assert {each["type"]: each["status"] for each in status["conditions"]}["Ready"] == "True"
            truth = cluster.registries.truth(MULTI.reference)
            assert truth
            assert status["containerStatuses"][0]["imageID"] == f"{HOST}/multi@{truth.digest}"
            assert cluster.outcomes(f"on-{node}") == ["running"]

    play(test)


def test_a_single_manifest_of_another_processor_crash_loops() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.add("wrong", ARM.reference)
        await asyncio.sleep(5)
        status = cluster.status("wrong")
        [container] = status["containerStatuses"]
        assert (status["phase"], container["restartCount"]) == ("Running", 1)
        assert container["lastState"]["terminated"]["exitCode"] == 255
        reason, message = cluster.waiting("wrong")
        uid = cluster.kubelets.ran[0].uid
        assert reason == "CrashLoopBackOff"
        assert message == f"back-off 10s restarting failed container=c0 pod=wrong_shop({uid})"
        await asyncio.sleep(15)
        assert cluster.waiting("wrong")[1].startswith("back-off 20s ")
        assert cluster.outcomes("wrong") == ["exec format error"]

    play(test)


def test_an_index_without_the_platform_is_not_pulled() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.add("wrong", ARM_INDEX.reference)
        await asyncio.sleep(1)
        reason, message = cluster.waiting("wrong")
        assert (reason, cluster.status("wrong")["phase"]) == ("ErrImagePull", "Pending")
        await asyncio.sleep(2)
        text = f'Back-off pulling image "{ARM_INDEX.reference}": ErrImagePull: {message}'
        assert cluster.waiting("wrong") == ("ImagePullBackOff", text)
        assert cluster.outcomes("wrong") == ["no match for platform in manifest"]

    play(test)


def test_an_image_that_comes_late_is_pulled_after_the_backoff() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.add("early", LATE.reference)
        await asyncio.sleep(5)
        assert cluster.waiting("early")[0] == "ImagePullBackOff"
        cluster.registries.push(LATE)
        await asyncio.sleep(7)
        assert cluster.outcomes("early") == ["not pulled", "running"]
        assert cluster.status("early")["phase"] == "Running"

    play(test)


def test_containers_of_a_pod_fail_alone_and_init_containers_hold_up_the_others() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.add("half", ARM.reference, MULTI.reference)
        init = [{"name": "init", "image": ARM.reference}]
        await cluster.add("held", MULTI.reference, initContainers=init)
        sidecar = [{"name": "side", "image": MULTI.reference, "restartPolicy": "Always"}]
        first = [*sidecar, {"name": "init", "image": MULTI.reference}]
        await cluster.add("whole", MULTI.reference, initContainers=first)
        await asyncio.sleep(10)
        assert sorted(cluster.outcomes("half")) == ["exec format error", "running"]
        assert cluster.outcomes("held") == ["exec format error"]
        assert cluster.waiting("held")[0] == "ContainerCreating"
        assert cluster.outcomes("whole") == ["running"] * 3
        assert [cluster.status(name)["phase"] for name in ("half", "held", "whole")] == [
            "Running",
            "Pending",
            "Running",
        ]

    play(test)


def test_a_pod_that_is_not_restarted_ends() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.add("done", MULTI.reference, restartPolicy="Never")
        await cluster.add("failed", ARM.reference, restartPolicy="Never")
        init = [{"name": "init", "image": ARM.reference}]
        await cluster.add("uninitialized", MULTI.reference, restartPolicy="Never", initContainers=init)
        await asyncio.sleep(15)
        phases = [cluster.status(name)["phase"] for name in ("done", "failed", "uninitialized")]
        assert phases == ["Succeeded", "Failed", "Failed"]

    play(test)


def test_pull_policies_decide_whether_the_registry_is_asked() -> None:
    async def test(cluster: Cluster) -> None:
        def policy(name: str) -> Json:
            return {"containers": [{"name": "c0", "image": MULTI.reference, "imagePullPolicy": name}]}

        await cluster.add("never", **policy("Never"))
        await asyncio.sleep(1)
        expected = f'Container image "{MULTI.reference}" is not present with pull policy of Never'
        assert cluster.waiting("never") == ("ErrImageNeverPull", expected)
        await cluster.kubelets.preload("amd64", MULTI.reference)
        cluster.registries.fault(HOST, "unavailable")
        await cluster.add("present", **policy("IfNotPresent"))
        await cluster.add("always", **policy("Always"))
        await asyncio.sleep(10)
        assert [cluster.outcomes(name)[-1] for name in ("never", "present", "always")] == [
            "running",
            "running",
            "not pulled",
        ]
        assert cluster.waiting("always")[1].endswith("503 Service Unavailable")

    play(test)


def test_the_logins_of_the_pods_own_secrets_count_even_for_an_image_that_is_there() -> None:
    async def test(cluster: Cluster) -> None:
        auths = {HOST: {"auth": base64.b64encode(b"a:one").decode()}}
        data = {".dockerconfigjson": base64.b64encode(msgspec.json.encode({"auths": auths})).decode()}
        kind = "kubernetes.io/dockerconfigjson"
        put_in_place(
            cluster.api, "Secret", {"metadata": {"name": "key", "namespace": "shop"}, "type": kind, "data": data}
        )
        names = [{"name": "absent"}, {"name": "key"}]
        await cluster.add("with", PRIVATE.reference, imagePullSecrets=names)
        await asyncio.sleep(2)
        await cluster.add("without", PRIVATE.reference)
        await asyncio.sleep(2)
        assert (cluster.outcomes("with"), cluster.outcomes("without")) == (["running"], ["not pulled"])

    play(test)


def test_an_artifact_is_mounted_and_does_not_run() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.add("runs", CHART.reference)
        volumes = [{"name": "data", "image": {"reference": CHART.reference}}]
        containers = [
            {"name": "c0", "image": MULTI.reference, "volumeMounts": [{"name": "data", "mountPath": "/data"}]}
        ]
        await cluster.add("mounts", containers=containers, volumes=volumes)
        arm = [{"name": "data", "image": {"reference": ARM_INDEX.reference}}]
        await cluster.add("refuses", containers=containers, volumes=arm)
        await asyncio.sleep(3)
        assert cluster.waiting("runs") == ("CreateContainerError", "no command specified")
        assert cluster.outcomes("mounts") == ["mounted", "running"]
        assert cluster.outcomes("refuses") == ["no match for platform in manifest"]

    play(test)


def test_a_changed_image_is_started_in_place_of_the_other() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.add("app", MULTI.reference)
        await asyncio.sleep(2)
        patch = {"spec": {"containers": [{"name": "c0", "image": OTHER.reference}]}}
        await cluster.api.patch("Pod", "shop", "app", patch, STRATEGIC_MERGE_PATCH, user="author")
        await asyncio.sleep(3)
        assert [each.image for each in cluster.kubelets.ran] == [MULTI.reference, OTHER.reference]
        assert cluster.status("app")["containerStatuses"][0]["restartCount"] == 1

    play(test)


def test_a_kubelet_refuses_what_was_bound_where_it_may_not_run() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.add("elsewhere", MULTI.reference, nodeSelector={"kubernetes.io/arch": "arm64"})
        await cluster.add("windows", MULTI.reference, os={"name": "windows"})
        large = [{"name": "c0", "image": MULTI.reference, "resources": {"requests": {"cpu": "17"}}}]
        await cluster.add("large", containers=large)
        await asyncio.sleep(1)
        found = {name: cluster.status(name) for name in ("elsewhere", "windows", "large")}
        assert {name: status["phase"] for name, status in found.items()} == dict.fromkeys(found, "Failed")
        assert [status["reason"] for status in found.values()] == ["NodeAffinity", "PodOSNotSupported", "OutOfcpu"]
        assert not cluster.kubelets.ran

    play(test)


def test_a_static_pod_runs_whatever_becomes_of_its_mirror() -> None:
    async def test(cluster: Cluster) -> None:
        pod = {
            "metadata": {"name": "proxy", "namespace": "shop"},
            "spec": {"containers": [{"name": "c", "image": MULTI.reference}]},
        }
        await cluster.kubelets.add_static_pod("arm64", pod)
        await asyncio.sleep(1)
        found = cluster.api.get("Pod", "shop", "proxy-arm64")
        assert found
        assert found["status"]["phase"] == "Running"
        await cluster.api.delete("Pod", "shop", "proxy-arm64")
        await asyncio.sleep(1)
        assert cluster.api.get("Pod", "shop", "proxy-arm64")
        absent = {**pod, "metadata": {"name": "proxy", "namespace": "absent"}}
        await cluster.kubelets.add_static_pod("amd64", absent)
        await asyncio.sleep(1)
        assert [(each.node, str(each.outcome)) for each in cluster.kubelets.ran] == [
            ("arm64", "running"),
            ("amd64", "running"),
        ]

    play(test)


def test_a_node_says_of_itself_what_its_plan_has_it_say() -> None:
    async def test(cluster: Cluster) -> None:
        for states in ("both", "nodeInfo", "labels"):
            await cluster.kubelets.add_node(
                Node(name=states, architecture="arm64", states=states, labels={"zone": "a"})
            )
        stated = []
        for name in ("both", "nodeInfo", "labels"):
            node = cluster.api.get("Node", "", name)
            assert node
            label = node["metadata"]["labels"].get("kubernetes.io/arch")
            stated.append((label, node["status"]["nodeInfo"]["architecture"], node["metadata"]["labels"]["zone"]))
        assert stated == [("arm64", "arm64", "a"), (None, "arm64", "a"), ("arm64", "", "a")]

    play(test)


def test_a_pod_that_is_deleted_or_whose_node_leaves_ends() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.add("gone", LATE.reference)
        await cluster.add("stranded", LATE.reference, node="arm64")
        await asyncio.sleep(2)
        await cluster.api.delete("Pod", "shop", "gone")
        await cluster.kubelets.remove_node("arm64")
        cluster.registries.push(LATE)
        await asyncio.sleep(30)
        assert cluster.outcomes("gone") == cluster.outcomes("stranded") == ["not pulled"]
        with pytest.raises(ApiError):
            await cluster.kubelets.add_node(Node(name="amd64"))

    play(test)
