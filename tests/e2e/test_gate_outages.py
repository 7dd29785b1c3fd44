"""Pods that the API server's own policy holds while nobody lets them go: who says so, and what happens afterwards."""

from pathlib import Path

import aiohttp
import pytest

from extender.cluster.probe import PROBE_LABELS
from testbed.api_client import ADMISSIONREGISTRATION, ApiClient
from testbed.chart import CHART
from testbed.debian_prometheus import DebianPrometheus, firing, until, values
from testbed.embedded_registry import EmbeddedRegistry
from testbed.eventually import eventually
from testbed.objects import KubernetesObject, kept_to, pod
from tests.e2e.installed_chart import OURS, balanced
from tests.e2e.policies import GATE, dry_run, gates_of
from tests.e2e.releases import NEWEST, PODS, WAYS, PlayedRelease, held, reached, until_holding, until_ungated

pytestmark = [pytest.mark.e2e, NEWEST]

ALERT = firing("MultiarchGatesWithoutLeader")
ALERT_SECONDS = 240.0  # the rule's own time, and as much again


@pytest.mark.parametrize("interval", ["200ms", pytest.param("30s", marks=pytest.mark.slow)])
async def test_a_policy_in_force_outlives_us_and_an_alert_says_so(
    release: PlayedRelease, api: ApiClient, registry: EmbeddedRegistry, prometheus: Path, tmp_path: Path, interval: str
) -> None:
    """It holds no pod before a replica has run. Once both are killed, pods wait, and an alert with its own times fires.

    What a cluster needs to start, and our own pods, do not wait. With replicas back the others go, and the alert ends.
    """
    async with (
        reached(release, WAYS["policy"]) as installed,
        balanced(release.operations) as port,
        aiohttp.ClientSession() as session,
    ):
        await release.helm.install(installed)
        bindings = await api.list("MutatingAdmissionPolicyBinding", api_version=ADMISSIONREGISTRATION)
        [ours] = (each["spec"]["matchResources"] for each in bindings if each["spec"]["policyName"].startswith(OURS))
        assert ours["objectSelector"] == {"matchLabels": PROBE_LABELS}
        assert gates_of(await dry_run(api, pod("free", f"{registry.host}/team/late:1"))) == []
        replicas = await release.roll(replicas=2)
        rules = CHART / "files" / "rules.yaml"
        with DebianPrometheus(prometheus, tmp_path, f"127.0.0.1:{port}", rules, interval=interval) as server:
            await until(session, server, "multiarch_gates_removal", found=True)
            await until_holding(api, f"{registry.host}/team/never:1")
            assert not await values(session, server, ALERT)
            await release.kill(replicas)
            for number in range(PODS):
                await api.create(pod(f"p-{number}", f"{registry.host}/team/late:1"))
            assert len(await held(api)) == PODS
            await assert_the_cluster_starts(release, api, f"{registry.host}/team/never:1")
            await eventually(lambda: values(session, server, ALERT), seconds=ALERT_SECONDS)
            registry.add_manifest("team/late", "1", "linux/arm64")
            await release.roll(replicas=2)
            await until_ungated(api)
            for number in range(PODS):
                found = await api.get("Pod", f"p-{number}")
                assert kept_to(found["spec"], "kubernetes.io/arch") == ["arm64"]
            await until(session, server, ALERT, found=False)


async def assert_the_cluster_starts(release: PlayedRelease, api: ApiClient, image: str) -> None:
    """What the cluster needs to start is not held, nor are our own pods."""
    for priority in ("system-node-critical", "system-cluster-critical"):
        critical = pod("critical", image, namespace="kube-system", spec={"priorityClassName": priority})
        assert gates_of(await dry_run(api, critical)) == []
    for own in [each for each in await release.helm.objects() if each["kind"] == "Deployment"]:
        template = own["spec"]["template"]
        metadata = {**template["metadata"], "name": "own", "namespace": OURS}
        mine = {"apiVersion": "v1", "kind": "Pod", **template, "metadata": metadata}
        assert GATE not in gates_of(await dry_run(api, mine))


async def test_an_upgrade_leaves_the_policy_in_force(
    release: PlayedRelease, api: ApiClient, registry: EmbeddedRegistry
) -> None:
    """The chart's binding is for probes alone; Helm finds in the cluster that the service has opened it."""
    async with reached(release, WAYS["policy"]) as values:
        await release.helm.install(values)
        await release.roll()
        await until_holding(api, f"{registry.host}/team/never:1")
        opened = await _matched(api)
        await release.helm.upgrade({**values, "podAnnotations": {"note": "changed"}})
        assert (opened.get("objectSelector") or {}, await _matched(api)) == ({}, opened)
        await release.end()
        await release.helm.run("uninstall", OURS, "--no-hooks")
        await release.helm.install(values)  # a new one begins with probes
        assert (await _matched(api))["objectSelector"] == {"matchLabels": PROBE_LABELS}


async def _matched(api: ApiClient) -> KubernetesObject:
    """What our binding says of the objects that it is for."""
    bindings = await api.list("MutatingAdmissionPolicyBinding", api_version=ADMISSIONREGISTRATION)
    [ours] = (each["spec"] for each in bindings if each["spec"]["policyName"].startswith(OURS))
    return dict(ours.get("matchResources") or {})
