"""Watches pods that no scheduler has placed yet, for a few seconds after each call of `look`; keeps none of them.

A callback of the caller receives the pods.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing

import msgspec
import structlog

from extender.cluster.events import Event, Streamer, watch_events
from extender.errors import ClusterError
from extender.kubernetes.core_v1 import Pod

PODS = "/api/v1/pods"
# The API server can select pods by both fields (pkg/apis/core/v1/conversion.go). A pod that is bound leaves the
# selection, which the watch reports as a deletion.
PENDING = "spec.nodeName=,status.phase=Pending"
LINGER_SECONDS = 5.0
WATCH_SECONDS = 60  # after which the server ends a watch, so that a dead one is noticed
_STALL_SECONDS = WATCH_SECONDS + 15.0
_FIRST_DELAY_SECONDS, _LAST_DELAY_SECONDS = 1.0, 30.0

_POD = msgspec.json.Decoder(Pod)
log = structlog.get_logger()


class PendingPods:
    """Watches pods that wait for a node, from a call of `look` until `linger_seconds` after the last call.

    A watch costs the API server two events for every pod in the cluster, so it is open only while it is useful: when
    one image is unknown, those of pods that wait behind it may be unknown too.
    """

    def __init__(
        self,
        client: Streamer,
        *,
        linger_seconds: float = LINGER_SECONDS,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._client = client
        self._linger_seconds = linger_seconds
        self._sleep = sleep
        self._wanted = asyncio.Event()
        self._delay_seconds = _FIRST_DELAY_SECONDS

    def look(self) -> None:
        """Starts a listing of pending pods and watches for a few seconds; returns at once."""
        self._wanted.set()

    async def run(self, on_pending_pod: Callable[[Pod], None]) -> None:
        """Calls `on_pending_pod` for pending pods and their changes while a watch is open. Runs until cancelled.

        `on_pending_pod` must be quick and must not block, since the watch waits for it. Continues after ClusterErrors.
        """
        while True:
            await self._wanted.wait()
            watching = asyncio.create_task(self._watch(on_pending_pod))
            try:
                while self._wanted.is_set() and not watching.done():
                    self._wanted.clear()
                    await asyncio.wait([watching], timeout=self._linger_seconds)
            finally:
                watching.cancel()
                await asyncio.wait([watching])
            if not watching.cancelled():
                watching.result()  # any exception is a defect of ours, and ends this task too
                await self._sleep(self._delay_seconds)  # so as not to flood a server that ends every watch

    async def _watch(self, on_pending_pod: Callable[[Pod], None]) -> None:
        """Announces all pending pods from the API server's cache, then changes, until the server ends the watch.

        Specification: https://kubernetes.io/docs/reference/using-api/api-concepts/#semantics-for-watch
        """
        query = {"resourceVersion": "0", "timeoutSeconds": str(WATCH_SECONDS), "fieldSelector": PENDING}
        try:
            async with aclosing(watch_events(self._client, PODS, query, stall_seconds=_STALL_SECONDS)) as events:
                async for event in events:
                    self._delay_seconds = _FIRST_DELAY_SECONDS
                    if event.has_object:
                        _announce(event, on_pending_pod)
                        await asyncio.sleep(0)  # a list has thousands of pods, each of which takes up to a millisecond
        except ClusterError as exc:
            self._delay_seconds = min(2 * self._delay_seconds, _LAST_DELAY_SECONDS)
            log.warning("watch.lost", resource="pods", error=str(exc), retry_in_seconds=self._delay_seconds)


def _announce(event: Event, on_pending_pod: Callable[[Pod], None]) -> None:
    try:
        on_pending_pod(_POD.decode(event.object))
    except Exception:
        log.exception("watch.object_skipped", resource="pods", name=event.meta.name)
