"""Pods that wait for images: nobody waits for a lookup that will not come."""

import asyncio
from collections.abc import Sequence

import pytest

from extender.credentials.keyring import Keyring
from extender.gates.held_pods import HeldPod
from extender.gates.image_waits import ImageWaits
from extender.images.content import Answer
from extender.kubernetes.core_v1 import PodReference
from extender.placement.annotations import Overrides
from extender.placement.facts import PodImage
from extender.placement.policy import Policy
from extender.resolver.image_cache import ImageQuery
from extender.resolver.pod_resolver import PodQuestion, PodResolver
from extender.resolver.resolver import Resolver
from testbed.eventually import eventually

pytestmark = pytest.mark.usefixtures("simulated_time")
QUESTION = PodQuestion(Overrides(), (PodImage("registry.example.com/app:1"),), Keyring(tenant="shop"))


class CountingResolver(Resolver):
    """Knows nothing about any image, and counts the lookups."""

    def __init__(self) -> None:
        self.lookups = self.defects = 0

    async def resolve_all(
        self, queries: Sequence[ImageQuery], keyring: Keyring, wait_seconds: float, *, revalidate: bool = False
    ) -> list[Answer]:
        self.lookups += 1
        if self.lookups <= self.defects:
            raise ZeroDivisionError
        return [None for _ in queries]


def held(name: str) -> HeldPod:
    return HeldPod(f"shop/{name}", PodReference("shop", name, f"uid-{name}"), 0.0, 1e9)


def waits_of(resolver: Resolver, judged: list[HeldPod]) -> ImageWaits:
    pod_resolver = PodResolver(resolver, Keyring(), Policy(), lambda _: None, lambda: None)
    return ImageWaits(pod_resolver, judged.append, clock=asyncio.get_running_loop().time)


async def begin_and_cancel(waits: ImageWaits, pod: HeldPod) -> None:
    """Has the pod wait, and ends the controller's tasks before the lookup's first step."""

    async def lead() -> None:
        async with asyncio.TaskGroup() as tasks:
            assert waits.join(pod, QUESTION, tasks)
            raise asyncio.CancelledError

    await asyncio.gather(asyncio.create_task(lead()), return_exceptions=True)


async def test_a_wait_that_never_began_keeps_no_later_pod_waiting() -> None:
    """A leader that steps down as a pod begins to wait, and leads again, looks the image up for the next pod."""
    resolver, judged = CountingResolver(), list[HeldPod]()
    waits = waits_of(resolver, judged)
    first, second = held("first"), held("second")
    await begin_and_cancel(waits, first)
    assert (first in waits, resolver.lookups) == (False, 0)
    async with asyncio.TaskGroup() as tasks:
        assert waits.join(second, QUESTION, tasks)
        await eventually(lambda: second in judged)
        waits.leave(second)
    assert resolver.lookups >= 1


async def test_a_defect_of_ours_ends_no_wait_for_good() -> None:
    """The pod is enqueued again later, and waits anew."""
    resolver, judged = CountingResolver(), list[HeldPod]()
    resolver.defects, pod = 1, held("pod")
    waits = waits_of(resolver, judged)
    async with asyncio.TaskGroup() as tasks:
        assert waits.join(pod, QUESTION, tasks)
        await eventually(lambda: judged)
        assert pod not in waits
        assert waits.join(pod, QUESTION, tasks)
        await eventually(lambda: resolver.lookups > 1)
        waits.leave(pod)


async def test_waits_that_never_began_give_back_what_they_took() -> None:
    """Else the namespace's share of lookups would be spent after so many."""
    waits = waits_of(CountingResolver(), [])
    for _ in range(600):
        await begin_and_cancel(waits, held("pod"))
    assert len(waits) == 0
