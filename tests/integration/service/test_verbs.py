"""The scheduler verbs over HTTP: the fields of the answers, waiting, nodes that are not in view, and who is left alone.

What is decided about nodes, in both forms of requests, is told of the decision itself.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

import pytest

from extender.images.platform import Platform
from extender.kubernetes.core_v1 import NodeName
from extender.placement.nodes import ClusterNodes, NodeLookup, NodePlatforms
from extender.scheduler.verbs import FIND_SECONDS
from testbed.embedded_registry import EmbeddedRegistry
from testbed.eventually import eventually
from testbed.faulty_registry import HoldingRegistry
from tests.integration.service.caller import (
    AMD64,
    ARM64,
    NODES,
    Caller,
    Json,
    kept,
    pod,
    with_names,
    with_nodes,
)
from tests.integration.service.conftest import StartService

pytestmark = pytest.mark.usefixtures("simulated_time")

Form = Callable[[Json], Json]
FORMS = pytest.mark.parametrize("form", [with_nodes, with_names], ids=["whole nodes", "node names"])
KEYS = {"Nodes", "NodeNames", "FailedNodes", "FailedAndUnresolvableNodes", "Error"}


class View:
    """A node view of the test's four nodes; `late` are known to the API server but not yet in view.

    With `cut_off` the API server cannot be asked. `others` have other platforms than those four.
    """

    def __init__(
        self,
        *,
        synced: bool = True,
        late: tuple[str, ...] = (),
        cut_off: bool = False,
        is_current: bool = True,
        others: Mapping[str, Platform] | None = None,
    ) -> None:
        self._cut_off = cut_off
        self.synced = synced
        self.is_current = is_current
        self._all = {
            NodeName(name): Platform("linux", "arm64" if name in "bd" else "amd64") for name in ("a", "b", "c", "d")
        } | {NodeName(name): platform for name, platform in (others or {}).items()}
        self.platforms = NodePlatforms({name: self._all[name] for name in self._all if name not in late})
        self.requested: list[Sequence[NodeName]] = []

    def known(self) -> ClusterNodes:
        return ClusterNodes(self.platforms.distinct) if self.synced else ClusterNodes()

    async def find(self, names: Sequence[NodeName], wait_seconds: float) -> NodeLookup:
        assert wait_seconds == FIND_SECONDS
        self.requested.append(names)
        if self._cut_off:
            return NodeLookup(unreachable=tuple(names))
        self.platforms.merge(NodePlatforms({name: self._all[name] for name in names if name in self._all}))
        return NodeLookup(absent=tuple(name for name in names if name not in self._all))


@pytest.fixture
async def images(registry: EmbeddedRegistry) -> EmbeddedRegistry:
    registry.add_index("multi", "1", [AMD64, ARM64])
    registry.add_manifest("amd", "1", AMD64)
    registry.add_manifest("arm", "1", ARM64)
    registry.add_artifact("chart", "1")
    return registry


@pytest.fixture
async def caller(start_service: StartService, images: EmbeddedRegistry) -> Caller:
    """A service with a node view that knows the images' registry."""
    return await start_service(plain_http=images.host, nodes=View())


@FORMS
async def test_answer_has_every_field_in_the_requests_form(
    caller: Caller, images: EmbeddedRegistry, form: Form
) -> None:
    """Refused nodes carry the reason where preemption will not look; the kept ones are in the request's own form."""
    result = await caller.filter(form(pod(f"{images.host}/amd:1")))
    reason = f"image {images.host}/amd:1 is built only for linux/amd64"
    assert set(result) == KEYS
    assert (result["FailedNodes"], result["Error"]) == ({}, "")
    assert result["FailedAndUnresolvableNodes"] == {"b": reason, "d": reason}
    assert kept(result) == ["a", "c"]
    assert (result["Nodes"] is None) == (form is with_names)
    assert (result["NodeNames"] is None) == (form is with_nodes)


