"""What the service and its fetcher say to each other over a socket.

Each message is msgpack behind its length. Whatever is malformed or too long is a `ProtocolError`; all else is believed:
a fetcher that somebody has taken over can say of any image what it likes.
"""

import asyncio
import math
import socket
import struct
from collections.abc import Callable, Iterator
from typing import cast

import msgspec

from extender.credentials.keyring import Credential
from extender.credentials.provider_specs import ProviderSpec
from extender.credentials.providers import CredentialsUnavailable, ProvidedCredentials
from extender.errors import (
    AddressRefused,
    CertificateUntrusted,
    EndpointUnavailable,
    ExtenderError,
    HostDenied,
    InnerAddress,
    InvalidManifest,
    ManifestNotFound,
    NameUnresolved,
    PrivateAddress,
    RegistryDenied,
    RegistryError,
    RegistryFailed,
    RegistryNotAllowed,
    RegistryNotAsked,
    RegistryRefusedImage,
    RegistryThrottled,
    RegistryUnavailable,
    RegistryUnreachable,
    RegistryWithoutTls,
    UnsupportedManifest,
)
from extender.fetcher.settings import FetcherSettings
from extender.images.manifest import Image
from extender.images.platform import Platform, shared_platform
from extender.images.reference import ImageReference
from extender.kubernetes.openshift_v1 import MirrorObjects
from extender.verifier.verification import Verification

MOST_BYTES = 2 << 20
"""Of a message: twice what a credential provider's answer may have."""

_LENGTH = struct.Struct(">I")
_MOST_TEXT = 1024  # characters of an error's


class ProtocolError(Exception):
    """A message that is malformed or too long."""


class _OfImage(msgspec.Struct, frozen=True, kw_only=True):
    """A question about an image, for pods of a tenant, with the credential to show."""

    id: int = 0
    seconds: float = 0.0
    tenant: str
    reference: ImageReference
    credential: Credential


class StateDigest(_OfImage, frozen=True, tag="state", kw_only=True):
    """Which digest does the registry state for the reference?"""


class Describe(_OfImage, frozen=True, tag="describe", kw_only=True):
    """What do the bytes behind the reference say?"""


class Verify(_OfImage, frozen=True, tag="verify", kw_only=True):
    """For which machine is the program that the image starts on a platform that it claims?"""

    platform: Platform


class Provide(msgspec.Struct, frozen=True, tag="provide", kw_only=True):
    """Which logins has the provider for the repository?"""

    id: int = 0
    seconds: float = 0.0
    provider: ProviderSpec
    repository: str


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    """Are you well, and what have you counted since the last time?"""

    id: int = 0


class NodeMirrors(msgspec.Struct, frozen=True, tag="mirrors"):
    """This is what OpenShift's objects say now about where nodes pull from."""

    objects: MirrorObjects


Question = StateDigest | Describe | Verify | Provide | Ping
ToFetcher = FetcherSettings | NodeMirrors | Question


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The settings can be used."""


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The settings cannot be used: the text of a ConfigError."""

    why: str


class DigestStated(msgspec.Struct, frozen=True, tag="stated"):
    """The answer to `StateDigest`; None: describe it instead."""

    id: int
    digest: str | None


class Described(msgspec.Struct, frozen=True, tag="described"):
    """The answer to `Describe`."""

    id: int
    image: Image


class Verified(msgspec.Struct, frozen=True, tag="verified"):
    """The answer to `Verify`."""

    id: int
    verification: Verification


class Provided(msgspec.Struct, frozen=True, tag="provided"):
    """The answer to `Provide`."""

    id: int
    credentials: ProvidedCredentials


class FailedAnswer(msgspec.Struct, frozen=True, tag="failed"):
    """The answer to any question but `Ping`: an error of the class `kind`, with what that class has."""

    id: int
    kind: str
    text: str
    host_is_well: bool = False
    retry_after_seconds: float | None = None
    status: int = 0
    said: str = ""


class Pong(msgspec.Struct, frozen=True, tag="pong"):
    """The answer to `Ping`: what was counted since the last one, and gauges."""

    id: int
    counted: dict[tuple[str, ...], float]
    gauges: dict[tuple[str, str], float]


ToQuestion = DigestStated | Described | Verified | Provided | FailedAnswer | Pong
FromFetcher = Ready | Refused | ToQuestion

_ERRORS: dict[str, type[ExtenderError]] = {
    error.__name__: error
    for error in (
        AddressRefused, CertificateUntrusted, CredentialsUnavailable, EndpointUnavailable, HostDenied,
        InnerAddress, InvalidManifest,
        ManifestNotFound, NameUnresolved, PrivateAddress, RegistryDenied, RegistryFailed, RegistryNotAllowed,
        RegistryNotAsked, RegistryRefusedImage, RegistryThrottled, RegistryUnavailable, RegistryUnreachable,
        RegistryWithoutTls, UnsupportedManifest,
    )
}  # fmt: skip

_ENCODER = msgspec.msgpack.Encoder()
_TO_FETCHER = msgspec.msgpack.Decoder(ToFetcher)
_FROM_FETCHER = msgspec.msgpack.Decoder(FromFetcher)


class Unframer:
    """Takes the messages out of a stream of bytes."""

    def __init__(self) -> None:
        self._received = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yields the messages that are complete with `data`. Raises ProtocolError at one that is too long."""
        self._received += data
        while len(self._received) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._received)
            if length > MOST_BYTES:
                raise ProtocolError("a message is too long")
            end = _LENGTH.size + length
            if len(self._received) < end:
                return
            message = bytes(self._received[_LENGTH.size : end])
            del self._received[:end]
            yield message


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
        self._unframer = Unframer()
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
        """Passes on what is complete."""
        try:
            for message in self._unframer.feed(data):
                self._received(message)
        except ProtocolError:
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
    return Described(answer.id, _with_shared_platforms(answer.image)) if isinstance(answer, Described) else answer


def _with_shared_platforms(image: Image) -> Image:
    """Returns the image with usual platforms as the objects that all caches share."""
    entries = (msgspec.structs.replace(each, platform=shared_platform(each.platform)) for each in image.entries)
    return msgspec.structs.replace(image, entries=tuple(entries))


def failure_of(error: ExtenderError, question_id: int) -> FailedAnswer:
    """Returns the error as a message: one that `error_of` makes the same error of."""
    kind = type(error)
    return FailedAnswer(
        question_id,
        kind.__name__ if kind.__name__ in _ERRORS else RegistryUnavailable.__name__,
        str(error)[:_MOST_TEXT],
        host_is_well=getattr(error, "host_is_well", False),
        retry_after_seconds=getattr(error, "retry_after_seconds", None),
        status=getattr(error, "status", 0),
        said=getattr(error, "said", ""),
    )


def error_of(failed: FailedAnswer) -> ExtenderError:
    """Returns the error that the fetcher has met."""
    kind = _ERRORS.get(failed.kind, RegistryUnavailable)
    error: ExtenderError
    if kind is RegistryRefusedImage:
        error = RegistryRefusedImage(failed.text, failed.status, failed.said)
    elif issubclass(kind, (RegistryThrottled, RegistryUnavailable)):
        error = kind(failed.text, failed.retry_after_seconds)
    else:
        error = kind(failed.text)
    if isinstance(error, RegistryError):
        error.host_is_well = failed.host_is_well
    return error
