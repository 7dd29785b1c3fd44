"""Holding pods is switched on and off again by helm: whoever held pods lets them go, each by what is known of it.

By an upgrade, a rollback, a setting, an uninstallation, with an image that cannot be pulled, and from an older chart.
"""

import asyncio
import os
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from testbed.api_client import ApiClient, ApiError
from testbed.binaries import KUBECTL, build
from testbed.chart import CHART, objects_of, render
from testbed.control_plane import LocalCluster
from testbed.embedded_registry import EmbeddedRegistry
from testbed.eventually import eventually
from testbed.objects import KubernetesObject, pod
from tests.e2e.installed_chart import OURS, finalize_namespace, rights_of, used_rights
from tests.e2e.policies import GATE, dry_run, gates_of, until_free
from tests.e2e.releases import (
    EACH_HELM,
    OFF_SECONDS,
    PODS,
    UNINSTALL,
    WAYS,
    PlayedRelease,
    assert_kept_where_known,
    assert_let_go_by_what_is_known,
    held,
    helm,
    hold_pods,
    left_of,
    names_of,
    reached,
    registry,
    release,
    uninstalling,
    until_let_go,
)
from tests.e2e.running import find_or_skip
from tools.docs.pages import PROJECT, page

__all__ = ["helm", "registry", "release"]
pytestmark = [pytest.mark.e2e, EACH_HELM]

OLDER = "c42a386"
"""A commit whose chart had other values, other roles and the same names."""
FOREIGN = {"name": "example.com/quota"}
EACH_WAY = pytest.mark.parametrize(
    "way", [pytest.param(way, marks=() if way == "both" else pytest.mark.slow) for way in WAYS]
)
"""For what does not depend on the way: one of them, and the others where there is time."""


@pytest.fixture(scope="session")
def kubectl(pytestconfig: pytest.Config) -> Path:
    """The program, which is built when a test first asks for it."""
    return find_or_skip(pytestconfig, lambda: build(KUBECTL) / "kubectl")


@pytest.fixture
async def controllers(control_plane: LocalCluster, controller_manager: Path) -> AsyncIterator[None]:
    """Those of Jobs, and of objects whose owner is gone."""
    with control_plane.running_controllers(controller_manager, "job-controller", "garbage-collector-controller"):
        yield


# --- by values


@pytest.mark.parametrize("way", WAYS)
async def test_an_upgrade_to_values_that_hold_none_lets_held_pods_go(
    release: PlayedRelease, api: ApiClient, registry: EmbeddedRegistry, way: str
) -> None:
    """It finds in the cluster that pods were held."""
    async with reached(release, WAYS[way]) as values, reached(release, {}) as values_off:
        await release.helm.install(values)
        await release.roll()
        await hold_pods(api, registry)
        registry.add_manifest("team/late", "1", "linux/arm64")
        await release.helm.upgrade(values_off)
        began = time.monotonic()
        await release.roll()
        print(f"{way}, upgrade: {PODS} held pods let go {await until_let_go(api, began):.1f} s after helm ended")
        await assert_let_go_by_what_is_known(api)


@EACH_WAY
async def test_after_a_rollback_held_pods_are_let_go_by_a_command(
    release: PlayedRelease, api: ApiClient, registry: EmbeddedRegistry, way: str
) -> None:
    """The objects of a revision are those of its own time, so that the service has no right to do so."""
    async with reached(release, WAYS[way]) as values, reached(release, {}) as values_off:
        await release.helm.install(values_off)
        await release.helm.upgrade(values)
        await release.roll()
        await hold_pods(api, registry)
        await release.helm.run("rollback", OURS, "1")
        began = time.monotonic()
        await release.roll()
        command = (sys.executable, "-m", "extender", "ungate", "-A", f"--kubeconfig={release.helm.kubeconfig}")
        process = await asyncio.create_subprocess_exec(*command)
        assert await process.wait() == 0
        print(f"{way}, rollback: {PODS} held pods let go {await until_let_go(api, began):.1f} s after helm ended")
        await until_free(api)