async def test_a_strict_preference_is_in_the_answer_to_filter(
    start_service: StartService, images: EmbeddedRegistry
) -> None:
    """Nodes of the other architecture are in neither map, there are no scores, and preempt leaves none out."""
    caller = await start_service("placement.preference_by=filter", plain_http=images.host, nodes=View())
    asked = with_names(pod(f"{images.host}/multi:1"))
    result = await caller.filter(asked)
    assert (kept(result), result["FailedNodes"], result["FailedAndUnresolvableNodes"]) == (["b", "d"], {}, {})
    assert await caller.prioritize(asked) == {}
    assert sorted(await caller.preempt(victims(asked["Pod"], whole=False))) == ["a", "b", "c"]
    accelerated = pod(f"{images.host}/multi:1")  # which has no preference
    accelerated["spec"]["nodeSelector"] = {"nvidia.com/gpu": "true"}
    assert kept(await caller.filter(with_names(accelerated))) == ["a", "b", "c", "d"]


async def test_a_strict_preference_asks_nobody_about_a_new_node_while_a_preferred_one_is_there(
    start_service: StartService, images: EmbeddedRegistry
) -> None:
    """And about one that is the first of its platform only where it would remain, and the view is cut off."""
    view = View(late=("d", "z"), others=S390X_NODE, is_current=False)
    caller = await start_service("placement.preference_by=filter", plain_http=images.host, nodes=view)
    for names, left, looked_up in ((["b", "a"], ["b"], []), (["a", "z"], ["a"], [["z"]])):
        result = await caller.filter(with_names(pod(f"{images.host}/multi:1"), names))
        assert (kept(result), view.requested) == (left, looked_up)


