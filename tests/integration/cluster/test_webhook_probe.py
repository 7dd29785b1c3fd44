"""What one canary tells of the webhook, by what the API server answers."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from extender.cluster.client import ClusterClient
from extender.cluster.webhook_probe import ProbeOutcome, probe_webhook
from extender.placement.dry_run_mark import mark_canary
from extender.placement.gate import GATE
from extender.placement.policy import CANARY
from testbed.clock import Clock
from tests.integration.cluster.api_server import ApiServer, Document, Refusal

SPACE = "ours-canary"
TOKEN = "a-token-that-nobody-else-may-see"
FAILED = (
    'Internal error occurred: failed calling webhook "pods.ours.multiarch-extender.io": failed to call webhook: Post '
    f'"https://ours.multiarch-extender.svc:443/admission/pods/{TOKEN}?timeout=3s": dial tcp 10.0.0.1:443: connect: '
    "connection refused"
)
DENIED = 'admission webhook "a" denied the request: failed calling webhook'


def marking(*installations: str) -> Callable[[Document], Document]:
    def admit(pod: Document) -> Document:
        for installation in installations:
            patch = mark_canary(pod["metadata"]["annotations"], installation)
            assert patch
            pod["metadata"]["annotations"][CANARY] = json.loads(patch)[0]["value"]
        return pod

    return admit


def gated(pod: Document) -> Document:
    """Admission by the policy that holds pods, without the webhook."""
    return pod | {"spec": pod["spec"] | {"schedulingGates": [{"name": GATE}]}}


async def probe(client: ClusterClient) -> Any:
    return await probe_webhook(client, SPACE, SPACE, nonce="n-1", clock=Clock())


async def test_a_marked_pod_shows_that_the_webhook_is_reached(api: ApiServer, client: ClusterClient) -> None:
    """It is sent as a dry run to that namespace, and comes back as others left it too."""
    api.admit = marking("another", SPACE)
    result = await probe(client)
    assert (result.outcome, result.detail) == (ProbeOutcome.PATCHED, "")
    assert result.pod["metadata"]["annotations"][CANARY].startswith("n-1 ")
    (request,) = api.received("send")
    assert (request.path, request.query) == (f"/api/v1/namespaces/{SPACE}/pods", {"dryRun": "All"})
    (container,) = json.loads(request.body)["spec"]["containers"]
    assert container["securityContext"]["runAsNonRoot"]
    assert container["resources"]["limits"]


@pytest.mark.parametrize(
    ("admit", "words"),
    [
        (None, "came back unmarked"),
        (gated, "came back unmarked"),
        (marking("another"), "marked only by the webhooks of 1 other"),
    ],
    ids=["nobody", "a policy", "another installation"],
)
async def test_a_pod_without_our_mark_shows_that_it_is_not(
    api: ApiServer, client: ClusterClient, admit: Callable[[Document], Document] | None, words: str
) -> None:
    """What policies and other installations did to the pod is no sign of our webhook."""
    api.admit = admit
    result = await probe(client)
    assert (result.outcome, result.pod["kind"]) == (ProbeOutcome.UNPATCHED, "Pod")
    assert words in result.detail
    assert SPACE in result.detail


@pytest.mark.parametrize(
    ("code", "message", "outcome", "words"),
    [
        pytest.param(500, FAILED, "webhook_failed", "connection refused", id="failed webhook"),
        pytest.param(403, 'pods is forbidden: User "x" cannot create', "refused", "cannot create", id="right"),
        pytest.param(404, 'namespaces "x" not found', "refused", "not found", id="namespace"),
        pytest.param(403, DENIED, "refused", "denied", id="denial"),
        pytest.param(500, "etcdserver: request timed out", "refused", "etcdserver", id="other 500"),
    ],
)
async def test_a_refusal_is_told_in_the_api_servers_words(
    api: ApiServer, client: ClusterClient, code: int, message: str, outcome: str, words: str
) -> None:
    """All of them, but for the path of the webhook, in which a token may be."""
    api.refusals.append(("send", Refusal(code, message)))
    result = await probe(client)
    assert (result.outcome, result.pod) == (outcome, None)
    assert words in result.detail
    assert str(code) in result.detail
    assert TOKEN not in result.detail


async def test_an_api_server_that_does_not_answer_tells_nothing(api: ApiServer, client: ClusterClient) -> None:
    """Neither of the webhook nor of rights."""
    await api.stop()
    result = await probe(client)
    assert result.outcome is ProbeOutcome.UNREACHABLE
    assert result.detail
