"""The files of an image as a container sees them, from the layers that have been read so far: from the top one down.

Whiteouts and opaque folders hide what layers below have (image-spec layer.md); links are followed as the kernel does.
What no layer has shown yet is `UNREAD`, as long as there are layers below.
"""

import enum
import posixpath
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from extender.verifier.archive_reading import (
    MOST_NAME_CHARACTERS,
    EntryType,
    InvalidLayer,
    LayerEntry,
    characters_of,
    clean_path,
)

_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"
_MOST_LINKS = 40  # MAXSYMLINKS
_MOST_REST = 4096  # PATH_MAX, of what is left of a path at a link: links that lead on and on would make it longer
_FILES = frozenset({EntryType.PROGRAM, EntryType.FILE})


class Absent(enum.Enum):
    """Why there is no file."""

    UNREAD = "unread"
    """A layer that has not been read may have it."""
    MISSING = "missing"


class FoundFile(NamedTuple):
    """A file that is no link, by its path without links. `layer` is where it stands, 0 for the top one."""

    path: str
    entry: LayerEntry
    layer: int


class ImageFiles:
    """`add` each layer from the top one down, then `finish`."""

    def __init__(self) -> None:
        self._entries: dict[str, tuple[LayerEntry, int]] = {}
        self._parents: set[str] = set()  # of entries: folders, unless a link of a layer below leads to one
        self._characters = 0
        self._hidden: set[str] = set()  # by whiteouts
        self._opaque: set[str] = set()
        self._linked: dict[str, list[str]] = {}  # to files of layers below, by their path
        self._layers = 0
        self._is_complete = False

    def add(self, layer: Mapping[str, LayerEntry]) -> None:
        """Adds the next layer below. Raises InvalidLayer if the names of all are too long together."""
        number, self._layers = self._layers, self._layers + 1
        hides: dict[str, bool] = {}
        linked, self._linked = self._linked, {}
        added = {}
        hidden, opaque = set(), set()
        for path, entry in layer.items():
            parent, name = posixpath.split(path)
            if self._hides_children_of(parent, hides):
                continue
            if name == _OPAQUE:
                opaque.add(parent)
            elif name.startswith(_WHITEOUT):
                hidden.add(posixpath.join(parent, name.removeprefix(_WHITEOUT)))
            elif path not in self._entries and path not in self._hidden:
                added[path] = entry
        for path, entry in added.items():
            self._entries[path] = (self._through_hard_link(path, entry, layer), number)
            self._characters += characters_of(path, entry)
            self._add_parents(path)
        for target, paths in linked.items():
            self._link(target, paths, layer, number)
        self._hidden |= hidden
        self._opaque |= opaque

    def finish(self) -> None:
        """There are no more layers: what has not been found is missing."""
        self._is_complete = True

    def find(self, path: str, folder: str = "/") -> FoundFile | Absent:
        """The file that a program in `folder` finds under the path, links followed."""
        return self._walk(clean_path(posixpath.join(folder, path)), _MOST_LINKS)

    def _walk(self, path: str, links: int) -> FoundFile | Absent:
        direct = self._entries.get(path)
        if direct and direct[0].type in _FILES:
            return FoundFile(path, *direct)  # whatever its folders are: an upper layer would have hidden it
        parts = path.split("/")
        is_hidden = self._is_complete or self._hides_children_of("", {})
        for depth in range(1, len(parts) + 1):
            here = "/".join(parts[:depth])
            known = self._entries.get(here)
            is_hidden = is_hidden or here in self._hidden
            if known is None:
                if not is_hidden:
                    return Absent.UNREAD
                if here not in self._parents:
                    break
            is_hidden = is_hidden or here in self._opaque
            if known is None or known[0].type is EntryType.FOLDER:
                continue
            entry, layer = known
            rest = "/".join(parts[depth:])
            if entry.type is EntryType.SYMLINK and links and len(rest) <= _MOST_REST:
                target = posixpath.join("/", posixpath.dirname(here), entry.target, rest)
                return self._walk(clean_path(target), links - 1)
            if entry.type in _FILES and not rest:
                return FoundFile(here, entry, layer)
            if entry.type is EntryType.HARD_LINK and not self._is_complete:
                return Absent.UNREAD
            break
        return Absent.MISSING

    def _hides_children_of(self, folder: str, known: dict[str, bool]) -> bool:
        """Whether the layers so far hide what layers below have in a folder. `known` has what was found already."""
        hides = known.get(folder)
        if hides is None:
            entry = self._entries.get(folder)
            hides = folder in self._opaque or folder in self._hidden
            hides = hides or (entry is not None and entry[0].type is not EntryType.FOLDER)
            hides = hides or (folder != "" and self._hides_children_of(posixpath.dirname(folder), known))
            known[folder] = hides
        return hides

    def _add_parents(self, path: str) -> None:
        parent = posixpath.dirname(path)
        while parent not in self._parents:
            self._parents.add(parent)
            self._characters += len(parent)
            parent = posixpath.dirname(parent)
        if self._characters > MOST_NAME_CHARACTERS:
            raise InvalidLayer("its layers have names without end")

    def _through_hard_link(self, path: str, entry: LayerEntry, layer: Mapping[str, LayerEntry]) -> LayerEntry:
        """The file that a hard link means: of the same layer, or else of one below, which is linked when it comes."""
        for _ in range(_MOST_LINKS):
            if entry.type is not EntryType.HARD_LINK:
                return entry
            target = clean_path(entry.target)
            there = layer.get(target)
            if there is None:
                self._linked.setdefault(target, []).append(path)
                return entry
            entry = there
        return LayerEntry(EntryType.FILE)

    def _link(self, target: str, paths: Iterable[str], layer: Mapping[str, LayerEntry], number: int) -> None:
        there = layer.get(target)
        if there is None:
            self._linked.setdefault(target, []).extend(paths)
            return
        for path in paths:
            self._entries[path] = (self._through_hard_link(path, there, layer), number)
