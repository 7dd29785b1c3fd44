"""HTTP requests to untrusted hosts: limits their size and time, counts them, and translates their errors.

Errors of aiohttp, the TLS library and the resolver become `RegistryUnavailable` or a subclass here, which says whether
the host is to blame. The message names the host but never the path, the query or anything that the host sent. A
connection gives up on an answer of more bytes than an answer may have: interim answers, headers and framing count too.
Of all bodies under way together the one that takes longest gives way, since honest ones take little time.
"""

import asyncio
import contextlib
import errno
import functools
import os
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextvars import ContextVar
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple
from urllib.request import getproxies, proxy_bypass

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.http import HttpProcessingError, RawResponseMessage
from aiohttp.streams import StreamReader
from multidict import CIMultiDictProxy
from yarl import URL

from extender.errors import (
    CertificateUntrusted,
    NameUnresolved,
    RegistryFailed,
    RegistryNotAsked,
    RegistryThrottled,
    RegistryUnavailable,
    RegistryUnreachable,
    RegistryWithoutTls,
)
from extender.registry.answer_head import MalformedHead, end_of_head, read_head
from extender.registry.raw_urls import raw_url
from extender.registry.refusals import BODY_BYTES
from extender.registry_figures import CODES, REQUESTS

# Real answers have 2 KB of headers, and some 10 KB in one of them. Interim answers before the final one count too.
MOST_HEAD_BYTES = 64 << 10
# Bytes besides the body, and for each byte of the body: chunks of one byte cost five more, and servers send kilobytes.
# What is read at once counts before its body does, which is a quarter of a megabyte at most.
_FRAMING_BYTES, _FRAMING_PER_BYTE = 512 << 10, 2
_MOST_UNDER_WAY_BYTES = 48 << 20
_AIOHTTPS_LIMITS = {"max_line_size": MOST_HEAD_BYTES, "max_field_size": MOST_HEAD_BYTES, "max_headers": MOST_HEAD_BYTES}


class AnswerTooLong(aiohttp.ClientPayloadError):
    """The server sent more than an answer may have, besides its body."""


class BodiesUnderWay:
    """How much of bodies that are not complete has been received, by connection, the oldest first."""

    def __init__(self, most_bytes: int = _MOST_UNDER_WAY_BYTES) -> None:
        self._most_bytes = most_bytes
        self._bytes: dict[CappedConnection, int] = {}
        self._total = 0

    def note(self, connection: "CappedConnection", received_bytes: int) -> None:
        """Notes how much of a body has come; ends the oldest ones while all are too much together."""
        self._total += received_bytes - self._bytes.get(connection, 0)
        self._bytes[connection] = received_bytes
        while self._total > self._most_bytes:
            oldest = next(iter(self._bytes))
            self.forget(oldest)
            oldest.give_up()

    def forget(self, connection: "CappedConnection") -> None:
        """Notes that a body is complete, or is not read any more."""
        self._total -= self._bytes.pop(connection, 0)


