"""What bounds the time of a held pod, whatever fails: its limit, and that nobody is held whom nobody would let go."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest

from extender.cluster.listwatch import BOOKMARK_SECONDS, LOST_SECONDS
from extender.cluster.views import NAMESPACES, NODES, PODS
from extender.gates.gate_controller import GateController
from extender.gates.held_pods import HeldPods
from extender.gates.image_waits import ImageWaits
from extender.gates.policy_binding import PolicyBinding
from extender.placement.ungating import UngatingPlanner
from extender.resolver.pod_resolver import PodResolver
from extender.service.cluster_view import STALE_SECONDS
from testbed.eventually import eventually
from testbed.machines import running_machine
from tests.integration.cluster.api_server import Refusal, Request, namespace, told
from tests.integration.service.caller import Caller
from tests.integration.service.conftest import HOLDING, Cluster
from tests.integration.service.test_gates import gates_of, held, is_held, lease, removal

pytestmark = pytest.mark.usefixtures("simulated_time")

LIMIT_SECONDS = 60.0
LIMITED = (*HOLDING, f"admission.gate.limit_seconds={LIMIT_SECONDS}")
SOON_SECONDS = 5.0
"""What a removal at the limit takes at most."""


def hold(cluster: Cluster, name: str = "p", image: str = "late:1", **metadata: object) -> None:
    """Creates a pod as the webhook or a policy holds it."""
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(running_machine().wall_clock()))
    ours = {"name": name, "creationTimestamp": created, **metadata}
    cluster.api.put(PODS, held(f"{cluster.registry.host}/{image}", **ours))


async def released_after(cluster: Cluster, name: str = "p") -> float:
    """For how long our gate holds the pod from now."""
    began = asyncio.get_running_loop().time()
    while gates_of(cluster.api, name):
        assert asyncio.get_running_loop().time() - began < 3_600
        await asyncio.sleep(0.5)
    return asyncio.get_running_loop().time() - began


async def is_new_held(cluster: Cluster, caller: Caller) -> bool:
    return await is_held(caller, f"{cluster.registry.host}/late:1")


async def until_able(cluster: Cluster, caller: Caller) -> None:
    await eventually(lambda: is_new_held(cluster, caller))


@pytest.mark.parametrize("path", [NODES.path, NAMESPACES.path])
async def test_a_view_that_is_missing_holds_nobody_and_lets_go_at_the_limit(cluster: Cluster, path: str) -> None:
    """A right that is missing, for ever: no Lease, no new pod held, not ready, and the gate goes in time."""
    cluster.api.denied = {path}
    hold(cluster)
    async with cluster.service(*LIMITED) as caller:
        assert await released_after(cluster) == pytest.approx(LIMIT_SECONDS, abs=SOON_SECONDS)
        assert not await is_new_held(cluster, caller)
        assert lease(cluster.api) == {}
        assert await removal(caller) == (1, 0)
        hold(cluster, "another")
        await eventually(lambda: caller.checks("/readyz"), lambda found: found[1]["gates"] == "[-]")
        assert await released_after(cluster, "another") == pytest.approx(LIMIT_SECONDS, abs=SOON_SECONDS)
        assert await caller.metric('multiarch_gates_removals_total{outcome="failed"}') >= 2
        cluster.api.denied = set()
        await until_able(cluster, caller)


async def test_a_pod_without_the_label_goes_at_the_limit_without_views(cluster: Cluster) -> None:
    cluster.api.denied = {NODES.path}
    hold(cluster, labels={})
    async with cluster.service(*LIMITED):
        assert await released_after(cluster) <= LIMIT_SECONDS + 30


def fail(*_: object, **__: object) -> None:
    raise RuntimeError("a defect")


def cancel(*_: object, **__: object) -> None:
    raise asyncio.CancelledError


async def fail_later(*_: object, **__: object) -> None:
    await asyncio.sleep(1)
    raise RuntimeError("a defect")


SYNCHRONOUS: list[tuple[type, str]] = [
    (UngatingPlanner, "skip"),
    (UngatingPlanner, "plan"),
    (PodResolver, "overrides_of"),
    (PodResolver, "question"),
    (PodResolver, "namespace_annotations"),
    (ImageWaits, "join"),
    (ImageWaits, "answers_for"),
    (HeldPods, "store"),
    (GateController, "_report_held"),
]
ASYNCHRONOUS: list[tuple[type, str]] = [
    (PodResolver, "resolve"),
    (ImageWaits, "_resolve"),
    (GateController, "_decide"),
    (GateController, "_search"),
    (GateController, "_work"),
]
MISTAKES = [
    *((owner, method, fail) for owner, method in SYNCHRONOUS),
    *((owner, method, how) for owner, method in ASYNCHRONOUS for how in (fail, cancel, fail_later)),
]


@pytest.mark.parametrize(
    ("owner", "method", "mistake"),
    [
        pytest.param(
            *(owner, method, how),
            id=f"{owner.__name__}.{method} {how.__name__}",
            marks=() if how is fail else pytest.mark.slow,  # the other ways to fail in the same place
        )
        for owner, method, how in MISTAKES
    ],
)
async def test_a_mistake_of_ours_holds_a_pod_until_its_limit(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, owner: type, method: str, mistake: Callable[..., object]
) -> None:
    """Wherever it is in the work on a held pod; the service goes on."""
    async with cluster.service(*LIMITED) as caller:
        await until_able(cluster, caller)
        monkeypatch.setattr(owner, method, mistake)
        hold(cluster)
        assert await released_after(cluster) <= LIMIT_SECONDS + 3 * SOON_SECONDS
        assert (await caller.checks("/livez"))[0] == 200


async def test_a_mistake_in_the_decision_is_told(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gate alone goes: a counter and an event say that nothing was decided."""
    monkeypatch.setattr(UngatingPlanner, "plan", fail)
    cluster.registry.add_index("app", "1", ["linux/arm64"])
    series = 'multiarch_gates_removals_total{outcome="failed"}'
    async with cluster.service(*LIMITED) as caller:
        await until_able(cluster, caller)
        async with caller.growth(series) as grown:
            hold(cluster, image="app:1", namespace="default")
            assert await released_after(cluster) == pytest.approx(LIMIT_SECONDS, abs=SOON_SECONDS)
            [said] = await eventually(lambda: told(cluster.api))
        assert grown == [1]
    assert (said["reason"], said["type"]) == ("ImagePlatformsUnresolved", "Warning")
    assert "affinity" not in cluster.api.find(PODS, "p")["spec"]


