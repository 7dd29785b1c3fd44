"""When the service holds pods that are being created, and lets them go: only while somebody provably removes gates."""

import asyncio
from typing import Any

import pytest

from extender.cluster.views import PODS
from extender.config.tree import GateConfig
from extender.placement.gate import GATE, GATED_LABEL
from extender.service.gates import START_SECONDS
from testbed.eventually import eventually
from tests.integration.cluster.api_server import ApiServer, Document
from tests.integration.service.caller import Caller, pod
from tests.integration.service.conftest import HOLDING, Cluster

pytestmark = pytest.mark.usefixtures("simulated_time")

LEASE = GateConfig().lease
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"


def held(image: str, **metadata: object) -> Document:
    """A pod that our gate holds."""
    made = pod(image, **{"labels": {GATED_LABEL: "true"}, **metadata})
    made["spec"]["schedulingGates"] = [{"name": GATE}]
    return made | {"status": {"phase": "Pending"}}


async def is_held(caller: Caller, image: str) -> bool:
    answer = await caller.review(pod(image))
    return any(GATE in str(operation.get("value")) for operation in answer.get("patch", []))


def gates_of(api: ApiServer, name: str) -> list[object]:
    found: list[object] = api.find(PODS, name)["spec"].get("schedulingGates", [])
    return found


def lease(api: ApiServer) -> dict[str, Any]:
    """The Lease's spec as the API server has it; empty if there is none."""
    found: dict[str, Any] = api.objects(LEASES).get(LEASE, {}).get("spec", {})
    return found


async def removal(caller: Caller) -> tuple[float, float]:
    """Whether the replica is to hold pods, and whether it sees that somebody lets them go, as its metrics say."""
    wanted, able = [await caller.metric(f'multiarch_gates_removal{{state="{state}"}}') for state in ("wanted", "able")]
    return wanted, able


async def until_seen(caller: Caller, count: int) -> None:
    await eventually(lambda: caller.metric('multiarch_gates_pods{state="seen"}'), lambda found: found == count)


async def test_pod_is_held_while_somebody_leads_and_let_go_by_the_leader(cluster: Cluster) -> None:
    """The webhook gates, the controller of the same process lets go; the lease is given up at the end."""
    image = f"{cluster.registry.host}/late:1"
    async with cluster.service(*HOLDING) as caller:
        await caller.until_ready()
        assert await is_held(caller, image)
        cluster.api.put(PODS, held(image))
        cluster.registry.add_index("late", "1", ["linux/arm64"])
        await eventually(lambda: not cluster.api.find(PODS, "p")["spec"].get("schedulingGates"))
        assert lease(cluster.api)["holderIdentity"] != ""
        assert await caller.metric('multiarch_gates_removals_total{outcome="known"}') >= 1
        assert await removal(caller) == (1, 1)
    assert lease(cluster.api)["holderIdentity"] == ""


async def test_nothing_is_held_without_the_rights_to_let_go(cluster: Cluster) -> None:
    """The service says so by its readiness, and holds pods as soon as it has the rights."""
    cluster.api.faults.deny("patch", "pods")
    image = f"{cluster.registry.host}/late:1"
    async with cluster.service(*HOLDING) as caller:
        await asyncio.sleep(START_SECONDS - 1)
        assert not await is_held(caller, image)
        status, marks = await caller.checks("/readyz")
        assert (status, marks["gates"]) == (503, "[-]")
        assert await removal(caller) == (1, 0)
        assert lease(cluster.api) == {}
        cluster.api.faults.deny("patch", "pods", on=False)
        await eventually(lambda: is_held(caller, image))
        assert (await caller.until_ready())["gates"] == "[+]"


async def test_replica_that_only_lets_pods_go_is_not_ready_while_nobody_does(cluster: Cluster) -> None:
    """A policy of the API server holds every new pod, so a rollout has to fail, and says why."""
    cluster.api.faults.deny("patch", "pods")
    async with cluster.service("admission.listen=''", *HOLDING) as caller:
        await asyncio.sleep(START_SECONDS + 1)
        status, marks = await caller.checks("/readyz")
        assert (status, marks["gates"]) == (503, "[-]")
        cluster.api.faults.deny("patch", "pods", on=False)
        await caller.until_ready()


