"""What the service and its fetcher say to each other over a socket.

Each message is msgpack behind its length. Whatever is malformed or too long is a `ProtocolError`; all else is believed:
a fetcher that somebody has taken over can say of any image what it likes.
"""

import asyncio
import math
import socket
import struct
from collections.abc import Callable
from typing import cast

import msgspec

from extender.credentials.keyring import NO_OPERATOR, Credential, CredentialId
from extender.errors import NameUnresolved, RegistryNotAsked, RegistryThrottled
from extender.fetcher.settings import FetcherSettings
from extender.images.content import Failure
from extender.images.failures import failure_of
from extender.images.manifest import Image
from extender.images.platform import shared_platform
from extender.images.reference import ImageReference

MOST_BYTES = 2 << 20
"""Of a message: eight times what the logins of a question may have together."""

_LENGTH = struct.Struct(">I")
_MOST_TEXT = 1024  # characters of an error's
_RETRY_AFTER_SECONDS = 30.0  # after a 429 that states no time
_NOT_ASKED_SECONDS = 2.0  # no host is to blame, and none is asked: a fetcher is back within seconds


class ProtocolError(Exception):
    """A message that is malformed or too long."""


class PullAccess(msgspec.Struct, frozen=True):
    """The pod's own logins for an image, and the id of the credential that opened it before: that is tried first."""

    logins: tuple[Credential, ...] = ()
    first: CredentialId = NO_OPERATOR


class Look(msgspec.Struct, frozen=True, tag="look", kw_only=True):
    """What is the image? It is asked for pods of a tenant, by its name as the runtime reads it and as the kubelet does.

    The pod's logins are tried in order, then the operator's credentials, then none. The registry has `seconds` for it.
    The bytes behind the digests that are `known` need not be read: if there are any, a HEAD comes first, which may
    state one of them.
    """

    id: int = 0
    seconds: float = 0.0
    tenant: str
    reference: ImageReference
    kubelet_name: ImageReference
    access: PullAccess = PullAccess()
    known: tuple[str, ...] = ()


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    """Are you well, and what have you counted since the last time?"""

    id: int = 0


Question = Look | Ping
ToFetcher = FetcherSettings | Question


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The settings can be used."""


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The settings cannot be used: the text of a ConfigError."""

    why: str


class OperatorIs(msgspec.Struct, frozen=True, tag="operator"):
    """This is what stands for the operator's credentials from now on."""

    credentials: CredentialId


class SeenImage(msgspec.Struct, frozen=True, tag="seen", kw_only=True):
    """An answer to `Look`: the digest, and the image unless its digest is one of those that are known.

    `by` is the id of the credential that opened it, and `label` says where that is from if it is one of the operator's.
    `denied` are the credentials that were denied before.
    """

    id: int = 0
    by: CredentialId
    digest: str
    image: Image | None = None
    label: str = ""
    denied: tuple[CredentialId, ...] = ()


class Failed(msgspec.Struct, frozen=True, tag="failed", kw_only=True):
    """An answer to `Look`: why it is not known, for pods' authors, and `why` for our log.

    It holds for `retry_after` seconds, if that is known. `by` is the id of the credential that met it, empty if no
    other would do better. `denied` are those that were denied.
    """

    id: int = 0
    failure: Failure
    retry_after: float | None = None
    by: CredentialId = NO_OPERATOR
    denied: tuple[CredentialId, ...] = ()
    why: str = ""


class Pong(msgspec.Struct, frozen=True, tag="pong"):
    """The answer to `Ping`: what was counted since the last one, and gauges."""

    id: int
    counted: dict[tuple[str, ...], float]
    gauges: dict[tuple[str, str], float]


ToQuestion = SeenImage | Failed | Pong
FromFetcher = Ready | Refused | OperatorIs | ToQuestion

_ENCODER = msgspec.msgpack.Encoder()
_TO_FETCHER = msgspec.msgpack.Decoder(ToFetcher)
_FROM_FETCHER = msgspec.msgpack.Decoder(FromFetcher)


