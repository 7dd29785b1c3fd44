"""Pods that the API server's own policy holds while nobody lets them go: who says so, and what happens afterwards.

The policy is in force without us after all replicas have been killed, and in a cluster that starts again. It is not
before the first replica has run.
"""

import asyncio
import time
from pathlib import Path

import aiohttp
import pytest

from testbed.api_client import ApiClient
from testbed.chart import CHART
from testbed.debian_package import ProgramMissing
from testbed.debian_prometheus import DebianPrometheus, find_prometheus, firing, until, values
from testbed.embedded_registry import EmbeddedRegistry
from testbed.eventually import eventually
from testbed.objects import KubernetesObject, kept_to, pod
from tests.e2e.installed_chart import OURS, balanced
from tests.e2e.policies import GATE, dry_run, gates_of
from tests.e2e.releases import NEWEST, WAYS, PlayedRelease, held, helm, reached, registry, release, until_holding
from tests.e2e.running import skip
from tests.e2e.world import World

__all__ = ["helm", "registry", "release"]
pytestmark = [pytest.mark.e2e, NEWEST]

PODS = 20
ALERT = firing("MultiarchGatesWithoutLeader")
ALERT_SECONDS, BACK_SECONDS = 120.0, 5.0
NEVER_SECONDS = 5  # an API server takes notice of a policy within one


@pytest.fixture
def prometheus() -> Path:
    """The program; a test that takes it is skipped without one."""
    try:
        return find_prometheus()
    except ProgramMissing as exc:
        skip(str(exc))


async def hold(api: ApiClient, image: str) -> None:
    """Creates pods of the image; all of them are held."""
    for number in range(PODS):
        await api.create(pod(f"p-{number}", image))
    assert len(await held(api)) == PODS


async def assert_let_go(api: ApiClient, seconds: float) -> float:
    """How many seconds passed until no pod was held; each is kept to its image's architecture by then."""
    began = time.monotonic()
    await eventually(lambda: held(api), lambda found: not found, seconds=seconds)
    for number in range(PODS):
        found: KubernetesObject = await api.get("Pod", f"p-{number}")
        assert kept_to(found["spec"], "kubernetes.io/arch") == ["arm64"]
    return time.monotonic() - began


@pytest.mark.parametrize("interval", ["200ms", pytest.param("30s", marks=pytest.mark.slow)])
async def test_an_alert_says_that_nobody_lets_pods_go_and_ends_when_somebody_does(
    release: PlayedRelease, world: World, registry: EmbeddedRegistry, prometheus: Path, tmp_path: Path, interval: str
) -> None:
    """Both replicas are killed. The alert has the chart's own times, and the slow Prometheus those of its monitor."""
    api = world.api
    async with (
        reached(release, WAYS["policy"]) as installed,
        balanced(release.operations) as port,
        aiohttp.ClientSession() as session,
    ):
        await release.helm.install(installed)
        replicas = await release.roll(replicas=2)
        rules = CHART / "files" / "rules.yaml"
        with DebianPrometheus(prometheus, tmp_path, f"127.0.0.1:{port}", rules, interval=interval) as server:
            await until(session, server, "multiarch_gates_lifting", found=True)
            await until_holding(api, f"{registry.host}/team/never:1")
            assert not await values(session, server, ALERT)
            release.kill(replicas)
            killed_at = time.monotonic()
            await hold(api, f"{registry.host}/team/late:1")
            await eventually(lambda: values(session, server, ALERT), seconds=ALERT_SECONDS)
            told_seconds = time.monotonic() - killed_at
            registry.add_manifest("team/late", "1", "linux/arm64")
            await release.roll(replicas=2)
            back_seconds = await assert_let_go(api, BACK_SECONDS)
            await until(session, server, ALERT, found=False)
    world.figure(
        f"both replicas killed, read every {interval}: told after {told_seconds:.0f} s; "
        f"back: {PODS} pods let go in {back_seconds:.1f} s"
    )


async def test_a_cluster_that_starts_with_the_policy_in_force_does_not_wait_for_itself(
    release: PlayedRelease, api: ApiClient, registry: EmbeddedRegistry
) -> None:
    """None of our pods runs: what the cluster needs to start is not held, nor are our own pods; the held ones go."""
    async with reached(release, WAYS["policy"]) as installed:
        await release.helm.install(installed)
        replicas = await release.roll()
        await until_holding(api, f"{registry.host}/team/never:1")
        release.kill(replicas)
        await hold(api, f"{registry.host}/team/late:1")
        for priority in ("system-node-critical", "system-cluster-critical"):
            critical = pod("critical", f"{registry.host}/team/never:1", spec={"priorityClassName": priority})
            critical["metadata"]["namespace"] = "kube-system"
            assert gates_of(await dry_run(api, critical)) == []
        for own in [each for each in await release.helm.objects() if each["kind"] == "Deployment"]:
            template = own["spec"]["template"]
            mine = {"apiVersion": "v1", "kind": "Pod", **template}
            mine["metadata"] = {**template["metadata"], "name": "own", "namespace": OURS}
            assert GATE not in gates_of(await dry_run(api, mine))
        registry.add_manifest("team/late", "1", "linux/arm64")
        await release.roll()
        seconds = await assert_let_go(api, 20.0)
    print(f"a cold cluster: {PODS} pods let go {seconds:.1f} s after the first replica is ready")


async def test_an_installation_that_never_becomes_ready_holds_no_pod(release: PlayedRelease, api: ApiClient) -> None:
    """Its image cannot be pulled, say: the policy is there and not in force, until a replica runs at last."""
    async with reached(release, WAYS["policy"]) as installed:
        await release.helm.install(installed)
        for _ in range(NEVER_SECONDS):
            await asyncio.sleep(1)
            assert gates_of(await dry_run(api, pod("free", "registry.example.com/any:1"))) == []
        await release.roll()
        await until_holding(api, "registry.example.com/any:1")
