"""Reads a layer: each file of its tar archive with the first bytes of programs, whatever packs it, as runtimes do.

What is held at a time is bounded, and so is what all layers of an image hold together. Nothing is written anywhere.
"""

import enum
import gzip
import importlib
import io
import posixpath
import sys
import tarfile
import zlib
from types import ModuleType
from typing import Any, Protocol

import msgspec

from extender.verifier.program_headers import HEAD_BYTES, OTHER, ProgramHead, read_head

_GZIP = b"\x1f\x8b"
_ZSTD = (b"\x28\xb5\x2f\xfd", *(bytes((0x50 + number, 0x2A, 0x4D, 0x18)) for number in range(16)))
# Of the window that a frame asks for: 32 MiB, which is what buildah, podman and BuildKit use at their highest level.
_WINDOW_LOG = 25
_BLOCK, _STEP_BYTES = 512, 256 << 10
_MOST_HEADER_BYTES = 1 << 20  # of one file, extended headers and all; names are 4 KiB at most
_MOST_PATH_CHARACTERS, _MOST_DEPTH = 4096, 128  # PATH_MAX; nested packages of npm are 50 deep
MOST_NAME_CHARACTERS = 16 << 20
"""Of all names in an image together, of which 100,000 files have 8 million."""
_ANY_EXECUTE = 0o111


class InvalidLayer(Exception):
    """The bytes are no layer that can be read to its end. The message is a short sentence."""


class EntryType(enum.Enum):
    """What an entry makes of its path."""

    PROGRAM = "program"
    """A regular file that may be executed."""
    FILE = "file"
    """A regular file that may not, a device or a pipe."""
    FOLDER = "folder"
    SYMLINK = "symlink"
    HARD_LINK = "hard-link"


class LayerEntry(msgspec.Struct, frozen=True, gc=False):
    """One entry. `target` is where a link leads, as the archive says it; `head` what a program's first bytes say."""

    type: EntryType
    target: str = ""
    head: ProgramHead = OTHER


FOLDER, FILE = LayerEntry(EntryType.FOLDER), LayerEntry(EntryType.FILE)


class LayerBlob(Protocol):
    """The bytes of a layer as they are stored. `is_wanted` becomes false once nobody waits for what is in them."""

    is_wanted: bool

    def read(self, size: int, /) -> bytes:
        """Returns the next bytes, `size` at most, and none at the end. Waits for them. Raises InvalidLayer."""


class LayerBudget:
    """What may be unpacked of all layers of an image together, and how many files they may have."""

    def __init__(self, unpacked_bytes: int, entries: int) -> None:
        self._most_bytes, self._most_entries = unpacked_bytes, entries
        self._bytes = self._entries = self._characters = 0

    def unpack(self, size: int) -> None:
        """Counts bytes. Raises InvalidLayer if they are too many."""
        self._bytes += size
        if self._bytes > self._most_bytes:
            raise InvalidLayer(f"its layers hold more than {self._most_bytes >> 20} MiB")

    def add(self, path: str, entry: LayerEntry) -> None:
        """Counts a file. Raises InvalidLayer if there are too many, or their names are too long together."""
        self._entries += 1
        self._characters += characters_of(path, entry)
        if self._entries > self._most_entries:
            raise InvalidLayer(f"its layers have more than {self._most_entries} files")
        if self._characters > MOST_NAME_CHARACTERS:
            raise InvalidLayer("its layers have names without end")


def read_layer(blob: LayerBlob, budget: LayerBudget, *, reads_all_files: bool = False) -> dict[str, LayerEntry]:
    """The layer's entries by path, without a slash at its ends; what follows the archive's end is left unread.

    `reads_all_files`: a file may be a program whatever its mode, as in layers of Windows.

    Raises:
        InvalidLayer: it cannot be read, or the budget is spent.
    """
    zstd = _zstd()
    try:
        return _read_archive(_Archive(_unpacked(blob, zstd), blob, budget), budget, reads_all_files=reads_all_files)
    except (gzip.BadGzipFile, zlib.error, zstd.ZstdError, EOFError) as exc:
        raise InvalidLayer("a layer cannot be unpacked") from exc
    except RecursionError as exc:
        raise InvalidLayer("a layer has headers without end") from exc
    except (tarfile.TarError, ValueError, ArithmeticError, LookupError) as exc:
        raise InvalidLayer("a layer is no archive that can be read") from exc


def _zstd() -> ModuleType:
    """The module, of the standard library from Python 3.14 on, else its backport. It is loaded with the first layer."""
    return importlib.import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