def frame(message: ToFetcher | FromFetcher) -> bytes:
    """Returns the message as it is sent. Raises ProtocolError if it is too long."""
    encoded = _ENCODER.encode(message)
    if len(encoded) > MOST_BYTES:
        raise ProtocolError("a message is too long")
    return _LENGTH.pack(len(encoded)) + encoded


class Channel(asyncio.Protocol):
    """One end of the socket: sends messages, and calls `received` with each that comes.

    Closes at one that `received` does not accept.
    """

    def __init__(self, received: Callable[[bytes], None], ended: Callable[[], None]) -> None:
        """`received` raises ProtocolError for a message that is none. `ended` is called once, whoever ended it."""
        self._received = received
        self._ended = ended
        self._arrived = bytearray()
        self._transport: asyncio.Transport | None = None
        self.is_garbled = False

    @classmethod
    async def over(cls, end: socket.socket, received: Callable[[bytes], None], ended: Callable[[], None]) -> "Channel":
        """Returns the channel over a connected socket, which it closes at its end."""
        channel = cls(received, ended)
        await asyncio.get_running_loop().create_unix_connection(lambda: channel, sock=end)
        return channel

    def send(self, message: ToFetcher | FromFetcher) -> None:
        """Sends the message, or nothing once the channel has ended. Raises ProtocolError if it is too long."""
        framed = frame(message)
        if self._transport:
            self._transport.write(framed)

    def close(self) -> None:
        """Ends the channel when what was sent has left."""
        if self._transport:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begins."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are no subclasses of it

    def data_received(self, data: bytes) -> None:
        """Passes on the messages that are complete with `data`."""
        self._arrived += data
        while len(self._arrived) >= _LENGTH.size and not self.is_garbled:
            (length,) = _LENGTH.unpack_from(self._arrived)
            end = _LENGTH.size + length
            if length > MOST_BYTES:
                self._abort()
            elif len(self._arrived) < end:
                return
            else:
                message = bytes(self._arrived[_LENGTH.size : end])
                del self._arrived[:end]
                try:
                    self._received(message)
                except ProtocolError:
                    self._abort()

    def _abort(self) -> None:
        self.is_garbled = True
        if self._transport:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends."""
        del exc
        self._transport = None
        self._ended()


def decode_to_fetcher(message: bytes) -> ToFetcher:
    """Returns what the service says. Raises ProtocolError."""
    try:
        question: ToFetcher = _TO_FETCHER.decode(message)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise ProtocolError("a message cannot be read") from exc
    return question


def decode_from_fetcher(message: bytes) -> FromFetcher:
    """Returns what the fetcher says. Raises ProtocolError, also for a figure that no metric can take."""
    try:
        answer: FromFetcher = _FROM_FETCHER.decode(message)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise ProtocolError("a message cannot be read") from exc
    if isinstance(answer, Pong):
        counted = answer.counted.values()
        if min(counted, default=0.0) < 0 or not all(map(math.isfinite, (*counted, *answer.gauges.values()))):
            raise ProtocolError("a figure is none")
    if isinstance(answer, SeenImage) and answer.image:
        return msgspec.structs.replace(answer, image=_with_shared_platforms(answer.image))
    return answer


def _with_shared_platforms(image: Image) -> Image:
    """Returns the image with usual platforms as the objects that all caches share."""
    entries = (msgspec.structs.replace(each, platform=shared_platform(each.platform)) for each in image.entries)
    return msgspec.structs.replace(image, entries=tuple(entries))


def failed_of(error: Exception, *, by: CredentialId = NO_OPERATOR, denied: tuple[CredentialId, ...] = ()) -> Failed:
    """Returns the answer that an error is."""
    return Failed(
        failure=failure_of(error), retry_after=_retry_after(error), by=by, denied=denied, why=str(error)[:_MOST_TEXT]
    )


def _retry_after(error: Exception) -> float | None:
    if isinstance(error, RegistryNotAsked) and not isinstance(error, NameUnresolved):
        return _NOT_ASKED_SECONDS
    stated: float | None = getattr(error, "retry_after_seconds", None)
    return _RETRY_AFTER_SECONDS if stated is None and isinstance(error, RegistryThrottled) else stated