class CappedConnection(ResponseHandler):
    """aiohttp's connection, which reads heads as Go's client does, and ends when it has received too much.

    It drops interim answers, since nobody waits for one that says `100 Continue` or gives early hints, and what comes
    behind an answer.
    """

    _received_bytes = 0
    _body: StreamReader | None = None

    def __init__(self, loop: asyncio.AbstractEventLoop, bodies: BodiesUnderWay) -> None:
        """`bodies` are those of all connections."""
        super().__init__(loop)
        self._bodies = bodies
        self._head = bytearray()

    def set_response_params(self, **parameters: Any) -> None:  # noqa: ANN401 - aiohttp's own
        """Begins to count anew, for the next request."""
        self._received_bytes, self._body = 0, None
        self._head.clear()
        self._bodies.forget(self)
        super().set_response_params(**{**parameters, **_AIOHTTPS_LIMITS})

    def feed_data(self, data: tuple[RawResponseMessage, StreamReader], size: int = 0) -> None:
        """Passes an answer on to who waits for it."""
        _, self._body = data
        super().feed_data(data, size)

    def data_received(self, data: bytes) -> None:
        """Parses what has come, unless it is too much. Nothing comes when a paused parser is to go on."""
        if not data or self._parser is None:
            super().data_received(data)
            return
        self._received_bytes += len(data)
        if self._body is None:
            data = self._take_head(data)
        body = self._body
        if body is None:
            if self._received_bytes > MOST_HEAD_BYTES:
                self.give_up()
            return
        if body.is_eof():
            self._end_before(data)
            return
        if data:
            super().data_received(data)
        if body.is_eof():
            self._bodies.forget(self)
        elif self.exception():  # of the framing, of which aiohttp does not tell who reads the body
            self._fail(aiohttp.ClientPayloadError("the body's framing is wrong"))
        elif self._received_bytes > self._most_bytes(body):
            self.give_up()
        else:
            self._bodies.note(self, self._received_bytes)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Ends."""
        self._bodies.forget(self)
        super().connection_lost(exc)

    def close(self) -> None:
        """Ends, when nobody reads the answer any more."""
        self._bodies.forget(self)
        super().close()

    def _take_head(self, data: bytes) -> bytes:
        """Has the final answer's head parsed once it is all there; returns what has come behind it."""
        searched = len(self._head)
        self._head += data
        while end := end_of_head(self._head, searched):
            if end > MOST_HEAD_BYTES:
                self.give_up()
                return b""
            raw, searched = bytes(self._head[:end]), 0
            del self._head[:end]
            try:
                head = read_head(raw)
            except MalformedHead as exc:
                self._fail(HttpProcessingError(message=str(exc)))
                return b""
            if not 100 <= head.status < 200 or head.status == 101:
                super().data_received(head.canonical)
                behind = bytes(self._head)
                self._head.clear()
                return behind
        return b""

    def _end_before(self, data: bytes) -> None:
        """Drops what comes behind an answer, and asks nothing more over this connection."""
        self._bodies.forget(self)
        if data:
            self.force_close()

    def _most_bytes(self, body: StreamReader) -> int:
        return MOST_HEAD_BYTES + _FRAMING_BYTES + _FRAMING_PER_BYTE * body.total_bytes

    def give_up(self) -> None:
        """Ends with an error for whoever waits for the answer."""
        self._fail(AnswerTooLong("the answer is too long"))

    def _fail(self, error: Exception) -> None:
        self._bodies.forget(self)
        self.set_exception(error)
        if self._body:
            self._body.set_exception(error)
        if self.transport:
            self.transport.abort()


_CHUNK_BYTES = 65536
_MAX_REDIRECTS = 5  # registry.k8s.io needs two; aiohttp's own limit is 10
_WITH_BODY = frozenset({200, 206})
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
# Of the 4xx, those about the proxy, the time or the connection: the same request may succeed later.
_TRANSIENT_4XX = frozenset({407, 408, 421, 425, 429})
# Refusals that say all by their status, and are many.
_WITHOUT_REASON = frozenset({401, 403, 404})
_REASON_SECONDS = 1.0
_CONNECT_SECONDS = 5.0  # for TCP and TLS each; a packet that is lost is sent again after one second and after three
_MIN_RETRY_SECONDS, _MAX_RETRY_SECONDS = 1.0, 3600.0
# No registry asks for years: more seconds than 20 years have are a point in time, and a thousand times more in ms.
_POINT_SECONDS, _POINT_MILLISECONDS = 630_720_000, 630_720_000_000
_PROXY_VARIABLES = (
    "http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "no_proxy", "NO_PROXY",
    "REQUEST_METHOD",  # set in a CGI script, where HTTP_PROXY is a header of the request
)  # fmt: skip
# Messages name hosts. yarl takes a host of any length, with control characters; DNS has 253 characters at most.
_HOST = re.compile(r"[!-~]{1,253}", re.ASCII)
_SECONDS = re.compile(r"[+-]?[0-9]+(?:\.[0-9]+)?", re.ASCII)

# The first class that matches an exception gives the error and the words after the host's name.
_FAULTS: tuple[tuple[type[Exception], type[RegistryUnavailable], str], ...] = (
    (aiohttp.ClientConnectorCertificateError, CertificateUntrusted, "shows a certificate that is not trusted"),
    (aiohttp.ClientSSLError, RegistryWithoutTls, "cannot be reached over TLS"),
    (aiohttp.ClientConnectorDNSError, NameUnresolved, "has a name that does not resolve"),
    (aiohttp.ClientProxyConnectionError, RegistryNotAsked, "cannot be reached: the proxy does not accept connections"),
    (aiohttp.ClientHttpProxyError, RegistryUnavailable, "cannot be reached through the proxy"),
    (aiohttp.ClientConnectorError, RegistryUnreachable, "does not accept connections"),
    (aiohttp.ConnectionTimeoutError, RegistryUnreachable, "does not accept connections in time"),
    (AnswerTooLong, RegistryUnavailable, "sent more than an answer may have"),
    (aiohttp.ClientResponseError, RegistryUnavailable, "sent something that is no HTTP answer"),
    (TimeoutError, RegistryUnavailable, "did not answer in time"),
    (ValueError, RegistryUnavailable, "is no address to connect to"),
    (Exception, RegistryUnavailable, "broke off the connection"),
)
# What this process or its machine lacks, whatever the host.
_OWN_SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})


