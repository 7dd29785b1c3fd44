"""What outlives the process: the rows, the form in which they are kept, and what a place that keeps them must do.

Knows no clock but wall time (a monotonic one starts anew with the machine), no memory, and of a credential its id.
"""

import functools
import zlib
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import Literal, Protocol

import msgspec

from extender.credentials.keyring import CredentialId
from extender.errors import ExtenderError
from extender.images.content import Content
from extender.images.digest import PackedDigest, pack_digest, unpack_digest
from extender.images.manifest import Kind
from extender.images.platform import Platform
from extender.tables import declare_cache

Reason = Literal["corrupt", "locked", "schema", "timeout", "unavailable", "unwritable"]

# Raised whenever a row of today would be misread by the program of yesterday: rows of another schema are not read.
SCHEMA = 1


class StoreError(ExtenderError):
    """The store did not do what was asked; `reason` is one of a closed set. The message holds no secret."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason: Reason = reason


class ContentRow(msgspec.Struct, frozen=True, gc=False):
    """A repository has shown the bytes of a digest, and this is what they run on."""

    repository: str
    packed: PackedDigest
    content: Content


class NameRow(msgspec.Struct, frozen=True, gc=False):
    """What a tag or digest was to a credential; `confirmed_at`: when the registry last said so, in epoch seconds."""

    repository: str
    name: PackedDigest
    credential_id: CredentialId
    packed: PackedDigest
    content: Content
    confirmed_at: float


Row = NameRow | ContentRow


class Batch(msgspec.Struct, frozen=True):
    """What is written together. Denials come first: they void what was written before, not what comes with them.

    `denials`: by repository and credential id, until when nothing confirmed counts; seconds since the epoch.
    """

    names: Collection[NameRow]
    denials: Mapping[tuple[str, CredentialId], float]


class Store(Protocol):
    """A place that keeps rows. Every method raises `StoreError`, and none blocks the event loop."""

    @property
    def location(self) -> str:
        """Where that is, for logs: without password."""

    @property
    def is_shared(self) -> bool:
        """Whether others write there too, so that it can know what this process has never heard of."""

    def rows(self) -> AsyncIterator[Sequence[Row | None]]:
        """All rows, in slices, least recently written first; None for a damaged one. Nothing where it is shared."""

    async def find(
        self, repository: str, name: PackedDigest, credential_ids: Sequence[CredentialId]
    ) -> Sequence[NameRow | None]:
        """What is kept of the name for any of the credentials; None for a damaged row."""

    async def find_content(self, repository: str, packed: PackedDigest) -> Sequence[ContentRow | None]:
        """What the digest runs on, if the repository has shown it; None for a damaged row."""

    async def write(self, batch: Batch) -> None:
        """All of the batch is kept, or (where the store is no database) as much of it as came through."""

    async def close(self) -> None:
        """Nothing is open any more. Raises nothing."""


class _ContentRecord(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    kind: Kind
    platforms: tuple[tuple[str, str, str], ...]
    states_platforms: bool


class _NameRecord(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    digest: str
    confirmed_at: float
    content: msgspec.Raw


# What decoding may raise where a damaged file gives anything in the place of anything.
_DAMAGES = (ValueError, TypeError, AttributeError)

_ENCODER = msgspec.msgpack.Encoder()
_NAME_DECODER = msgspec.msgpack.Decoder(_NameRecord)
_CONTENT_DECODER = msgspec.msgpack.Decoder(_ContentRecord)


def encode_name(row: NameRow) -> bytes:
    """The record of a row, whose key is kept beside it."""
    body = _ENCODER.encode(
        _NameRecord(unpack_digest(row.packed), row.confirmed_at, msgspec.Raw(_encode_content(row.content)))
    )
    return _seal(body, row.repository, row.name, row.credential_id)


def decode_name(repository: str, name: PackedDigest, credential_id: CredentialId, record: bytes) -> NameRow | None:
    """The row under this key; None if the record is damaged or belongs to another key."""
    try:
        found = _NAME_DECODER.decode(_unseal(record, repository, name, credential_id))
        content = _decode_content(bytes(found.content))
    except _DAMAGES:
        return None
    return NameRow(repository, name, credential_id, pack_digest(found.digest), content, found.confirmed_at)


def encode_content(row: NameRow | ContentRow) -> bytes:
    """The record of what the row's digest runs on."""
    return _seal(_encode_content(row.content), row.repository, row.packed, "")


def decode_content(repository: str, packed: PackedDigest, record: bytes) -> ContentRow | None:
    """The row under this key; None if the record is damaged or belongs to another key."""
    try:
        return ContentRow(repository, packed, _decode_content(_unseal(record, repository, packed, "")))
    except _DAMAGES:
        return None


_ENCODED = declare_cache("store.rows.encoded_contents", key="content", bound=1024)
_DECODED = declare_cache("store.rows.decoded_contents", key="bytes", bound=1024)


@functools.lru_cache(_ENCODED.rows)
def _encode_content(content: Content) -> bytes:
    platforms = tuple((one.os, one.architecture, one.variant) for one in sorted(content.platforms))
    return _ENCODER.encode(_ContentRecord(content.kind, platforms, content.states_platforms))


@functools.lru_cache(_DECODED.rows)
def _decode_content(raw: bytes) -> Content:
    record = _CONTENT_DECODER.decode(raw)
    return Content(record.kind, frozenset(Platform(*words) for words in record.platforms), record.states_platforms)


def _seal(body: bytes, repository: str, name: PackedDigest, credential_id: str) -> bytes:
    """The body behind a checksum of key and body: databases do not notice a bit that a disk has flipped."""
    return zlib.crc32(body, _checksum_of_key(repository, name, credential_id)).to_bytes(4, "big") + body


def _unseal(record: bytes, repository: str, name: PackedDigest, credential_id: str) -> bytes:
    body = record[4:]
    if record[:4] != zlib.crc32(body, _checksum_of_key(repository, name, credential_id)).to_bytes(4, "big"):
        raise ValueError("the checksum is wrong")
    return body


def _checksum_of_key(repository: str, name: PackedDigest, credential_id: str) -> int:
    text = name if isinstance(name, str) else name.hex()
    return zlib.crc32(f"{repository}\n{text}\n{credential_id}\n".encode())
