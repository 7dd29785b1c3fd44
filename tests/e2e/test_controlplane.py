"""The harness itself: a real kube-scheduler places pods on fake nodes, asks an extender, and all of it ends cleanly."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from testbed.api_client import ApiClient, ApiError
from testbed.binaries import Binaries, chosen_kubernetes
from testbed.cluster_provider import running_scheduler
from testbed.control_plane import LocalCluster
from testbed.kind_cluster import scheduler_pod
from testbed.objects import KubernetesObject, fake_node, namespace, pod, workload
from testbed.processes import ProcessFailed

pytestmark = pytest.mark.e2e

RBAC = "rbac.authorization.k8s.io/v1"
REASON = "image registry.example.com/app:1 is built only for linux/amd64"


@pytest.fixture
async def extender() -> AsyncIterator[TestServer]:
    """A scheduler extender that refuses every node whose name does not begin with amd64."""

    async def handle_filter(request: web.Request) -> web.Response:
        names: list[str] = (await request.json())["NodeNames"]
        kept = [name for name in names if name.startswith("amd64")]
        refused = {name: REASON for name in names if name not in kept}
        return web.json_response({"NodeNames": kept, "FailedAndUnresolvableNodes": refused})

    application = web.Application()
    application.router.add_post("/filter", handle_filter)
    server = TestServer(application)
    async with server:
        yield server


def asks(extender: TestServer) -> KubernetesObject:
    """A KubeSchedulerConfiguration that names this extender."""
    entry = {"urlPrefix": str(extender.make_url("")), "filterVerb": "filter", "nodeCacheCapable": True}
    return {"extenders": [entry]}


def four_nodes() -> list[KubernetesObject]:
    """Two of each architecture."""
    return [
        fake_node(f"{architecture}-{index}", architecture) for architecture in ("amd64", "arm64") for index in (0, 1)
    ]


async def test_without_an_extender_pods_go_to_either_architecture(control_plane: LocalCluster, api: ApiClient) -> None:
    """Kubernetes does not look at images: four pods that fill a node each end on four nodes."""
    await api.create_all(four_nodes())
    await api.create_all(pod(f"p{index}", "registry.example.com/app:1", cpu="5") for index in range(4))
    with running_scheduler(control_plane):
        bound = [await api.wait_until_bound(f"p{index}") for index in range(4)]
    assert sorted(bound) == ["amd64-0", "amd64-1", "arm64-0", "arm64-1"]


async def test_a_pod_goes_only_where_the_extender_lets_it(
    control_plane: LocalCluster, api: ApiClient, extender: TestServer
) -> None:
    """Of eight pods that would have spread over four nodes, none is on arm64."""
    await api.create_all(four_nodes())
    with running_scheduler(control_plane, asks(extender)):
        await api.create_all(pod(f"p{index}", "registry.example.com/app:1") for index in range(8))
        bound = {await api.wait_until_bound(f"p{index}") for index in range(8)}
    assert bound <= {"amd64-0", "amd64-1"}


async def test_chosen_controllers_make_the_pods_of_a_deployment(
    control_plane: LocalCluster, controller_manager: Path, api: ApiClient
) -> None:
    """A ReplicaSet's deleted pod is made again; the garbage collector, which was not chosen, collects nothing."""
    where = namespace("with-controllers")
    await api.create(where)
    name = where["metadata"]["name"]
    with control_plane.running_controllers(controller_manager, "deployment-controller", "replicaset-controller"):
        deployment = workload("Deployment", pod("web", "registry.example.com/app:1", namespace=name), replicas=2)
        await api.create({**deployment, "spec": {**deployment["spec"], "strategy": {"type": "Recreate"}}})
        first = await api.wait_for("Pod", lambda found: True, name)
        await api.delete("Pod", first["metadata"]["name"], name)
        seen: set[str] = {first["metadata"]["name"]}
        while len(seen) < 3:
            another = await api.wait_for("Pod", lambda found: found["metadata"]["name"] not in seen, name)
            seen.add(another["metadata"]["name"])
        await api.delete("Deployment", "web", name, "apps/v1")
        [owner] = await api.list("ReplicaSet", name, "apps/v1")
    assert all(each.startswith(f"{owner['metadata']['name']}-") for each in seen)


async def test_the_extenders_reason_is_in_the_pods_event(
    control_plane: LocalCluster, api: ApiClient, extender: TestServer
) -> None:
    """A pod whose selector leaves only arm64 nodes is refused, and its user can read why."""
    await api.create_all(four_nodes())
    with running_scheduler(control_plane, asks(extender)):
        await api.create(pod("p", "registry.example.com/app:1", spec={"nodeSelector": {"kubernetes.io/arch": "arm64"}}))
        text = await api.wait_for_event("p")
    assert text.startswith("0/4 nodes are available: ")
    assert f"2 {REASON}" in text
    assert "2 node(s) didn't match Pod's node affinity/selector" in text


