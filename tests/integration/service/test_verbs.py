"""The scheduler verbs over HTTP: every field of the answers, both request forms, waiting, and who is left alone."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence

import msgspec
import pytest
from aiohttp import web

from extender.cluster.views import WatchedNodes
from extender.config.reading import load_config
from extender.fetcher.sources import open_local_sources
from extender.images.platform import Platform
from extender.kubernetes.core_v1 import NodeName
from extender.placement.nodes import ClusterNodes, NodeLookup, NodePlatforms
from extender.scheduler.verbs import SchedulerVerbs
from extender.service.cluster_view import ClusterView
from extender.service.resolving import open_pod_resolver
from testbed.clock import Clock
from testbed.embedded_registry import EmbeddedRegistry
from testbed.eventually import eventually
from tests.integration.service.caller import (
    AMD64,
    ARM64,
    NODES,
    Caller,
    Json,
    kept,
    node,
    pod,
    with_names,
    with_nodes,
)
from tests.integration.service.conftest import StartService

Form = Callable[[Json], Json]
FORMS = pytest.mark.parametrize("form", [with_nodes, with_names], ids=["whole nodes", "node names"])
MODE_ANNOTATION = "multiarch-extender.io/mode"
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
        """What those in view are."""
        return ClusterNodes(self.platforms.distinct) if self.synced else ClusterNodes()

    async def find(self, names: Sequence[NodeName], wait_seconds: float) -> NodeLookup:
        """Take in those that the API server knows."""
        assert wait_seconds < 1
        self.requested.append(names)
        if self._cut_off:
            return NodeLookup(unreachable=tuple(names))
        self.platforms.merge(NodePlatforms({name: self._all[name] for name in names if name in self._all}))
        return NodeLookup(absent=tuple(name for name in names if name not in self._all))


@pytest.fixture
async def images(registry: EmbeddedRegistry) -> EmbeddedRegistry:
    """A registry with one image of each kind."""
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


@FORMS
async def test_pod_that_fits_nowhere_gets_an_empty_list_not_null(
    caller: Caller,
    images: EmbeddedRegistry,
    form: Form,
) -> None:
    """Null would mean the same to the scheduler, and tell nobody why; each node has its reason."""
    result = await caller.filter(form(pod(f"{images.host}/amd:1", f"{images.host}/arm:1")))
    assert (kept(result), result["Error"]) == ([], "")
    assert list(result["FailedAndUnresolvableNodes"]) == ["a", "b", "c", "d"]
    assert len(set(result["FailedAndUnresolvableNodes"].values())) == 1
    assert "(and 1 more image)" in result["FailedAndUnresolvableNodes"]["a"]


@FORMS
@pytest.mark.parametrize("first", [True, False])
async def test_a_pod_that_asks_for_a_gpu_is_left_alone(
    caller: Caller, images: EmbeddedRegistry, form: Form, first: bool
) -> None:
    """It has no score, whichever pod of its images came first; the others keep theirs."""
    plain = form(pod(f"{images.host}/multi:1"))
    asking = form(pod(f"{images.host}/multi:1"))
    asking["Pod"]["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
    expected = [(plain, {"b": 10, "d": 10}), (asking, {})]
    for _ in range(3):
        for arguments, scores in reversed(expected) if first else expected:
            assert kept(await caller.filter(arguments)) == ["a", "b", "c", "d"]
            assert await caller.prioritize(arguments) == scores


@FORMS
async def test_a_strict_preference_is_in_the_answer_to_filter(
    start_service: StartService, images: EmbeddedRegistry, form: Form
) -> None:
    """Nodes of the other architecture are in neither map, there are no scores, and preempt leaves none out."""
    caller = await start_service("placement.preference_by=filter", plain_http=images.host, nodes=View())
    for _ in range(3):  # looked up, then from memory, then from the decision kept for the template
        result = await caller.filter(form(pod(f"{images.host}/multi:1")))
        assert (kept(result), result["FailedNodes"], result["FailedAndUnresolvableNodes"]) == (["b", "d"], {}, {})
        assert await caller.prioritize(form(pod(f"{images.host}/multi:1"))) == {}
    assert kept(await caller.filter(form(pod(f"{images.host}/amd:1")))) == ["a", "c"]
    victims = {name: {"Pods": [], "NumPDBViolations": 0} for name in "abcd"}
    request = {"Pod": pod(f"{images.host}/multi:1"), "NodeNameToMetaVictims": victims}
    assert list(await caller.preempt(request)) == ["a", "b", "c", "d"]


async def test_a_strict_preference_asks_nobody_about_a_new_node_while_a_preferred_one_is_there(
    start_service: StartService, images: EmbeddedRegistry
) -> None:
    """And about one that is the first of its platform only where it would remain, and the view is cut off."""
    view = View(late=("d", "z"), others=S390X_NODE, is_current=False)
    caller = await start_service("placement.preference_by=filter", plain_http=images.host, nodes=view)
    for names, left, looked_up in ((["b", "a"], ["b"], []), (["a", "z"], ["a"], [["z"]])):
        result = await caller.filter(with_names(pod(f"{images.host}/multi:1"), names))
        assert (kept(result), view.requested) == (left, looked_up)


async def test_unrefused_nodes_come_back_byte_for_byte(caller: Caller, images: EmbeddedRegistry) -> None:
    """Fields never heard of, odd spacing and number formats survive, kept in part or whole."""
    info = b'{"architecture":"amd64","operatingSystem":"linux"}'
    odd = b'{ "metadata":{"name":"a","x-future":[1.0, 2e3]}, "status":{"nodeInfo":%s} }' % info
    other = msgspec.json.encode(node("b", "arm64"))
    for image, whole in (("multi", True), ("amd", False)):
        created = msgspec.json.encode(pod(f"{images.host}/{image}:1"))
        body = b'{"Pod":%s,"Nodes":{"metadata":{},"items":[%s,%s]},"NodeNames":null}' % (created, odd, other)
        async with caller.session.post(f"{caller.service.scheduler_url}/scheduler/filter", data=body) as response:
            answer = await response.read()
        assert odd in answer
        assert (other in answer) == whole


@pytest.mark.parametrize(
    ("image", "scores"), [("multi", {"b": 10, "d": 10}), ("amd", {}), ("arm", {}), ("chart", {}), ("missing", {})]
)
@FORMS
async def test_scores_are_integers_for_known_multi_arch_pods_only(
    caller: Caller,
    images: EmbeddedRegistry,
    image: str,
    scores: dict[str, int],
    form: Form,
) -> None:
    """Sparse: a node without a score is not mentioned."""
    arguments = form(pod(f"{images.host}/{image}:1"))
    await caller.filter(arguments)
    assert await caller.prioritize(arguments) == scores


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


@pytest.mark.parametrize("whole", [True, False], ids=["whole pods", "identifiers"])
@pytest.mark.parametrize(
    ("image", "candidates"),
    [("multi", ["a", "b", "c"]), ("amd", ["a", "c"]), ("arm", ["b"]), ("chart", ["a", "b", "c"]), ("missing", [])],
)
async def test_preempt_keeps_victims_from_dying_for_nothing(
    caller: Caller, images: EmbeddedRegistry, image: str, candidates: list[str], whole: bool
) -> None:
    """Candidates that filter would refuse are taken out; all of them while an image is to be retried."""
    created = pod(f"{images.host}/{image}:1")
    await caller.filter(with_nodes(created))
    answer = await caller.preempt(victims(created, whole=whole))
    assert sorted(answer) == candidates
    if "a" in answer:
        assert answer["a"] == {"Pods": [{"UID": "v"}], "NumPDBViolations": 1}
    if "c" in answer:
        assert answer["c"] == {"Pods": [], "NumPDBViolations": 0}


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


@pytest.mark.parametrize(
    ("settings", "annotations", "errs"),
    [
        ((), {}, True),
        (("scheduler.pending=assume",), {}, False),
        (("scheduler.pending=pass",), {}, False),
        ((), {"multiarch-extender.io/mode": "observe"}, False),
    ],
    ids=["retry", "assume", "pass", "observed"],
)
async def test_node_that_cannot_be_asked_about_is_no_place_to_guess(
    start_service: StartService, images: EmbeddedRegistry, settings: tuple[str, ...], annotations: Json, *, errs: bool
) -> None:
    """Under `retry` the scheduler comes back when it may be known; otherwise it passes, as its setting says."""
    caller = await start_service(*settings, plain_http=images.host, nodes=View(late=("d",), cut_off=True))
    created = pod(f"{images.host}/amd:1", annotations=annotations)
    result = await caller.filter(with_names(created, ["a", "b", "c", "d"]))
    if errs:
        assert result["Error"].startswith("node d is not in view, and the API server could not be asked")
    else:
        assert "d" in kept(result)
    anywhere = await caller.filter(with_names(pod(f"{images.host}/multi:1"), ["a", "b", "c", "d"]))
    assert kept(anywhere) == ["a", "b", "c", "d"]


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


class SilentApi:
    """An API server that answers nothing."""

    def __init__(self) -> None:
        self.requested: list[str] = []

    async def get(self, path: str, query: Mapping[str, str] | None = None, *, accept: str = "") -> bytes:
        self.requested.append(path)
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    def stream(
        self, path: str, query: Mapping[str, str] | None = None, *, accept: str = "", stall_seconds: float
    ) -> AsyncGenerator[bytes, None]:
        raise AssertionError("nothing is watched")


async def test_a_missing_node_costs_at_most_its_wait(start_service: StartService, images: EmbeddedRegistry) -> None:
    """50 ms for the lookups of a request together, and nothing for the requests of the next second."""
    clock, api = Clock(), SilentApi()
    nodes = WatchedNodes(api, clock=clock)
    nodes.upsert(msgspec.json.encode(NODES[0]))
    nodes.keep_only({"a"})
    clock.advance(60)
    caller = await start_service(plain_http=images.host, nodes=nodes)
    wanted = with_names(pod(f"{images.host}/multi:1"), ["a", "y", "z"])
    assert kept(await caller.filter(with_nodes(pod(f"{images.host}/multi:1")))) == ["a", "b", "c", "d"]
    before = time.monotonic()
    assert kept(await caller.filter(wanted)) == ["a", "y", "z"]
    assert 0.04 < time.monotonic() - before < 5
    assert sorted(api.requested) == ["/api/v1/nodes/y", "/api/v1/nodes/z"]
    for _ in range(3):
        assert kept(await caller.filter(wanted)) == ["a", "y", "z"]
    assert len(api.requested) == 2


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"metadata": {"annotations": {"multiarch-extender.io/mode": "ignore"}}}, id="ignore"),
        pytest.param({"metadata": {"annotations": {"multiarch-extender.io/mode": "observe"}}}, id="observe"),
        pytest.param({"metadata": {"annotations": {"kubernetes.io/config.mirror": "x"}}}, id="mirror pod"),
        pytest.param({"spec": {"nodeName": "b"}}, id="bound"),
        pytest.param({"spec": {"runtimeClassName": "wasm"}}, id="ignored runtime class"),
    ],
)
async def test_pod_that_is_not_to_be_touched_is_not(
    start_service: StartService, images: EmbeddedRegistry, changes: Json
) -> None:
    """No node refused, no score, every candidate echoed, no patch."""
    caller = await start_service("placement.runtime_classes={wasm: []}", plain_http=images.host, nodes=View())
    for image in ("amd", "multi"):
        created = pod(f"{images.host}/{image}:1")
        created = {
            "metadata": created["metadata"] | changes.get("metadata", {}),
            "spec": created["spec"] | changes.get("spec", {}),
        }
        assert kept(await caller.filter(with_nodes(created))) == ["a", "b", "c", "d"]
        assert await caller.prioritize(with_nodes(created)) == {}
        assert sorted(await caller.preempt(victims(created, whole=False))) == ["a", "b", "c"]
        assert (await caller.review(created))["patch"] == []


@pytest.mark.parametrize(
    ("pod_json", "names"),
    [
        ({}, ["a", "b", "c", "d"]),
        ({"metadata": None, "spec": None}, ["a", "b", "c", "d"]),
        (
            {"spec": {"containers": None, "initContainers": None, "volumes": None, "tolerations": None}},
            ["a", "b", "c", "d"],
        ),
        ({"spec": {"containers": [], "future": {"x": 1}, "affinity": {"nodeAffinity": {}}}}, ["a", "b", "c", "d"]),
    ],
)
@FORMS
async def test_odd_pods_are_answered(caller: Caller, pod_json: Json, names: list[str], form: Form) -> None:
    """Missing keys, nulls and unknown fields are legal; a pod without images constrains nothing and earns nothing."""
    assert kept(await caller.filter(form(pod_json))) == names
    assert await caller.prioritize(form(pod_json)) == {}


@pytest.mark.parametrize("verb", ["filter", "prioritize", "preempt"])
@pytest.mark.parametrize("body", [b"", b"null", b"[]", b"{", b'{"Pod":3}', b"\xff", b'{"Nodes":null,"NodeNames":null}'])
async def test_what_is_no_request_is_refused_with_a_reason(caller: Caller, verb: str, body: bytes) -> None:
    """400 and why; the service lives on."""
    async with caller.session.post(f"{caller.service.scheduler_url}/scheduler/{verb}", data=body) as response:
        assert response.status == 400
        assert (await response.json())["error"]


class Gated(EmbeddedRegistry):
    """A registry that holds back what is asked of repositories named in `held`."""

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[str, asyncio.Event] = {}
        self.reached = asyncio.Event()

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """The answer, once its repository is let go."""
        for repository, released in self.held.items():
            if f"/{repository}/" in request.path:
                self.reached.set()
                await released.wait()
        return await super().answer(request)


@pytest.fixture
async def gated() -> AsyncIterator[Gated]:
    """A gated registry with the image `slow` (amd64-only), held, and `amd`, free."""
    async with Gated() as opened:
        opened.add_manifest("slow", "1", AMD64)
        opened.add_manifest("amd", "1", AMD64)
        opened.held["slow"] = asyncio.Event()
        yield opened


async def test_lookup_that_takes_too_long_goes_on_and_serves_the_next_try(
    start_service: StartService, gated: Gated
) -> None:
    """The first answer is an error that names the image; the lookup is not asked twice and its end is remembered."""
    caller = await start_service("scheduler.wait_seconds=0", plain_http=gated.host)
    arguments = with_nodes(pod(f"{gated.host}/slow:1"))
    result = await caller.filter(arguments)
    assert f"{gated.host}/slow:1" in result["Error"]
    await gated.reached.wait()
    assert (await caller.filter(arguments))["Error"]
    gated.held["slow"].set()
    result = await eventually(lambda: caller.filter(arguments), lambda result: not result["Error"])
    assert (kept(result), gated.requests["GET manifests"]) == (["a", "c"], 1)


async def test_nodes_that_are_all_refused_are_refused_without_waiting(
    start_service: StartService, gated: Gated
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


async def test_caller_that_hangs_up_does_not_end_the_lookup(start_service: StartService, gated: Gated) -> None:
    """The scheduler's deadline is its own; the next call finds the answer."""
    caller = await start_service(plain_http=gated.host)
    arguments = with_nodes(pod(f"{gated.host}/slow:1"))
    first = asyncio.create_task(caller.filter(arguments))
    await gated.reached.wait()
    others = [asyncio.create_task(caller.filter(arguments)) for _ in range(3)]
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    gated.held["slow"].set()
    assert [kept(result) for result in await asyncio.gather(*others)] == [["a", "c"]] * 3
    assert gated.requests["GET manifests"] == 1