async def test_scores_are_integers_for_known_multi_arch_pods_only(caller: Caller, images: EmbeddedRegistry) -> None:
    """Sparse: a node without a score is not mentioned."""
    for image in ("multi", "amd", "chart", "missing"):
        arguments = with_nodes(pod(f"{images.host}/{image}:1"))
        await caller.filter(arguments)
        assert await caller.prioritize(arguments) == ({"b": 10, "d": 10} if image == "multi" else {}), image
    asking = pod(f"{images.host}/multi:1")  # for a device, as few nodes have it
    asking["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
    assert await caller.prioritize(with_nodes(asking)) == {}


def victims(created: Json, *, whole: bool) -> Json:
    """A preempt request with candidates on both architectures, one of them without victims."""
    if whole:
        found = {"Pods": [{"metadata": {"uid": "v"}, "spec": {}}], "NumPDBViolations": 1}
        return {
            "Pod": created,
            "NodeNameToVictims": {"a": found, "b": found, "c": {"Pods": None, "NumPDBViolations": 0}},
            "NodeNameToMetaVictims": None,
        }
    meta = {"Pods": [{"UID": "v"}], "NumPDBViolations": 1}
    return {
        "Pod": created,
        "NodeNameToVictims": None,
        "NodeNameToMetaVictims": {"a": meta, "b": meta, "c": {"Pods": [], "NumPDBViolations": 0}},
    }


async def test_preempt_keeps_victims_from_dying_for_nothing(caller: Caller, images: EmbeddedRegistry) -> None:
    """Candidates that filter would refuse are taken out; all of them while an image is to be retried."""
    for image, candidates in (("multi", ["a", "b", "c"]), ("amd", ["a", "c"]), ("missing", [])):
        created = pod(f"{images.host}/{image}:1")
        await caller.filter(with_nodes(created))
        for whole in (True, False):
            answer = await caller.preempt(victims(created, whole=whole))
            assert sorted(answer) == candidates
            assert answer.get("a") == ({"Pods": [{"UID": "v"}], "NumPDBViolations": 1} if candidates else None)
            assert answer.get("c") == ({"Pods": [], "NumPDBViolations": 0} if candidates else None)


async def test_preempt_starts_the_lookup_and_evicts_nobody_meanwhile(
    start_service: StartService, images: EmbeddedRegistry
) -> None:
    """Often the first call for a pod: nothing is known, so no candidate, and the next attempt knows."""
    caller = await start_service(plain_http=images.host, nodes=View())
    created = pod(f"{images.host}/amd:1")
    assert await caller.preempt(victims(created, whole=False)) == {}
    await caller.filter(with_nodes(created))
    assert images.requests["GET manifests"] == 1
    assert sorted(await caller.preempt(victims(created, whole=False))) == ["a", "c"]


async def test_without_a_cluster_the_requests_nodes_are_the_cluster(
    start_service: StartService, images: EmbeddedRegistry
) -> None:
    """Node names alone cannot be judged: an error, no scores; preempt remembers the nodes that filter was shown."""
    caller = await start_service(plain_http=images.host)
    created = pod(f"{images.host}/amd:1")
    assert "nodeCacheCapable: false" in (await caller.filter(with_names(created)))["Error"]
    assert await caller.prioritize(with_names(created)) == {}
    assert kept(await caller.filter(with_nodes(created))) == ["a", "c"]
    assert sorted(await caller.preempt(victims(created, whole=True))) == ["a", "c"]


async def test_view_that_has_not_synced_is_an_error_not_a_guess(
    start_service: StartService, images: EmbeddedRegistry
) -> None:
    """Before the first sync: filter answers an error, prioritize and preempt nothing; whole nodes still work."""
    caller = await start_service(plain_http=images.host, nodes=View(synced=False))
    created = pod(f"{images.host}/amd:1")
    assert "not known yet" in (await caller.filter(with_names(created)))["Error"]
    assert await caller.prioritize(with_names(created)) == {}
    assert await caller.preempt(victims(created, whole=False)) == {}
    assert kept(await caller.filter(with_nodes(created))) == ["a", "c"]


async def test_node_missing_from_the_view_is_asked_for_once(
    start_service: StartService, images: EmbeddedRegistry
) -> None:
    """What the API server knows is judged; what it does not know either passes."""
    view = View(late=("b", "d"))
    caller = await start_service(plain_http=images.host, nodes=view)
    result = await caller.filter(with_names(pod(f"{images.host}/amd:1"), ["a", "b", "c", "d", "e"]))
    assert kept(result) == ["a", "c", "e"]
    assert view.requested == [["b", "d", "e"]]


@pytest.mark.parametrize("pending", ["retry", "assume", "pass"])
async def test_node_that_cannot_be_asked_about_is_no_place_to_guess(
    start_service: StartService, images: EmbeddedRegistry, pending: str
) -> None:
    """Under `retry` the scheduler comes back when it may be known; otherwise it passes, as its setting says."""
    view = View(late=("d",), cut_off=True)
    caller = await start_service(f"scheduler.pending={pending}", plain_http=images.host, nodes=view)
    result = await caller.filter(with_names(pod(f"{images.host}/amd:1")))
    if pending == "retry":
        assert result["Error"].startswith("node d is not in view, and the API server could not be asked")
        observed = pod(f"{images.host}/amd:1", annotations={"multiarch-extender.io/mode": "observe"})
        result = await caller.filter(with_names(observed))
    assert "d" in kept(result)
    assert kept(await caller.filter(with_names(pod(f"{images.host}/multi:1")))) == ["a", "b", "c", "d"]


S390X_NODE = {"z": Platform("linux", "s390x")}


async def test_the_first_node_of_a_platform_is_looked_up_before_it_passes(
    start_service: StartService, images: EmbeddedRegistry
) -> None:
    """Though the image runs on every node in view; it is then in view, and nothing is looked up again."""
    view = View(late=("d", "z"), others=S390X_NODE, is_current=False)
    caller = await start_service(plain_http=images.host, nodes=view)
    for _ in range(2):
        result = await caller.filter(with_names(pod(f"{images.host}/multi:1"), ["a", "d", "z"]))
        assert (kept(result), list(result["FailedAndUnresolvableNodes"])) == (["a", "d"], ["z"])
    assert view.requested == [["d", "z"]]


@pytest.mark.parametrize("image", ["multi", "chart"], ids=["a view that is current", "an image that fits anywhere"])
async def test_nobody_is_asked_about_a_node_that_does_not_matter(
    start_service: StartService, images: EmbeddedRegistry, image: str
) -> None:
    """The watch has just brought an event, so no usable node is missing; or no image of the pod can refuse a node."""
    view = View(late=("d",), is_current=image == "multi")
    caller = await start_service("scheduler.unknown=pass", plain_http=images.host, nodes=view)
    result = await caller.filter(with_names(pod(f"{images.host}/{image}:1"), ["a", "d"]))
    assert (kept(result), view.requested) == (["a", "d"], [])


async def test_a_node_nobody_can_be_asked_about_passes_where_the_usual_ones_would(
    start_service: StartService, images: EmbeddedRegistry
) -> None:
    """Under `retry` too: an outage of the API server does not hold up pods whose images run on amd64 and arm64."""
    view = View(late=("d",), is_current=False, cut_off=True)
    caller = await start_service(plain_http=images.host, nodes=view)
    result = await caller.filter(with_names(pod(f"{images.host}/multi:1"), ["a", "d"]))
    assert (kept(result), result["Error"], view.requested) == (["a", "d"], "", [["d"]])


async def test_pod_that_is_not_to_be_touched_is_not(start_service: StartService, images: EmbeddedRegistry) -> None:
    """No node refused, no score, every candidate echoed, no patch."""
    caller = await start_service("placement.runtime_classes={wasm: []}", plain_http=images.host, nodes=View())
    for part, change in (
        ("metadata", {"annotations": {"multiarch-extender.io/mode": "ignore"}}),
        ("metadata", {"annotations": {"multiarch-extender.io/mode": "observe"}}),
        ("metadata", {"annotations": {"kubernetes.io/config.mirror": "x"}}),
        ("spec", {"nodeName": "b"}),
        ("spec", {"runtimeClassName": "wasm"}),
    ):
        for image in ("amd", "multi"):
            created = pod(f"{images.host}/{image}:1")
            created[part] |= change
            assert kept(await caller.filter(with_nodes(created))) == ["a", "b", "c", "d"], change
            assert await caller.prioritize(with_nodes(created)) == {}
            assert sorted(await caller.preempt(victims(created, whole=False))) == ["a", "b", "c"]
            assert (await caller.review(created))["patch"] == []


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
    result = await asyncio.wait_for(
        caller.filter(with_nodes(pod(f"{gated.host}/slow:1", f"{gated.host}/amd:1"), arm_only)), 5
    )
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


async def test_three_hundred_pods_over_thirty_images_cost_thirty_manifests(
    start_service: StartService, images: EmbeddedRegistry
) -> None:
    """Webhook and filter share what is known."""
    for number in range(30):
        images.add_index(f"app-{number}", "1", [AMD64, ARM64] if number % 2 else [AMD64])
    caller = await start_service(plain_http=images.host)
    under_way = asyncio.Semaphore(200)

    async def one(number: int) -> list[str]:
        created = pod(f"{images.host}/app-{number % 30}:1", uid=f"uid-{number}")
        async with under_way:
            await caller.review(created)
            return kept(await caller.filter(with_nodes(created)))

    results = await asyncio.gather(*(one(number) for number in range(300)))
    assert [len(result) for result in results] == [4 if number % 2 else 2 for number in range(300)]
    assert images.requests == {"HEAD manifests": 30, "GET manifests": 30}


async def test_what_was_decided_is_counted(start_service: StartService, images: EmbeddedRegistry) -> None:
    """Requests by outcome, nodes by verdict, lookups by result, images by state. A HEAD's 404 is asked for again."""
    caller = await start_service(plain_http=images.host)
    series = (
        'multiarch_requests_total{endpoint="filter",outcome="answered"}',
        'multiarch_requests_total{endpoint="filter",outcome="error"}',
        'multiarch_nodes_total{endpoint="filter",verdict="no"}',
        'multiarch_nodes_total{endpoint="filter",verdict="retry"}',
        'multiarch_lookups_total{result="fetched"}',
        'multiarch_registry_requests_total{code="404"}',
        'multiarch_request_duration_seconds_count{endpoint="filter"}',
    )
    before = [await caller.metric(name) for name in series]
    await caller.filter(with_nodes(pod(f"{images.host}/amd:1")))
    await caller.filter(with_nodes(pod(f"{images.host}/missing:1")))
    after = [await caller.metric(name) for name in series]
    assert [new - old for new, old in zip(after, before, strict=True)] == [1, 1, 2, 4, 1, 2, 2]
    assert await caller.metric('multiarch_images{state="known"}') == 1
