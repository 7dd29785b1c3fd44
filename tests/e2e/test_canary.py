"""Canaries on a real control plane: with the chart's settings, account and rights they tell whether we are reached."""

import base64
import re
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest
import trustme

from extender.cluster.dry_run import restricted_pod
from extender.placement.gate import GATE
from testbed.api_client import ADMISSIONREGISTRATION, ApiClient, connect
from testbed.control_plane import LocalCluster
from testbed.embedded_registry import EmbeddedRegistry
from testbed.eventually import eventually
from testbed.objects import KubernetesObject, pod
from tests.e2e.installed_chart import WEBHOOK, InstalledChart, balanced, change_webhook, installed
from tests.e2e.policies import refusal, refusal_of_pod

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("helm_program")]


class Canaries:
    """Replicas of the chart behind one port, and what their canaries say."""

    def __init__(self, chart: InstalledChart) -> None:
        self._chart = chart

    async def counted(self, result: str) -> float:
        return await self._sum(f'multiarch_canaries_total{{result="{result}"}}')

    async def last(self, result: str) -> float:
        return await self._sum(f'multiarch_canary_timestamp_seconds{{result="{result}"}}')

    async def until(self, result: str, meanwhile: Callable[[], Awaitable[object]] | None = None) -> None:
        before = await self.counted(result)

        async def is_there() -> bool:
            if meanwhile:
                await meanwhile()
            return await self.counted(result) > before

        await eventually(is_there)

    async def _sum(self, series: str) -> float:
        total = 0.0
        async with aiohttp.ClientSession() as session:
            for operations in self._chart.ports("operations"):
                async with session.get(f"http://127.0.0.1:{operations}/metrics") as answer:
                    found = re.search(rf"^{re.escape(series)} (\S+)$", await answer.text(), re.MULTILINE)
                assert found
                total += float(found[1])
        return total


async def test_canaries_tell_that_the_webhook_is_not_reached_and_that_it_is_again(
    api: ApiClient, control_plane: LocalCluster, registry: EmbeddedRegistry, tmp_path: Path
) -> None:
    """No configuration, a wrong authority, a port that nobody answers; one that fails closed is named with its cause.

    Our account creates pods as dry runs only: policies hold it to these, its role to the namespace.
    """
    wrong = base64.b64encode(trustme.CA().cert_pem.bytes()).decode()  # it has signed nothing
    async with (
        installed(api, control_plane.kubeconfig, registry, tmp_path, {}) as chart,
        chart.replicas(2) as replicas,
        balanced(chart.ports("webhook")) as port,
    ):
        await chart.lead_to(port)
        ours = Canaries(chart)
        await ours.until("patched")
        await assert_stores_no_pod(api, replicas[0].account)

        configuration = await api.get("MutatingWebhookConfiguration", WEBHOOK, "", ADMISSIONREGISTRATION)
        config = configuration["webhooks"][0]["clientConfig"]

        async def lead_to(port: int) -> None:
            await change_webhook(api, clientConfig={"service": {**config["service"], "port": port}})

        await api.delete("MutatingWebhookConfiguration", WEBHOOK, "", ADMISSIONREGISTRATION)
        await ours.until("unpatched")
        del configuration["metadata"]["resourceVersion"], configuration["metadata"]["uid"]
        await api.create(configuration)
        await ours.until("patched")

        # Again and again, since the service puts its own back in half a minute.
        await ours.until("unpatched", lambda: change_webhook(api, clientConfig={"caBundle": wrong}))
        await change_webhook(api, clientConfig={"caBundle": config["caBundle"]})
        await ours.until("patched")

        answered_at = await ours.last("patched")
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            await lead_to(closed.getsockname()[1])
            await ours.until("unpatched")
            assert await ours.counted("refused") == await ours.counted("webhook_failed") == 0
            await change_webhook(api, failurePolicy="Fail")
            await ours.until("webhook_failed")
        await lead_to(port)
        await ours.until("patched")
        assert await ours.last("patched") > answered_at
        logs = "".join(file.read_text() for file in sorted(tmp_path.glob("replica-*/*.log")))
    assert logs.count("canary.unanswered") <= 2 * 4 * 2  # once for each change, and not for each canary
    assert "canary.answered" in logs
    assert 'failed calling webhook \\"pods.' in logs
    assert "connection refused" in logs


async def assert_stores_no_pod(api: ApiClient, account: Path) -> None:
    """Of two policies that refuse, the API server names either."""
    space = f"{WEBHOOK}-canary"
    made: KubernetesObject = {**restricted_pod(annotations={}), "metadata": {"name": "made", "namespace": space}}
    path = f"/api/v1/namespaces/{space}/pods"
    async with connect(account) as client:

        async def stored() -> str:
            if not (said := await refusal(client, path, made)):  # the policy is at work a moment after it is there
                await api.delete("Pod", "made", space)
            return said

        await eventually(stored, lambda said: "as dry runs" in said)
        assert await refusal(client, f"{path}?dryRun=All", made) == ""
        gated = {**made, "spec": {**made["spec"], "schedulingGates": [{"name": GATE}]}}
        assert "as dry runs" in await refusal(client, path, gated)
        assert "PodSecurity" in await refusal(client, f"{path}?dryRun=All", pod("made", "a:1", namespace=space))
        elsewhere = {**made, "metadata": {"name": "made", "namespace": "default"}}
        assert "forbidden" in await refusal_of_pod(client, elsewhere)
        assert await api.list("Pod", space) == []
