"""When a filter call waits for an image that is being looked up."""

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

    def __init__(self, answer: Answer) -> None:
        self.clock = Clock(0.0)
        anybody: Any = None
        view: Any = View()
        resolver = Resolver(anybody, size=10, tag_seconds=900, stale_seconds=86400, clock=self.clock, random=float)
        self.pods = Answering(resolver, Keyring(), Policy(), lambda _: {}, lambda: None, answer=answer)
        self._verbs = SchedulerVerbs(
            self.pods, nodes=view, wait_seconds=0.1, pending_limit_seconds=30, clock=self.clock
        )

    async def filter(self, uid: str) -> str:
        """Asks about a pod and the node; returns the outcome."""
        spec = {"containers": [{"image": "registry.example.com/a"}]}
        pod = {"metadata": {"uid": uid, "namespace": "team"}, "spec": spec}
        reply = await self._verbs.filter(msgspec.json.encode({"Pod": pod, "Nodes": None, "NodeNames": ["amd"]}))
        return reply.outcome


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
