"""Held pods that wait: one task for all pods of a namespace that wait for the same images, which owns them.

It decides nothing about a pod: `enqueue` is called with those to decide about again, since there is something new.
"""

import asyncio
import functools
from collections.abc import Callable, Hashable

import msgspec

from extender.background import outlive_defects
from extender.gates.held_pods import HeldPod
from extender.images.content import Answer, Content
from extender.images.failures import is_under_way
from extender.resolver.pod_resolver import PodQuestion, PodResolver
from extender.turns import Slots

_FIRST_WAIT_SECONDS, _WAIT_SECONDS = 0.9, 5.0  # for lookups under way: until they are overdue, then as they end
_DEFECT_SECONDS = 30.0  # before images are looked up again after a mistake of ours
# Between two readings of the cache. It says itself when what has failed is looked up again.
_FIRST_INTERVAL_SECONDS, _LAST_INTERVAL_SECONDS = 1.0, 5.0
# A tag counts for a pod if the pod's own lookups have confirmed it, or others so shortly before: a review waits 1.5 s
# before its pod is held.
_CONFIRMED_SECONDS = 2.0
_CONFIRMATION_SECONDS = 5.0  # for these; then by what is known
_SETTLE_SECONDS = 0.05  # in which the gates of pods whose images have become known are removed, as a rule

# Sets of images that held pods wait for, a task each, and those of one namespace. Pods of one template share one.
_WAITS, _WAITS_EACH = 2_000, 500


class _ImageWait(msgspec.Struct, eq=False):
    """Pods that wait for the same images with the same credentials.

    `answers` is None until a lookup has ended. `asked_at` is when the lookups began that are under way or ended last.
    """

    key: Hashable
    question: PodQuestion
    tenant: str
    members: dict[HeldPod, None] = {}
    answers: list[Answer] | None = None
    asked_at: float = 0.0


class ImageWaits:
    """Looks images up for as long as pods wait for them, and calls `enqueue` for a pod to decide about again.

    That is when the answers or the annotations of its namespace have changed.
    """

    def __init__(
        self,
        pod_resolver: PodResolver,
        enqueue: Callable[[HeldPod], None],
        *,
        clock: Callable[[], float],
    ) -> None:
        self._pod_resolver = pod_resolver
        self._enqueue = enqueue
        self._clock = clock
        self._slots = Slots(_WAITS, _WAITS_EACH)
        self._waits: dict[Hashable, _ImageWait] = {}
        self._wait_of: dict[HeldPod, _ImageWait] = {}

    def __contains__(self, pod: HeldPod) -> bool:
        """Whether the pod waits."""
        return pod in self._wait_of

    def __len__(self) -> int:
        """How many pods wait for images."""
        return len(self._wait_of)

    def answers_for(self, pod: HeldPod) -> list[Answer] | None:
        """What the last lookup for a pod that waits has found; None if it has not ended, or the pod does not wait."""
        wait = self._wait_of.get(pod)
        return wait.answers if wait else None

    def join(self, pod: HeldPod, question: PodQuestion, tasks: asyncio.TaskGroup) -> bool:
        """Has the pod wait until `leave`; lookups run in `tasks`. False if the namespace has spent its share."""
        key = (question.images, question.keyring.identity, pod.namespace)
        wait = self._waits.get(key)
        if wait and pod in wait.members:
            return True
        self.leave(pod)
        if wait is None:
            if not self._slots.take(pod.namespace):
                return False
            wait = self._waits[key] = _ImageWait(key, question, pod.namespace)
            # A task that is cancelled before its first step runs nothing of its coroutine, no `finally` either.
            tasks.create_task(self._follow(wait)).add_done_callback(functools.partial(self._end, wait))
        wait.members[pod] = None
        self._wait_of[pod] = wait
        return True

    def leave(self, pod: HeldPod) -> None:
        """Ends the pod's wait, if it waits."""
        wait = self._wait_of.pop(pod, None)
        if wait:
            wait.members.pop(pod, None)

    async def _follow(self, wait: _ImageWait) -> None:
        """Looks the images up until nobody waits for them."""
        is_done = False
        with outlive_defects("gate.failed", images=[image.reference for image in wait.question.images]):
            await self._look_up(wait)
            is_done = True
        if not is_done:
            await asyncio.sleep(_DEFECT_SECONDS)

    def _end(self, wait: _ImageWait, _task: asyncio.Task[None]) -> None:
        """Forgets a wait whose task has ended, and enqueues the pods that still wait."""
        self._slots.give_back(wait.tenant)
        del self._waits[wait.key]
        for pod in list(wait.members):
            self.leave(pod)
            self._enqueue(pod)

    async def _look_up(self, wait: _ImageWait) -> None:
        wait_seconds, interval_seconds = _FIRST_WAIT_SECONDS, _FIRST_INTERVAL_SECONDS
        annotations = self._pod_resolver.namespace_annotations(wait.tenant)
        while wait.members:
            started = self._clock()
            answers = await self._resolve(wait, wait_seconds)
            before, annotations = annotations, self._pod_resolver.namespace_annotations(wait.tenant)
            is_new = answers != wait.answers or annotations != before
            wait.answers = answers
            if is_new:
                for pod in wait.members:
                    self._enqueue(pod)
            await asyncio.sleep(_SETTLE_SECONDS)
            if wait.members and self._clock() - started < wait_seconds / 2:  # else lookups are still under way
                await asyncio.sleep(interval_seconds)
                interval_seconds = min(interval_seconds * 1.5, _LAST_INTERVAL_SECONDS)
            wait_seconds = _WAIT_SECONDS

    async def _resolve(self, wait: _ImageWait, wait_seconds: float) -> list[Answer]:
        """The answers for pods that wait; a tag that may have moved while they waited for others is confirmed first."""
        if wait.answers is None or not any(map(is_under_way, wait.answers)):  # else lookups were still under way
            wait.asked_at = self._clock()
        answers = await self._pod_resolver.resolve(wait.question, wait_seconds, revalidate=True)
        is_known = all(isinstance(answer, Content) for answer in answers)
        if is_known and answers != wait.answers:
            confirmed_seconds = self._clock() - wait.asked_at + _CONFIRMED_SECONDS
            await self._pod_resolver.confirm(wait.question, confirmed_seconds, _CONFIRMATION_SECONDS)
            answers = await self._pod_resolver.resolve(wait.question, 0.0)
        return answers
