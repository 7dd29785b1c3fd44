"""What a replica does while nothing happens: its requests to the API server, and how often it wakes up."""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack

import pytest

from testbed.memory_network import MemoryLoop
from tests.integration.cluster.api_server import ApiServer, Request
from tests.integration.service.conftest import Cluster

CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
HOLDING = (
    "admission.tls={self_managed: [multiarch-webhook]}",
    "admission.unknown=gate",
    "admission.node_affinity=required",
)
EVERYTHING = (*HOLDING, "admission.gate.policy=missing")
PASSING = (*HOLDING, "admission.unknown=pass")
WARM_UP_MINUTES, MINUTES = 2, 6
ASKED, WRITTEN, TIMERS = 45, 30, 2.2
"""The most requests a minute, writes among them, and timers a second, of one replica; aiohttp's pools have some."""


async def minutes(api: ApiServer, count: int) -> list[Request]:
    """The requests of so many minutes."""
    api.requests.clear()
    await asyncio.sleep(60 * count)
    return list(api.requests)


@pytest.mark.parametrize(
    ("settings", "listen", "replicas", "may_let_go", "leads"),
    [
        (HOLDING, "", 1, True, True),
        (EVERYTHING, "127.0.0.1:0", 1, True, True),
        (PASSING, "", 1, True, True),
        (HOLDING, "", 1, False, False),
        (PASSING, "", 1, False, False),
        (HOLDING, "", 2, True, True),
    ],
    ids=["gates", "everything", "only letting go", "may not let go", "need not let go", "leader and standby"],
)
async def test_idle_replicas_ask_and_write_little(
    cluster: Cluster,
    simulated_time: MemoryLoop,
    settings: tuple[str, ...],
    listen: str,
    replicas: int,
    *,
    may_let_go: bool,
    leads: bool,
) -> None:
    """With a certificate. Who may not let pods go looks for its rights again, and not all the time."""
    webhooks = [{"name": "pods.example.com", "clientConfig": {"url": "https://webhook.example.com"}}]
    cluster.api.put(CONFIGURATIONS, {"metadata": {"name": "multiarch-webhook"}, "webhooks": webhooks})
    if not may_let_go:
        for verb in ("get", "list", "watch", "patch"):
            cluster.api.faults.deny(verb, "pods")
    async with AsyncExitStack() as stack:
        for _ in range(replicas):
            await stack.enter_async_context(cluster.service(*settings, listen=listen))
        await minutes(cluster.api, WARM_UP_MINUTES)
        timers = simulated_time.timers
        requests = await minutes(cluster.api, MINUTES)
        timers = simulated_time.timers - timers
    counted = Counter(f"{each.kind} {each.method} {each.path}" for each in requests)
    assert any(name.startswith("send PATCH ") and "/leases/" in name for name in counted) is leads
    assert len(requests) <= ASKED * MINUTES * replicas, counted
    assert sum(each.method != "GET" for each in requests) <= WRITTEN * MINUTES * replicas, counted
    assert timers <= TIMERS * 60 * MINUTES * replicas
