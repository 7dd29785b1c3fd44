"""Keeps a view equal to the API server's state: lists in pages, watches, and lists again when its version has expired.

Specification: https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes
This file handles resource versions, bookmarks and backoff. A `Handler` decodes the objects.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Set
from contextlib import aclosing
from http import HTTPStatus
from typing import Literal, Protocol

import msgspec
import structlog

from extender.cluster.client import JSON, ClusterRefused, decode_answer
from extender.errors import ClusterError
from extender.kubernetes.meta_v1 import List, ListMeta, Status, VersionedMeta, VersionedObject, WatchEvent
from extender.metrics import gauge


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


def _event_of(line: bytes) -> Event:
    event = decode_answer(_LINE, line, "event")
    if event.type != "ERROR":
        return Event(event.type, decode_answer(_OBJECT, event.object, "object").metadata, event.object)
    status = decode_answer(_STATUS, event.object, "Status")
    raise ClusterRefused(f"the watch ended: {status.code} {(status.message or '')[:200]}", status.code)


# A page of nodes has 3 MB or more, and takes twice that while it is read. Decoding it blocks the event loop for 4 ms.
PAGE_OBJECTS = 250
WATCH_SECONDS = 240  # after which the server ends a watch
BOOKMARK_SECONDS = 62.0  # a watch has one each minute (kube-apiserver's bookmarkFrequency), a second or two late
LOST_SECONDS = 90.0
"""For how long a view counts that nothing confirms, and a watch lasts that brings nothing."""
_FIRST_DELAY_SECONDS, _LAST_DELAY_SECONDS = 0.5, 30.0
# When to list again, as a server restored from a backup never reaches the version we hold. A new watch may bring
# nothing before its first bookmark, so a view that is older than this would not be confirmed in time.
_TRIES_PER_VERSION, _SECONDS_PER_VERSION = 5, LOST_SECONDS - BOOKMARK_SECONDS - 3.0
_IN_CACHE = "0"  # the version from which a watch begins with all objects that the API server's cache has

AGE = gauge(
    "multiarch_watch_age_seconds",
    "Time since the API server last confirmed our view of the resource; 0: it is not watched.",
    "resource",
    ("nodes", "namespaces", "held-pods"),
)
log = structlog.get_logger()


class Resource(msgspec.Struct, frozen=True, kw_only=True):
    """What to list and watch. `query` selects among the objects at `path`.

    `is_kept`: a view is kept of it. Of others there is no list and no metric: a watch that begins anew brings all
    objects that the API server's cache has, and nothing says which are gone.
    """

    name: str
    path: str
    query: Mapping[str, str] = {}
    is_kept: bool = True
    list_accept: str = JSON
    watch_accept: str = JSON

    @property
    def granted_as(self) -> str:
        """The resource as `kubectl auth can-i` takes it, such as nodes or jobs.batch."""
        _, root, *between, plural = self.path.split("/")
        return f"{plural}.{between[0]}" if root == "apis" else plural


class Getter(Protocol):
    """The part of a ClusterClient that lists and lookups use."""

    async def get(self, path: str, query: Mapping[str, str] | None = None, *, accept: str = JSON) -> bytes: ...


class Reader(Getter, Protocol):
    """The part of a ClusterClient that a ListWatch uses."""

    def stream(
        self, path: str, query: Mapping[str, str] | None = None, *, accept: str = JSON, stall_seconds: float
    ) -> AsyncGenerator[bytes, None]: ...


class Handler(Protocol):
    """Receives a ListWatch's objects; synchronous, so that no cancellation falls between an event and its effect."""

    def upsert(self, document: msgspec.Raw) -> None:
        """Takes in the current state of an object, new or not. Any exception is logged and the object skipped."""

    def delete(self, key: str, /) -> None:
        """Removes the object of that key (`VersionedMeta.key`), which is deleted or no longer selected."""

    def keep_only(self, keys: Set[str], /) -> None:
        """Removes all objects that are not among `keys`, after `upsert` was called for all objects of a list."""


_PAGE = msgspec.json.Decoder(List)


