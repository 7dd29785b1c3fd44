"""When a filter call waits: for an image that is being looked up, or for a node that is not in view."""

import time
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from extender.credentials.keyring import Keyring
from extender.images.content import Answer, Cause, Content, Failure
from extender.images.manifest import Kind
from extender.images.platform import Platform
from extender.kubernetes.core_v1 import NodeName
from extender.placement.nodes import NodeLookup, NodePlatforms
from extender.placement.policy import Policy
from extender.resolver.pod_resolver import PodQuestion, PodResolver
from extender.resolver.resolver import Resolver
from extender.scheduler.verbs import SchedulerVerbs
from testbed.clock import Clock


class Unknown(PodResolver, frozen=True, kw_only=True):
    """Knows no image, and notes the waits that are asked for."""

    waits: list[float] = msgspec.field(default_factory=list)

    async def resolve(self, question: PodQuestion, wait_seconds: float, *, revalidate: bool = False) -> list[Answer]:
        """Answers nothing."""
        self.waits.append(wait_seconds)
        return [None for _ in question.images]


class View:
    """A node."""

    platforms = NodePlatforms({NodeName("amd"): Platform("linux", "amd64")})
    synced = True
    is_current = True

    def __init__(self) -> None:
        self.looked_up: list[NodeName] = []

    async def find(self, names: Sequence[NodeName], wait_seconds: float) -> NodeLookup:
        """Finds none."""
        self.looked_up += names
        return NodeLookup(absent=tuple(names))


def request(uid: str) -> bytes:
    """A filter request about a pod."""
    pod = {"metadata": {"uid": uid, "namespace": "team"}, "spec": {"containers": [{"image": "registry.example.com/a"}]}}
    return msgspec.json.encode({"Pod": pod, "Nodes": None, "NodeNames": ["amd"]})


async def test_a_pod_is_waited_for_once_however_often_it_is_tried() -> None:
    """kube-scheduler asks about one pod at a time, so each wait is one for all pods behind it."""
    now = 0.0
    client: Any = None
    view: Any = View()
    resolver = Resolver(client, size=10, tag_seconds=900, stale_seconds=86400, clock=time.monotonic)
    pods = Unknown(resolver, Keyring(), Policy(), lambda _: {}, lambda: None)
    verbs = SchedulerVerbs(pods, nodes=view, wait_seconds=0.1, pending_limit_seconds=30, clock=lambda: now)

    async def waits(uid: str) -> list[float]:
        pods.waits.clear()
        await verbs.filter(request(uid))
        return [each for each in pods.waits if each]

    assert await waits("a") == [0.1]
    now = 0.04
    assert await waits("a") == [pytest.approx(0.06)]
    now = 0.2
    assert await waits("a") == []
    assert await waits("b") == [0.1]


class Missing(PodResolver, frozen=True):
    """Knows that no image is there."""

    async def resolve(self, question: PodQuestion, wait_seconds: float, *, revalidate: bool = False) -> list[Answer]:
        """Answers at once."""
        return [Failure(Cause.MISSING, "") for _ in question.images]


async def test_a_missing_image_is_pending_until_its_pod_has_waited_for_the_limit() -> None:
    """Then it is unknown to that pod, and what is decided about unknown images counts."""
    clock = Clock(0.0)
    client: Any = None
    view: Any = View()
    resolver = Resolver(client, size=10, tag_seconds=900, stale_seconds=86400, clock=time.monotonic)
    pods = Missing(resolver, Keyring(), Policy(), lambda _: {}, lambda: None)
    verbs = SchedulerVerbs(pods, nodes=view, wait_seconds=0.1, pending_limit_seconds=30, clock=clock)
    for clock.now, uid, outcome in (
        (0.0, "a", "error"),
        (29.9, "a", "error"),
        (30.0, "a", "answered"),
        (30.0, "b", "error"),
    ):
        assert (await verbs.filter(request(uid))).outcome == outcome


class Known(PodResolver, frozen=True):
    """Knows that each image is built for amd64."""

    async def resolve(self, question: PodQuestion, wait_seconds: float, *, revalidate: bool = False) -> list[Answer]:
        """Answers at once."""
        platforms = frozenset({Platform("linux", "amd64")})
        return [Content(Kind.INDEX, platforms, states_platforms=True) for _ in question.images]


class MixedView(View):
    """A node, one that states no platform, and one of another platform."""

    platforms = NodePlatforms(
        {
            NodeName("amd"): Platform("linux", "amd64"),
            NodeName("virtual"): None,
            NodeName("arm"): Platform("linux", "arm64"),
        }
    )


@pytest.mark.parametrize(
    ("names", "looked_up"),
    [(["amd", "arm"], []), (["amd", "virtual", "arm"], []), (["amd", "new"], ["new"])],
)
async def test_only_a_node_that_is_not_in_view_is_looked_up_first(names: list[str], looked_up: list[str]) -> None:
    """One that states no platform is in view: asking for it would teach nothing, at each call about it."""
    client: Any = None
    view: Any = MixedView()
    resolver = Resolver(client, size=10, tag_seconds=900, stale_seconds=86400, clock=time.monotonic)
    pods = Known(resolver, Keyring(), Policy(), lambda _: {}, lambda: None)
    verbs = SchedulerVerbs(pods, nodes=view, wait_seconds=0.1, pending_limit_seconds=30, clock=time.monotonic)
    await verbs.filter(msgspec.json.encode({**msgspec.json.decode(request("a")), "NodeNames": names}))
    assert view.looked_up == looked_up
