"""What the probe shows of webhook and policy, by what comes back of it."""

import json

import pytest

from extender.cluster.client import ClusterClient, ClusterRefused
from extender.cluster.probe import is_held, is_reviewed, send_probe
from extender.kubernetes.documents import value_at
from extender.placement.annotations import ADDED, REASON
from extender.placement.gate import GATE, GATED, GATED_LABEL
from testbed.chart import POLICIES
from tests.integration.cluster.api_server import ApiServer, Document, Refusal

SPACE = "shop"


async def test_it_is_a_dry_run_that_the_standard_restricted_admits(api: ApiServer, client: ClusterClient) -> None:
    """And it comes back as others left it."""
    api.admit = lambda pod: pod | {"metadata": pod["metadata"] | {"name": "a"}}
    assert value_at(await send_probe(client, SPACE), "metadata", "name") == "a"
    (request,) = api.received("send")
    assert (request.path, request.query) == (f"/api/v1/namespaces/{SPACE}/pods", {"dryRun": "All"})
    (container,) = json.loads(request.body)["spec"]["containers"]
    assert container["securityContext"]["runAsNonRoot"]
    assert container["resources"]["limits"]


async def test_a_refusal_is_raised(api: ApiServer, client: ClusterClient) -> None:
    api.refusals.append(("send", Refusal(403, "pods is forbidden")))
    with pytest.raises(ClusterRefused, match="forbidden"):
        await send_probe(client, SPACE)


def came_back(*, gates: int = 0, label: bool = False, **annotations: str) -> Document:
    labels = {GATED_LABEL: GATED} if label else {}
    metadata = {
        "labels": labels,
        "annotations": {f"multiarch-extender.io/{key}": each for key, each in annotations.items()},
    }
    return {"metadata": metadata, "spec": {"schedulingGates": [{"name": GATE}] * gates}}


def test_it_is_held_as_the_controller_finds_pods() -> None:
    assert is_held(came_back(gates=1, label=True))
    assert not is_held(came_back(gates=1))
    assert not is_held(came_back(label=True))


def test_it_is_reviewed_if_the_webhook_says_something_of_it() -> None:
    """Which names the image, or adds something. The policy's reason is a constant."""
    image = "image multiarch-extender.invalid/probe:1 is not known (unavailable)"
    assert is_reviewed(came_back(reason=image))
    assert is_reviewed(came_back(added="{}"))
    assert not is_reviewed(came_back())
    assert not is_reviewed({})
    assert (REASON, ADDED) == ("multiarch-extender.io/reason", "multiarch-extender.io/added")
    of_policy = "the platforms of its images are not looked up yet; the pod is held until they are known"
    assert of_policy in (POLICIES / "gate.yaml").read_text()
    assert not is_reviewed(came_back(reason=of_policy, gates=1, label=True))
