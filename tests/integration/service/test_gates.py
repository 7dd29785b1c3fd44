"""When the service holds pods that are being created, and lets them go: only while somebody provably removes gates."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from extender.cluster.views import PODS
from extender.config.tree import GateConfig
from extender.placement.gate import GATE, GATED_LABEL
from extender.service.gates import START_SECONDS
from testbed.embedded_registry import EmbeddedRegistry
from testbed.eventually import eventually
from tests.integration.cluster.api_server import ApiServer, Document
from tests.integration.service.caller import Caller, pod
from tests.integration.service.watching import HOLDING, checks, service_in, until_ready

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
    found: list[object] = api.find(PODS, name)["spec"]["schedulingGates"]
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


async def test_pod_is_held_while_somebody_leads_and_let_go_by_the_leader(
    api: ApiServer, registry: EmbeddedRegistry, tmp_path: Path
) -> None:
    """The webhook gates, the controller of the same process lets go; the lease is given up at the end."""
    image = f"{registry.host}/late:1"
    async with service_in(api, tmp_path, "", *HOLDING, registries=[registry.host]) as caller:
        await until_ready(caller)
        assert await is_held(caller, image)
        api.put(PODS, held(image))
        registry.add_index("late", "1", ["linux/arm64"])
        await eventually(lambda: not api.find(PODS, "p")["spec"]["schedulingGates"])
        assert lease(api)["holderIdentity"] != ""
        assert await caller.metric('multiarch_gates_removals_total{outcome="known"}') >= 1
        assert await removal(caller) == (1, 1)
    assert lease(api)["holderIdentity"] == ""


async def test_nothing_is_held_without_the_rights_to_let_go(
    api: ApiServer, registry: EmbeddedRegistry, tmp_path: Path
) -> None:
    """The service says so by its readiness, and holds pods as soon as it has the rights."""
    api.forbidden = {("patch", "pods")}
    image = f"{registry.host}/late:1"
    async with service_in(api, tmp_path, "", *HOLDING, registries=[registry.host]) as caller:
        await eventually(lambda: lease(api))
        assert not await is_held(caller, image)
        status, marks = await checks(caller, "/readyz")
        assert (status, marks["gates"]) == (503, "[-]")
        assert await removal(caller) == (1, 0)
        api.forbidden = set()
        await eventually(lambda: is_held(caller, image))
        assert (await until_ready(caller))["gates"] == "[+]"


async def test_replica_that_only_lets_pods_go_is_not_ready_while_nobody_does(api: ApiServer, tmp_path: Path) -> None:
    """A policy of the API server holds every new pod, so a rollout has to fail, and says why."""
    api.forbidden = {("patch", "pods")}
    async with service_in(api, tmp_path, "", "admission.listen=''", *HOLDING) as caller:
        await asyncio.sleep(START_SECONDS + 1)
        status, marks = await checks(caller, "/readyz")
        assert (status, marks["gates"]) == (503, "[-]")
        api.forbidden = set()
        await until_ready(caller)


async def test_replica_with_a_webhook_is_ready_without_the_rights_until_it_sees_held_pods(
    api: ApiServer, registry: EmbeddedRegistry, tmp_path: Path
) -> None:
    """Nothing is held without the rights, so reviews go on; but held pods that nobody lets go are no good start."""
    api.forbidden = {("patch", "pods")}
    async with service_in(api, tmp_path, "", *HOLDING, registries=[registry.host]) as caller:
        await asyncio.sleep(START_SECONDS + 1)
        await until_ready(caller)
        api.put(PODS, held(f"{registry.host}/late:1"))
        await eventually(lambda: checks(caller, "/readyz"), lambda found: found[0] != 200)
        assert (await checks(caller, "/readyz"))[1]["gates"] == "[-]"
        api.forbidden = set()
        await until_ready(caller)


async def test_pods_that_were_held_before_are_let_go_where_none_is_held_any_more(
    api: ApiServer, registry: EmbeddedRegistry, tmp_path: Path
) -> None:
    """Each by what is known of its image; no new pod is held, and readiness does not depend on it."""
    registry.add_index("app", "1", ["linux/arm64"])
    for name, image in (("known", "app:1"), ("unknown", "late:1")):
        api.put(PODS, held(f"{registry.host}/{image}", name=name))
    settings = ("admission.node_affinity=required", "admission.wait_seconds=0")
    async with service_in(api, tmp_path, "", *settings, registries=[registry.host]) as caller:
        assert "gates" not in await until_ready(caller)
        await eventually(lambda: not (gates_of(api, "known") or gates_of(api, "unknown")))
        assert not await is_held(caller, f"{registry.host}/late:1")
        assert await removal(caller) == (0, 1)
    assert "arm64" in str(api.find(PODS, "known")["spec"]["affinity"])
    assert "affinity" not in api.find(PODS, "unknown")["spec"]


async def test_nothing_is_watched_without_the_rights_to_let_go_where_nothing_is_held(
    api: ApiServer, tmp_path: Path
) -> None:
    """No lease, no patch, no check; pods that were held before are counted, as a watch shows them."""
    api.forbidden = {("patch", "pods")}
    first = held("registry.example.com/app:1")
    api.put(PODS, first)
    async with service_in(api, tmp_path, "127.0.0.1:0") as caller:
        assert "gates" not in await until_ready(caller)
        await eventually(lambda: [sent for sent in api.received("send") if "selfsubjectaccessreviews" in sent.path])
        assert lease(api) == {}
        await until_seen(caller, 1)
        api.put(PODS, held("registry.example.com/app:1", name="second"))
        await until_seen(caller, 2)
        api.put(PODS, first | {"spec": first["spec"] | {"schedulingGates": []}})
        api.remove(PODS, "second")
        await until_seen(caller, 0)
        assert await removal(caller) == (0, 0)
        assert [sent for sent in api.received("send") if sent.method == "PATCH"] == []


@pytest.mark.parametrize("patch", ["", "patch"], ids=["a leader", "a replica that may not let go"])
async def test_many_held_pods_are_listed_in_pages(api: ApiServer, tmp_path: Path, patch: str) -> None:
    """To count them, to let them go, and to find those without the label: no answer has them all."""
    api.forbidden = {(patch, "pods")}
    for number in range(600):
        each = held(
            "registry.invalid/late:1", name=f"held-{number}", labels={GATED_LABEL: "true"} if number % 2 else {}
        )
        each["spec"]["schedulingGates"].append({"name": "another"})
        api.put(PODS, each)
    async with service_in(api, tmp_path, "", *HOLDING) as caller:
        await until_seen(caller, 300)
        lists = [each for each in api.received("list") if each.path == PODS]
        assert all(int(each.query["limit"]) <= 250 for each in lists)
        assert "resourceVersion" not in lists[0].query, "with it an API server goes by no limit"


async def test_controller_runs_without_a_webhook(api: ApiServer, registry: EmbeddedRegistry, tmp_path: Path) -> None:
    """A policy of the API server holds the pods, and there is no port to call but the operations'."""
    registry.add_index("app", "1", ["linux/amd64"])
    api.put(PODS, held(f"{registry.host}/app:1"))
    alone = ("admission.listen=''", *HOLDING)
    async with service_in(api, tmp_path, "", *alone, registries=[registry.host]) as caller:
        await eventually(lambda: not api.find(PODS, "p")["spec"]["schedulingGates"])
        assert caller.service.admission_url == ""
