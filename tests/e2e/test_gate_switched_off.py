"""Nobody waits for a controller that is gone: holding is switched off by a setting alone, and by an uninstallation.

As in `test_gate_life_cycle.py` the Deployment's pods are processes, and so is the container of Helm's Job.
"""

import asyncio
import os
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from testbed.api_client import ApiClient, ApiError
from testbed.binaries import KUBECTL, build
from testbed.control_plane import LocalCluster
from testbed.embedded_registry import EmbeddedRegistry
from testbed.eventually import eventually
from testbed.objects import kept_to, pod
from tests.e2e.installed_chart import OURS
from tests.e2e.policies import gates_of, until_free
from tests.e2e.running import find_or_skip
from tests.e2e.test_gate_life_cycle import (
    EACH_WAY,
    OFF_SECONDS,
    PODS,
    WAYS,
    PlayedRelease,
    assert_let_go_by_what_is_known,
    helm,
    hold_pods,
    reached,
    registry,
    release,
    until_let_go,
)
from tests.e2e.test_helm_release import EACH_HELM
from tests.e2e.test_helm_uninstall import UNINSTALL, held, uninstalling
from tools.docs.pages import page

__all__ = ["helm", "registry", "release"]
pytestmark = [pytest.mark.e2e, EACH_HELM]


@pytest.fixture(scope="session")
def kubectl(pytestconfig: pytest.Config) -> Path:
    """The program, which is built when a test first asks for it."""
    return find_or_skip(pytestconfig, lambda: build(KUBECTL) / "kubectl")


@pytest.fixture
async def controllers(control_plane: LocalCluster, controller_manager: Path) -> AsyncIterator[None]:
    """Those of Jobs, and of objects whose owner is gone."""
    with control_plane.running_controllers(controller_manager, "job-controller", "garbage-collector-controller"):
        yield


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
        seconds = await until_let_go(api, began)
        print(f"{way}, setting: {PODS} held pods let go {seconds:.1f} s after the change")
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
        seconds = await until_let_go(api, began)
        print(f"{way}, observe: {PODS} held pods let go {seconds:.1f} s after helm ended")
        await until_free(api)


@pytest.mark.usefixtures("controllers")
@EACH_WAY
async def test_held_pods_are_let_go_by_an_uninstallation(
    release: PlayedRelease,
    api: ApiClient,
    control_plane: LocalCluster,
    registry: EmbeddedRegistry,
    tmp_path: Path,
    way: str,
) -> None:
    """By the replica, which knows the images, at the Job's word."""
    async with reached(release, WAYS[way]) as values:
        registry.add_manifest("team/arm", "1", "linux/arm64")
        await release.helm.install(values)
        await release.roll()
        await hold_pods(api, registry, "team/arm:1")
        (tmp_path / "job").mkdir()
        began = time.monotonic()
        async with uninstalling(api, control_plane, tmp_path / "job") as (recorder, kubelet):
            await release.helm.run("uninstall", OURS)
        took = time.monotonic() - began
        await release.end()
        assert await held(api) == set()
        assert took < OFF_SECONDS
        assert recorder.refused == set()
        print(f"{way}, uninstall: {PODS} held pods let go, helm took {took:.1f} s: {kubelet.output.splitlines()[-1]}")
        await assert_let_go_by_what_is_known(api)


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


async def end_soon(api: ApiClient) -> None:
    """Has the Job's time be over a second after it was made, instead of after minutes."""
    path = f"/apis/batch/v1/namespaces/{OURS}/jobs/{UNINSTALL}"
    change = {"spec": {"activeDeadlineSeconds": 1}}
    await eventually(
        lambda: api.request("PATCH", path, change, content_type="application/merge-patch+json"), despite=ApiError
    )


async def assert_kept_where_known(api: ApiClient) -> None:
    """Each pod is kept to what its image runs on, if that is known."""
    for number in range(PODS):
        spec = (await api.get("Pod", f"p-{number}"))["spec"]
        assert kept_to(spec, "kubernetes.io/arch") == (["arm64"], [])[number % 2]
