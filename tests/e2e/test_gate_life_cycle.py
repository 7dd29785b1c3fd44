"""Holding pods is switched on and off again by helm: whoever held pods lets them go, each by what is known of it.

By an upgrade, a rollback, a setting, an uninstallation, with an image that cannot be pulled, and from an older chart.
"""

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from testbed.api_client import ADMISSIONREGISTRATION, ApiClient, ApiError
from testbed.chart import CHART, objects_of, render
from testbed.control_plane import LocalCluster
from testbed.embedded_registry import EmbeddedRegistry
from testbed.eventually import eventually
from testbed.objects import KubernetesObject, kept_to, pod
from tests.e2e.installed_chart import OURS, WEBHOOK, Values, finalize_namespace
from tests.e2e.policies import GATE, dry_run, gates_of, until_free
from tests.e2e.releases import (
    EACH_HELM,
    UNINSTALL,
    WAYS,
    PlayedRelease,
    assert_kept_where_known,
    held,
    hold_pods,
    left_of,
    names_of,
    reached,
    uninstalling,
    until_ungated,
)
from tests.e2e.rights import rights_of, used_rights
from tools.docs.pages import PROJECT, page

pytestmark = [pytest.mark.e2e, EACH_HELM]

OLDER = "c42a386"
"""A commit whose chart had other values, other roles and the same names."""
FOREIGN = {"name": "example.com/quota"}
LINE_SECONDS = 60.0


@pytest.fixture
async def controllers(control_plane: LocalCluster, controller_manager: Path) -> AsyncIterator[None]:
    """Those of Jobs, and of objects whose owner is gone."""
    with control_plane.running_controllers(controller_manager, "job-controller", "garbage-collector-controller"):
        yield


@pytest.mark.usefixtures("controllers")
@pytest.mark.parametrize("way", WAYS)
async def test_from_an_installation_by_upgrades_to_nothing_again(
    release: PlayedRelease,
    api: ApiClient,
    control_plane: LocalCluster,
    registry: EmbeddedRegistry,
    tmp_path: Path,
    way: str,
) -> None:
    """Values that hold none let held pods go, as an uninstallation does, of which nothing is left.

    The service finds in the cluster that pods were held. What it has made, an upgrade keeps. Before the release goes,
    the replica lets pods go at the Job's word, while pods go on being created.
    """
    of_other_tests = await names_of(api)
    async with reached(release, WAYS[way]) as values:
        await release.helm.install(values)
        await release.roll()
        await hold_pods(api, registry)
        if way == "policy":  # an account of its own, which goes with the upgrade, and can return its Lease before alone
            await release.end()
        await release.helm.upgrade({"webhook": values["webhook"]})
        await release.roll()
        await until_ungated(api)
        await assert_kept_where_known(api)
        await until_free(api)
        await until_reviewed(api, registry)
        trusted = await trust(api)
        if way == "policy":
            await release.end()
        await release.helm.upgrade(values)
        assert await trust(api) == (trusted if way != "policy" else {})
        await release.roll()
        objects = await release.helm.objects()
        await hold_pods(api, registry)
        ended = asyncio.Event()
        creating = asyncio.create_task(keep_creating(api, f"{registry.host}/team/never:1", ended))
        async with uninstalling(api, control_plane, tmp_path) as recorder:
            await release.helm.run("uninstall", OURS)
        ended.set()
        assert await creating > 5
        await release.end()
        assert await held(api) == set()
        await assert_kept_where_known(api)
        await finalize(api, objects)
        hooks = hook_objects(values)
        assert await left_of(api, [*objects, *hooks]) == []
        assert await names_of(api) <= of_other_tests
        assert recorder.refused == set()
        assert used_rights(recorder, hooks) == rights_of(hooks)


async def until_reviewed(api: ApiClient, registry: EmbeddedRegistry) -> None:
    made = pod("p", f"{registry.host}/team/old:1")
    await eventually(lambda: dry_run(api, made), lambda found: kept_to(found["spec"], "kubernetes.io/arch"))


async def trust(api: ApiClient) -> Mapping[str, Any]:
    """How the API server calls the webhook now, and the Secret of its certificate; empty without a webhook."""
    try:
        found = await api.get("MutatingWebhookConfiguration", WEBHOOK, api_version=ADMISSIONREGISTRATION)
    except ApiError:
        return {}
    secret = await api.get("Secret", f"{WEBHOOK}-identity", OURS)
    return {"called": found["webhooks"][0]["clientConfig"], "secret": secret["data"]}


