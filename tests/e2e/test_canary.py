"""Canaries on a real control plane: with the chart's settings, account and rights they tell whether we are reached."""

import asyncio
import base64
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
import trustme

from extender.placement.gate import GATE
from extender.service.canaries import CANARY_SECONDS
from testbed.api_client import ApiClient, ApiError, connect
from testbed.control_plane import LocalCluster
from testbed.embedded_registry import EmbeddedRegistry
from testbed.objects import pod
from testbed.processes import free_port
from tests.e2e.installed_chart import InstalledChart, balanced, installed, lead_to, recording

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("helm_program")]

ADMISSIONREGISTRATION = "admissionregistration.k8s.io/v1"
NAME = "multiarch-extender-webhook"
PERIOD_SECONDS = CANARY_SECONDS
NOTICE_SECONDS = 5.0
"""What the API server may take to notice a changed configuration, beside a period."""
WAIT_SECONDS = 60.0
ALONE = {"modes": {"webhook": {"enabled": False}, "secondScheduler": {"enabled": True}}}
OPT_IN = {"namespaceSelector": {"matchLabels": {"multiarch-extender.io/admission": "enabled"}}}


class Installation:
    """Replicas of the chart behind one port, and what their canaries say."""

    def __init__(self, api: ApiClient, chart: InstalledChart, port: int, folder: Path) -> None:
        self.api, self.chart, self.port, self.folder = api, chart, port, folder

    async def change(self, *, port: int = 0, authority: str = "", failure_policy: str = "") -> None:
        """Changes what is given in the webhook's configuration."""
        found = await self.api.get("MutatingWebhookConfiguration", NAME, "", ADMISSIONREGISTRATION)
        webhook, *_ = found["webhooks"]
        if port:
            webhook["clientConfig"]["service"]["port"] = port
        if authority:
            webhook["clientConfig"]["caBundle"] = authority
        if failure_policy:
            webhook["failurePolicy"] = failure_policy
        await self.api.patch("MutatingWebhookConfiguration", NAME, {"webhooks": [webhook]}, "", ADMISSIONREGISTRATION)

    async def counted(self, result: str) -> float:
        """How many canaries of all replicas had this result."""
        return await self._sum(f'multiarch_canaries_total{{result="{result}"}}')

    async def last(self, result: str) -> float:
        """The sum of the times of each replica's last canary with this result."""
        return await self._sum(f'multiarch_canary_timestamp_seconds{{result="{result}"}}')

    async def until(self, result: str, meanwhile: Callable[[], Awaitable[object]] | None = None) -> float:
        """Waits for a further canary with this result; returns the seconds that it took."""
        before, started_at = await self.counted(result), time.monotonic()
        async with asyncio.timeout(WAIT_SECONDS):
            while await self.counted(result) == before:
                if meanwhile:
                    await meanwhile()
                await asyncio.sleep(0.05)
        return time.monotonic() - started_at

    def logs(self) -> str:
        """What all replicas have written."""
        return "".join(file.read_text() for file in sorted(self.folder.glob("replica-*.log")))

    async def _sum(self, series: str) -> float:
        total = 0.0
        async with aiohttp.ClientSession() as session:
            for _, _, operations in self.chart.ports:
                async with session.get(f"http://127.0.0.1:{operations}/metrics") as answer:
                    found = re.search(rf"^{re.escape(series)} (\S+)$", await answer.text(), re.MULTILINE)
                assert found
                total += float(found[1])
        return total


@pytest.fixture
async def registry() -> AsyncIterator[EmbeddedRegistry]:
    """A registry without images."""
    async with EmbeddedRegistry() as running:
        yield running


@asynccontextmanager
async def running(
    api: ApiClient,
    control_plane: LocalCluster,
    registry: EmbeddedRegistry,
    folder: Path,
    values: Mapping[str, Any],
    replicas: int = 1,
) -> AsyncIterator[Installation]:
    """So many replicas, which the API server reaches."""
    async with (
        recording(control_plane) as (_, server),
        installed(api, control_plane, server, registry, folder, values) as chart,
        chart.replicas(replicas),
        balanced([admission for _, admission, _ in chart.ports]) as port,
    ):
        await lead_to(api, chart.objects, port)
        yield Installation(api, chart, port, folder)


