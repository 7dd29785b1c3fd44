"""Unpacks a layer as its bytes come: gzip, zstd or neither, whatever its media type says, as runtimes do.

What comes out at a time is bounded, and so is the memory that the compressed bytes may ask for.
"""

import importlib
import sys
import zlib
from collections.abc import Iterator
from typing import Any, Protocol

from extender.verifier.archive_reading import InvalidLayer

_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_SKIPPABLE = tuple(bytes((0x50 + number, 0x2A, 0x4D, 0x18)) for number in range(16))
_MOST_FRAME_HEAD = 4 + 14 + 3  # magic number, frame header, and the header of the first block
_HAS_ZSTD = sys.version_info >= (3, 14)
_STEP_BYTES = 256 << 10
_FRAME_HEAD = 8  # a magic number and the size of what may be skipped
# Of the window that a frame asks for: 32 MiB, which is what buildah, podman and BuildKit use at their highest level.
_WINDOW_LOG = 25


class Unpacker(Protocol):
    """Takes the bytes of a layer in order."""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yields what the bytes hold, 256 KiB at a time at most. Raises InvalidLayer."""


def unpacker_for(first: bytes) -> Unpacker:
    """The unpacker of a layer that begins with these bytes."""
    if first.startswith(_GZIP):
        return _Gzip()
    if first.startswith((_ZSTD, *_SKIPPABLE)):
        return _Zstd()
    return _Plain()


class _Plain:
    def feed(self, data: bytes) -> Iterator[bytes]:
        for start in range(0, len(data), _STEP_BYTES):
            yield data[start : start + _STEP_BYTES]


class _Gzip:
    """Members follow each other, as in eStargz. Zeros behind the last are padding."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(zlib.MAX_WBITS | 16)
        self._is_over = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        while data and not self._is_over:
            if self._member.eof:
                data = data.lstrip(b"\0")
                if not data:
                    return
                if data[0] != _GZIP[0]:
                    self._is_over = True
                    return
                self._member = zlib.decompressobj(zlib.MAX_WBITS | 16)
            try:
                out = self._member.decompress(data, _STEP_BYTES)
            except zlib.error as exc:
                raise InvalidLayer("a layer cannot be unpacked") from exc
            if out:
                yield out
            data = self._member.unused_data if self._member.eof else self._member.unconsumed_tail


class _Zstd:
    """Frames follow each other; those that may be skipped hold no content (RFC 8878 §3.1.2)."""

    def __init__(self) -> None:
        # Of the standard library from Python 3.14 on, else its backport; imported at the first layer that needs it.
        self._zstd: Any = importlib.import_module("compression.zstd" if _HAS_ZSTD else "backports.zstd")
        self._options = {self._zstd.DecompressionParameter.window_log_max: _WINDOW_LOG}
        self._frame: Any = None  # the decompressor of the one that has begun and not ended
        self._begin = b""
        self._skip = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        data, self._begin = self._begin + data, b""
        while True:
            if self._skip:
                step = min(self._skip, len(data))
                data, self._skip = data[step:], self._skip - step
            if self._frame is None:
                if len(data) < _FRAME_HEAD:
                    self._begin = data
                    return
                if data.startswith(_SKIPPABLE):
                    self._skip = _FRAME_HEAD + int.from_bytes(data[4:_FRAME_HEAD], "little")
                    continue
                self._frame = self._zstd.ZstdDecompressor(options=self._options)
            try:
                out = self._frame.decompress(data, _STEP_BYTES)
            except self._zstd.ZstdError as exc:
                raise InvalidLayer("a layer cannot be unpacked") from exc
            if out:
                yield out
            if self._frame.eof:
                data, self._frame = self._frame.unused_data, None
            elif self._frame.needs_input:
                return
            else:
                data = b""  # the frame holds what it has not unpacked yet


def first_block_end(packed: bytes) -> int:
    """How many bytes of a zstd frame come before the end of its first block, which is unpacked as a whole; else 0.

    RFC 8878 §3.1.1. A block of 128 KiB of a program takes 70 KB.
    """
    if not packed.startswith(_ZSTD) or len(packed) < _MOST_FRAME_HEAD:
        return 0
    descriptor = packed[4]
    is_single, dictionary = descriptor >> 5 & 1, (0, 1, 2, 4)[descriptor & 3]
    content_size = (is_single, 2, 4, 8)[descriptor >> 6]
    at = 5 + (not is_single) + dictionary + content_size
    header = int.from_bytes(packed[at : at + 3], "little")
    is_repeated = header >> 1 & 3 == 1
    return at + 3 + (1 if is_repeated else header >> 3)