ASKED_BY: ContextVar[int] = ContextVar("ASKED_BY", default=0)
"""The number of the question for which requests are sent."""
READ_FOR: set[int] = set()
"""The numbers of the questions for which a body is being read, or was read last and is being used."""


class Response(NamedTuple):
    """An HTTP response. `body` is empty if `truncated`, that is, longer than the limit.

    Of another status than 200 and 206 it is empty too, unless the response refuses what was requested: then it has what
    came of it in a second, if that is all and no longer than `refusals.BODY_BYTES`.
    """

    url: URL
    status: int
    headers: CIMultiDictProxy[str]
    body: bytes
    truncated: bool


async def send(
    session: aiohttp.ClientSession,
    method: str,
    url: URL,
    *,
    headers: Mapping[str, str],
    limit_bytes: int,
    tls: ssl.SSLContext | bool = True,
    connect_seconds: float | None = None,
) -> Response:
    """Sends one request and returns its response. Does not follow redirects.

    A body of more than `limit_bytes` is dropped. Name and password in `url` are not sent. The proxy
    is the one that the environment names. `tls` is the TLS context for this request; True stands for the session's own.
    `connect_seconds` limits the time to connect; None: our own limit.

    Raises:
        AddressRefused: the session's guard refuses the host.
        NameUnresolved: the host's name does not resolve.
        RegistryUnreachable: no connection came about.
        RegistryNotAsked: no connection could be tried, for want of something of ours.
        RegistryFailed: the body is encoded.
        RegistryUnavailable: there is no complete response.
    """
    host = host_of(url)
    READ_FOR.discard(ASKED_BY.get())
    try:
        async with session.request(
            method,
            url.with_user(None),
            headers=headers,
            allow_redirects=False,
            proxy=proxy_for(url),
            ssl=tls,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_seconds or _CONNECT_SECONDS),
        ) as response:
            if response.status in _WITH_BODY:
                _check_encoding(response, host)
                body, truncated = await _read(response, limit_bytes)
            else:
                body, truncated = await _read_reason(response), False
    except (aiohttp.ClientError, OSError, ValueError) as exc:  # TimeoutError is an OSError, UnicodeError a ValueError
        REQUESTS["error"].inc()
        raise _fault(host, exc) from exc
    REQUESTS[_code_of(response.status)].inc()
    return Response(url, response.status, response.headers, body, truncated)


async def follow(url: URL, send_to: Callable[[URL], Awaitable[Response]]) -> Response:
    """Returns the first response that is not a redirect, starting at `url`.

    `send_to` sends the request of each hop and decides which headers the hop receives.

    Raises:
        RegistryUnavailable: there are more than five redirects, or one that `resolve_url` refuses.
    """
    for _ in range(_MAX_REDIRECTS + 1):
        answer = await send_to(url)
        if answer.status not in _REDIRECTS:
            return answer
        url = resolve_url(url, answer.headers.get("Location", ""))
    raise RegistryUnavailable(f"{host_of(url)} redirects more than {_MAX_REDIRECTS} times")


def resolve_url(base: URL, location: str) -> URL:
    """Returns the URL of `location`, which may be relative to `base`, with its path and query to the byte.

    Raises:
        RegistryUnavailable: it is not an http or https address, or it leads from https to http.
    """
    nowhere = f"{host_of(base)} points to an address that is none"
    try:
        url = raw_url(base, location)
        usable = location and url.scheme in ("http", "https") and _HOST.fullmatch(url.raw_host or "")  # may raise
    except (ValueError, LookupError) as exc:  # `https://[]@` is an IndexError in yarl
        raise RegistryUnavailable(nowhere) from exc
    if not usable:
        raise RegistryUnavailable(nowhere)
    if base.scheme == "https" and url.scheme == "http":
        raise RegistryUnavailable(f"{host_of(base)} points from https to http")
    return url


@contextlib.asynccontextmanager
async def deadline(host: str, timeout_seconds: float) -> AsyncIterator[None]:
    """Raises RegistryUnavailable if the context lasts longer than `timeout_seconds`."""
    try:
        async with asyncio.timeout(timeout_seconds):
            yield
    except TimeoutError as exc:
        REQUESTS["error"].inc()
        raise RegistryUnavailable(f"{host} did not answer within {timeout_seconds:g} s") from exc


def _fault(host: str, exc: Exception) -> RegistryUnavailable:
    """Returns our error for one of aiohttp's, of the TLS library's or of the resolver's."""
    if isinstance(exc, aiohttp.ClientOSError) and exc.errno in _OWN_SHORTAGES:
        return RegistryNotAsked(f"{host} was not asked: {errno.errorcode[exc.errno]} here")
    return next(kind(f"{host} {words}") for fault, kind, words in _FAULTS if isinstance(exc, fault))


