"""Reads a tar archive as its bytes come: each entry with the first bytes of programs, and nothing of what follows.

Layers are tar archives as POSIX and GNU tar write them (image-spec layer.md). Everything is bounded: what is kept of an
entry, of an extended header, and how many entries there are. Nothing is written anywhere.
"""

import enum
import posixpath
from collections.abc import Callable, Iterator

import msgspec

from extender.verifier.program_headers import HEAD_BYTES, OTHER, ProgramHead, read_head

_BLOCK = 512
_MOST_EXTENDED_BYTES = 1 << 20  # of one extended header; names are 4 KiB at most
_MOST_PATH_CHARACTERS, _MOST_DEPTH = 4096, 128  # PATH_MAX; nested packages of npm are 50 deep
MOST_NAME_CHARACTERS = 16 << 20
"""Of all names in an image together, of which 100,000 files have 8 million."""
_MOST_HEADERS_IN_A_ROW = 16  # extended ones, before one entry
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
    """One entry. `target` is where a link leads, as the archive says it.

    `head` is what a program's first bytes say; None if they were not read and stand at `offset` of the layer's blob.
    """

    type: EntryType
    target: str = ""
    head: ProgramHead | None = OTHER
    offset: int = 0


FOLDER, FILE = LayerEntry(EntryType.FOLDER), LayerEntry(EntryType.FILE)
_TYPES = {b"0": EntryType.FILE, b"\0": EntryType.FILE, b"7": EntryType.FILE, b"1": EntryType.HARD_LINK,
          b"2": EntryType.SYMLINK, b"5": EntryType.FOLDER}  # fmt: skip


class _Header(msgspec.Struct):
    """The entry that is being read."""

    path: str
    type: EntryType
    target: str
    is_program: bool
    has_holes: bool


class ArchiveReader:
    """Takes the bytes of one archive in order. `entries` counts what it has read, extended headers included."""

    def __init__(self, most_entries: int, *, reads_all_files: bool = False) -> None:
        """`reads_all_files`: a file may be a program whatever its mode, as in layers of Windows."""
        self._most_entries = most_entries
        self._reads_all_files = reads_all_files
        self._rest = b""
        self._skip = 0
        self._wanted = _BLOCK
        self._take: Callable[[bytes], tuple[str, LayerEntry] | None] = self._take_header
        self._extended: dict[str, str] = {}
        self._headers_in_a_row = 0
        self._characters = 0
        self._current = _Header("", EntryType.FILE, "", is_program=False, has_holes=False)
        self._size = 0
        self._kind = b""
        self._is_over = False
        self.entries = 0

    def feed(self, data: bytes) -> Iterator[tuple[str, LayerEntry]]:
        """Yields the path, without a slash at its ends, and the entry of each that is complete. Raises InvalidLayer."""
        at = 0
        if self._rest:
            data, self._rest = self._rest + data, b""
        while not self._is_over:
            if self._skip:
                step = min(self._skip, len(data) - at)
                at, self._skip = at + step, self._skip - step
                if self._skip:
                    return
            if len(data) - at < self._wanted:
                self._rest = data[at:]
                return
            part, at = data[at : at + self._wanted], at + self._wanted
            found = self._take(part)
            if found:
                yield found

    def end(self) -> None:
        """Raises InvalidLayer if the bytes have ended in the middle of an entry."""
        if not self._is_over and (self._skip or self._rest or self._take != self._take_header):
            raise InvalidLayer("a layer ends in the middle of a file")

    def _take_header(self, block: bytes) -> tuple[str, LayerEntry] | None:
        if not any(block):
            self._is_over = True
            return None
        if sum(block) - sum(block[148:156]) + 8 * 32 != _number(block[148:156]):
            raise InvalidLayer("a layer is no archive that can be read")
        self.entries += 1
        if self.entries > self._most_entries:
            raise InvalidLayer(f"its layers have more than {self._most_entries} files")
        self._size, self._kind = _number(block[124:136]), block[156:157]
        if self._kind in (b"x", b"L", b"K", b"g"):
            self._begin_extended()
            return None
        return self._begin_entry(block)

    def _begin_extended(self) -> None:
        self._headers_in_a_row += 1
        if self._size > _MOST_EXTENDED_BYTES or self._headers_in_a_row > _MOST_HEADERS_IN_A_ROW:
            raise InvalidLayer("a layer has headers without end")
        if self._kind == b"g":
            self._skip = _padded(self._size)
        elif self._size:
            self._wanted, self._take = _padded(self._size), self._take_extended

    def _take_extended(self, body: bytes) -> tuple[str, LayerEntry] | None:
        body = body[: self._size]
        if self._kind == b"x":
            self._extended.update(_records(body))
        else:
            self._extended["path" if self._kind == b"L" else "linkpath"] = _text(body)
        self._wanted, self._take = _BLOCK, self._take_header
        return None

    def _begin_entry(self, block: bytes) -> tuple[str, LayerEntry] | None:
        extended, self._extended, self._headers_in_a_row = self._extended, {}, 0
        if "size" in extended:
            self._size = _decimal(extended["size"])
        sparse = self._kind == b"S" or any(key.startswith("GNU.sparse.") for key in extended)
        path = extended.get("GNU.sparse.name") or extended.get("path") or _name_of(block)
        target = extended.get("linkpath") or _text(block[157:257])
        check_names(path, target)
        kind = _TYPES.get(self._kind, EntryType.FILE)
        may_run = self._reads_all_files or bool(_number(block[100:108]) & _ANY_EXECUTE)
        is_program = may_run and (self._kind in (b"0", b"\0", b"7", b"S"))
        self._current = _Header(clean_path(path), kind, target, is_program, sparse)
        if kind is not EntryType.FILE and kind is not EntryType.HARD_LINK:
            self._size = 0
        if self._kind == b"S" and block[482]:
            self._wanted, self._take = _BLOCK, self._take_sparse_map
            return None
        return self._begin_body()

    def _take_sparse_map(self, block: bytes) -> tuple[str, LayerEntry] | None:
        if block[504]:
            return None
        return self._begin_body()

    def _begin_body(self) -> tuple[str, LayerEntry] | None:
        head = min(self._size, HEAD_BYTES)
        if self._current.is_program and not self._current.has_holes and head:
            self._wanted, self._take = head, self._take_head
            return None
        self._skip = _padded(self._size)
        return self._finish(OTHER)

    def _take_head(self, head: bytes) -> tuple[str, LayerEntry] | None:
        self._skip = _padded(self._size) - len(head)
        return self._finish(read_head(head))

    def _finish(self, head: ProgramHead) -> tuple[str, LayerEntry]:
        self._wanted, self._take = _BLOCK, self._take_header
        current, entry = self._current, FILE
        if current.is_program:
            entry = LayerEntry(EntryType.PROGRAM, head=head)
        elif current.type is EntryType.FOLDER:
            entry = FOLDER
        elif current.type is not EntryType.FILE:
            entry = LayerEntry(current.type, current.target)
        self._characters += characters_of(current.path, entry)
        if self._characters > MOST_NAME_CHARACTERS:
            raise InvalidLayer("its layers have names without end")
        return current.path, entry


