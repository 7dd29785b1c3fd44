"""What happened in a world, in order: by whom, what, and when."""

import hashlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec


class Entry(NamedTuple):
    """One thing that happened, in seconds since the world began."""

    at: float
    actor: str
    event: str
    fields: dict[str, Any]

    def __str__(self) -> str:
        details = " ".join(f"{key}={value}" for key, value in self.fields.items())
        return f"{self.at:9.3f} {self.actor:<22} {self.event} {details}".rstrip()


class Trace:
    """The entries of one world. Called with an actor, an event and what belongs to it, it notes them with the time."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._entries: list[Entry] = []
        self._listeners: dict[str, list[Callable[[Entry], None]]] = {}

    def __call__(self, actor: str, event: str, **fields: Any) -> None:
        entry = Entry(round(self._clock(), 6), actor, event, fields)
        self._entries.append(entry)
        for listener in self._listeners.get(event, ()):
            listener(entry)

    def listen(self, event: str, listener: Callable[[Entry], None]) -> None:
        """Has `listener` called with each entry of this event from now on."""
        self._listeners.setdefault(event, []).append(listener)

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries)

    @property
    def digest(self) -> str:
        """SHA-256 over all entries: the same for the same world, in any process."""
        digest = hashlib.sha256()
        for entry in self._entries:
            digest.update(msgspec.json.encode(entry))
            digest.update(b"\n")
        return digest.hexdigest()