def is_about_request(status: int) -> bool:
    """Whether a response with this status refuses what was requested, and does not tell of a host that fails."""
    return 400 <= status < 500 and status not in _TRANSIENT_4XX


def throttled(answer: Response, wall_clock: Callable[[], float]) -> RegistryThrottled:
    """Returns the error for a 429. `wall_clock` gives seconds since the epoch, for a Retry-After that is a date."""
    seconds = retry_after_seconds(answer.headers.get("Retry-After", ""), wall_clock())
    return RegistryThrottled(f"{host_of(answer.url)} asks us to come back later (429)", seconds)


def retry_after_seconds(value: str, now: float) -> float | None:
    """Returns the wait in a Retry-After header; None if the header states none (RFC 9110 §10.2.3).

    Some registries state the point in time instead, in seconds or milliseconds since the epoch. The wait is at least a
    second and at most an hour. An hour is long enough to be polite, and a mistaken or malicious
    registry cannot block requests for longer. `now` is in seconds since the epoch.
    """
    stripped = value.strip()
    if _SECONDS.fullmatch(stripped):
        stated = float(stripped)  # of U+001C to U+001F, which `strip` takes off, it knows nothing
        seconds = _seconds_until(stated, now)
        if seconds is None:
            return None
    else:
        try:
            date = parsedate_to_datetime(value)
        except (ValueError, OverflowError):
            return None
        seconds = (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - now
    return min(max(seconds, _MIN_RETRY_SECONDS), _MAX_RETRY_SECONDS)


def _seconds_until(stated: float, now: float) -> float | None:
    """Returns the wait that a number means; None if no clock will show that point in time."""
    if stated < _POINT_SECONDS:
        return stated
    point = stated if stated < _POINT_MILLISECONDS else stated / 1000
    return point - now if point < 10 * _POINT_SECONDS else None


def proxy_for(url: URL) -> URL | None:
    """Returns the proxy that HTTPS_PROXY, HTTP_PROXY and NO_PROXY name for `url`; None if they name none.

    aiohttp's `trust_env` would do the same, but would also send credentials from ~/.netrc.
    """
    if not url.raw_host:
        return None
    return _find_proxy(url.scheme, f"{url.raw_host}:{url.port}", tuple(map(os.environ.get, _PROXY_VARIABLES)))


@functools.lru_cache(1024)
def _find_proxy(scheme: str, host: str, environment: tuple[str | None, ...]) -> URL | None:
    """As `proxy_for`. Cached: urllib reads the whole environment, which takes as long as the rest of a request."""
    del environment  # part of the cache key only; urllib reads the variables itself
    return None if proxy_bypass(host) else proxy_of(scheme)


def proxy_of(scheme: str) -> URL | None:
    """Returns the proxy that the environment names for a scheme; None if it names none."""
    proxy = getproxies().get(scheme)
    if not proxy:
        return None
    return URL(proxy if "://" in proxy else f"http://{proxy}")


def host_of(url: URL) -> str:
    """Returns the host as messages name it, with the port if it is not the scheme's default."""
    return url.host_port_subcomponent or "the registry"


def _check_encoding(response: aiohttp.ClientResponse, host: str) -> None:
    """Raises RegistryFailed for an encoded body: none was asked for, and decoding one could take any memory."""
    if response.headers.get("Content-Encoding", "").lower() not in ("", "identity"):
        raise RegistryFailed(f"{host} sent an encoded body, though none was asked for")


async def _read(response: aiohttp.ClientResponse, limit_bytes: int) -> tuple[bytes, bool]:
    """Returns the body and False, or nothing and True if it is longer than the limit. Ignores Content-Length."""
    body = bytearray()
    try:
        async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
            READ_FOR.add(ASKED_BY.get())
            body += chunk
            if len(body) > limit_bytes:
                return b"", True
        return bytes(body), False
    finally:
        body.clear()  # an error of aiohttp's knows this frame, in a circle that the garbage collector has to find


async def _read_reason(response: aiohttp.ClientResponse) -> bytes:
    """Returns the body of a refusal; nothing if it is long, late or broken, which changes nothing about the refusal."""
    if not is_about_request(response.status) or response.status in _WITHOUT_REASON:
        return b""
    try:
        async with asyncio.timeout(_REASON_SECONDS):
            return (await _read(response, BODY_BYTES))[0]
    except (aiohttp.ClientError, OSError, ValueError):  # TimeoutError is an OSError
        return b""


def _code_of(status: int) -> str:
    exact, family = str(status), f"{status // 100}xx"
    return exact if exact in CODES else family if family in CODES else "error"