async def test_replica_with_a_webhook_is_ready_without_the_rights_until_it_sees_held_pods(cluster: Cluster) -> None:
    """Nothing is held without the rights, so reviews go on; but held pods that nobody lets go are no good start."""
    cluster.api.faults.deny("patch", "pods")
    async with cluster.service(*HOLDING) as caller:
        await asyncio.sleep(START_SECONDS + 1)
        await caller.until_ready()
        cluster.api.put(PODS, held(f"{cluster.registry.host}/late:1"))
        await eventually(lambda: caller.checks("/readyz"), lambda found: found[0] != 200)
        assert (await caller.checks("/readyz"))[1]["gates"] == "[-]"
        cluster.api.faults.deny("patch", "pods", on=False)
        await caller.until_ready()


async def test_pods_that_were_held_before_are_let_go_where_none_is_held_any_more(cluster: Cluster) -> None:
    """Each by what is known of its image; no new pod is held, and readiness does not depend on it."""
    cluster.registry.add_index("app", "1", ["linux/arm64"])
    for name, image in (("known", "app:1"), ("unknown", "late:1")):
        cluster.api.put(PODS, held(f"{cluster.registry.host}/{image}", name=name))
    settings = ("admission.node_affinity=required", "admission.wait_seconds=0")
    async with cluster.service(*settings) as caller:
        assert "gates" not in await caller.until_ready()
        await eventually(lambda: not (gates_of(cluster.api, "known") or gates_of(cluster.api, "unknown")))
        assert not await is_held(caller, f"{cluster.registry.host}/late:1")
        assert await removal(caller) == (0, 1)
    assert "arm64" in str(cluster.api.find(PODS, "known")["spec"]["affinity"])
    assert "affinity" not in cluster.api.find(PODS, "unknown")["spec"]


async def test_nothing_is_watched_without_the_rights_to_let_go_where_nothing_is_held(cluster: Cluster) -> None:
    """No lease, no patch, no check; pods that were held before are counted, as a watch shows them."""
    cluster.api.faults.deny("patch", "pods")
    first = held("registry.example.com/app:1")
    cluster.api.put(PODS, first)
    async with cluster.service(listen="127.0.0.1:0") as caller:
        assert "gates" not in await caller.until_ready()
        await eventually(lambda: "selfsubjectaccessreviews" in str(cluster.api.received("send")))
        assert lease(cluster.api) == {}
        await until_seen(caller, 1)
        cluster.api.put(PODS, held("registry.example.com/app:1", name="second"))
        await until_seen(caller, 2)
        cluster.api.put(PODS, first | {"spec": first["spec"] | {"schedulingGates": []}})
        cluster.api.remove(PODS, "second")
        await until_seen(caller, 0)
        assert await removal(caller) == (0, 0)
        assert [sent for sent in cluster.api.received("send") if sent.method == "PATCH"] == []


@pytest.mark.parametrize("patch", ["", "patch"], ids=["a leader", "a replica that may not let go"])
async def test_many_held_pods_are_listed_in_pages(cluster: Cluster, patch: str) -> None:
    """To count them, to let them go, and to find those without the label: no answer has them all."""
    if patch:
        cluster.api.faults.deny(patch, "pods")
    for number in range(600):
        each = held(
            "registry.invalid/late:1", name=f"held-{number}", labels={GATED_LABEL: "true"} if number % 2 else {}
        )
        each["spec"]["schedulingGates"].append({"name": "another"})
        cluster.api.put(PODS, each)
    async with cluster.service(*HOLDING) as caller:
        await until_seen(caller, 300)
        lists = [each for each in cluster.api.received("list") if each.path == PODS]
        assert all(int(each.query["limit"]) <= 250 for each in lists)
        assert "resourceVersion" not in lists[0].query, "with it an API server goes by no limit"


async def test_controller_runs_without_a_webhook(cluster: Cluster) -> None:
    """A policy of the API server holds the pods, and there is no port to call but the operations'."""
    cluster.registry.add_index("app", "1", ["linux/amd64"])
    cluster.api.put(PODS, held(f"{cluster.registry.host}/app:1"))
    alone = ("admission.listen=''", *HOLDING)
    async with cluster.service(*alone) as caller:
        await eventually(lambda: not cluster.api.find(PODS, "p")["spec"].get("schedulingGates"))
        assert caller.service.admission_url == ""