async def finalize(api: ApiClient, objects: list[KubernetesObject]) -> None:
    for each in objects:
        if each["kind"] == "Namespace":
            await finalize_namespace(api, each["metadata"]["name"])


def hook_objects(values: Values) -> list[KubernetesObject]:
    return [each for each in objects_of(render(values, hooks=True)) if each["metadata"]["name"] == UNINSTALL]


async def keep_creating(api: ApiClient, image: str, ended: asyncio.Event) -> int:
    count = 0
    while not ended.is_set():
        await api.create(pod(f"meanwhile-{count}", image))
        count += 1
        await asyncio.sleep(0.25)
    return count


async def test_gates_are_removed_by_a_line_a_setting_observe_and_a_rollback(
    release: PlayedRelease, api: ApiClient, control_plane: LocalCluster, registry: EmbeddedRegistry, kubectl: Path
) -> None:
    """By the documentation's line of kubectl, where the service runs; by the ConfigMap; by `placement.mode`.

    The objects of a revision are those of its own time, so that after a rollback the service has no right to let pods
    go, and the command does. A policy that stays in force has each new pod wait for seconds only.
    """
    (line,) = (each for each in page("how-to/hold-until-known.md").splitlines() if each.startswith("kubectl annotate"))
    async with reached(release, WAYS["both"]) as values:
        await release.helm.install({"webhook": values["webhook"]})
        await release.helm.upgrade(values)
        await release.roll()
        await hold_pods(api, registry)
        await run_line(line, control_plane, kubectl)
        await until_ungated(api)
        await assert_kept_where_known(api)

        await hold_pods(api, registry)
        await release.roll("admission.unknown=pass", "admission.gate.policy=''")
        await until_ungated(api)
        await assert_kept_where_known(api)
        await api.create(pod("new", f"{registry.host}/team/other:1"))
        await until_ungated(api)

        await release.roll()
        await hold_pods(api, registry)
        observing = {**values.get("config", {}), "placement": {"mode": "observe"}}
        await release.helm.upgrade({**values, "config": observing})
        await release.roll()
        await until_ungated(api)
        await until_free(api)

        await release.helm.upgrade(values)
        await release.roll()
        await hold_pods(api, registry)
        await release.helm.run("rollback", OURS, "1")
        await release.roll()
        command = (sys.executable, "-m", "extender", "ungate", "-A", f"--kubeconfig={release.helm.kubeconfig}")
        process = await asyncio.create_subprocess_exec(*command)
        assert await process.wait() == 0
        await until_ungated(api)
        await until_free(api)


@pytest.mark.parametrize("way", ["webhook", "both"])
async def test_two_upgrades_in_a_row_that_turn_holding_off_leave_no_pod_held(
    release: PlayedRelease, api: ApiClient, registry: EmbeddedRegistry, way: str
) -> None:
    """By the documentation's command, while no replica runs: the next one finds the right to remove gates."""
    text = page("how-to/hold-until-known.md").partition("## Turn it off")[2]
    assert "--reuse-values --set config.admission.unknown=pass\n" in text
    assert "`--set modes.policy.enabled=false`" in text
    off = ["--reuse-values", "--set=config.admission.unknown=pass"]
    off += ["--set=modes.policy.enabled=false"] if way == "both" else []
    async with reached(release, WAYS[way]) as values:
        await release.helm.install(values)
        await release.roll()
        await hold_pods(api, registry)
        await release.end()
        for _ in range(2):
            await release.helm.run("upgrade", OURS, str(CHART), *off)
        await release.roll()
        await until_ungated(api)
        await assert_kept_where_known(api)
        await until_free(api)
        await until_reviewed(api, registry)


async def run_line(line: str, control_plane: LocalCluster, kubectl: Path) -> None:
    """Runs a line that calls kubectl in a shell; it has to succeed."""
    environment = {"KUBECONFIG": str(control_plane.kubeconfig), "PATH": f"{kubectl.parent}:{os.environ['PATH']}"}
    shell = await asyncio.create_subprocess_exec("sh", "-c", line, env={**os.environ, **environment})
    assert await asyncio.wait_for(shell.wait(), LINE_SECONDS) == 0