async def test_two_schedulers_serve_pods_by_name(control_plane: LocalCluster, api: ApiClient) -> None:
    """The second one takes only the pods that ask for it, and takes flags of its own."""
    await api.create(fake_node("n", "amd64"))
    second = {"profiles": [{"schedulerName": "second"}]}
    await api.create(pod("p", "registry.example.com/app:1", spec={"schedulerName": "second"}))
    with running_scheduler(control_plane):
        await api.create(pod("q", "registry.example.com/app:1"))
        assert await api.wait_until_bound("q") == "n"
        assert "nodeName" not in (await api.get("Pod", "p"))["spec"]
        with running_scheduler(control_plane, second, "second", ["--feature-gates=SchedulerPopFromBackoffQ=false"]):
            assert await api.wait_until_bound("p") == "n"


async def test_the_programs_are_the_pinned_release(control_plane: LocalCluster, api: ApiClient) -> None:
    """A build without its stamps would call itself v0.0.0; programs of the user's own may be of another version."""
    version = (await api.request("GET", "/version"))["gitVersion"]
    if "KUBEBUILDER_ASSETS" in os.environ and "K8S" not in os.environ:
        assert version.startswith("v1.")
    else:
        assert version == chosen_kubernetes().version


async def test_a_misspelt_configuration_is_told_in_the_schedulers_words(control_plane: LocalCluster) -> None:
    """kube-scheduler decodes strictly, and its complaint is in the error."""
    with pytest.raises(ProcessFailed, match=r"(?s)kube-scheduler ended with status 1.*unknown field .*extender"):
        control_plane.start_scheduler({"extender": []})


async def test_an_object_is_applied_twice_patched_and_deleted(api: ApiClient) -> None:
    """The client's verbs, on a kind without a namespace, one with, and one outside core/v1."""
    for level in ("1", "2"):
        await api.apply(namespace("applied", {"level": level}))
    assert (await api.get("Namespace", "applied"))["metadata"]["annotations"]["level"] == "2"
    await api.create({"apiVersion": RBAC, "kind": "Role", "metadata": {"name": "r"}, "rules": []})
    patched = await api.patch("Role", "r", {"metadata": {"labels": {"a": "b"}}}, api_version=RBAC)
    assert await api.list("Role", "default", RBAC, labelSelector="a=b") != []
    assert patched["metadata"]["labels"] == {"a": "b"}
    await api.delete("Role", "r", api_version=RBAC)
    with pytest.raises(ApiError, match=r'404: roles\.rbac\.authorization\.k8s\.io "r" not found'):
        await api.get("Role", "r", api_version=RBAC)


async def test_a_stranger_is_refused(control_plane: LocalCluster, api: ApiClient) -> None:
    """Without an identity nothing is to be had: RBAC is on, as in a real cluster."""
    server = api.server
    async with aiohttp.ClientSession() as session, session.get(f"{server}/api/v1/nodes", ssl=False) as response:
        assert response.status == 403


async def test_kinds_scheduler_pod_is_accepted_by_a_real_api_server(api: ApiClient) -> None:
    """The manifest that the kind provider makes is a valid pod; it cannot be run here."""
    kubeadm = pod("kube-scheduler", "registry.k8s.io/kube-scheduler:v1.36.1", namespace="kube-system")
    kubeadm["spec"]["volumes"] = []
    kubeadm["spec"]["containers"][0]["volumeMounts"] = []
    created = await api.create(scheduler_pod(kubeadm, "second", 10301, []))
    await api.delete("Pod", "second", "kube-system")
    assert created["spec"]["containers"][0]["readinessProbe"]["httpGet"]["port"] == 10301


def test_a_cluster_goes_down_without_a_trace_and_comes_up_again(binaries: Binaries) -> None:
    """Twice in a row: afterwards no process, no file, and `down` once more does nothing."""
    cluster = LocalCluster(binaries)
    for _ in range(2):
        cluster.up()
        cluster.start_scheduler()
        folder, processes = cluster.kubeconfig.parent, cluster.processes
        assert [process.name for process in processes] == ["etcd", "kube-apiserver", "kube-scheduler"]
        cluster.down()
        assert not any(process.is_running for process in processes)
        assert not folder.exists()
    cluster.down()


def test_a_cluster_that_cannot_come_up_leaves_nothing_behind(binaries: Binaries, tmp_path: Path) -> None:
    """etcd runs already when kube-apiserver fails: it is ended, and its folder removed."""
    broken = tmp_path / "kube-apiserver"
    broken.write_text("#!/bin/sh\necho cannot start >&2\nexit 1\n")
    broken.chmod(0o755)
    cluster = LocalCluster(binaries._replace(kube_apiserver=broken))
    with pytest.raises(ProcessFailed, match=r"(?s)kube-apiserver ended with status 1.*cannot start"):
        cluster.up()
    assert not any(process.is_running for process in cluster.processes)
    assert not cluster.kubeconfig.parent.exists()
