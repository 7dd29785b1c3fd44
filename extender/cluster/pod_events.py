"""Events about pods and their owners, which `kubectl describe` shows: few, short, and sent beside other work.

Who can create pods can cause events, so each namespace has a rate and a share of those that wait, which are sent in
turns. What is beyond them is dropped. The texts are capped: the API server's refusals quote whole specs.
Source: k8s.io/api/core/v1/types.go, Event. core/v1 is written, since every kubectl and dashboard reads it.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Literal

import msgspec
import structlog

from extender.cluster.client import ClusterClient, ClusterRefused
from extender.errors import ClusterError
from extender.kubernetes.core_v1 import EventMeta, EventSource, PodEvent, PodReference
from extender.tables import LruTable
from extender.turns import FairQueue, Slots

log = structlog.get_logger()

COMPONENT = "multiarch-extender"
TEXT_CHARACTERS = 512
_BURST, _PER_SECOND = 40.0, 5.0  # of one namespace; kube-scheduler's own limit is 25 for an object, then one in 5 min
_PAUSE_SECONDS = 0.02  # 50 a second at most, an eighth of what the controller's patches cost the API server
_TIMEOUT_SECONDS = 5.0
_CONFLICT = 409  # an object of that name is there

# Events that wait to be sent, and those of one namespace, of 1 KB each.
_WAITING, _WAITING_EACH = 1_000, 250
_MOST_RATES = 1024  # namespaces, half a megabyte at most


class _Rate(msgspec.Struct):
    left: float
    at: float


class PodEvents:
    """Sends events about pods while `run` runs; `record` only queues them. Times are the arguments' clocks'."""

    def __init__(
        self,
        client: ClusterClient,
        *,
        instance: str,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`instance` names this replica."""
        self._client = client
        self._instance = instance
        self._clock = clock
        self._wall_clock = wall_clock
        self._sleep = sleep
        self._rates: LruTable[str, _Rate] = LruTable(_MOST_RATES)
        self._waiting: FairQueue[PodEvent] = FairQueue()
        self._slots = Slots(_WAITING, _WAITING_EACH)

    def record(
        self,
        pod: PodReference,
        reason: str,
        text: str,
        kind: Literal["Normal", "Warning"] = "Normal",
        *,
        once: str = "",
    ) -> None:
        """Queues an event, or drops it if the namespace has too many.

        Of events about one object with the same text in `once`, the API server takes one, whichever replica sends it.
        """
        if not self._may_send(pod.namespace) or not self._slots.take(pod.namespace):
            return
        self._waiting.put(pod.namespace, self._event(pod, reason, capped(text), kind, once))

    async def run(self) -> None:
        """Sends what is queued until cancelled; an event that the API server does not take is dropped."""
        while True:
            event = await self._waiting.get()
            self._slots.give_back(event.metadata.namespace)
            await self._send(event)
            await self._sleep(_PAUSE_SECONDS)

    async def _send(self, event: PodEvent) -> None:
        path = f"/api/v1/namespaces/{event.metadata.namespace}/events"
        try:
            await self._client.send("POST", path, msgspec.json.encode(event), timeout_seconds=_TIMEOUT_SECONDS)
        except ClusterError as exc:
            is_known = isinstance(exc, ClusterRefused) and exc.status == _CONFLICT and bool(event.metadata.name)
            if not is_known:
                log.info("event.refused", namespace=event.metadata.namespace, why=str(exc))

    def _event(self, pod: PodReference, reason: str, text: str, kind: str, once: str) -> PodEvent:
        now = datetime.fromtimestamp(self._wall_clock(), UTC)
        second = now.strftime("%Y-%m-%dT%H:%M:%SZ")
        beginning = f"{pod.name[:200].rstrip('-.')}."
        suffix = hashlib.sha256(f"{pod.uid} {once}".encode()).hexdigest()[:16] if once else ""
        return PodEvent(
            metadata=EventMeta(pod.namespace, "" if once else beginning, f"{beginning}{suffix}" if once else ""),
            involved_object=pod,
            reason=reason,
            message=text,
            type=kind,
            source=EventSource(COMPONENT),
            reporting_component=COMPONENT,
            reporting_instance=self._instance,
            action=reason,
            first_timestamp=second,
            last_timestamp=second,
            event_time=now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        )

    def _may_send(self, namespace: str) -> bool:
        now = self._clock()
        rate = self._rates.get(namespace) or _Rate(_BURST, now)
        left = min(_BURST, rate.left + (now - rate.at) * _PER_SECOND)
        may = left >= 1
        self._rates.put(namespace, _Rate(left - may, now))
        return may


def capped(text: str) -> str:
    """The text in one line of at most `TEXT_CHARACTERS`."""
    line = " ".join(text.split())
    return line if len(line) <= TEXT_CHARACTERS else f"{line[: TEXT_CHARACTERS - 1]}…"