@pytest.mark.parametrize(
    ("owner", "method"),
    [(GateController, "_work"), (GateController, "_check")],
)
async def test_a_part_that_dies_at_each_start_holds_nobody(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, owner: type, method: str
) -> None:
    """Whenever a review comes; no Lease says that anybody removes gates."""
    monkeypatch.setattr(owner, method, fail)
    async with cluster.service(*LIMITED) as caller:
        for _ in range(40):
            assert not await is_new_held(cluster, caller)
            assert lease(cluster.api) == {}
            await asyncio.sleep(3.3)


async def test_a_part_that_dies_whenever_it_leads_holds_nobody_for_long(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other replicas hear at once that nobody leads."""
    monkeypatch.setattr(PolicyBinding, "run", fail_later)
    deceived = 0
    async with cluster.service(*LIMITED, "admission.gate.policy=gate") as caller, cluster.service(*LIMITED) as other:
        for _ in range(60):
            deceived += await is_new_held(cluster, caller) and not lease(cluster.api).get("holderIdentity")
            await asyncio.sleep(1)
        assert deceived <= 4
        await until_able(cluster, other)


@pytest.mark.parametrize("path", [NODES.path, pytest.param(NAMESPACES.path, marks=pytest.mark.slow)])
async def test_nobody_is_held_while_a_watch_stays_silent(cluster: Cluster, path: str) -> None:
    """Lists and watches bring nothing any more, or new watches are as mute as the old one."""
    async with cluster.service(*LIMITED) as caller:
        await until_able(cluster, caller)
        cluster.api.faults.watch_silence(path.rpartition("/")[2])
        cluster.api.denied = {path}
        hold(cluster)
        gone_seconds = await released_after(cluster)
        assert gone_seconds <= LIMIT_SECONDS + SOON_SECONDS
        await asyncio.sleep(LOST_SECONDS + SOON_SECONDS - gone_seconds)
        for _ in range(30):
            assert not await is_new_held(cluster, caller)
            await asyncio.sleep(10)
        cluster.api.faults.watch_silence(path.rpartition("/")[2], on=False)
        cluster.api.denied = set()
        await eventually(lambda: is_new_held(cluster, caller), seconds=300)


async def test_a_mode_of_a_namespace_counts_in_time_after_silence(cluster: Cluster) -> None:
    async with cluster.service(*LIMITED) as caller:
        await until_able(cluster, caller)
        cluster.api.cut_off(NAMESPACES.path)
        cluster.api.put(NAMESPACES.path, namespace("shop", mode="observe"))
        await asyncio.sleep(LOST_SECONDS + SOON_SECONDS)
        assert not await is_new_held(cluster, caller)
        assert (await caller.checks("/readyz"))[0] == 200


async def test_the_times_of_a_watch_add_up() -> None:
    """A bookmark comes before a watch is lost, and a lost one is there again before readiness fails."""
    assert BOOKMARK_SECONDS < LOST_SECONDS < STALE_SECONDS
    assert LOST_SECONDS + 2 * SOON_SECONDS < STALE_SECONDS


async def answer_never(_: Request) -> None:
    await asyncio.Event().wait()


async def cut(_: Request) -> None:
    raise ConnectionResetError


def refuse(status: int, said: str = "no") -> Callable[[Request], Awaitable[None]]:
    async def answer(request: Request) -> None:
        if request.path.startswith("/api/v1/namespaces/"):
            raise Refusal(status, said)

    return answer


def of_pods(answer: Callable[[Request], Awaitable[None]]) -> Callable[[Request], Awaitable[None]]:
    async def limited(request: Request) -> None:
        if "/pods/" in request.path:
            await answer(request)

    return limited


ANSWERS = {
    "400": refuse(400), "403": refuse(403), "409": refuse(409), "422": refuse(422), "429": refuse(429),
    "500": refuse(500), "503": refuse(503), "denied": refuse(403, "admission webhook denied the request"),
    "silence": answer_never, "reset": cut,
}  # fmt: skip
_OF_EACH_KIND = {"409", "422", "500", "silence"}


@pytest.mark.parametrize(
    "answer", [pytest.param(each, marks=() if each in _OF_EACH_KIND else pytest.mark.slow) for each in ANSWERS]
)
@pytest.mark.parametrize("image", ["app:1", "late:1"], ids=["before the limit", "at the limit"])
async def test_nobody_is_held_while_no_removal_succeeds(cluster: Cluster, answer: str, image: str) -> None:
    """Rights and leader are there all the while. An event says so; when removals succeed again, so do holds."""
    cluster.registry.add_index("app", "1", ["linux/arm64"])
    async with cluster.service(*LIMITED) as caller:
        await until_able(cluster, caller)
        cluster.api.on_patch = of_pods(ANSWERS[answer])
        hold(cluster, image=image, namespace="default")
        await asyncio.sleep((LIMIT_SECONDS if image == "late:1" else 0) + 12)
        for _ in range(8):
            assert not await is_new_held(cluster, caller)
            await asyncio.sleep(10)
        assert await removal(caller) == (1, 0)
        said = [each for each in told(cluster.api) if each["type"] == "Warning"]
        assert {each["reason"] for each in said} == {"WaitingForImagePlatforms"}
        assert 1 <= len(said) <= 3
        cluster.api.on_patch = None
        assert await released_after(cluster) <= 5 + SOON_SECONDS + (10 if answer == "silence" else 0)
        await until_able(cluster, caller)


async def test_a_pod_that_goes_by_itself_makes_nobody_unable(cluster: Cluster) -> None:
    """404: nothing was due any more."""
    cluster.registry.add_index("app", "1", ["linux/arm64"])
    async with cluster.service(*LIMITED) as caller:
        await until_able(cluster, caller)
        cluster.api.on_patch = of_pods(refuse(404))
        hold(cluster, image="app:1")
        for _ in range(20):
            await asyncio.sleep(1)
            assert await is_new_held(cluster, caller)


async def test_a_pod_that_is_refused_for_its_own_sake_makes_nobody_unable_for_good(cluster: Cluster) -> None:
    """A policy is against this one alone; others go, so new ones are held."""
    cluster.registry.add_index("app", "1", ["linux/arm64"])
    policy = "pods \"p\" is forbidden: ValidatingAdmissionPolicy 'x' with binding 'x' denied request: no"

    async def refuse_one(request: Request) -> None:
        if request.path.endswith("/pods/p"):
            raise Refusal(403, policy)

    async with cluster.service(*LIMITED) as caller:
        await until_able(cluster, caller)
        cluster.api.on_patch = of_pods(refuse_one)
        hold(cluster, image="app:1")
        await asyncio.sleep(1)
        hold(cluster, "other", "app:1")
        for _ in range(15):
            await asyncio.sleep(10)
            assert await is_new_held(cluster, caller)


async def test_the_lease_counts_for_nothing_at_the_limit(cluster: Cluster) -> None:
    """The account may not use Leases: nobody leads, each replica decides, and nobody new is held."""
    cluster.registry.add_index("app", "1", ["linux/arm64"])
    cluster.api.denied = {f"/apis/coordination.k8s.io/v1/namespaces/default/leases{end}"
                          for end in ("", "/multiarch-extender-held-pods")}  # fmt: skip
    hold(cluster)
    async with cluster.service(*LIMITED) as caller:
        assert await released_after(cluster) <= LIMIT_SECONDS + 3 * SOON_SECONDS
        assert not await is_new_held(cluster, caller)
        hold(cluster, "known", "app:1")
        assert await released_after(cluster, "known") <= SOON_SECONDS
        assert "arm64" in str(cluster.api.find(PODS, "known")["spec"]["affinity"])
