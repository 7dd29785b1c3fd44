"""The files in deploy on a real control plane: accepted as they are, and loaded by kube-scheduler.

They are made from the chart. That the service works with its settings and rights is in `test_chart.py`; which pods the
API server asks about, by the conditions of these files, is in `test_settings_alike.py`.
"""

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import yaml

from testbed.api_client import ApiClient, ApiError
from testbed.cluster_provider import running_scheduler
from testbed.control_plane import LocalCluster
from testbed.objects import KubernetesObject, namespace, pod
from tests.e2e.policies import refusal_of_pod

pytestmark = pytest.mark.e2e

DEPLOY = Path(__file__).parents[2] / "deploy"
REFUSALS = {
    "second-scheduler": "",
    "webhook": "",
    "policy": "",
    "default-scheduler": r"403: .*restricted:latest\": host namespaces \(hostNetwork=true\), hostPort \([^)]*\)$",
}
"""What the Pod Security standard `restricted` says against each mode's pods."""

Apply = Callable[[str], Awaitable[None]]


def load(file: str) -> list[KubernetesObject]:
    return list(yaml.safe_load_all((DEPLOY / file).read_text()))


@pytest.fixture
async def apply(api: ApiClient) -> AsyncIterator[Apply]:
    """Applies a file of manifests; all but the namespace, which nobody would finalise, are gone after the test."""
    applied: list[KubernetesObject] = []

    async def apply_file(file: str) -> None:
        for document in load(file):
            applied.append(document)
            await api.apply(document)

    yield apply_file
    for document in reversed([each for each in applied if each["kind"] != "Namespace"]):
        metadata = document["metadata"]
        try:
            await api.delete(document["kind"], metadata["name"], metadata.get("namespace", ""), document["apiVersion"])
        except ApiError as exc:
            if exc.status != 404:
                raise


async def test_every_document_is_accepted_and_applying_a_file_again_changes_nothing(
    api: ApiClient, apply: Apply
) -> None:
    """All files one after the other, and then each again: what they share is the same in each.

    CEL that does not compile would be refused here.
    """
    files = [*(f"manifests/{mode}.yaml" for mode in REFUSALS), "network-policy.yaml"]
    for file in files:
        await apply(file)
    for file in files:
        versions = [await _version(api, document) for document in load(file)]
        await apply(file)
        assert [await _version(api, document) for document in load(file)] == versions, file


async def _version(api: ApiClient, document: KubernetesObject) -> str:
    metadata = document["metadata"]
    found = await api.get(document["kind"], metadata["name"], metadata.get("namespace", ""), document["apiVersion"])
    return f"{document['kind']}/{metadata['name']} {found['metadata']['resourceVersion']}"


async def test_pods_meet_the_restricted_standard_but_for_the_hosts_network(api: ApiClient) -> None:
    """Pod Security admission itself judges a pod made from each template."""
    strict = namespace("strict")
    strict["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] = "restricted"
    await api.apply(strict)
    for mode, refusal in REFUSALS.items():
        (workload,) = (each for each in load(f"manifests/{mode}.yaml") if each["kind"] in ("Deployment", "DaemonSet"))
        template = workload["spec"]["template"]
        metadata = {**template["metadata"], "name": "p"}
        made = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
        said = await refusal_of_pod(api, {**made, "metadata": {**metadata, "namespace": "strict"}})
        assert bool(said) == bool(refusal), f"{mode}: {said}"
        assert re.search(refusal, said), mode


async def test_the_schedulers_files_are_loaded_as_kubeadm_does(api: ApiClient, control_plane: LocalCluster) -> None:
    """Beside --config kubeadm passes these flags; the static pod with what is added to it is a valid pod.

    Of the second scheduler's file only the lease is another, as this identity may hold the default scheduler's alone.
    """
    flags = ["--leader-elect=true", f"--kubeconfig={control_plane.kubeconfig}"]
    with running_scheduler(
        control_plane, (DEPLOY / "scheduler/default-scheduler.yaml").read_text(), "default-file", flags
    ):
        pass
    second = yaml.safe_load((DEPLOY / "scheduler/second-scheduler.yaml").read_text())
    second["leaderElection"] = {"leaderElect": False}
    with running_scheduler(control_plane, second, "second-file"):
        pass
    made = pod("kube-scheduler", "registry.k8s.io/kube-scheduler:v1.36.3", namespace="kube-system")
    (container,), (added,) = made["spec"]["containers"], load("scheduler/static-pod.yaml")
    (more,) = added["spec"]["containers"]
    container |= {"command": ["kube-scheduler", *more["command"]], "volumeMounts": more["volumeMounts"]}
    made["spec"]["volumes"] = added["spec"]["volumes"]
    created = await api.request("POST", "/api/v1/namespaces/kube-system/pods?dryRun=All", made)
    assert created["spec"]["volumes"][0]["hostPath"]["type"] == "Directory"
