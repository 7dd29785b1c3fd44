"""The events of a watch, from its lines.

Specification: https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes
"""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Protocol

import msgspec

from extender.cluster.client import JSON, ClusterRefused
from extender.errors import ClusterError
from extender.kubernetes.meta_v1 import Status, VersionedMeta, VersionedObject, WatchEvent


class Streamer(Protocol):
    """What is needed of a ClusterClient to watch."""

    def stream(
        self, path: str, query: Mapping[str, str] | None = None, *, accept: str = JSON, stall_seconds: float
    ) -> AsyncGenerator[bytes, None]: ...


class Event(msgspec.Struct, frozen=True):
    """`type` is ADDED, MODIFIED, DELETED, BOOKMARK or whatever else a server thinks of; the object is undecoded."""

    type: str
    meta: VersionedMeta
    object: msgspec.Raw

    @property
    def has_object(self) -> bool:
        """Whether the object is there now, and this is how it looks."""
        return self.type in ("ADDED", "MODIFIED")


_LINE = msgspec.json.Decoder(WatchEvent)
_OBJECT = msgspec.json.Decoder(VersionedObject)
_STATUS = msgspec.json.Decoder(Status)


async def watch_events(
    streamer: Streamer, path: str, query: Mapping[str, str], *, accept: str = JSON, stall_seconds: float
) -> AsyncGenerator[Event, None]:
    """The events of a watch with that query, until the server ends it. Close it with `contextlib.aclosing`.

    Raises:
        ClusterRefused: the server wants no such watch; also one that it ends with an ERROR, by the code it gives.
        ClusterError: it cannot be reached, has been silent for `stall_seconds`, or sends what is no event.
    """
    stream = streamer.stream(path, {"watch": "true", **query}, accept=accept, stall_seconds=stall_seconds)
    async with aclosing(stream) as lines:
        async for line in lines:
            yield _event_of(line)


def _event_of(line: bytes) -> Event:
    try:
        event = _LINE.decode(line)
        if event.type != "ERROR":
            return Event(event.type, _OBJECT.decode(event.object).metadata, event.object)
        status = _STATUS.decode(event.object)
    except msgspec.DecodeError as exc:
        raise ClusterError(f"the API server's answer is malformed: {exc}") from exc
    raise ClusterRefused(f"the watch ended: {status.code} {(status.message or '')[:200]}", status.code)
