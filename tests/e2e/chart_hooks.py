"""The chart's hooks as processes on this machine: no kubelet here runs the image."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import msgspec

from testbed.api_client import ApiClient, ApiError
from testbed.chart import objects_of, render
from testbed.control_plane import LocalCluster
from testbed.eventually import eventually
from testbed.objects import KubernetesObject
from tests.e2e.examined_installation import MERGE_PATCH, Said, run_doctor
from tests.e2e.installed_chart import OURS, Recorder, recording, write_account

WORKLOADS = ("Pod", "Job")
_HOOK, _LAST = "helm.sh/hook", "pre-delete"


def hooks_of(values: Mapping[str, Any]) -> list[KubernetesObject]:
    """The objects of all hooks but those before an uninstallation."""
    found = objects_of(render(values, hooks=True))
    return [each for each in found if (each["metadata"].get("annotations") or {}).get(_HOOK, _LAST) != _LAST]


class Hook(NamedTuple):
    """A hook whose account is there: its container's arguments, and what the account has used."""

    arguments: list[str]
    recorder: Recorder
    account: Path

    async def run(self, *more: str) -> Said:
        """What the container prints, and how it ends; of an argument given twice the later counts."""
        return await run_doctor(*self.arguments, *more, f"--set=cluster={self.account}")

    async def refusal(self, path: str, body: KubernetesObject) -> str:
        """What the API server says to the account that creates this; empty if it does."""
        kubeconfig: dict[str, Any] = msgspec.yaml.decode(self.account.read_bytes())
        server, token = kubeconfig["clusters"][0]["cluster"]["server"], kubeconfig["users"][0]["user"]["token"]
        async with (
            aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"}) as session,
            session.post(f"{server}{path}", json=body) as answer,
        ):
            return "" if answer.status < 300 else str((await answer.json())["message"])


@asynccontextmanager
async def hook_of(
    api: ApiClient, control_plane: LocalCluster, hooks: Sequence[KubernetesObject], kind: str, folder: Path
) -> AsyncIterator[Hook]:
    """The hook whose workload is of that kind, under its account, which has to be there."""
    (workload,) = (each for each in hooks if each["kind"] == kind)
    spec = workload["spec"] if kind == "Pod" else workload["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    own = folder / "hook"
    own.mkdir(exist_ok=True)
    async with recording(control_plane) as (recorder, server):
        account = await write_account(api, control_plane, server, list(hooks), own)
        yield Hook(container["args"], recorder, account)


async def stand_in(
    api: ApiClient, control_plane: LocalCluster, values: Mapping[str, Any], kind: str, folder: Path
) -> Said:
    """Runs the hook of that kind once helm has created it, and says of it what kubelet and controllers would."""
    hooks = hooks_of(values)
    (workload,) = (each for each in hooks if each["kind"] == kind)
    name = workload["metadata"]["name"]
    await eventually(lambda: api.get(kind, name, OURS, workload["apiVersion"]), despite=ApiError)
    async with hook_of(api, control_plane, hooks, kind, folder) as hook:
        said = await hook.run()
    path = f"/api/v1/namespaces/{OURS}/pods" if kind == "Pod" else f"/apis/batch/v1/namespaces/{OURS}/jobs"
    status = _status_of_pod(said) if kind == "Pod" else _status_of_job(said)
    await api.request("PATCH", f"{path}/{name}/status", {"status": status}, content_type=MERGE_PATCH)
    return said


def _status_of_pod(said: Said) -> KubernetesObject:
    return {"phase": "Failed" if said.code else "Succeeded"}


def _status_of_job(said: Said) -> KubernetesObject:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    ends = ("FailureTarget", "Failed") if said.code else ("SuccessCriteriaMet", "Complete")
    conditions = [{"type": each, "status": "True", "reason": "Ended", "lastTransitionTime": now} for each in ends]
    counted = {"failed": 1} if said.code else {"succeeded": 1, "completionTime": now}
    return {"startTime": now, "conditions": conditions, **counted}