def check_names(path: str, target: str) -> None:
    """Raises InvalidLayer if no file can have such a path, or no link such a target."""
    longest = max(len(path), len(target))
    if longest > _MOST_PATH_CHARACTERS or path.count("/") > _MOST_DEPTH:
        raise InvalidLayer("a layer has names that no file can have")


def characters_of(path: str, entry: LayerEntry) -> int:
    """How many characters an entry has kept."""
    head = entry.head or OTHER
    return len(path) + len(entry.target) + len(head.interpreter) + len(head.argument)


def clean_path(path: str) -> str:
    """The path from the image's root, without a slash at its ends; empty for the root. `..` ends at the root."""
    return posixpath.normpath("/" + path).strip("/")


def _padded(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK


def _number(field: bytes) -> int:
    """A number in octal digits, or in binary behind a byte 0x80 as GNU tar writes large ones."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    digits = field.strip(b" \0")
    try:
        number = int(digits, 8) if digits else 0
    except ValueError as exc:
        raise InvalidLayer("a layer is no archive that can be read") from exc
    if number < 0:
        raise InvalidLayer("a layer is no archive that can be read")
    return number


def _decimal(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        raise InvalidLayer("a layer has a file without a size")
    return int(text)


def _name_of(block: bytes) -> str:
    name = _text(block[:100])
    prefix = _text(block[345:500]) if block[257:263] == b"ustar\0" else ""
    return f"{prefix}/{name}" if prefix else name


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode(errors="surrogateescape")


def _records(body: bytes) -> Iterator[tuple[str, str]]:
    """The records `LENGTH KEY=VALUE` of an extended header (pax)."""
    at = 0
    while at < len(body):
        length, _, _ = body[at : at + 20].partition(b" ")
        if not length.isdigit() or not int(length) or at + int(length) > len(body):
            raise InvalidLayer("a layer has an extended header that cannot be read")
        key, _, value = body[at + len(length) + 1 : at + int(length) - 1].partition(b"=")
        yield _text(key), value.decode(errors="surrogateescape")
        at += int(length)
