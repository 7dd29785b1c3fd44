"""When a filter call waits for an image that is being looked up, and for how long one is pending."""

from typing import Any

import msgspec
import pytest

from extender.credentials.keyring import Keyring
from extender.images.content import Answer, Cause, Content, Failure
from extender.images.manifest import Kind
from extender.images.platform import Platform
from extender.kubernetes.core_v1 import NodeName
from extender.placement.nodes import NodePlatforms
from extender.placement.policy import Policy
from extender.resolver.pod_resolver import PodQuestion, PodResolver
from extender.resolver.resolver import Resolver
from extender.scheduler.verbs import SchedulerVerbs
from testbed.clock import Clock

ON_AMD64 = Content(Kind.INDEX, frozenset({Platform("linux", "amd64")}), states_platforms=True)


class Answering(PodResolver, frozen=True, kw_only=True):
    """Gives one answer to all questions, and notes the waits that are asked for."""

    answer: Answer
    waits: list[float] = msgspec.field(default_factory=list)

    async def resolve(self, question: PodQuestion, wait_seconds: float, *, revalidate: bool = False) -> list[Answer]:
        self.waits.append(wait_seconds)
        return [self.answer for _ in question.images]


class View:
    """One node."""

    platforms = NodePlatforms({NodeName("amd"): Platform("linux", "amd64")})
    synced = True


class World:
    """Verbs that always get the same answer, a view, and a clock."""

    def __init__(self, answer: Answer, *, wait_seconds: float = 0.1) -> None:
        self.clock = Clock(0.0)
        anybody: Any = None
        view: Any = View()
        resolver = Resolver(anybody, size=10, tag_seconds=900, stale_seconds=86400, clock=self.clock, random=float)
        self.pods = Answering(resolver, Keyring(), Policy(), lambda _: {}, lambda: None, answer=answer)
        self._verbs = SchedulerVerbs(
            self.pods, nodes=view, wait_seconds=wait_seconds, pending_limit_seconds=30, clock=self.clock
        )

    async def filter(self, uid: str) -> str:
        """Asks about a pod and the node; returns the outcome."""
        reply = await self._verbs.filter(msgspec.json.encode({"Pod": _pod(uid), "Nodes": None, "NodeNames": ["amd"]}))
        return reply.outcome

    async def preempt(self, uid: str) -> bool:
        """Whether pods may be evicted from the node for a pod."""
        victims = {"amd": {"Pods": [{"UID": "victim"}], "NumPDBViolations": 0}}
        body = {"Pod": _pod(uid), "NodeNameToVictims": None, "NodeNameToMetaVictims": victims}
        reply = await self._verbs.preempt(msgspec.json.encode(body))
        return b"victim" in reply.body


def _pod(uid: str) -> dict[str, Any]:
    spec = {"containers": [{"image": "registry.example.com/a"}]}
    return {"metadata": {"uid": uid, "namespace": "team"}, "spec": spec}


async def test_a_pod_is_waited_for_once_however_often_it_is_tried() -> None:
    """kube-scheduler asks about one pod at a time, so each wait is one for all pods behind it."""
    world = World(None)
    for world.clock.now, uid, waits in (
        (0.0, "a", [0.1]),
        (0.04, "a", [pytest.approx(0.06)]),
        (0.2, "a", []),
        (0.2, "b", [0.1]),
    ):
        world.pods.waits.clear()
        await world.filter(uid)
        assert [each for each in world.pods.waits if each] == waits


async def test_a_missing_image_is_pending_until_its_pod_has_waited_for_the_limit() -> None:
    """Then it is unknown to that pod, and what is decided about unknown images counts."""
    world = World(Failure(Cause.MISSING, ""))
    for world.clock.now, uid, outcome in (
        (0.0, "a", "error"),
        (29.9, "a", "error"),
        (30.0, "a", "answered"),
        (30.0, "b", "error"),
    ):
        assert await world.filter(uid) == outcome


async def test_a_pod_whose_images_were_known_waits_anew_once_one_is_not() -> None:
    """One that was refused comes back after five minutes, and the cache may have lost its image since."""
    world = World(None)
    await world.filter("a")
    for world.clock.now, answer, waits, outcome in (
        (40.0, ON_AMD64, [], "answered"),
        (300.0, None, [0.1], "error"),
        (330.0, None, [], "answered"),
    ):
        world.pods.waits.clear()
        msgspec.structs.force_setattr(world.pods, "answer", answer)
        assert await world.filter("a") == outcome
        assert [each for each in world.pods.waits if each] == waits


@pytest.mark.parametrize("wait_seconds", [0, 0.1])
async def test_a_pod_that_comes_back_is_pending_once_more_while_its_image_is_looked_up(wait_seconds: float) -> None:
    """Its image was missing, and what memory held of that is older than it may be: it may be there by now."""
    world = World(Failure(Cause.MISSING, ""), wait_seconds=wait_seconds)
    await world.filter("a")
    msgspec.structs.force_setattr(world.pods, "answer", None)
    for world.clock.now, waits, outcome in (
        (300.0, [wait_seconds], "error"),
        (310.0, [], "error"),
        (331.0, [], "answered"),
        (650.0, [wait_seconds], "answered"),
    ):
        world.pods.waits.clear()
        assert await world.filter("a") == outcome
        assert [each for each in world.pods.waits if each] == [each for each in waits if each]


async def test_a_failure_that_holds_is_none_to_wait_for_when_its_pod_comes_back() -> None:
    """It was found lately, and the pod has waited for long enough."""
    world = World(Failure(Cause.UNAVAILABLE, ""))
    await world.filter("a")
    world.clock.now = 300.0
    assert await world.filter("a") == "answered"


async def test_nobody_is_evicted_for_a_pod_that_comes_back_before_its_image_is_looked_up() -> None:
    """Nor by filter and preempt of one attempt, which follow each other."""
    world = World(Failure(Cause.MISSING, ""))
    assert not await world.preempt("a")
    msgspec.structs.force_setattr(world.pods, "answer", None)
    for world.clock.now, may_evict in ((300.0, False), (300.1, False), (650.0, True)):
        assert await world.preempt("a") is may_evict


async def test_a_pod_that_is_tried_all_the_time_does_not_come_back() -> None:
    """kube-scheduler tries it again after 10 s at most, and each time a lookup is under way."""
    world = World(None)
    outcomes = []
    for world.clock.now in range(0, 100, 10):
        outcomes.append(await world.filter("a"))
    assert outcomes == ["error"] * 3 + ["answered"] * 7
