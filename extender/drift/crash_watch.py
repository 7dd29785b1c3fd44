"""Learns of programs that a node did not know the format of, from pods' statuses, as soon as kubelets write them.

It watches the pods that have a node, and decodes one only if its JSON has the kernel's words somewhere. Every replica
watches for itself. One that starts gets all pods first, so what crashes still is learned again; what is gone by then is
forgotten.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import aclosing

import msgspec
import structlog

from extender.cluster.client import ClusterRefused
from extender.cluster.listwatch import Event, Streamer, watch_events
from extender.cluster.views import PODS
from extender.drift.crashed_images import crashed_images, may_have_crashed
from extender.drift.drift_watch import KnownNodes
from extender.errors import ClusterError
from extender.images.platform import Platform
from extender.images.reference import unpack_digest
from extender.kubernetes.core_v1 import NodeName
from extender.kubernetes.reported_v1 import OwnedPod
from extender.placement.policy import is_ignored
from extender.resolver.crashes import Crashes
from extender.resolver.pod_resolver import PodQuestion, PodResolver

log = structlog.get_logger()

WATCH_SECONDS = 240  # after which the server ends a watch, so that a dead one is noticed soon
_STALL_SECONDS = WATCH_SECONDS + 15.0
_FIRST_DELAY_SECONDS, _LAST_DELAY_SECONDS = 1.0, 300.0  # the last is that of an account without the right
_SYNC_SECONDS = 0.1
_LOOKUP_SECONDS = 10.0
_MOST_LOOKUPS, _MOST_LOOKUPS_EACH = 64, 4  # pods whose images are not known yet, in all and of a namespace
_ALL = "0"  # the version from which a watch begins with all objects, from the API server's memory
_WITH_NODE = "spec.nodeName!="

_POD = msgspec.json.Decoder(OwnedPod)


class CrashWatch:
    """Notes crashes for the namespaces of their pods while `run` runs. `nodes` tells the platforms of the nodes."""

    def __init__(
        self,
        client: Streamer,
        pod_resolver: PodResolver,
        nodes: KnownNodes,
        crashes: Crashes,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._client = client
        self._pod_resolver = pod_resolver
        self._nodes = nodes
        self._crashes = crashes
        self._sleep = sleep
        self._version = _ALL
        self._lookups: Counter[str] = Counter()

    async def run(self) -> None:
        """Watches until cancelled, also after ClusterErrors."""
        delay = _FIRST_DELAY_SECONDS
        while not self._nodes.synced:
            await self._sleep(_SYNC_SECONDS)
        async with asyncio.TaskGroup() as tasks:
            while True:
                try:
                    await self._watch(tasks)
                    delay = _FIRST_DELAY_SECONDS
                except ClusterError as exc:
                    if isinstance(exc, ClusterRefused) and exc.status == 410:
                        self._version = _ALL
                    log.warning("watch.lost", resource="pods", error=str(exc), retry_in_seconds=delay)
                await self._sleep(delay)
                delay = min(2 * delay, _LAST_DELAY_SECONDS)

    async def _watch(self, tasks: asyncio.TaskGroup) -> None:
        """Notes crashes until the server ends the watch; the next one goes on from the last bookmark of this one."""
        query = {
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(WATCH_SECONDS),
            "fieldSelector": _WITH_NODE,
        }
        stream = watch_events(self._client, PODS, query, stall_seconds=_STALL_SECONDS)
        async with aclosing(stream) as events:
            async for event in events:
                if event.type == "BOOKMARK":
                    self._version = event.meta.resource_version or self._version
                elif event.has_object and may_have_crashed(bytes(event.object)):
                    self._take(event, tasks)

    def _take(self, event: Event, tasks: asyncio.TaskGroup) -> None:
        try:
            crash = self._crash_in(_POD.decode(event.object))
        except Exception:
            log.exception("watch.object_skipped", resource="pods", name=event.meta.name)
            return
        if crash is None or self._note(crash):
            return
        namespace = crash.question.namespace
        if self._lookups[namespace] < _MOST_LOOKUPS_EACH and self._lookups.total() < _MOST_LOOKUPS:
            self._lookups[namespace] += 1
            tasks.create_task(self._look_up(crash))

    def _crash_in(self, pod: OwnedPod) -> "_SeenCrash | None":
        """What crashed of a pod that runs programs of its node's platform; None if nothing did."""
        crashed, policy = tuple(crashed_images(pod)), self._pod_resolver.policy
        if pod.spec is None or not crashed or pod.spec.runtime_class_name in policy.runtime_classes:
            return None
        platform = self._nodes.platforms.get(NodeName(pod.spec.node_name or ""))
        namespace = pod.metadata.namespace or ""
        overrides = self._pod_resolver.overrides_of(pod, namespace, b"")
        if platform is None or is_ignored(pod.spec, overrides, policy):
            return None
        question = self._pod_resolver.question(pod, namespace, overrides, may_read=True)
        return _SeenCrash(question, platform, crashed)

    def _note(self, crash: "_SeenCrash") -> bool:
        """Has the pods of the namespace kept off the platform; returns whether all of the images are known.

        What a runtime reports may be the name of another image. So it counts only where it is the digest that the
        registry has given for the pod's own reference.
        """
        question, is_known = crash.question, True
        for reference, digest in crash.images:
            packed = self._pod_resolver.digest_of(reference, question.keyring)
            if packed is None:
                is_known = False
            elif unpack_digest(packed) == digest and self._crashes.note(question.namespace, packed, crash.platform):
                fields = {"image": reference, "platform": str(crash.platform), "namespace": question.namespace}
                log.warning("image.crashed", **fields)
        return is_known

    async def _look_up(self, crash: "_SeenCrash") -> None:
        try:
            await self._pod_resolver.resolve(crash.question, _LOOKUP_SECONDS)
            self._note(crash)
        except Exception:
            log.exception("image.crash_unchecked", namespace=crash.question.namespace)
        finally:
            self._lookups[crash.question.namespace] -= 1


class _SeenCrash(msgspec.Struct, frozen=True):
    """A pod's question, its node's platform, and what crashed there: references and the digests that were reported."""

    question: PodQuestion
    platform: Platform
    images: tuple[tuple[str, str], ...]