class ListWatch:
    """Passes all objects of `resource` and all their changes to `handler` while `run` runs."""

    def __init__(  # time and chance are the caller's
        self,
        reader: Reader,
        resource: Resource,
        handler: Handler,
        *,
        clock: Callable[[], float],
        random: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        stall_seconds: float = LOST_SECONDS,
    ) -> None:
        """`clock` gives seconds, `random` numbers from 0 to 1. A watch fails after `stall_seconds` without a byte."""
        self._reader = reader
        self._resource = resource
        self._handler = handler
        self._clock = clock
        self._random = random
        self._sleep = sleep
        self._stall_seconds = stall_seconds
        self._first_version = "" if resource.is_kept else _IN_CACHE
        self._version = self._first_version  # where to watch from; empty: list first
        self._tries = 0  # connections since the last line of a watch
        self._is_expired = False  # whether a 410 ended a watch, and no line of a watch has come since
        self._is_lost = False
        self._missing: set[str] = set()  # rights that were named since the watch was lost
        self.is_live = False
        """Whether a watch is open that has brought an event or bookmark, so that it shows objects as they are made."""
        self._lists = 0
        self._confirmed_at = clock()
        if resource.is_kept:
            AGE[resource.name].set_function(self.age_seconds)

    @property
    def name(self) -> str:
        """The resource's name."""
        return self._resource.name

    @property
    def is_synced(self) -> bool:
        """Whether all objects have been listed once."""
        return self._lists > 0

    @property
    def is_seen(self) -> bool:
        """Whether the view is whole, and was confirmed lately enough to go by what it shows."""
        return self.is_synced and self.age_seconds() <= LOST_SECONDS

    def age_seconds(self) -> float:
        """Seconds since a list page or watch event last confirmed the view; at first since this object was made."""
        return self._clock() - self._confirmed_at

    async def run(self) -> None:
        """Lists, watches and reconnects until cancelled, also after ClusterErrors. It can be run again afterwards."""
        if not self._resource.is_kept:
            self._version = self._first_version
        while True:
            self._tries += 1
            try:
                if not self._version:
                    await self._list()
                await self._watch()
                delay = self._delay_seconds()
            except ClusterError as exc:
                delay = self._outlive(exc)
            if self._tries >= _TRIES_PER_VERSION or self.age_seconds() >= _SECONDS_PER_VERSION:
                self._version = self._first_version
            await self._sleep(delay)

    async def _list(self) -> None:
        """Lists all objects page by page at one version. A 410 means that this version has expired: list again."""
        keys: set[str] = set()
        query = {"limit": str(PAGE_OBJECTS), **self._resource.query}
        while True:
            metadata = await self._list_page(query, keys)
            if not metadata.continue_:
                break
            query["continue"] = metadata.continue_
        self._handler.keep_only(keys)
        self._version = metadata.resource_version
        self._lists += 1
        event = "watch.started" if self._lists == 1 else "watch.relisted"
        log.info(event, resource=self._resource.name, objects=len(keys), version=self._version)

    async def _list_page(self, query: Mapping[str, str], keys: set[str]) -> ListMeta:
        """Passes one page to the handler and adds its keys. Returning frees the page before the next one is read."""
        body = await self._reader.get(self._resource.path, query, accept=self._resource.list_accept)
        page = decode_answer(_PAGE, body, "list")
        for document in page.items or ():
            key = decode_answer(_OBJECT, document, "object").metadata.key
            self._upsert(key, document)
            keys.add(key)
        self._confirmed_at = self._clock()
        return page.metadata

    async def _watch(self) -> None:
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            # replicas that started together must not all reconnect together
            "timeoutSeconds": str(int(WATCH_SECONDS * (1 - self._random() / 4))),
            **self._resource.query,
        }
        stream = self._reader.stream(
            self._resource.path, query, accept=self._resource.watch_accept, stall_seconds=self._stall_seconds
        )
        try:
            async with aclosing(stream) as lines:
                async for line in lines:
                    self._apply(_event_of(line))
                    self._confirm()
                    await asyncio.sleep(0)  # thousands may come at once, and each takes up to a millisecond
        finally:
            self.is_live = False

    def _apply(self, event: Event) -> None:
        if event.has_object:
            self._upsert(event.meta.key, event.object)
        elif event.type == "DELETED":
            self._handler.delete(event.meta.key)
        self._version = event.meta.resource_version or self._version

    def _upsert(self, key: str, document: msgspec.Raw) -> None:
        try:
            self._handler.upsert(document)
        except Exception:
            log.exception("watch.object_skipped", resource=self._resource.name, name=key)

    def _confirm(self) -> None:
        self._confirmed_at = self._clock()
        self._tries = 0
        self._is_expired = False
        self.is_live = True
        if self._is_lost:
            self._is_lost = False
            self._missing.clear()
            log.info("watch.resumed", resource=self._resource.name)

    def _outlive(self, exc: ClusterError) -> float:
        """Logs the lost watch and returns how many seconds to wait before the next try."""
        refused = exc if isinstance(exc, ClusterRefused) else None
        is_gone = refused is not None and refused.status == 410
        if is_gone and self._version and not self._is_expired:
            # The server answers again, so the list need not wait as long as the outage made us wait. If the version of
            # that list is gone too, the backoff grows again.
            self._is_expired = True
            self._tries = 1
        verb: Literal["list", "watch"] = "watch" if self._version else "list"
        if is_gone:
            self._version = self._first_version
        requested_seconds = (refused and refused.retry_after_seconds) or 0.0
        delay = max(self._delay_seconds(), min(requested_seconds, _LAST_DELAY_SECONDS))
        self._report_lost(exc, verb, delay)
        return delay

    def _report_lost(self, exc: ClusterError, verb: Literal["list", "watch"], retry_in_seconds: float) -> None:
        """Logs that the watch is lost. A right that is missing is named once until it works again."""
        self._is_lost = True
        name = self._resource.name
        if not (isinstance(exc, ClusterRefused) and exc.status == HTTPStatus.FORBIDDEN):
            log.warning("watch.lost", resource=name, error=str(exc), retry_in_seconds=round(retry_in_seconds, 3))
        elif verb not in self._missing:
            self._missing.add(verb)
            log.error("watch.refused", resource=name, right=f"{verb} {self._resource.granted_as}", error=str(exc))

    def _delay_seconds(self) -> float:
        """A delay that doubles with each try without a watch event. Jitter halves it at most; it is never zero."""
        doublings = min(self._tries, 10)  # beyond that the maximum applies, and the power would only grow
        delay = min(_FIRST_DELAY_SECONDS * (1 << doublings), _LAST_DELAY_SECONDS)
        return delay * (1 + self._random()) / 2