@EACH_WAY
async def test_held_pods_are_let_go_when_the_setting_alone_is_changed(
    release: PlayedRelease, api: ApiClient, registry: EmbeddedRegistry, way: str
) -> None:
    """In the ConfigMap, with a restart; the policy stays in force, and each new pod waits for seconds only."""
    async with reached(release, WAYS[way]) as values:
        await release.helm.install(values)
        await release.roll()
        await hold_pods(api, registry)
        registry.add_manifest("team/late", "1", "linux/arm64")
        began = time.monotonic()
        await release.roll(unknown="pass")
        print(f"{way}, setting: {PODS} held pods let go {await until_let_go(api, began):.1f} s after the change")
        await assert_kept_where_known(api)
        await api.create(pod("new", f"{registry.host}/team/never:1"))
        await eventually(lambda: api.get("Pod", "new"), lambda found: not gates_of(found))


@EACH_WAY
async def test_held_pods_are_let_go_under_observe(
    release: PlayedRelease, api: ApiClient, registry: EmbeddedRegistry, way: str
) -> None:
    """`placement.mode: observe` by helm upgrade, with the values of the modes as they were: nothing is changed."""
    async with reached(release, WAYS[way]) as values:
        await release.helm.install(values)
        await release.roll()
        await hold_pods(api, registry)
        observing = {**values.get("config", {}), "placement": {"mode": "observe"}}
        await release.helm.upgrade({**values, "config": observing})
        began = time.monotonic()
        await release.roll()
        print(f"{way}, observe: {PODS} held pods let go {await until_let_go(api, began):.1f} s after helm ended")
        await until_free(api)


async def test_one_line_of_kubectl_lets_pods_go_by_what_is_known(
    release: PlayedRelease, api: ApiClient, control_plane: LocalCluster, registry: EmbeddedRegistry, kubectl: Path
) -> None:
    """That of the documentation, where the service runs."""
    (line,) = (each for each in page("how-to/hold-until-known.md").splitlines() if each.startswith("kubectl annotate"))
    registry.add_manifest("team/arm", "1", "linux/arm64")
    await release.helm.install(WAYS["policy"])
    await release.roll()
    await hold_pods(api, registry, "team/arm:1")
    began = time.monotonic()
    await run_line(line, control_plane, kubectl)
    print(f"kubectl annotate: {PODS} held pods let go {await until_let_go(api, began):.1f} s after that")
    await assert_kept_where_known(api)


async def run_line(line: str, control_plane: LocalCluster, kubectl: Path) -> None:
    """Runs a line that calls kubectl in a shell; it has to succeed."""
    environment = {"KUBECONFIG": str(control_plane.kubeconfig), "PATH": f"{kubectl.parent}:{os.environ['PATH']}"}
    shell = await asyncio.create_subprocess_exec("sh", "-c", line, env={**os.environ, **environment})
    assert await asyncio.wait_for(shell.wait(), OFF_SECONDS) == 0


# --- from another chart


@pytest.mark.parametrize("way", WAYS)
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
        began = time.monotonic()
        await release.roll()
        print(f"{way}, from {OLDER}: held pods let go {await until_let_go(api, began):.1f} s after helm ended")
        assert gates_of(await api.get("Pod", "two")) == [FOREIGN]
        await until_free(api)
        now = {(each["kind"], each["metadata"]["name"]) for each in await release.helm.objects()}
        gone = [each for each in before if (each["kind"], each["metadata"]["name"]) not in now]
        for each in gone:
            if each["kind"] == "Namespace":
                await finalize_namespace(api, each["metadata"]["name"])
        assert await left_of(api, gone) == []


async def create_held(api: ApiClient, image: str) -> None:
    """Pods that our gate holds, one beside another owner's."""
    for name, gates in (("one", [GATE]), ("two", [FOREIGN, GATE])):
        made = pod(name, image, labels={"multiarch-extender.io/gated": "true"}, spec={"schedulingGates": gates})
        await api.create(made)


# --- by an uninstallation


def hook_objects(values: Mapping[str, Any]) -> list[KubernetesObject]:
    """What Helm makes for an uninstallation."""
    return [each for each in objects_of(render(values, hooks=True)) if each["metadata"]["name"] == UNINSTALL]