@pytest.mark.parametrize("way", [pytest.param(way, marks=() if way == "both" else pytest.mark.slow) for way in WAYS])
async def test_an_upgrade_from_an_older_chart_lets_held_pods_go_and_leaves_nothing_of_it(
    release: PlayedRelease, api: ApiClient, registry: EmbeddedRegistry, tmp_path: Path, way: str
) -> None:
    """Values that this chart has not are named by their paths; with its own the objects of before are gone."""
    folder = CHART.relative_to(PROJECT)
    archive = subprocess.run(["git", "-C", PROJECT, "archive", OLDER, folder], capture_output=True, check=False)
    if archive.returncode:
        pytest.skip(f"needs the history of the repository as far as {OLDER}")
    subprocess.run(["tar", "-x", "-C", tmp_path], input=archive.stdout, check=True)
    older = {"image": {"registry": "registry.example.org"}, "doctor": {"afterInstall": False, "test": False}}
    await release.helm.run("install", OURS, str(tmp_path / folder), "--create-namespace", only={**WAYS[way], **older})
    before = await release.helm.objects()
    await create_held(api, f"{registry.host}/team/old:1")
    with pytest.raises(RuntimeError, match=r"at '/doctor': additional properties '(test|afterInstall)', '"):
        await release.helm.run("upgrade", OURS, str(CHART), only=older)
    async with reached(release, {}) as values:
        await release.helm.upgrade(values)
        await release.roll()
        await until_ungated(api)
        assert gates_of(await api.get("Pod", "two")) == [FOREIGN]
        await until_free(api)
        now = {(each["kind"], each["metadata"]["name"]) for each in await release.helm.objects()}
        gone = [each for each in before if (each["kind"], each["metadata"]["name"]) not in now]
        await finalize(api, gone)
        assert await left_of(api, gone) == []


async def create_held(api: ApiClient, image: str) -> None:
    """Pods that our gate holds, one beside another owner's."""
    for name, gates in (("one", [GATE]), ("two", [FOREIGN, GATE])):
        made = pod(name, image, labels={"multiarch-extender.io/gated": "true"}, spec={"schedulingGates": gates})
        await api.create(made)


@pytest.mark.usefixtures("controllers")
async def test_an_uninstallation_ends_though_gates_cannot_be_removed(
    release: PlayedRelease, api: ApiClient, control_plane: LocalCluster, tmp_path: Path
) -> None:
    """The account has no rights at all: the Job says so, and succeeds. The policy goes with the release."""
    values = {**WAYS["policy"], "rbac": {"create": False}}
    await release.helm.install(values)
    objects = await release.helm.objects()
    await create_held(api, "registry.example.com/none:1")
    async with uninstalling(api, control_plane, tmp_path):
        await release.helm.run("uninstall", OURS)
    assert "error: " in next((tmp_path / "job").glob("*-0.log")).read_text()
    assert await held(api) == {"one", "two"}
    await finalize(api, objects)
    assert gates_of(await dry_run(api, pod("after", "registry.example.com/none:1"))) == []
    assert await left_of(api, [*objects, *hook_objects(values)]) == []


@pytest.mark.usefixtures("controllers")
async def test_gates_are_removed_where_the_image_cannot_be_pulled(
    release: PlayedRelease, api: ApiClient, control_plane: LocalCluster, registry: EmbeddedRegistry, kubectl: Path
) -> None:
    """No container of the Job starts: helm says that it failed, and the notes of the release have what to do then."""
    async with reached(release, WAYS["both"]) as values:
        await release.helm.install(values)
        await release.roll()
        await hold_pods(api, registry)
        notes = await release.helm.run("get", "notes", OURS)
        hurrying = asyncio.create_task(end_soon(api))
        with pytest.raises(RuntimeError, match=rf"(?s){UNINSTALL}|pre-delete"):
            await release.helm.run("uninstall", OURS)
        await hurrying
        lines = re.findall(r"^  (helm uninstall .* --no-hooks|kubectl get pods -A .* done)$", notes, re.MULTILINE)
        assert len(lines) == 2, notes
        await release.helm.run(*lines[0].split()[1:3], "--no-hooks")
        await release.end()
        await run_line(lines[1], control_plane, kubectl)
        await until_ungated(api)
        await until_free(api)


async def end_soon(api: ApiClient) -> None:
    """Has the Job's time be over a second after it was made, instead of after 90 s."""
    path = f"/apis/batch/v1/namespaces/{OURS}/jobs/{UNINSTALL}"
    change = {"spec": {"activeDeadlineSeconds": 1}}
    await eventually(
        lambda: api.request("PATCH", path, change, content_type="application/merge-patch+json"), despite=ApiError
    )