class _Rewound:
    """A blob from whose beginning a few bytes have been read."""

    def __init__(self, first: bytes, blob: LayerBlob) -> None:
        self._first, self._blob = first, blob

    def read(self, size: int, /) -> bytes:
        if not self._first:
            return self._blob.read(size)
        part, self._first = self._first[:size], self._first[size:]
        return part


def _unpacked(blob: LayerBlob, zstd: ModuleType) -> _Readable:
    first = blob.read(len(_ZSTD[0]))
    packed: Any = _Rewound(first, blob)
    if first.startswith(_GZIP):
        return gzip.GzipFile(fileobj=packed)
    if first.startswith(_ZSTD):
        limit = {zstd.DecompressionParameter.window_log_max: _WINDOW_LOG}
        unpacker: _Readable = zstd.ZstdFile(packed, options=limit)
        return unpacker
    rewound: _Readable = packed
    return rewound


class _Archive(io.BufferedIOBase):
    """The unpacked bytes as a file that goes forward only. `header_bytes` are those read since it was last set to 0."""

    def __init__(self, source: _Readable, blob: LayerBlob, budget: LayerBudget) -> None:
        self._source, self._blob, self._budget = source, blob, budget
        self._at = 0
        self.header_bytes = 0
        self.last_block = b""

    def tell(self) -> int:
        return self._at

    def seek(self, place: int, whence: int = io.SEEK_SET) -> int:
        if whence != io.SEEK_SET or place < self._at:
            raise InvalidLayer("a layer is no archive that can be read")
        while self._at < place and self._step(min(place - self._at, _STEP_BYTES)):
            pass
        return self._at

    def read(self, size: int | None = -1, /) -> bytes:
        wanted = -1 if size is None else size
        self.header_bytes += wanted
        if wanted < 0 or self.header_bytes > _MOST_HEADER_BYTES:
            raise InvalidLayer("a layer has headers without end")
        parts, left = [], wanted
        while left and (part := self._step(left)):
            parts.append(part)
            left -= len(part)
        self.last_block = b"".join(parts)
        return self.last_block

    def _step(self, size: int) -> bytes:
        if not self._blob.is_wanted:
            raise InvalidLayer("a layer is not wanted any more")
        part = self._source.read(size)
        self._at += len(part)
        self._budget.unpack(len(part))
        return part


class _NoGlobals(dict[str, str]):
    """The global extended headers of an archive, which runtimes pass over."""

    def __setitem__(self, key: str, value: str) -> None:
        pass


def _read_archive(archive: _Archive, budget: LayerBudget, *, reads_all_files: bool) -> dict[str, LayerEntry]:
    entries: dict[str, LayerEntry] = {}
    try:
        tar = tarfile.TarFile(fileobj=archive, encoding="utf-8", errors="surrogateescape", pax_headers=_NoGlobals())
    except tarfile.ReadError:
        if archive.tell():
            raise
        return entries  # no bytes at all
    while (info := tar.next()) is not None:
        tar.members = []  # type: ignore[attr-defined]  # typeshed lacks it; every member would stay there
        archive.header_bytes = 0
        _check_names(info.name, info.linkname)
        path, entry = clean_path(info.name), _entry_of(info, archive, reads_all_files=reads_all_files)
        budget.add(path, entry)
        entries[path] = entry
        archive.header_bytes = 0
    if any(archive.last_block) or 0 < len(archive.last_block) < _BLOCK:
        raise InvalidLayer("a layer is no archive that can be read")
    return entries


def _entry_of(info: tarfile.TarInfo, archive: _Archive, *, reads_all_files: bool) -> LayerEntry:
    if info.isdir():
        return FOLDER
    if info.issym() or info.islnk():
        return LayerEntry(EntryType.SYMLINK if info.issym() else EntryType.HARD_LINK, info.linkname)
    if not info.isreg() or not (reads_all_files or info.mode & _ANY_EXECUTE):
        return FILE
    has_bytes = info.size > 0 and not info.issparse()
    return LayerEntry(
        EntryType.PROGRAM, head=read_head(archive.read(min(info.size, HEAD_BYTES))) if has_bytes else OTHER
    )


def _check_names(path: str, target: str) -> None:
    longest = max(len(path), len(target))
    if longest > _MOST_PATH_CHARACTERS or path.count("/") > _MOST_DEPTH:
        raise InvalidLayer("a layer has names that no file can have")


def characters_of(path: str, entry: LayerEntry) -> int:
    """How many characters an entry has kept."""
    return len(path) + len(entry.target) + len(entry.head.interpreter) + len(entry.head.argument)


def clean_path(path: str) -> str:
    """The path from the image's root, without a slash at its ends; empty for the root. `..` ends at the root."""
    return posixpath.normpath("/" + path).strip("/")