async def test_two_hundred_requests_for_one_cold_image_cost_one_manifest(
    start_service: StartService, images: EmbeddedRegistry
) -> None:
    """However slow the registry, a rollout is one lookup."""
    images.delay_seconds = 0.3
    caller = await start_service(plain_http=images.host)
    results = await asyncio.gather(*(caller.filter(with_nodes(pod(f"{images.host}/amd:1"))) for _ in range(200)))
    assert all(kept(result) == ["a", "c"] for result in results)
    assert images.requests == {"HEAD manifests": 1, "GET manifests": 1, "GET blobs": 1}


async def test_a_thousand_pods_over_a_hundred_images_cost_a_hundred_manifests(
    start_service: StartService, images: EmbeddedRegistry
) -> None:
    """Webhook and filter share what is known."""
    for number in range(100):
        images.add_index(f"app-{number}", "1", [AMD64, ARM64] if number % 2 else [AMD64])
    caller = await start_service(plain_http=images.host)
    under_way = asyncio.Semaphore(200)

    async def one(number: int) -> list[str]:
        created = pod(f"{images.host}/app-{number % 100}:1", uid=f"uid-{number}")
        async with under_way:
            await caller.review(created)
            return kept(await caller.filter(with_nodes(created)))

    results = await asyncio.gather(*(one(number) for number in range(1000)))
    assert [len(result) for result in results] == [4 if number % 2 else 2 for number in range(1000)]
    assert images.requests == {"HEAD manifests": 100, "GET manifests": 100}


