"""Decodes the events of a watch from its lines.

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
    """The part of a ClusterClient that a watch uses."""

    def stream(
        self, path: str, query: Mapping[str, str] | None = None, *, accept: str = JSON, stall_seconds: float
    ) -> AsyncGenerator[bytes, None]: ...


class Event(msgspec.Struct, frozen=True):
    """An event of a watch. `type` is ADDED, MODIFIED, DELETED, BOOKMARK or unknown; the object is undecoded."""

    type: str
    meta: VersionedMeta
    object: msgspec.Raw

    @property
    def has_object(self) -> bool:
        """Whether `object` is the current state of an object that exists."""
        return self.type in ("ADDED", "MODIFIED")


_LINE = msgspec.json.Decoder(WatchEvent)
_OBJECT = msgspec.json.Decoder(VersionedObject)
_STATUS = msgspec.json.Decoder(Status)


async def watch_events(
    streamer: Streamer, path: str, query: Mapping[str, str], *, accept: str = JSON, stall_seconds: float
) -> AsyncGenerator[Event, None]:
    """The events of a watch until the server ends it. Close the generator with `contextlib.aclosing`.

    Raises:
        ClusterRefused: the server refuses the watch, or ends it with an ERROR event, whose code is the status.
        ClusterError: the server cannot be reached, was silent for `stall_seconds`, or sent a malformed event.
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
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise ClusterError(f"the API server's answer is malformed: {exc}") from exc
    raise ClusterRefused(f"the watch ended: {status.code} {(status.message or '')[:200]}", status.code)
