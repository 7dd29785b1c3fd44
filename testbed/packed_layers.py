"""Packs files as layers of images: plain tar archives, gzip, zstd, and in pieces as eStargz and zstd:chunked do."""

import gzip
import importlib
import sys
import tarfile
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from extender.images.reference import digest_of

_zstd: Any = importlib.import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")
_TAR = "application/vnd.oci.image.layer.v1.tar"


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
    return b"".join(_each(files)) + bytes(1024)


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
    """A gzip member for each file, and one for a table of contents, as eStargz has them."""
    archive = [*_each(files), archive_of([Put("stargz.index.json", b"{}", 0o644)])]
    body = b"".join(gzip.compress(part, mtime=0) for part in archive)
    return Layer(body, f"{_TAR}+gzip", {}, digest_of(b"".join(archive)))


def zstd_chunked(files: Sequence[Put]) -> Layer:
    """A zstd frame for each file, and a table of contents in a frame that is skipped, as zstd:chunked has them."""
    archive = [*_each(files), bytes(1024)]
    table = bytes(_zstd.compress(b"{}"))
    skipped = b"\x50\x2a\x4d\x18" + len(table).to_bytes(4, "little") + table
    body = b"".join(bytes(_zstd.compress(part)) for part in archive) + skipped
    return Layer(body, f"{_TAR}+zstd", {}, digest_of(b"".join(archive)))


PACKINGS: dict[str, Callable[[Sequence[Put]], Layer]] = {
    "plain": plain, "gzip": gzipped, "zstd": zstandard, "estargz": estargz, "zstd:chunked": zstd_chunked,
}  # fmt: skip


def _each(files: Sequence[Put]) -> list[bytes]:
    return [_header(file) + _padded(file.body) for file in files]


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
