"""What the API server has stored: objects under one increasing version, their history, and who is told of changes.

As with etcd behind kube-apiserver, an object is never changed in place, a list has one version through all its pages,
and history before a compaction is gone. Limit: all kinds share one watch cache, which is never behind.
"""

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

import msgspec

from tests.worlds.api_errors import expired
from tests.worlds.api_kinds import Document
from tests.worlds.selectors import Predicate

Key = tuple[str, str]
"""Namespace, empty where there is none, and name."""
Subscriber = Callable[[str, Document | None, Document | None], None]

encode: Callable[[Any], bytes] = msgspec.json.Encoder().encode
decode: Callable[[bytes], Any] = msgspec.json.Decoder().decode

BOOKMARK_SECONDS = 60.0  # defaultBookmarkFrequency of k8s.io/apiserver/pkg/storage/cacher
_LAST_BOOKMARK_SECONDS = 2.0  # before the end of a watch
_FIRST_VERSION = 1000


def copied(document: Document) -> Document:
    """A copy that shares nothing."""
    found: Document = decode(encode(document))
    return found


def key_of(document: Document) -> Key:
    """Under which an object is stored."""
    metadata = document["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


class Stored:
    """A version of an object. `document` is not to be changed."""

    __slots__ = ("_encoded", "_encoded_metadata", "document", "version")

    def __init__(self, document: Document, version: int) -> None:
        self.document = document
        self.version = version
        self._encoded = b""
        self._encoded_metadata = b""

    def encoded(self, *, metadata_only: bool = False) -> bytes:
        """Its JSON, or that of a PartialObjectMetadata."""
        if metadata_only:
            if not self._encoded_metadata:
                partial = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"}
                self._encoded_metadata = encode(partial | {"metadata": self.document["metadata"]})
            return self._encoded_metadata
        if not self._encoded:
            self._encoded = encode(self.document)
        return self._encoded


class Change(NamedTuple):
    """An object before (None: it was created) and after (None: deleted)."""

    version: int
    kind: str
    before: Stored | None
    after: Stored | None

    @property
    def type(self) -> str:
        """As watches name it."""
        return "ADDED" if self.before is None else "DELETED" if self.after is None else "MODIFIED"


class Page(NamedTuple):
    """A page of a list at `version`; `token` continues it."""

    items: list[Stored]
    version: int
    token: str
    remaining: int


class Storage:
    """The objects of all kinds."""

    def __init__(self) -> None:
        self.version = _FIRST_VERSION
        self._objects: dict[str, dict[Key, Stored]] = {}
        self._history: deque[Change] = deque()
        self._oldest = _FIRST_VERSION  # a watch from an older version is refused
        self._lists: dict[str, list[Stored]] = {}  # what is left of lists, by token
        self._subscribers: dict[str, list[Subscriber]] = {}
        self._watches: list[Watch] = []
        self._untold: deque[Change] = deque()

    def find(self, kind: str, key: Key) -> Stored | None:
        """The object as it is now."""
        return self._objects.get(kind, {}).get(key)

    def all(self, kind: str, namespace: str = "") -> list[Stored]:
        """The objects of a kind in the order of their keys, as etcd lists them."""
        found = self._objects.get(kind, {})
        return [found[key] for key in sorted(found) if namespace in ("", key[0])]

    def put(self, kind: str, document: Document) -> Stored:
        """Stores the document, which is the storage's from now on, under a new version."""
        self.version += 1
        document["metadata"]["resourceVersion"] = str(self.version)
        after = Stored(document, self.version)
        objects = self._objects.setdefault(kind, {})
        key = key_of(document)
        before = objects.get(key)
        objects[key] = after
        self._tell(Change(self.version, kind, before, after))
        return after

    def remove(self, kind: str, key: Key) -> Stored:
        """Deletes the object. Raises KeyError."""
        before = self._objects[kind].pop(key)
        self.version += 1
        self._tell(Change(self.version, kind, before, None))
        return before

    def subscribe(self, kind: str, subscriber: Subscriber) -> None:
        """Calls it with the type, the object before and after, at each change of the kind, in order."""
        self._subscribers.setdefault(kind, []).append(subscriber)

    def _tell(self, change: Change) -> None:
        """Tells everybody of the change, and of those that this leads to after it."""
        self._history.append(change)
        for watch in self._watches:
            watch.offer(change)
        self._untold.append(change)
        if len(self._untold) > 1:
            return
        while self._untold:
            told = self._untold[0]
            for subscriber in self._subscribers.get(told.kind, ()):
                before, after = (each.document if each else None for each in (told.before, told.after))
                subscriber(told.type, before, after)
            self._untold.popleft()

    def list_page(self, kind: str, namespace: str, is_selected: Predicate, limit: int, token: str) -> Page:
        """A page of a list. Raises ApiError (410) if what the token continues has been compacted."""
        if token:
            if token not in self._lists:
                raise expired("The provided continue parameter is too old to display a consistent list result.")
            found, version = self._lists[token], int(token.partition(":")[0])
        else:
            found = [each for each in self.all(kind, namespace) if is_selected(each.document)]
            version = self.version
        if not limit or len(found) <= limit:
            return Page(found, version, "", 0)
        last = key_of(found[limit - 1].document)
        following = f"{version}:{kind}:{namespace}:{last[0]}/{last[1]}"
        self._lists[following] = found[limit:]
        return Page(found[:limit], version, following, len(found) - limit)

    def compact(self) -> None:
        """Drops history and unfinished lists; watches that are open go on."""
        self._history.clear()
        self._lists.clear()
        self._oldest = self.version

    def open_watch(
        self, kind: str, namespace: str, is_selected: Predicate, version: str, *, metadata_only: bool
    ) -> "Watch":
        """A watch from a version; one without, or from 0, begins with all objects."""
        watch = Watch(kind, namespace, is_selected, metadata_only)
        if version in ("", "0"):
            for stored in self.all(kind, namespace):
                watch.offer(Change(stored.version, kind, None, stored))
        elif int(version) < self._oldest:
            watch.end_with(expired(f"too old resource version: {version} ({self._oldest})").status)
        else:
            watch.since = int(version)  # one of the future, as after a restored backup, has to come about first
            for change in self._history:
                watch.offer(change)
        self._watches.append(watch)
        return watch

    def close_watch(self, watch: "Watch") -> None:
        """Tells it no more."""
        if watch in self._watches:
            self._watches.remove(watch)

    def watches(self, kind: str) -> list["Watch"]:
        """The open watches of a kind."""
        return [watch for watch in self._watches if watch.kind == kind]


class Watch:
    """What one watch is still to send. One that `is_dead` sends nothing more, and never ends."""

    def __init__(self, kind: str, namespace: str, is_selected: Predicate, metadata_only: bool) -> None:
        self.kind = kind
        self.since = 0
        self.is_dead = False
        self._is_cut = False
        self._is_over = False
        self._namespace = namespace
        self._is_selected = is_selected
        self._metadata_only = metadata_only
        self._lines: deque[bytes] = deque()
        self._has_news = asyncio.Event()

    def offer(self, change: Change) -> None:
        """Takes in a change, if it is of a selected object.

        One that is selected no longer counts as deleted, and one that is now as added.
        """
        if change.kind != self.kind or change.version <= self.since:
            return
        before, after = self._seen(change.before), self._seen(change.after)
        if after:
            self._send("MODIFIED" if before else "ADDED", after.encoded(metadata_only=self._metadata_only))
        elif before:
            last = copied(before.document)
            last["metadata"]["resourceVersion"] = str(change.version)
            self._send("DELETED", Stored(last, change.version).encoded(metadata_only=self._metadata_only))

    def _seen(self, stored: Stored | None) -> Stored | None:
        if stored is None or (self._namespace and self._namespace != stored.document["metadata"].get("namespace")):
            return None
        return stored if self._is_selected(stored.document) else None

    def end_with(self, status: Document) -> None:
        """Sends an error and ends."""
        self._send("ERROR", encode(status))
        self.end()

    def end(self) -> None:
        """Ends in good order."""
        self._is_over = True
        self._has_news.set()

    def cut(self) -> None:
        """Breaks the connection."""
        self._is_cut = True
        self._has_news.set()

    def _send(self, event: str, encoded: bytes) -> None:
        self.say(b'{"type":"%b","object":%b}\n' % (event.encode(), encoded))

    def say(self, line: bytes) -> None:
        """Sends a line."""
        self._lines.append(line)
        self._has_news.set()

    async def lines(
        self, version: Callable[[], int], seconds: float, *, has_bookmarks: bool = True
    ) -> AsyncIterator[bytes]:
        """The lines as they come, with bookmarks of the `version` that the storage has then, for so many seconds."""
        now = asyncio.get_running_loop().time
        ends_at = now() + seconds
        bookmark_at = _next_bookmark(now(), ends_at) if has_bookmarks else math.inf
        while True:
            while self._lines and not self.is_dead:
                yield self._lines.popleft()
            if self._is_cut:
                raise ConnectionResetError("the watch was cut")
            if self._is_over or (now() >= ends_at and not self.is_dead):
                return
            self._has_news.clear()
            await self._wait(min(bookmark_at, ends_at) - now())
            if now() >= bookmark_at:
                bookmark_at = _next_bookmark(now(), ends_at)
                self._send("BOOKMARK", self._bookmark(version()))

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(None if self.is_dead else seconds):
                await self._has_news.wait()
        except TimeoutError:
            pass

    def _bookmark(self, version: int) -> bytes:
        api_version = "meta.k8s.io/v1" if self._metadata_only else "v1"
        kind = "PartialObjectMetadata" if self._metadata_only else self.kind
        metadata = {"resourceVersion": str(version), "creationTimestamp": None}
        return encode({"kind": kind, "apiVersion": api_version, "metadata": metadata})


def _next_bookmark(now: float, ends_at: float) -> float:
    """Source: cacheWatcher.nextBookmarkTime of k8s.io/apiserver/pkg/storage/cacher/cache_watcher.go."""
    before_end = ends_at - _LAST_BOOKMARK_SECONDS
    return before_end if now < before_end < now + BOOKMARK_SECONDS else now + BOOKMARK_SECONDS
