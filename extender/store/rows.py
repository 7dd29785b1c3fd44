"""The rows of the persistent image cache, their encoding, and the interface of the databases that keep them.

Times are wall-clock times, since a monotonic clock restarts with the machine. Rows hold no credentials, only their ids.
"""

import math
import zlib
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import Literal, Protocol

import msgspec

from extender.credentials.keyring import CredentialId
from extender.errors import ExtenderError
from extender.images.content import Content
from extender.images.manifest import Kind
from extender.images.platform import Platform, shared_platform
from extender.images.reference import PackedDigest, pack_digest, unpack_digest

Reason = Literal["corrupt", "locked", "schema", "timeout", "unavailable", "unwritable"]

# Increased when an earlier version would misread new rows. Rows of another schema are not read.
SCHEMA = 1


class StoreError(ExtenderError):
    """A store's operation failed; `reason` is one of a closed set. The message holds no secret."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason: Reason = reason


class NameRow(msgspec.Struct, frozen=True, gc=False):
    """What a tag or digest resolved to for a credential.

    `confirmed_at` is when the registry last confirmed it, in seconds since the epoch.
    """

    repository: str
    name: PackedDigest
    credential_id: CredentialId
    packed: PackedDigest
    content: Content
    confirmed_at: float


class Batch(msgspec.Struct, frozen=True):
    """Rows and denials that are written together. Denials come first: they void earlier rows, not those of the batch.

    `denials` has, by repository, name and credential id, the time up to which confirmed rows are void. Times are in
    seconds since the epoch.
    """

    names: Collection[NameRow]
    denials: Mapping[tuple[str, PackedDigest, CredentialId], float]


class Store(Protocol):
    """A database that keeps rows. Every method raises `StoreError`, and none blocks the event loop."""

    @property
    def location(self) -> str:
        """The store's URL for logs, without password."""

    @property
    def is_shared(self) -> bool:
        """Whether other processes write to it too, so that it may have rows that this process has not seen."""

    def rows(self) -> AsyncIterator[Sequence[NameRow | None]]:
        """Yields all rows in slices, least recently written first; None for a damaged row.

        Yields nothing if the store is shared.
        """

    async def get(
        self, repository: str, name: PackedDigest, credential_ids: Sequence[CredentialId]
    ) -> Sequence[NameRow | None]:
        """Returns the name's rows for any of the credentials; None for a damaged row."""

    async def put(self, batch: Batch) -> None:
        """Writes all of the batch. A store without transactions may write a part of it before it fails."""

    async def close(self) -> None:
        """Closes the store. Raises nothing."""


_Words = tuple[str, str, str]  # of a platform


class _ContentRecord(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    kind: Kind
    platforms: tuple[_Words, ...]
    states_platforms: bool


class _NameRecord(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    digest: str
    confirmed_at: float
    content: _ContentRecord


# What decoding may raise, since a damaged file may hold any value in any place.
_DAMAGES = (ValueError, TypeError, AttributeError, RecursionError)

_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(_NameRecord)


def encode_name(row: NameRow) -> bytes:
    """Returns the record of a row. Its key is stored beside it."""
    body = _ENCODER.encode(_NameRecord(unpack_digest(row.packed), row.confirmed_at, _record_of(row.content)))
    return _seal(body, row.repository, row.name, row.credential_id)


def decode_name(repository: str, name: PackedDigest, credential_id: CredentialId, record: bytes) -> NameRow | None:
    """Returns the row under this key; None if the record is damaged or belongs to another key."""
    try:
        found = _DECODER.decode(_unseal(record, repository, name, credential_id))
        content = _content_of(found.content)
    except _DAMAGES:
        return None
    if not math.isfinite(found.confirmed_at):  # it would be fresh for ever
        return None
    return NameRow(repository, name, credential_id, pack_digest(found.digest), content, found.confirmed_at)


# Of a record. An image with 64 platforms of three long words takes 6.6 KB here and 28 KB in memory. Such contents are
# not written, and not read if somebody else has written them, so that no store fills memory when it is loaded.
_MOST_BYTES = 2_304


def _record_of(content: Content) -> _ContentRecord:
    platforms = tuple((each.os, each.architecture, each.variant) for each in sorted(content.platforms))
    return _ContentRecord(content.kind, platforms, content.states_platforms)


def _content_of(record: _ContentRecord) -> Content:
    platforms = frozenset(shared_platform(Platform(*words)) for words in record.platforms)
    return Content(record.kind, platforms, record.states_platforms)


def _seal(body: bytes, repository: str, name: PackedDigest, credential_id: str) -> bytes:
    """Returns the body after a checksum of key and body: databases do not detect a bit that a disk has flipped."""
    return zlib.crc32(body, _checksum_of_key(repository, name, credential_id)).to_bytes(4, "big") + body


def _unseal(record: bytes, repository: str, name: PackedDigest, credential_id: str) -> bytes:
    if len(record) > _MOST_BYTES:
        raise ValueError("larger than any that is written")
    body = record[4:]
    if record[:4] != zlib.crc32(body, _checksum_of_key(repository, name, credential_id)).to_bytes(4, "big"):
        raise ValueError("the checksum is wrong")
    return body


def _checksum_of_key(repository: str, name: PackedDigest, credential_id: str) -> int:
    text = name if isinstance(name, str) else name.hex()
    return zlib.crc32(f"{repository}\n{text}\n{credential_id}\n".encode())
