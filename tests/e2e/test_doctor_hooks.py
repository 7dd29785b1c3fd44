"""The chart's hooks for `helm test` and after an installation: their own account, rights and arguments.

No kubelet here runs the image, so the container's arguments are those of a process, whose token is the account's.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from extender.cluster.dry_run import restricted_pod
from testbed.api_client import ApiClient
from testbed.control_plane import LocalCluster
from tests.e2e.chart_hooks import WORKLOADS, Hook, hook_of, hooks_of
from tests.e2e.examined_installation import WEBHOOK, Installation, open_installation
from tests.e2e.installed_chart import READY_SECONDS, Right, rights_of, used_rights

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("helm_program")]

IMAGE: Mapping[str, Any] = {"image": {"repository": "registry.example.org/multiarch-extender"}}
DEFAULT_PODS = "/api/v1/namespaces/default/pods"


@asynccontextmanager
async def hooked(it: Installation, kind: str) -> AsyncIterator[Hook]:
    """The hook whose workload is of that kind, with its account and rights."""
    hooks = hooks_of(it.values)
    rights = [each for each in hooks if each["kind"] not in WORKLOADS]
    for each in rights:
        await it.api.apply(each)
    try:
        async with hook_of(it.api, it.control_plane, hooks, kind, it.folder) as hook:
            yield hook
    finally:
        for each in reversed(rights):
            metadata = each["metadata"]
            await it.api.delete(each["kind"], metadata["name"], metadata.get("namespace", ""), each["apiVersion"])


@pytest.mark.parametrize("kind", WORKLOADS)
async def test_of_a_right_installation_it_says_so_and_uses_every_right(
    api: ApiClient, control_plane: LocalCluster, tmp_path: Path, kind: str
) -> None:
    """It is refused what it has no right to: a dry run in the first namespace."""
    async with (
        open_installation(api, control_plane, tmp_path, IMAGE) as installation,
        hooked(installation, kind) as hook,
    ):
        said = await hook.run()
        assert (said.code, said.states()) == (0, {"ok"})
        assert "ok probe webhook" in said.output
        refused = {path.partition("?")[0] for path in hook.recorder.refused}
        assert refused == {DEFAULT_PODS}
        hooks = hooks_of(installation.values)
        once_pods_are_held = Right("leases", "get")  # whether somebody lets them go: test_doctor.py
        assert used_rights(hook.recorder, hooks) <= rights_of(hooks)
        if kind == "Pod":  # which makes all checks
            assert used_rights(hook.recorder, hooks) == rights_of(hooks) - {once_pods_are_held}


async def test_what_it_cannot_check_is_a_failure_and_said(
    api: ApiClient, control_plane: LocalCluster, tmp_path: Path
) -> None:
    """A missing right, or no installation where it looks."""
    async with (
        open_installation(api, control_plane, tmp_path, IMAGE) as installation,
        hooked(installation, "Job") as hook,
    ):
        nowhere = await hook.run("--wait=0", "--installed-in=default")
        nobody: dict[str, Any] = {"subjects": []}
        group = "rbac.authorization.k8s.io/v1"
        await api.patch("RoleBinding", "multiarch-extender-doctor", nobody, f"{WEBHOOK}-canary", group)
        said = await hook.run("--wait=0")
    assert (nowhere.code, said.code) == (1, 1)
    assert "not seen workloads cluster" in nowhere.output
    assert "not seen probe webhook" in said.output
    assert "forbidden" in said.output


async def test_its_account_stores_no_pod(api: ApiClient, control_plane: LocalCluster, tmp_path: Path) -> None:
    """The policy of canaries binds it to dry runs."""
    space = f"{WEBHOOK}-canary"
    path = f"/api/v1/namespaces/{space}/pods"
    async with (
        open_installation(api, control_plane, tmp_path, IMAGE) as installation,
        hooked(installation, "Pod") as hook,
    ):
        async with asyncio.timeout(READY_SECONDS):  # the API server takes notice of a binding about a second later
            while "creates pods as dry runs only" not in await hook.refusal(path, restricted_pod(annotations={})):
                for stored in await api.list("Pod", space):
                    await api.delete("Pod", stored["metadata"]["name"], space)
                await asyncio.sleep(0.2)
        assert await api.list("Pod", space) == []
