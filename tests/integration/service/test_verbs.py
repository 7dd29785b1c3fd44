"""The scheduler verbs over HTTP: the fields of the answers, waiting, nodes that are not in view, and who is left alone.

What is decided about nodes, in both forms of requests, is told of the decision itself.
"""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Callable

import msgspec
import pytest

from extender.images.platform import Platform
from extender.kubernetes.core_v1 import NodeName
from extender.placement.nodes import ClusterNodes, NodePlatforms
from extender.resolver.pod_resolver import PodResolver
from testbed.eventually import eventually
from testbed.faulty_registry import HoldingRegistry
from testbed.images import Manifest, build_index
from tests.integration.service.caller import (
    AMD64,
    ARM64,
    NODES,
    Caller,
    Json,
    kept,
    pod,
    victims,
    with_names,
    with_nodes,
)
from tests.integration.service.conftest import StartService, World
from tests.unit.placement.json_patch import apply

pytestmark = pytest.mark.usefixtures("simulated_time")

Form = Callable[[Json], Json]
FORMS = pytest.mark.parametrize("form", [with_nodes, with_names], ids=["whole nodes", "node names"])
KEYS = {"Nodes", "NodeNames", "FailedNodes", "FailedAndUnresolvableNodes", "Error"}


class View:
    """A view of the four nodes without those that are `late`."""

    def __init__(self, *late: str, synced: bool = True) -> None:
        self.synced = synced
        self.platforms = NodePlatforms()
        self.see(*(name for name in "abcd" if name not in late))

    def see(self, *names: str) -> None:
        """These nodes come into view."""
        for name in names:
            self.platforms.put(NodeName(name), Platform("linux", "arm64" if name in "bd" else "amd64"))

    def known(self) -> ClusterNodes:
        return ClusterNodes(self.platforms.distinct) if self.synced else ClusterNodes()


@pytest.fixture
async def caller(world: World) -> Caller:
    """A service with a node view that knows the images' registry."""
    return await world.serve(nodes=View())


@FORMS
async def test_answer_has_every_field_in_the_requests_form(caller: Caller, world: World, form: Form) -> None:
    """Refused nodes carry the reason where preemption will not look; the kept ones are in the request's own form."""
    result = await caller.filter(form(world.pod("amd:1")))
    reason = f"image {world.host}/amd:1 is built only for linux/amd64"
    assert set(result) == KEYS
    assert (result["FailedNodes"], result["Error"]) == ({}, "")
    assert result["FailedAndUnresolvableNodes"] == {"b": reason, "d": reason}
    assert kept(result) == ["a", "c"]
    assert (result["Nodes"] is None) == (form is with_names)
    assert (result["NodeNames"] is None) == (form is with_nodes)


async def test_a_strict_preference_leaves_all_nodes_to_a_pod_that_asks_for_none(world: World) -> None:
    caller = await world.serve("placement.preference_by=filter", nodes=View())
    plain = world.pod("multi:1")
    asking = world.pod("multi:1", annotations={"multiarch-extender.io/prefer": "none"})
    assert kept(await caller.filter(with_names(plain))) == ["b", "d"]
    assert kept(await caller.filter(with_names(asking))) == ["a", "b", "c", "d"]


@pytest.mark.parametrize("settings", [["registry.deny=['*']"], ["registry.allow=['elsewhere.example']"]], ids=str)
async def test_a_pod_goes_where_its_image_is_if_nobody_may_be_asked_for_it(world: World, settings: list[str]) -> None:
    """As for an image that its registry does not have."""
    view = View()
    view.platforms.images.put(NodeName("b"), [world.image("app:1")])
    caller = await world.serve(*settings, nodes=view)
    assert kept(await caller.filter(with_names(world.pod("app:1")))) == ["b"]
    assert kept(await caller.filter(with_names(world.pod("other:1")))) == ["a", "b", "c", "d"]