async def test_canaries_tell_within_a_period_that_the_webhook_is_not_reached_and_that_it_is_again(
    api: ApiClient, control_plane: LocalCluster, registry: EmbeddedRegistry, tmp_path: Path
) -> None:
    """No configuration, an authority that is wrong, and a port that nobody answers."""
    longest = PERIOD_SECONDS + NOTICE_SECONDS
    async with running(api, control_plane, registry, tmp_path, {}, replicas=2) as ours:
        await ours.until("patched")
        seconds = {}
        configuration = await api.get("MutatingWebhookConfiguration", NAME, "", ADMISSIONREGISTRATION)

        await api.delete("MutatingWebhookConfiguration", NAME, "", ADMISSIONREGISTRATION)
        seconds["removed"] = await ours.until("unpatched")
        del configuration["metadata"]["resourceVersion"], configuration["metadata"]["uid"]
        await api.create(configuration)
        seconds["made again"] = await ours.until("patched")

        wrong = base64.b64encode(trustme.CA().cert_pem.bytes()).decode()  # it has signed nothing

        right = configuration["webhooks"][0]["clientConfig"]["caBundle"]

        async def distrust() -> None:
            await ours.change(authority=wrong)  # again and again, since the service puts its own back in half a minute

        seconds["wrong authority"] = await ours.until("unpatched", distrust)
        await ours.change(authority=right)
        seconds["authority put back"] = await ours.until("patched")

        answered_at = await ours.last("patched")
        await ours.change(port=free_port())
        seconds["closed port"] = await ours.until("unpatched")
        await ours.change(port=ours.port)
        seconds["open port"] = await ours.until("patched")
        assert await ours.last("patched") > answered_at

        print("canaries: " + ", ".join(f"{what} {taken:.1f} s" for what, taken in seconds.items()))
        assert max(seconds.values()) < longest, seconds
        assert await ours.counted("refused") == 0
        assert ours.logs().count("canary.unanswered") <= 2 * 3 * 2  # once for each change, and not for each canary
        assert "canary.answered" in ours.logs()


async def test_a_webhook_that_fails_closed_is_named_with_its_cause(
    api: ApiClient, control_plane: LocalCluster, registry: EmbeddedRegistry, tmp_path: Path
) -> None:
    """The log has what the API server says of the call."""
    async with running(api, control_plane, registry, tmp_path, {}) as ours:
        await ours.until("patched")
        await ours.change(port=free_port(), failure_policy="Fail")
        await ours.until("webhook_failed")
        assert 'failed calling webhook \\"pods.' in ours.logs()
        assert "connection refused" in ours.logs()
        await ours.change(port=ours.port)
        await ours.until("patched")


@pytest.mark.parametrize("chosen", [pytest.param(OPT_IN, id="opt-in"), pytest.param(ALONE, id="second scheduler")])
async def test_the_namespace_of_canaries_has_the_labels_that_the_webhook_wants(
    api: ApiClient, control_plane: LocalCluster, registry: EmbeddedRegistry, tmp_path: Path, chosen: Mapping[str, Any]
) -> None:
    """Where namespaces opt in, and where they choose the second scheduler."""
    async with running(api, control_plane, registry, tmp_path, chosen) as ours:
        await ours.until("patched")


async def test_our_account_creates_pods_as_dry_runs_only_and_nowhere_else(
    api: ApiClient, control_plane: LocalCluster, registry: EmbeddedRegistry, tmp_path: Path
) -> None:
    """Policies hold it to dry runs, its role to the namespace, and the namespace to restricted pods.

    Of two policies that refuse, the API server names either.
    """
    async with (
        recording(control_plane) as (_, server),
        installed(api, control_plane, server, registry, tmp_path, {}),
        connect(_with_token_of(tmp_path / "account.kubeconfig", control_plane)) as account,
    ):
        space = f"{NAME}-canary"
        made = _restricted("made", space)
        path = f"/api/v1/namespaces/{space}/pods"
        async with asyncio.timeout(WAIT_SECONDS):
            while "as dry runs" not in (said := await _refusal(account, path, made)):
                if said == "allowed":  # the policy is at work a moment after it is there
                    await api.delete("Pod", "made", space)
                await asyncio.sleep(0.1)
        assert await _refusal(account, f"{path}?dryRun=All", made) == "allowed"
        gated = {**made, "spec": {**made["spec"], "schedulingGates": [{"name": GATE}]}}
        assert "as dry runs" in await _refusal(account, path, gated)
        assert "PodSecurity" in await _refusal(account, f"{path}?dryRun=All", pod("made", "a:1", namespace=space))
        elsewhere = "/api/v1/namespaces/default/pods?dryRun=All"
        assert "forbidden" in await _refusal(account, elsewhere, _restricted("made", "default"))
        with pytest.raises(ApiError, match="404"):
            await api.get("Pod", "made", space)


def _with_token_of(account: Path, control_plane: LocalCluster) -> Path:
    """A kubeconfig that leads to the API server itself, as this account."""
    kubeconfig: dict[str, Any] = msgspec.yaml.decode(control_plane.kubeconfig.read_bytes())
    kubeconfig["users"] = msgspec.yaml.decode(account.read_bytes())["users"]
    file = account.with_name("direct.kubeconfig")
    file.touch(mode=0o600)
    file.write_bytes(msgspec.yaml.encode(kubeconfig))
    return file


def _restricted(name: str, space: str) -> Any:
    """A pod that the Pod Security standard `restricted` admits."""
    context = {
        "allowPrivilegeEscalation": False,
        "runAsNonRoot": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    containers = [{"name": "app", "image": "registry.example.com/app:1", "securityContext": context}]
    return pod(name, "registry.example.com/app:1", namespace=space, spec={"containers": containers})


async def _refusal(account: ApiClient, path: str, made: Any) -> str:
    """What the API server says against the pod; `allowed` if nothing."""
    try:
        await account.request("POST", path, made)
    except ApiError as exc:
        return str(exc)
    return "allowed"