@pytest.mark.usefixtures("controllers")
@pytest.mark.parametrize("way", WAYS)
async def test_held_pods_are_let_go_by_an_uninstallation_of_which_nothing_is_left(
    release: PlayedRelease,
    api: ApiClient,
    control_plane: LocalCluster,
    registry: EmbeddedRegistry,
    tmp_path: Path,
    way: str,
) -> None:
    """By the replica, which knows the images, at the Job's word, while pods go on being created."""
    of_other_tests = await names_of(api)
    async with reached(release, WAYS[way]) as values:
        registry.add_manifest("team/arm", "1", "linux/arm64")
        await release.helm.install(values)
        objects = await release.helm.objects()
        await release.roll()
        await hold_pods(api, registry, "team/arm:1")
        (tmp_path / "job").mkdir()
        ended = asyncio.Event()
        creating = asyncio.create_task(keep_creating(api, f"{registry.host}/team/late:1", ended))
        began = time.monotonic()
        async with uninstalling(api, control_plane, tmp_path / "job") as (recorder, kubelet):
            await release.helm.run("uninstall", OURS)
        took = time.monotonic() - began
        ended.set()
        assert await creating > 5
        await release.end()
        assert await held(api) == set()
        assert took < OFF_SECONDS
        print(f"{way}, uninstall: {PODS} held pods let go, helm took {took:.1f} s: {kubelet.output.splitlines()[-1]}")
        await assert_let_go_by_what_is_known(api)
        for each in objects:
            if each["kind"] == "Namespace":
                await finalize_namespace(api, each["metadata"]["name"])
        assert await left_of(api, [*objects, *hook_objects(values)]) == []
        assert await names_of(api) <= of_other_tests
        assert recorder.refused == set()
        assert used_rights(recorder, hook_objects(values)) == rights_of(hook_objects(values))


async def keep_creating(api: ApiClient, image: str, ended: asyncio.Event) -> int:
    """Creates pods until it is told to end; returns how many."""
    count = 0
    while not ended.is_set():
        await api.create(pod(f"meanwhile-{count}", image))
        count += 1
        await asyncio.sleep(0.25)
    return count


@pytest.mark.usefixtures("controllers")
async def test_an_uninstallation_ends_though_pods_cannot_be_let_go(
    release: PlayedRelease, api: ApiClient, control_plane: LocalCluster, tmp_path: Path
) -> None:
    """The account has no rights at all: the Job says so, and succeeds. The policy goes with the release."""
    values = {**WAYS["policy"], "rbac": {"create": False}}
    await release.helm.install(values)
    objects = await release.helm.objects()
    await create_held(api, "registry.example.com/none:1")
    async with uninstalling(api, control_plane, tmp_path) as (_, kubelet):
        await release.helm.run("uninstall", OURS)
    assert "error: " in kubelet.output
    assert await held(api) == {"one", "two"}
    await finalize_namespace(api, f"{OURS}-policy-canary")
    assert gates_of(await dry_run(api, pod("after", "registry.example.com/none:1"))) == []
    assert await left_of(api, [*objects, *hook_objects(values)]) == []


@pytest.mark.usefixtures("controllers")
@EACH_WAY
async def test_held_pods_are_let_go_where_the_image_cannot_be_pulled(
    release: PlayedRelease,
    api: ApiClient,
    control_plane: LocalCluster,
    registry: EmbeddedRegistry,
    kubectl: Path,
    way: str,
) -> None:
    """No container of the Job starts: helm says that it failed, and the notes of the release have what to do then."""
    async with reached(release, WAYS[way]) as values:
        await release.helm.install(values)
        await release.roll()
        await hold_pods(api, registry)
        notes = await release.helm.run("get", "notes", OURS)
        hurrying = asyncio.create_task(end_soon(api))
        with pytest.raises(RuntimeError, match=rf"(?s){UNINSTALL}|pre-delete") as failure:
            await release.helm.run("uninstall", OURS)
        await hurrying
        print(f"{way}, without the image, helm says: {failure.value}")
        lines = re.findall(r"^  (helm uninstall .* --no-hooks|kubectl get pods -A .* done)$", notes, re.MULTILINE)
        assert len(lines) == 2, notes
        began = time.monotonic()
        await release.helm.run(*lines[0].split()[1:3], "--no-hooks")
        await release.end()
        await run_line(lines[1], control_plane, kubectl)
        print(f"{way}, without the image: {PODS} held pods let go {await until_let_go(api, began):.1f} s after that")
        await until_free(api)


async def end_soon(api: ApiClient) -> None:
    """Has the Job's time be over a second after it was made, instead of after 90 s."""
    path = f"/apis/batch/v1/namespaces/{OURS}/jobs/{UNINSTALL}"
    change = {"spec": {"activeDeadlineSeconds": 1}}
    await eventually(
        lambda: api.request("PATCH", path, change, content_type="application/merge-patch+json"), despite=ApiError
    )
