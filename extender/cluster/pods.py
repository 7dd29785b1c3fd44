"""The pods that no scheduler has placed yet, announced while somebody wants to know of them; none is kept.

Knows which pods those are, and when to look; what is done about them is the caller's business.
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
# Both fields are among those the API server can select pods by (pkg/apis/core/v1/conversion.go). A pod that is bound
# leaves the selection, which the watch reports as its deletion.
PENDING = "spec.nodeName=,status.phase=Pending"
LINGER_SECONDS = 5.0
WATCH_SECONDS = 60  # the server ends a watch after this long, so that a dead one is noticed
_STALL_SECONDS = WATCH_SECONDS + 15.0
_FIRST_DELAY_SECONDS, _LAST_DELAY_SECONDS = 1.0, 30.0

_POD = msgspec.json.Decoder(Pod)
log = structlog.get_logger()


class PendingPods:
    """Looks at pods that wait for a node when it is told to, and until `linger_seconds` after it was last told.

    A watch costs the API server two events for every pod there is, so it is open only while it tells something: when
    one image has not been known, others that wait behind it may not be known either.
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
        """Have the pods announced that wait now and in the next seconds. Takes no time."""
        self._wanted.set()

    async def run(self, on_pending_pod: Callable[[Pod], None]) -> None:
        """Calls it for each pod that is looked at, and again when the pod changes, until cancelled.

        `on_pending_pod` must be quick and must not block: the watch waits for it. ClusterErrors are outlived.
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
                watching.result()  # whatever it raises is a mistake of ours, and ends this too
                await self._sleep(self._delay_seconds)  # a server that ends every watch is not to be pestered

    async def _watch(self, on_pending_pod: Callable[[Pod], None]) -> None:
        """All that wait as the API server's cache has them, then changes, until the server ends the watch.

        Specification: https://kubernetes.io/docs/reference/using-api/api-concepts/#semantics-for-watch
        """
        query = {"resourceVersion": "0", "timeoutSeconds": str(WATCH_SECONDS), "fieldSelector": PENDING}
        try:
            async with aclosing(watch_events(self._client, PODS, query, stall_seconds=_STALL_SECONDS)) as events:
                async for event in events:
                    self._delay_seconds = _FIRST_DELAY_SECONDS
                    if event.has_object:
                        _announce(event, on_pending_pod)
        except ClusterError as exc:
            self._delay_seconds = min(2 * self._delay_seconds, _LAST_DELAY_SECONDS)
            log.warning("watch.lost", resource="pods", error=str(exc), retry_in_seconds=self._delay_seconds)


def _announce(event: Event, on_pending_pod: Callable[[Pod], None]) -> None:
    try:
        on_pending_pod(_POD.decode(event.object))
    except Exception:
        log.exception("watch.object_skipped", resource="pods", name=event.meta.name)
