"""When the API server's policy that holds pods is put into force: last of all, and only while pods are let go."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from extender.cluster.client import open_cluster
from extender.cluster.probe import PROBE_LABELS
from extender.gates.policy_binding import PolicyBinding
from extender.placement.gate import GATE, GATED, GATED_LABEL
from tests.integration.cluster.api_server import ApiServer, Document, Refusal, serve_api, write_kubeconfig

pytestmark = pytest.mark.usefixtures("simulated_time")
GROUP = "/apis/admissionregistration.k8s.io/v1"
BINDINGS = f"{GROUP}/mutatingadmissionpolicybindings"
NAME, SPACE = "ours-gate", "default"
PROBES_ALONE = {"objectSelector": {"matchLabels": PROBE_LABELS}}


def held(pod: Document) -> Document:
    """Admission by the policy."""
    metadata = pod["metadata"] | {"labels": {GATED_LABEL: GATED}}
    return pod | {"metadata": metadata, "spec": pod["spec"] | {"schedulingGates": [{"name": GATE}]}}


def binding(matched: Document) -> Document:
    return {"metadata": {"name": NAME}, "spec": {"policyName": NAME, "matchResources": matched}}


class Binding:
    """The policy's binding on a server, and a process that puts it into force."""

    def __init__(self, api: ApiServer) -> None:
        self.api = api
        self.lets_go = False

    async def later(self) -> Any:
        """What the binding matches after some minutes; None without a binding, {} if it matches everything."""
        await asyncio.sleep(300)
        found = self.api.objects(BINDINGS).get(NAME)
        return found and (found["spec"].get("matchResources") or {})


@pytest.fixture
async def policy(tmp_path: Path) -> AsyncIterator[Binding]:
    async with serve_api() as api:
        api.put(BINDINGS, binding(PROBES_ALONE))
        found = Binding(api)
        client = await open_cluster(
            "kubeconfig", str(write_kubeconfig(api, tmp_path)), clock=asyncio.get_running_loop().time
        )
        task = asyncio.create_task(PolicyBinding(client, NAME, SPACE, can_ungate=lambda: found.lets_go).run())
        yield found
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await client.close()


async def test_while_nobody_lets_pods_go_the_policy_is_for_probes_alone(policy: Binding) -> None:
    policy.api.admit = held
    policy.api.refusals += [("get", Refusal(503))] * 3  # after which it goes on
    assert await policy.later() == PROBES_ALONE
    policy.lets_go = True
    assert await policy.later() == {}


async def test_a_binding_that_is_applied_again_is_opened_again(policy: Binding) -> None:
    """A rollback of Helm, for one, has it as it was at first."""
    policy.api.admit = held
    policy.lets_go = True
    assert await policy.later() == {}
    policy.api.put(BINDINGS, binding(PROBES_ALONE))
    assert await policy.later() == {}


async def test_a_binding_that_is_not_there_is_not_made(policy: Binding) -> None:
    """Whoever deletes it takes the policy out of force."""
    policy.api.remove(BINDINGS, NAME)
    policy.api.admit = held
    policy.lets_go = True
    assert await policy.later() is None


async def test_the_policy_is_for_probes_alone_until_one_was_held_as_the_controller_finds_pods(policy: Binding) -> None:
    policy.lets_go = True
    assert await policy.later() == PROBES_ALONE
    policy.api.admit = lambda pod: pod | {"spec": pod["spec"] | {"schedulingGates": [{"name": GATE}]}}  # not labelled
    assert await policy.later() == PROBES_ALONE
    policy.api.admit = held
    assert await policy.later() == {}
    sent = [request for request in policy.api.received("send") if "dryRun" in request.query]
    assert {request.path for request in sent} == {f"/api/v1/namespaces/{SPACE}/pods"}
    assert all(msgspec.json.decode(request.body)["metadata"]["labels"] == PROBE_LABELS for request in sent)


async def test_a_policy_that_is_in_force_stays_so(policy: Binding) -> None:
    """Nothing here takes it out: it is out when it is deleted."""
    policy.api.put(BINDINGS, binding({}))
    assert await policy.later() == {}
    policy.lets_go = True
    assert await policy.later() == {}
    assert policy.api.received("send") == []