async def test_a_defect_of_ours_is_answered_with_the_least_harm(
    caller: Caller, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error, after which the scheduler tries again; no score, no victim, and a pod that is as it was."""

    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(PodResolver, "question", fail)
    created = world.pod("amd:1")
    assert (await caller.filter(with_names(created)))["Error"].startswith("internal error ")
    assert await caller.prioritize(with_names(created)) == {}
    assert await caller.preempt(victims(created)) == {}
    assert (await caller.review(created))["patch"] == []


async def test_scores_are_integers_for_known_multi_arch_pods_only(caller: Caller, world: World) -> None:
    """Sparse: a node without a score is not mentioned."""
    for image in ("multi", "amd", "chart", "missing"):
        arguments = with_nodes(world.pod(f"{image}:1"))
        await caller.filter(arguments)
        assert await caller.prioritize(arguments) == ({"b": 10, "d": 10} if image == "multi" else {}), image


async def test_a_share_of_the_pods_is_drawn_once_by_webhook_and_scheduler(world: World) -> None:
    """A pod of a Deployment has no name when the webhook draws, and the webhook may be called again."""
    caller = await world.serve("admission.node_affinity=both", nodes=View())
    preferring, chosen = "preferredDuringSchedulingIgnoredDuringExecution", []
    for number in range(60):
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-1", "uid": "u", "controller": True}
        share = {"multiarch-extender.io/prefer-share": "40%"}
        stored = world.pod("multi:1", generateName="web-1-", ownerReferences=[owner], annotations=share)
        del stored["metadata"]["name"]
        for attempt in range(3):
            response = await caller.review(stored, uid=str(uuid.UUID(int=3 * number + attempt)))
            stored = apply(stored, msgspec.json.encode(response["patch"]))
        stored["metadata"]["name"] = f"web-1-{number:05x}"
        is_preferring = preferring in (stored["spec"].get("affinity") or {}).get("nodeAffinity", {})
        assert bool(await caller.prioritize(with_nodes(stored))) is is_preferring
        chosen += [number] * is_preferring
    assert 12 <= len(chosen) <= 36


async def test_preempt_keeps_victims_from_dying_for_nothing(caller: Caller, world: World) -> None:
    """Candidates that filter would refuse are taken out; all of them while an image is to be retried."""
    for image, candidates in (("multi", ["a", "b", "c"]), ("amd", ["a", "c"]), ("missing", [])):
        created = world.pod(f"{image}:1")
        await caller.filter(with_nodes(created))
        for whole in (True, False):
            answer = await caller.preempt(victims(created, whole=whole))
            assert sorted(answer) == candidates
            assert answer.get("a") == ({"Pods": [{"UID": "v"}], "NumPDBViolations": 1} if candidates else None)
            assert answer.get("c") == ({"Pods": [], "NumPDBViolations": 0} if candidates else None)


async def test_preempt_starts_the_lookup_and_evicts_nobody_meanwhile(world: World) -> None:
    """Often the first call for a pod: nothing is known, so no candidate, and the next attempt knows."""
    caller = await world.serve(nodes=View())
    created = world.pod("amd:1")
    assert await caller.preempt(victims(created)) == {}
    await caller.filter(with_nodes(created))
    assert world.registry.requests["GET manifests"] == 1
    assert sorted(await caller.preempt(victims(created))) == ["a", "c"]


async def test_without_a_cluster_the_requests_nodes_are_the_cluster(world: World) -> None:
    """Node names alone cannot be judged: an error, no scores; preempt remembers the nodes that filter was shown."""
    caller = await world.serve()
    created = world.pod("amd:1")
    assert "nodeCacheCapable: false" in (await caller.filter(with_names(created)))["Error"]
    assert await caller.prioritize(with_names(created)) == {}
    assert kept(await caller.filter(with_nodes(created))) == ["a", "c"]
    assert sorted(await caller.preempt(victims(created, whole=True))) == ["a", "c"]


async def test_view_that_has_not_synced_is_an_error_not_a_guess(world: World) -> None:
    """Before the first sync: filter answers an error, prioritize and preempt nothing; whole nodes still work."""
    caller = await world.serve(nodes=View(synced=False))
    created = world.pod("amd:1")
    assert "not known yet" in (await caller.filter(with_names(created)))["Error"]
    assert await caller.prioritize(with_names(created)) == {}
    assert await caller.preempt(victims(created)) == {}
    assert kept(await caller.filter(with_nodes(created))) == ["a", "c"]


@pytest.mark.parametrize("pending", ["retry", "assume", "pass"])
async def test_node_that_is_not_in_view_is_refused_alone_until_it_is(world: World, pending: str) -> None:
    """Whatever the settings: another node's pods do not wait for it, and nobody is evicted for it."""
    view = View("c", "d")
    caller = await world.serve(f"scheduler.pending={pending}", nodes=view)
    created = world.pod("amd:1")
    result = await caller.filter(with_names(created))
    built = f"image {world.host}/amd:1 is built only for linux/amd64"
    assert result["FailedAndUnresolvableNodes"] == {"b": built, "c": "not in view yet", "d": "not in view yet"}
    assert (kept(result), result["FailedNodes"], result["Error"]) == (["a"], {}, "")
    assert sorted(await caller.preempt(victims(created))) == ["a"]
    observed = world.pod("amd:1", annotations={"multiarch-extender.io/mode": "observe"})
    assert kept(await caller.filter(with_names(observed))) == ["a", "b", "c", "d"]
    assert kept(await caller.filter(with_names(world.pod("multi:1")))) == ["a", "b", "c", "d"]
    view.see("c", "d")
    assert kept(await caller.filter(with_names(created))) == ["a", "c"]
    assert sorted(await caller.preempt(victims(created))) == ["a", "c"]


@pytest.mark.parametrize("nodes", [None, View(synced=False)], ids=["no cluster", "not synced"])
@pytest.mark.parametrize("way", ["annotation", "setting"])
async def test_an_observed_pod_is_answered_as_it_was_asked_whatever_is_known(
    world: World, nodes: View | None, way: str
) -> None:
    caller = await world.serve(*(["placement.mode=observe"] if way == "setting" else []), nodes=nodes)
    marked = {"multiarch-extender.io/mode": "observe"} if way == "annotation" else {}
    observed = world.pod("amd:1", annotations=marked)
    result = await caller.filter(with_names(observed))
    assert (kept(result), result["Error"]) == (["a", "b", "c", "d"], "")
    assert sorted(await caller.preempt(victims(observed))) == ["a", "b", "c"]
    assert await caller.prioritize(with_names(observed)) == {}


async def test_without_a_cluster_candidates_that_nobody_has_shown_stay(world: World) -> None:
    """A full node is shown in no filter call, and would never be a candidate."""
    caller = await world.serve()
    created = world.pod("amd:1")
    await caller.filter(with_nodes(created, [node for node in NODES if node["metadata"]["name"] == "b"]))
    assert sorted(await caller.preempt(victims(created))) == ["a", "c"]


async def test_nobody_waits_for_the_image_of_an_observed_pod(
    start_service: StartService, gated: HoldingRegistry
) -> None:
    """Its lookup goes on beside the answer."""
    caller = await start_service("scheduler.wait_seconds=20", "admission.wait_seconds=20", plain_http=gated.host)
    marked = {"multiarch-extender.io/mode": "observe"}
    arguments = with_nodes(pod(f"{gated.host}/slow:1", annotations=marked))
    started = asyncio.get_running_loop().time()
    assert kept(await caller.filter(arguments)) == ["a", "b", "c", "d"]
    assert (await caller.review(arguments["Pod"]))["patch"] == []
    assert asyncio.get_running_loop().time() - started < 1
    await gated.reached.wait()
    gated.released.set()


async def test_pod_that_is_not_to_be_touched_is_not(world: World) -> None:
    """No node refused, no score, every candidate echoed, no patch."""
    caller = await world.serve("placement.runtime_classes={wasm: []}", nodes=View())
    for part, change in (
        ("metadata", {"annotations": {"multiarch-extender.io/mode": "ignore"}}),
        ("metadata", {"annotations": {"multiarch-extender.io/mode": "observe"}}),
        ("metadata", {"annotations": {"kubernetes.io/config.mirror": "x"}}),
        ("spec", {"nodeName": "b"}),
        ("spec", {"runtimeClassName": "wasm"}),
    ):
        for image in ("amd", "multi"):
            created = world.pod(f"{image}:1")
            created[part] |= change
            assert kept(await caller.filter(with_nodes(created))) == ["a", "b", "c", "d"], change
            assert await caller.prioritize(with_nodes(created)) == {}
            assert sorted(await caller.preempt(victims(created))) == ["a", "b", "c"]
            assert (await caller.review(created))["patch"] == []


async def test_a_program_for_no_node_is_not_known_under_a_runtime_class_that_settings_do_not_name(world: World) -> None:
    """It is kept off no node and gets no more than a reason; without a RuntimeClass nodes match no index."""
    world.registry.add_index("wasm", "1", ["wasi/wasm"])
    caller = await world.serve("placement.runtime_classes={spin: [wasip1/wasm]}", nodes=View())
    for name, is_known in (("wasmtime", False), ("spin", True)):
        created = world.pod("wasm:1")
        created["spec"]["runtimeClassName"] = name
        assert kept(await caller.filter(with_nodes(created))) == ["a", "b", "c", "d"], name
        assert await caller.prioritize(with_nodes(created)) == {}
        written = [each["path"] for each in (await caller.review(created))["patch"]]
        assert written == ([] if is_known else ["/metadata/annotations"]), name
    assert kept(await caller.filter(with_nodes(world.pod("wasm:1")))) == []


async def test_an_index_whose_entries_all_need_features_is_refused_on_every_node(world: World) -> None:
    """Nodes find nothing in it to pull; it is no artifact."""
    bundle = build_index([AMD64, ARM64])
    document = json.loads(bundle.manifests[-1].body)
    for entry in document["manifests"]:
        entry["platform"]["os.features"] = ["erofs"]
    index = Manifest(bundle.manifests[-1].media_type, json.dumps(document).encode())
    world.registry.add("erofs", "1", bundle._replace(manifests=(*bundle.manifests[:-1], index)))
    caller = await world.serve(nodes=View())
    answer = await caller.filter(with_nodes(world.pod("erofs:1")))
    assert kept(answer) == []
    said = f"image {world.image('erofs:1')} is not built for any node (its entries need os.features)"
    assert set(answer["FailedAndUnresolvableNodes"].values()) == {said}
    assert await caller.prioritize(with_nodes(world.pod("erofs:1"))) == {}
    assert "no-common-platform" in str((await caller.review(world.pod("erofs:1")))["patch"])


async def test_odd_pods_are_answered_and_what_is_no_request_is_refused_with_a_reason(caller: Caller) -> None:
    """Missing keys and nulls are legal; a pod without images constrains nothing. The service lives on."""
    for verb in ("filter", "prioritize", "preempt"):
        for body in (b"", b"[]", b'{"Pod":3}', b"\xff", b'{"Nodes":null,"NodeNames":null}'):
            async with caller.session.post(f"{caller.service.scheduler_url}/scheduler/{verb}", data=body) as response:
                assert response.status == 400
                assert (await response.json())["error"]
    for odd in ({}, {"metadata": None, "spec": None}, {"spec": {"containers": [], "future": {"x": 1}}}):
        assert kept(await caller.filter(with_names(odd))) == ["a", "b", "c", "d"]
        assert await caller.prioritize(with_nodes(odd)) == {}


@pytest.fixture
async def gated() -> AsyncIterator[HoldingRegistry]:
    """A registry with the image `slow` (amd64-only), held, and `amd`, free."""
    async with HoldingRegistry("/slow/") as opened:
        opened.add_manifest("slow", "1", AMD64)
        opened.add_manifest("amd", "1", AMD64)
        yield opened


async def test_lookup_that_takes_too_long_goes_on_and_serves_the_next_try(
    start_service: StartService, gated: HoldingRegistry
) -> None:
    """The first answer is an error that names the image; the lookup is not asked twice and its end is remembered."""
    caller = await start_service("scheduler.wait_seconds=0", plain_http=gated.host)
    arguments = with_nodes(pod(f"{gated.host}/slow:1"))
    result = await caller.filter(arguments)
    assert f"{gated.host}/slow:1" in result["Error"]
    await gated.reached.wait()
    assert (await caller.filter(arguments))["Error"]
    gated.released.set()
    result = await eventually(lambda: caller.filter(arguments), lambda result: not result["Error"])
    assert (kept(result), gated.requests["GET manifests"]) == (["a", "c"], 1)


async def test_nodes_that_are_all_refused_are_refused_without_waiting(
    start_service: StartService, gated: HoldingRegistry
) -> None:
    """One image is known to run on no asked node: the other's lookup, which never ends here, is not waited for."""
    caller = await start_service(plain_http=gated.host)
    known = pod(f"{gated.host}/amd:1")
    await caller.filter(with_nodes(known))
    arm_only = [item for item in NODES if item["status"]["nodeInfo"]["architecture"] == "arm64"]
    began_at = asyncio.get_running_loop().time()
    result = await caller.filter(with_nodes(pod(f"{gated.host}/slow:1", f"{gated.host}/amd:1"), arm_only))
    assert asyncio.get_running_loop().time() - began_at < 1
    assert (kept(result), list(result["FailedAndUnresolvableNodes"])) == ([], ["b", "d"])


async def test_caller_that_hangs_up_does_not_end_the_lookup(
    start_service: StartService, gated: HoldingRegistry
) -> None:
    """The scheduler's deadline is its own; the next call finds the answer."""
    caller = await start_service(plain_http=gated.host)
    arguments = with_nodes(pod(f"{gated.host}/slow:1"))
    first = asyncio.create_task(caller.filter(arguments))
    await gated.reached.wait()
    others = [asyncio.create_task(caller.filter(arguments)) for _ in range(3)]
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    gated.released.set()
    assert [kept(result) for result in await asyncio.gather(*others)] == [["a", "c"]] * 3
    assert gated.requests["GET manifests"] == 1


async def test_three_hundred_pods_over_thirty_images_cost_thirty_manifests(world: World) -> None:
    """Webhook and filter share what is known."""
    for number in range(30):
        world.registry.add_index(f"app-{number}", "1", [AMD64, ARM64] if number % 2 else [AMD64])
    caller = await world.serve()
    under_way = asyncio.Semaphore(200)

    async def one(number: int) -> list[str]:
        created = world.pod(f"app-{number % 30}:1", uid=f"uid-{number}")
        async with under_way:
            await caller.review(created)
            return kept(await caller.filter(with_nodes(created)))

    results = await asyncio.gather(*(one(number) for number in range(300)))
    assert [len(result) for result in results] == [4 if number % 2 else 2 for number in range(300)]
    assert world.registry.requests == {"GET manifests": 30}


async def test_what_was_decided_is_counted(world: World) -> None:
    """Requests by outcome, removed nodes, lookups by result, images by state. A HEAD's 404 is asked for again."""
    caller = await world.serve()
    series = (
        'multiarch_requests_total{endpoint="filter",outcome="answered"}',
        'multiarch_requests_total{endpoint="filter",outcome="error"}',
        'multiarch_removed_nodes_total{endpoint="filter",verdict="no"}',
        'multiarch_lookups_total{result="fetched"}',
        'multiarch_registry_requests_total{code="404"}',
        'multiarch_request_duration_seconds_count{endpoint="filter"}',
    )
    async with caller.growth(*series) as grown:
        await caller.filter(with_nodes(world.pod("amd:1")))
        await caller.filter(with_nodes(world.pod("missing:1")))
    assert grown == [1, 1, 2, 1, 1, 2]
    assert await caller.metric('multiarch_images{state="known"}') == 1
