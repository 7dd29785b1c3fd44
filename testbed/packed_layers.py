"""Packs files as layers of images: plain tar archives, gzip, zstd, eStargz and zstd:chunked.

The last two are written from their specifications (containerd/stargz-snapshotter: docs/estargz.md; containers/storage:
pkg/chunked), as small as a reader of their tables needs.
"""

import functools
import gzip
import hashlib
import importlib
import json
import re
import sys
import tarfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from extender.images.reference import digest_of

_zstd: Any = importlib.import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")
_TAR = "application/vnd.oci.image.layer.v1.tar"
_HOLE = re.compile(rb"\0{1024,}")
_WINDOW, _OFFSET, _SPLIT = 64, 31, (1 << 16) - 1  # of bup's rolling checksum: a piece has 64 KiB on average


class Put(NamedTuple):
    """A file, or a link to `link` if `kind` is `symlink` or `hardlink`, or a `folder`."""

    path: str
    body: bytes = b""
    mode: int = 0o755
    kind: str = "file"
    link: str = ""


class Layer(NamedTuple):
    """A layer as it is stored, how a manifest lists it, and the digest of its tar archive."""

    body: bytes
    media_type: str
    annotations: dict[str, str]
    diff_id: str


def symlink(path: str, target: str) -> Put:
    """A symbolic link."""
    return Put(path, kind="symlink", link=target)


def hardlink(path: str, target: str) -> Put:
    """A hard link to an earlier file."""
    return Put(path, kind="hardlink", link=target)


def folder(path: str) -> Put:
    """A folder."""
    return Put(path, kind="folder")


def archive_of(files: Sequence[Put]) -> bytes:
    """A tar archive of these files, in order."""
    return b"".join(_header(file) + _padded(file.body) for file in files) + bytes(1024)


def plain(files: Sequence[Put]) -> Layer:
    """A layer that is not packed."""
    archive = archive_of(files)
    return Layer(archive, _TAR, {}, digest_of(archive))


def gzipped(files: Sequence[Put]) -> Layer:
    """As most images have."""
    archive = archive_of(files)
    return Layer(gzip.compress(archive, mtime=0), f"{_TAR}+gzip", {}, digest_of(archive))


def zstandard(files: Sequence[Put]) -> Layer:
    """As `--compression zstd` writes them."""
    archive = archive_of(files)
    return Layer(_zstd.compress(archive), f"{_TAR}+zstd", {}, digest_of(archive))


def estargz(files: Sequence[Put]) -> Layer:
    """A gzip member for each file's content, a table of contents, and a footer that tells where it is."""
    packed, entries, archive = _in_pieces(files, lambda data: gzip.compress(data, mtime=0))
    toc = json.dumps({"version": 1, "entries": entries}).encode()
    start = len(packed)
    table = archive_of([Put("stargz.index.json", toc, 0o644)])
    footer = b"\x1f\x8b\x08\x04" + bytes(6) + (26).to_bytes(2, "little") + b"SG" + (22).to_bytes(2, "little")
    footer += f"{start:016x}STARGZ".encode() + b"\x01\x00\x00\xff\xff" + bytes(8)
    annotations = {"containerd.io/snapshot/stargz/toc.digest": digest_of(toc)}
    body = packed + gzip.compress(table, mtime=0) + footer
    return Layer(body, f"{_TAR}+gzip", annotations, digest_of(archive + table))


def zstd_chunked(files: Sequence[Put]) -> Layer:
    """Zstd frames for each file's content, and the table of contents in a frame that is skipped.

    A content is in pieces, as podman and buildah make them: holes, and what is between places that a checksum picks.
    """
    packed, entries, archive = _in_pieces(files, lambda data: bytes(_zstd.compress(data)), _pieces)
    toc = json.dumps({"version": 1, "entries": entries}).encode()
    table = bytes(_zstd.compress(toc))
    start = len(packed) + 8
    body = packed + b"\x50\x2a\x4d\x18" + len(table).to_bytes(4, "little") + table
    annotations = {
        "io.github.containers.zstd-chunked.manifest-checksum": digest_of(table),
        "io.github.containers.zstd-chunked.manifest-position": f"{start}:{len(table)}:{len(toc)}:1",
    }
    return Layer(body, f"{_TAR}+zstd", annotations, digest_of(archive))


PACKINGS: dict[str, Callable[[Sequence[Put]], Layer]] = {
    "plain": plain, "gzip": gzipped, "zstd": zstandard, "estargz": estargz, "zstd:chunked": zstd_chunked,
}  # fmt: skip


def _whole(body: bytes) -> Sequence[bytes]:
    return (body,)


@functools.cache
def _pieces(body: bytes) -> Sequence[bytes]:
    """A content between its holes of 1 KiB and more, and split further where the rolling checksum has 16 ones."""
    pieces, at = list[bytes](), 0
    for hole in _HOLE.finditer(body):
        pieces += [*_split(body[at : hole.start()]), hole[0]]
        at = hole.end()
    return (*pieces, *_split(body[at:]))


def _split(body: bytes) -> Iterator[bytes]:
    began, low, high = 0, _WINDOW * _OFFSET, _WINDOW * (_WINDOW - 1) * _OFFSET
    for at, (added, dropped) in enumerate(zip(body, bytes(_WINDOW) + body, strict=False), 1):
        low += added - dropped
        high += low - _WINDOW * (dropped + _OFFSET)
        if high & _SPLIT == _SPLIT:
            yield body[began:at]
            began = at
    if began < len(body):
        yield body[began:]


def _in_pieces(
    files: Sequence[Put], pack: Callable[[bytes], bytes], pieces: Callable[[bytes], Sequence[bytes]] = _whole
) -> tuple[bytes, list[dict[str, object]], bytes]:
    """The archive with the pieces of each content packed by themselves, the table's entries, the archive unpacked."""
    packed, archive, waiting = b"", b"", b""
    entries: list[dict[str, object]] = []
    for file in files:
        waiting += _header(file)
        entry: dict[str, object] = {"name": file.path, "mode": file.mode}
        more = list[dict[str, object]]()
        if file.kind == "file":
            packed, archive, waiting = packed + pack(waiting), archive + waiting, b""
            digest = "sha256:" + hashlib.sha256(file.body).hexdigest()
            entry |= {"type": "reg", "size": len(file.body), "offset": len(packed), "digest": digest}
            for piece in pieces(file.body):
                more.append({"name": file.path, "type": "chunk", "offset": len(packed), "chunkSize": len(piece)})
                packed, archive = packed + pack(piece), archive + piece
            entry["endOffset"] = len(packed)
            waiting = _padded(file.body)[len(file.body) :]
        else:
            entry |= {"type": {"folder": "dir"}.get(file.kind, file.kind), "linkName": file.link}
        entries += [entry, *more[1:]]
    waiting += bytes(1024)
    return packed + pack(waiting), entries, archive + waiting


def _header(file: Put) -> bytes:
    types = {"symlink": tarfile.SYMTYPE, "hardlink": tarfile.LNKTYPE, "folder": tarfile.DIRTYPE}
    info = tarfile.TarInfo(file.path)
    info.type, info.linkname, info.mode, info.size = (
        types.get(file.kind, tarfile.REGTYPE),
        file.link,
        file.mode,
        len(file.body),
    )
    return info.tobuf(tarfile.PAX_FORMAT)


def _padded(body: bytes) -> bytes:
    return body + bytes(-len(body) % 512)
