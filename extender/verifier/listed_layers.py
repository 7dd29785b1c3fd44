"""Layers that begin or end with a table of their files: eStargz and zstd:chunked, read in kilobytes by ranges.

Sources: containerd/stargz-snapshotter docs/estargz.md; containers/storage pkg/chunked: zstd:chunked has the same table
of contents, in a frame of its own.
"""

import hashlib
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from extender.verifier.archive_reading import EntryType, InvalidLayer, LayerEntry, check_names, clean_path
from extender.verifier.program_headers import OTHER
from extender.verifier.unpacking import unpacker_for

_ESTARGZ_DIGEST = "containerd.io/snapshot/stargz/toc.digest"
_ZSTD_PREFIXES = ("io.github.containers", "io.containers")  # the other one is of buildah 1.28 and before
_ZSTD_DIGEST, _ZSTD_PLACE = ".zstd-chunked.manifest-checksum", ".zstd-chunked.manifest-position"
FOOTER_BYTES = 51
_FOOTER_END = 16  # of the offset's hexadecimal digits, behind a gzip header of 10 bytes and a subfield's of 6
_MOST_UNPACKED_BYTES = 32 << 20
_OBJECTS_EACH = 2  # an entry, and its extended attributes
_BLOCK = 512
_ANY_EXECUTE = 0o111


class Range(NamedTuple):
    """Bytes of a blob from `start` up to `end`, which is not among them."""

    start: int
    end: int


class Listing(msgspec.Struct, frozen=True):
    """Where a layer's table is, and the digest that the manifest promises; `place` is empty if a footer tells it."""

    digest: str
    is_packed_digest: bool
    place: Range | None


class _TocEntry(msgspec.Struct, frozen=True, rename="camel", gc=False):
    name: str
    type: str
    size: int = 0
    link_name: str = ""
    mode: int = 0
    offset: int = 0
    inner_offset: int = 0


class _Toc(msgspec.Struct, frozen=True):
    entries: list[_TocEntry]


_TOC = msgspec.json.Decoder(_Toc)
_TYPES = {"dir": EntryType.FOLDER, "symlink": EntryType.SYMLINK, "hardlink": EntryType.HARD_LINK}


def find_listing(annotations: Mapping[str, str], size: int) -> Listing | None:
    """The table that the layer's annotations promise; None without one, or if its place makes no sense."""
    if _ESTARGZ_DIGEST in annotations:
        return Listing(annotations[_ESTARGZ_DIGEST], is_packed_digest=False, place=None)
    for prefix in _ZSTD_PREFIXES:
        digest, place = annotations.get(f"{prefix}{_ZSTD_DIGEST}"), annotations.get(f"{prefix}{_ZSTD_PLACE}")
        if digest and place:
            found = _read_place(place, size)
            return Listing(digest, is_packed_digest=True, place=found) if found else None
    return None


def _read_place(text: str, size: int) -> Range | None:
    """Where the table is, of which the annotation tells offset, length, length unpacked and kind."""
    fields = text.split(":")
    if len(fields) != 4 or not all(each.isdecimal() for each in fields):
        return None
    start, length, _, kind = (int(each[:19]) for each in fields)
    if kind != 1 or not 0 < length < size or start + length > size:
        return None
    return Range(start, start + length)


def read_footer(footer: bytes, size: int) -> Range:
    """Where the table of an eStargz layer of `size` bytes is. Raises InvalidLayer."""
    field = footer[16:38]
    if len(footer) != FOOTER_BYTES or footer[12:14] != b"SG" or field[_FOOTER_END:] != b"STARGZ":
        raise InvalidLayer("a layer has no footer of eStargz")
    try:
        start = int(field[:_FOOTER_END], 16)
    except ValueError as exc:
        raise InvalidLayer("a layer has no footer of eStargz") from exc
    if not 0 <= start < size - FOOTER_BYTES:
        raise InvalidLayer("a layer has a footer that points nowhere")
    return Range(start, size - FOOTER_BYTES)


def read_listing(listing: Listing, packed: bytes, most_entries: int) -> dict[str, LayerEntry]:
    """The layer's files; of programs their first bytes are not read yet. Raises InvalidLayer."""
    if listing.is_packed_digest:
        _check(packed, listing.digest)
        body = _unpack(packed)
    else:
        archive = _unpack(packed)
        try:
            size = int(archive[124:135] or b"0", 8)
        except ValueError as exc:
            raise InvalidLayer("a layer's table of contents cannot be read") from exc
        body = archive[_BLOCK : _BLOCK + max(size, 0)]
        _check(body, listing.digest)
    if body.count(b"{") > _OBJECTS_EACH * most_entries:  # before each takes memory
        raise InvalidLayer(f"its layers have more than {most_entries} files")
    try:
        toc = _TOC.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise InvalidLayer("a layer's table of contents cannot be read") from exc
    if len(toc.entries) > most_entries:
        raise InvalidLayer(f"its layers have more than {most_entries} files")
    return {clean_path(entry.name): _entry(entry) for entry in toc.entries if entry.type != "chunk"}


def _entry(entry: _TocEntry) -> LayerEntry:
    check_names(entry.name, entry.link_name)
    kind = _TYPES.get(entry.type)
    if kind is not None:
        return LayerEntry(kind, entry.link_name)
    if entry.type != "reg" or not entry.mode & _ANY_EXECUTE:
        return LayerEntry(EntryType.FILE)
    is_readable = entry.size > 0 and entry.offset > 0 and not entry.inner_offset
    return LayerEntry(EntryType.PROGRAM, head=None if is_readable else OTHER, offset=entry.offset)


def unpack_head(packed: bytes, most_bytes: int) -> bytes:
    """The first bytes of a file of which `packed` has the beginning. Raises InvalidLayer."""
    out = b""
    for part in unpacker_for(packed).feed(packed):
        out += part
        if len(out) >= most_bytes:
            break
    return out[:most_bytes]


def _unpack(packed: bytes) -> bytes:
    out, total = [], 0
    for part in unpacker_for(packed).feed(packed):
        out.append(part)
        total += len(part)
        if total > _MOST_UNPACKED_BYTES:
            raise InvalidLayer("a layer's table of contents is too long")
    return b"".join(out)


def _check(body: bytes, digest: str) -> None:
    if digest != f"sha256:{hashlib.sha256(body).hexdigest()}":
        raise InvalidLayer("a layer's table of contents does not have the digest that its manifest says")
