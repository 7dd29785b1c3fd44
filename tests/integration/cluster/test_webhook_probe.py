"""What one canary tells of the webhook, by what the API server answers."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from extender.cluster.client import open_cluster
from extender.cluster.webhook_probe import ProbeOutcome, ProbeResult, probe_webhook
from extender.placement.dry_run_mark import mark_canary
from extender.placement.gate import GATE
from extender.placement.policy import CANARY
from testbed.clock import Clock
from tests.integration.cluster.api_server import ApiServer, Document, Refusal, serve_api, write_kubeconfig

SPACE = "ours-canary"
TOKEN = "a-token-that-nobody-else-may-see"
FAILED = (
    'Internal error occurred: failed calling webhook "pods.ours.multiarch-extender.io": failed to call webhook: Post '
    f'"https://ours.multiarch-extender.svc:443/admission/pods/{TOKEN}?timeout=3s": dial tcp 10.0.0.1:443: connect: '
    "connection refused"
)


def marking(*installations: str) -> Any:
    def admit(pod: Document) -> Document:
        for installation in installations:
            patch = mark_canary(pod["metadata"]["annotations"], installation)
            assert patch
            pod["metadata"]["annotations"][CANARY] = json.loads(patch)[0]["value"]
        return pod

    return admit


@asynccontextmanager
async def probed(folder: Path) -> AsyncIterator[tuple[ApiServer, Any]]:
    async with serve_api() as api:
        client = await open_cluster("kubeconfig", str(write_kubeconfig(api, folder)))
        clock = Clock()

        async def probe() -> ProbeResult:
            return await probe_webhook(client, SPACE, SPACE, nonce="n-1", clock=clock)

        try:
            yield api, probe
        finally:
            await client.close()


async def test_a_marked_pod_shows_that_the_webhook_is_reached(tmp_path: Path) -> None:
    """It is sent as a dry run to that namespace, and comes back as others left it too."""
    async with probed(tmp_path) as (api, probe):
        api.admit = marking("another", SPACE)
        result = await probe()
        assert (result.outcome, result.detail) == (ProbeOutcome.PATCHED, "")
        assert result.pod["metadata"]["annotations"][CANARY].startswith("n-1 ")
        (request,) = api.received("send")
        assert (request.path, request.query) == (f"/api/v1/namespaces/{SPACE}/pods", {"dryRun": "All"})
        (container,) = json.loads(request.body)["spec"]["containers"]
        assert container["securityContext"]["runAsNonRoot"]
        assert container["resources"]["limits"]


def gated(pod: Document) -> Document:
    """Admission by the policy that holds pods, without the webhook."""
    return pod | {"spec": pod["spec"] | {"schedulingGates": [{"name": GATE}]}}


@pytest.mark.parametrize(
    ("admit", "words"),
    [
        pytest.param(None, "came back unmarked", id="nobody"),
        pytest.param(gated, "came back unmarked", id="a policy"),
        pytest.param(marking("another"), "marked only by the webhooks of 1 other", id="another installation"),
    ],
)
async def test_a_pod_without_our_mark_shows_that_it_is_not(tmp_path: Path, admit: Any, words: str) -> None:
    """What policies and other installations did to the pod is no sign of our webhook."""
    async with probed(tmp_path) as (api, probe):
        api.admit = admit
        result = await probe()
        assert result.outcome is ProbeOutcome.UNPATCHED
        assert words in result.detail
        assert SPACE in result.detail
        assert result.pod["kind"] == "Pod"


@pytest.mark.parametrize(
    ("refusal", "outcome", "words"),
    [
        pytest.param(Refusal(500, FAILED), "webhook_failed", "connection refused", id="failed webhook"),
        pytest.param(Refusal(403, 'pods is forbidden: User "x" cannot create'), "refused", "cannot create", id="right"),
        pytest.param(Refusal(404, 'namespaces "x" not found'), "refused", "not found", id="namespace"),
        pytest.param(
            Refusal(403, 'admission webhook "a" denied the request: failed calling webhook'), "refused", "denied",
            id="denial",
        ),
        pytest.param(Refusal(500, "etcdserver: request timed out"), "refused", "etcdserver", id="other 500"),
    ],
)  # fmt: skip
async def test_a_refusal_is_told_in_the_api_servers_words(
    tmp_path: Path, refusal: Refusal, outcome: str, words: str
) -> None:
    """All of them, but for the path of the webhook, in which a token may be."""
    async with probed(tmp_path) as (api, probe):
        api.refusals.append(("send", refusal))
        result = await probe()
        assert result.outcome == outcome
        assert words in result.detail
        assert str(refusal.code) in result.detail
        assert TOKEN not in result.detail
        assert result.pod is None


async def test_an_api_server_that_does_not_answer_tells_nothing(tmp_path: Path) -> None:
    """Neither of the webhook nor of rights."""
    async with serve_api() as stopped:
        pass
    client = await open_cluster("kubeconfig", str(write_kubeconfig(stopped, tmp_path)))
    try:
        result = await probe_webhook(client, SPACE, SPACE, nonce="n-1", clock=Clock())
    finally:
        await client.close()
    assert result.outcome is ProbeOutcome.UNREACHABLE
    assert result.detail