async def test_pending_ends(images: EmbeddedRegistry) -> None:
    """An image that is missing is pending at first, and unknown once the pod has waited so long."""
    config = load_config(
        None, ["admission.listen=", f"registry.plain_http=['{images.host}']", f"registry.allow=['{images.host}']"]
    )
    clock = Clock(0.0)
    body = msgspec.json.encode(with_nodes(pod(f"{images.host}/missing:1")))
    other = msgspec.json.encode(with_nodes(pod(f"{images.host}/missing:1", uid="uid-2")))
    async with open_pod_resolver(config, ClusterView(), open_local_sources) as pod_resolver:
        verbs = SchedulerVerbs(
            pod_resolver,
            nodes=None,
            wait_seconds=10,
            pending_limit_seconds=30,
            clock=clock,
        )
        for at, request, outcome in (
            (0, body, "error"),
            (29.9, body, "error"),
            (30, body, "answered"),
            (30, other, "error"),
        ):
            clock.now = at
            assert (await verbs.filter(request)).outcome == outcome


@FORMS
@pytest.mark.parametrize("mode", ["enforce", "observe"])
async def test_scores_worked_out_ahead_are_those_of_a_request_by_itself(
    caller: Caller, images: EmbeddedRegistry, form: Form, mode: str
) -> None:
    """kube-scheduler asks about each pod twice with the same bytes; that changes neither answer nor counts."""
    series = 'multiarch_nodes_total{endpoint="prioritize",verdict="yes"}'
    before = await caller.metric(series)
    for number in range(6):
        image = "multi:1" if number != 3 else "arm:1"  # one of them is refused by some nodes
        request = form(pod(f"{images.host}/{image}", uid=f"uid-{number}", annotations={MODE_ANNOTATION: mode}))
        await caller.filter(request)
        scores = await caller.prioritize(request)
        assert scores == ({"b": 10, "d": 10} if number != 3 and mode == "enforce" else {})
    await caller.prioritize(form(pod(f"{images.host}/multi:1", annotations={MODE_ANNOTATION: mode})))
    assert await caller.metric(series) == before + 6 * 2


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
