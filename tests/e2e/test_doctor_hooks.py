"""The chart's hooks for `helm test` and after an installation: their account, rights and arguments.

No kubelet here runs the image, so the container's arguments are those of a process, whose token is the account's. The
image in pods of a real node: test_image_on_a_node.py.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from extender.cluster.probe import probe_pod
from testbed.api_client import ApiClient, connect
from testbed.chart import CHART, objects_of, render
from testbed.control_plane import LocalCluster
from testbed.eventually import eventually
from testbed.extender_process import write_token_kubeconfig
from testbed.objects import KubernetesObject, fake_node
from tests.e2e.examined_installation import Installation, Said, open_installation, run_doctor
from tests.e2e.installed_chart import DOCTOR, OURS
from tests.e2e.policies import refusal
from tests.e2e.releases import EACH_HELM, NEWEST, HelmRelease
from tests.e2e.rights import Recorder, Right, recording, rights_of, used_rights

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("helm_program")]

IMAGE: Mapping[str, Any] = {"image": {"repository": "registry.example.org/multiarch-extender"}}
DEFAULT_PODS = "/api/v1/namespaces/default/pods"
RBAC = "rbac.authorization.k8s.io/v1"
WORKLOADS = ("Pod", "Job")
_HOOK, _LAST = "helm.sh/hook", "pre-delete"


def hooks_of(values: Mapping[str, Any]) -> list[KubernetesObject]:
    """Both workloads, and their account with its rights."""
    found = [each for each in objects_of(render(values, hooks=True)) if each["metadata"]["name"].startswith(DOCTOR)]
    return [each for each in found if (each["metadata"].get("annotations") or {}).get(_HOOK) != _LAST]


class Hook(NamedTuple):
    """A hook whose account is there: its container's arguments, and what the account has used."""

    arguments: list[str]
    recorder: Recorder
    account: Path

    async def run(self, *more: str) -> Said:
        """What the container prints, and how it ends; of an argument given twice the later counts."""
        return await run_doctor(*self.arguments, *more, f"--kubeconfig={self.account}")


@asynccontextmanager
async def hooked(it: Installation, kind: str) -> AsyncIterator[Hook]:
    """The hook whose workload is of that kind, with its account and rights."""
    hooks = hooks_of(it.values)
    (workload,) = (each for each in hooks if each["kind"] == kind)
    rights = [each for each in hooks if each["kind"] not in WORKLOADS]
    spec = workload["spec"] if kind == "Pod" else workload["spec"]["template"]["spec"]
    for each in rights:
        await it.api.apply(each)
    (own := it.folder / kind).mkdir()
    try:
        async with recording(it.control_plane, own) as recorder:
            account = own / "account.kubeconfig"
            await write_token_kubeconfig(it.api, recorder.kubeconfig, account, spec["serviceAccountName"], OURS)
            yield Hook(spec["containers"][0]["args"], recorder, account)
    finally:
        for each in reversed(rights):
            metadata = each["metadata"]
            await it.api.delete(each["kind"], metadata["name"], metadata.get("namespace", ""), each["apiVersion"])


async def test_they_find_what_is_wrong_with_every_right_and_no_other(
    api: ApiClient, control_plane: LocalCluster, tmp_path: Path
) -> None:
    """No pod is stored: a policy holds the account to dry runs."""
    async with open_installation(api, control_plane, tmp_path, IMAGE) as installation:
        hooks = hooks_of(installation.values)
        async with hooked(installation, "Pod") as hook:
            assert await used_where_all_is_well(hook, hooks) == rights_of(hooks)  # it makes all checks
            await assert_stores_no_pod(api, hook)
        async with hooked(installation, "Job") as hook:
            assert await used_where_all_is_well(hook, hooks) <= rights_of(hooks)
            await assert_what_cannot_be_checked_is_said(api, hook)


async def used_where_all_is_well(hook: Hook, hooks: list[KubernetesObject]) -> set[Right]:
    said = await hook.run()
    assert (said.code, said.states()) == (0, {"ok"})
    assert "ok probe webhook" in said.output
    assert hook.recorder.refused == set()
    return used_rights(hook.recorder, hooks)


async def assert_what_cannot_be_checked_is_said(api: ApiClient, hook: Hook) -> None:
    """A missing right, or no installation where it looks, is a failure."""
    nowhere = await hook.run("--wait=0", "--installed-in=default")
    nobody: dict[str, Any] = {"subjects": []}
    await api.patch("RoleBinding", "multiarch-extender-doctor", nobody, "default", RBAC)
    without = await hook.run("--wait=0")
    assert (nowhere.code, without.code) == (1, 1)
    assert "not seen pods cluster" in nowhere.output
    assert "not seen probe webhook" in without.output
    assert "forbidden" in without.output


async def assert_stores_no_pod(api: ApiClient, hook: Hook) -> None:
    async def said() -> str:
        for stored in await api.list("Pod", "default"):  # the API server takes notice of a binding about a second later
            await api.delete("Pod", stored["metadata"]["name"])
        async with connect(hook.account) as client:
            return await refusal(client, DEFAULT_PODS, probe_pod())

    await eventually(said, lambda said: "creates some pods as dry runs" in said)
    assert await api.list("Pod", "default") == []


# --- as helm runs them


LOOKING: Mapping[str, Any] = {"doctor": {"enabled": True}}


@EACH_HELM
async def test_an_uninstallation_ends_the_job_of_an_installation_that_failed(
    api: ApiClient, control_plane: LocalCluster, controller_manager: Path, helm: HelmRelease
) -> None:
    """Helm waits for the Job, and gives up. Nothing here runs its pod, as where no node fits it."""
    with control_plane.running_controllers(controller_manager, "job-controller", "garbage-collector-controller"):
        with pytest.raises(RuntimeError, match=r"post-install|timed out|deadline"):
            await helm.run(
                "install", OURS, str(CHART), "--create-namespace", "--timeout=3s", values={**IMAGE, **LOOKING}
            )
        assert len(await _of_doctor(api)) == 2
        await helm.run("uninstall", OURS)
        await eventually(lambda: _of_doctor(api), lambda found: found == [])


async def _of_doctor(api: ApiClient) -> list[str]:
    """The Jobs and pods of doctor that are there."""
    of_doctor = {"labelSelector": "app.kubernetes.io/instance=multiarch-extender"}
    jobs = await api.request("GET", f"/apis/batch/v1/namespaces/{OURS}/jobs")
    pods = await api.list("Pod", OURS, **of_doctor)
    return [each["metadata"]["name"] for each in (*jobs["items"], *pods)]


@NEWEST
async def test_a_default_scheduler_part_that_would_have_no_pod_is_refused_at_once(
    api: ApiClient, helm: HelmRelease
) -> None:
    """Helm sees the nodes. Nothing of the release is there then."""
    await api.create(fake_node("worker", "amd64"))
    values = {"modes": {"webhook": {"enabled": False}, "defaultScheduler": {"enabled": True}}}
    with pytest.raises(RuntimeError, match=r"nodeLabel: no node has the label node-role\.kubernetes\.io/control-plane"):
        await helm.install(values)
    assert "multiarch-extender" not in await helm.run("list", "--short")
    await api.create(fake_node("server", "amd64", labels={"node-role.kubernetes.io/control-plane": ""}))
    await helm.install(values)
