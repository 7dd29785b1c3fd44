"""HTTP requests to untrusted hosts: a guarded session, limits of size and time, and errors of ours.

Errors of aiohttp, the TLS library and the resolver become `RegistryUnavailable` or a subclass here, which says whether
the host is to blame. The message names the host but never the path, the query or anything that the host sent.
"""

import asyncio
import errno
import functools
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import quote, urljoin, urlsplit

import aiohttp
import msgspec
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.client_proto import ResponseHandler
from aiohttp.client_reqrep import ConnectionKey
from aiohttp.resolver import ThreadedResolver
from multidict import CIMultiDictProxy
from yarl import URL

from extender import __version__
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
from extender.lenient_json import InvalidJson, LenientDecoder
from extender.registry.addresses import AddressGuard, inner_refusal
from extender.registry.capped_connection import MOST_HEAD_BYTES, AnswerTooLong, BodiesUnderWay, CappedConnection
from extender.registry.endpoint_tls import RegistryTrust
from extender.registry.go_proxies import proxy_for, proxy_of
from extender.registry_metrics import CODES, REQUESTS

_IDLE_SECONDS = 1.0  # a connection is kept for the next request of the same lookup
_MOST_IDLE = 256  # connections: as many as lookups may be under way, and a lookup uses one at a time
_NAME_SECONDS = 10
# Addresses of one name that are used, the first ones: a zone could name thousands.
_MOST_ADDRESSES = 32

_CHUNK_BYTES = 65536
_MAX_REDIRECTS = 5  # registry.k8s.io needs two; aiohttp's own limit is 10
_WITH_BODY = frozenset({200, 206})
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
# Of the 4xx, those about the proxy, the time or the connection: the same request may succeed later.
_TRANSIENT_4XX = frozenset({407, 408, 421, 425, 429})
_REASON_SECONDS = 1.0
_CONNECT_SECONDS = 5.0  # for TCP and TLS each; a packet that is lost is sent again after one second and after three
_MIN_RETRY_SECONDS, _MAX_RETRY_SECONDS = 1.0, 3600.0
# No registry asks for years: more seconds than 20 years have are a point in time, and a thousand times more in ms.
_POINT_SECONDS, _POINT_MILLISECONDS = 630_720_000, 630_720_000_000
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
_HAS_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_UNSENDABLE = re.compile(r"[^!-~]+")

_REASON_BYTES = 8 * 1024  # registries answer some hundred, and a body that is longer says nothing

MOST_SAID = 112
"""Of what a registry says. With the words about it, it fits what `placement.reasons` shows of a cause."""


class Response(NamedTuple):
    """An HTTP response. `body` is empty if `truncated`, that is, longer than the limit.

    Of an error it has what came of it in a second, if that is all and no longer than 8 KiB. Of another status than
    these, 200 and 206 it is empty.
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
    seconds: float,
    tls: ssl.SSLContext | bool = True,
    connect_seconds: float | None = None,
) -> Response:
    """Sends one request and returns its response, in so many `seconds` at most. Does not follow redirects.

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
    host, deadline = host_of(url), asyncio.timeout(seconds)
    try:
        async with (
            deadline,
            session.request(
                method,
                url.with_user(None),
                headers=headers,
                allow_redirects=False,
                proxy=proxy_for(url),
                ssl=tls,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_seconds or _CONNECT_SECONDS),
            ) as response,
        ):
            if response.status in _WITH_BODY:
                if response.headers.get("Content-Encoding", "").lower() not in ("", "identity"):
                    # None was asked for, and decoding one could take any memory.
                    raise RegistryFailed(f"{host} sent an encoded body, though none was asked for")
                body, truncated = await _read(response, limit_bytes)
            else:
                body, truncated = await _read_reason(response), False
    except (aiohttp.ClientError, OSError, ValueError) as exc:  # UnicodeError is a ValueError
        REQUESTS["error"].inc()
        if deadline.expired():
            raise RegistryUnavailable(f"{host} did not answer within {seconds:g} s") from exc
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

    A fragment is dropped.

    Raises:
        RegistryUnavailable: it is not an http or https address, or it leads from https to http.
    """
    nowhere = f"{host_of(base)} points to an address that is none"
    try:
        text = location if _HAS_SCHEME.match(location) else urljoin(str(base), location)
        known, parts = URL(text), urlsplit(text)
        url = URL.build(
            scheme=known.scheme,
            authority=known.raw_authority,
            path=_sendable(parts.path) or "/",
            query_string=_sendable(parts.query),
            encoded=True,
        )
        usable = location and url.scheme in ("http", "https") and _HOST.fullmatch(url.raw_host or "")  # may raise
    except (ValueError, LookupError) as exc:  # `https://[]@` is an IndexError in yarl
        raise RegistryUnavailable(nowhere) from exc
    if not usable:
        raise RegistryUnavailable(nowhere)
    if base.scheme == "https" and url.scheme == "http":
        raise RegistryUnavailable(f"{host_of(base)} points from https to http")
    return url


def _fault(host: str, exc: Exception) -> RegistryUnavailable:
    """Returns our error for one of aiohttp's, of the TLS library's or of the resolver's."""
    if isinstance(exc, aiohttp.ClientOSError) and exc.errno in _OWN_SHORTAGES:
        return RegistryNotAsked(f"{host} was not asked: {errno.errorcode[exc.errno]} here")
    return next(kind(f"{host} {words}") for fault, kind, words in _FAULTS if isinstance(exc, fault))


def is_about_request(status: int) -> bool:
    """Whether a response with this status refuses what was requested, and does not mean that the host fails."""
    return 400 <= status < 500 and status not in _TRANSIENT_4XX


def throttled(answer: Response, wall_clock: Callable[[], float]) -> RegistryThrottled | None:
    """Returns the error for a 429, or for what the body calls too many requests; None for another response.

    `wall_clock` gives seconds since the epoch, for a Retry-After that is a date.
    """
    codes = () if answer.status == HTTPStatus.TOO_MANY_REQUESTS else (each.code for each in _read_errors(answer.body))
    if answer.status != HTTPStatus.TOO_MANY_REQUESTS and not any(map(_is_throttling, codes)):
        return None
    seconds = read_retry_after(answer.headers.get("Retry-After", ""), wall_clock())
    return RegistryThrottled(f"{host_of(answer.url)} asks us to come back later ({answer.status})", seconds)


def _is_throttling(code: str | None) -> bool:
    return (code or "").replace("_", "").upper() in _THROTTLING


def read_retry_after(value: str, now: float) -> float | None:
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


def host_of(url: URL) -> str:
    """Returns the host as messages name it, with the port if it is not the scheme's default."""
    return url.host_port_subcomponent or "the registry"


async def _read(response: aiohttp.ClientResponse, limit_bytes: int) -> tuple[bytes, bool]:
    """Returns the body and False, or nothing and True if it is longer than the limit. Ignores Content-Length."""
    body = bytearray()
    try:
        async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
            body += chunk
            if len(body) > limit_bytes:
                return b"", True
        return bytes(body), False
    finally:
        body.clear()  # an error of aiohttp's knows this frame, in a circle that the garbage collector has to find


async def _read_reason(response: aiohttp.ClientResponse) -> bytes:
    """Returns the body of an error; nothing if it is long, late or broken, which changes nothing about the error."""
    if response.status < HTTPStatus.BAD_REQUEST:
        return b""
    try:
        async with asyncio.timeout(_REASON_SECONDS):
            return (await _read(response, _REASON_BYTES))[0]
    except (aiohttp.ClientError, OSError, ValueError):  # TimeoutError is an OSError
        return b""


def _code_of(status: int) -> str:
    exact, family = str(status), f"{status // 100}xx"
    return exact if exact in CODES else family if family in CODES else "error"


def _sendable(text: str) -> str:
    """Returns the text with what no request line may have encoded: white space, controls, and all beyond ASCII."""
    return _UNSENDABLE.sub(lambda found: quote(found[0].encode("utf-8", "surrogateescape")), text)


class _Error(msgspec.Struct):
    code: str | None = None
    message: str | None = None


class _Body(msgspec.Struct):
    errors: list[_Error | None] | None = None


_DECODER = LenientDecoder(_Body, most_values=1_000)


_THROTTLING = frozenset({"TOOMANYREQUESTS", "TOOMANYREQUEST"})  # the distribution-spec's code, and Harbor's


def _read_errors(body: bytes) -> Sequence[_Error]:
    """Returns the errors of the distribution-spec that a body has; none if it has others, or is something else."""
    try:
        return [each or _Error() for each in _DECODER.decode(body).errors or ()]
    except InvalidJson:
        return ()


def read_refusal(body: bytes) -> str:
    """The message of the first error, or its code if it has none, as one printable line of `MOST_SAID` at most.

    Empty if the body is no error of the distribution-spec, or says nothing.
    """
    first = next(iter(_read_errors(body)), _Error())
    line = " ".join((first.message or first.code or "").split())
    if len(line) > MOST_SAID:
        line = f"{line[: MOST_SAID - 1].rstrip()}…"
    return "".join(letter if letter.isprintable() else "?" for letter in line)


def open_session(*, guard: AddressGuard, trust: RegistryTrust | None = None) -> aiohttp.ClientSession:
    """Returns a session for `RegistryClient`, without cookies, encodings, timeout and ~/.netrc.

    `guard` checks the host of each request, and each address right before it is connected to, so that a name cannot
    resolve to another address in between. Requests that it refuses raise AddressRefused. A proxy that the environment
    names connects for us: then only names and literal addresses can be checked. The proxy's own address is not checked.
    Without `trust` only the system's authorities are trusted. Needs a running event loop; the caller closes
    the session.
    """
    proxies = frozenset(_address_of(proxy) for proxy in map(proxy_of, ("http", "https")) if proxy)
    return aiohttp.ClientSession(
        connector=_Connector(
            ssl=(trust or RegistryTrust()).context,
            limit=0,  # of those in use: a lookup has one at a time, and lookups are bounded by their turns
            keepalive_timeout=_IDLE_SECONDS,
            ttl_dns_cache=_NAME_SECONDS,
            resolver=_GuardedResolver(ThreadedResolver(), guard, proxies),
        ),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None),
        headers={"User-Agent": f"multiarch-extender/{__version__}", "Accept-Encoding": "identity"},
        auto_decompress=False,
        max_line_size=MOST_HEAD_BYTES,
        max_field_size=MOST_HEAD_BYTES,
        max_headers=MOST_HEAD_BYTES,
        middlewares=[_checking(guard, proxies)],
    )


class _Connector(aiohttp.TCPConnector):
    """aiohttp's, with connections that limit what they receive, and few that are idle.

    aiohttp has no public way to give a connection a class: `_factory` makes each. Its own limits are for one line and
    one head, and not for how many come. What is idle it bounds by time alone, in which hundreds of hosts answer.
    """

    def __init__(self, **parameters: Any) -> None:  # noqa: ANN401 - aiohttp's own
        super().__init__(**parameters)
        connect: Callable[..., ResponseHandler] = CappedConnection
        self._factory = functools.partial(connect, asyncio.get_running_loop(), BodiesUnderWay())

    def _release(self, key: ConnectionKey, protocol: ResponseHandler, *, should_close: bool = False) -> None:
        """Keeps the connection for the next request, if it may, and ends the oldest that is kept if these are many."""
        super()._release(key, protocol, should_close=should_close)
        if sum(map(len, self._conns.values())) > _MOST_IDLE:
            host, kept = next(iter(self._conns.items()))
            oldest, _ = kept.popleft()
            if not kept:
                del self._conns[host]
            oldest.close()


class _GuardedResolver(AbstractResolver):
    """Resolves a name to the addresses that the guard allows. aiohttp connects to these without another lookup.

    Names resolve by the C library, in a thread of the event loop: as in every other program of the machine, by its
    hosts file, name service switch and search domains. It gives up by itself, or the exchange's time ends before.
    """

    def __init__(self, resolver: AbstractResolver, guard: AddressGuard, proxies: frozenset[tuple[str, int]]) -> None:
        self._resolver = resolver
        self._guard = guard
        self._proxies = proxies

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = (await self._resolver.resolve(host, port, family))[:_MOST_ADDRESSES]
        return found if (host, port) in self._proxies else self._guard.keep_reachable(host, port, found)

    async def close(self) -> None:
        await self._resolver.close()


def _checking(guard: AddressGuard, proxies: frozenset[tuple[str, int]]) -> aiohttp.ClientMiddlewareType:
    """Returns a middleware that checks the host of each request.

    The resolver is not enough: aiohttp does not call it for literal addresses, and a proxy resolves names itself.
    """

    async def check(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        guard.check_host(request.url)
        if proxies and request.proxy is None and _address_of(request.url) in proxies:
            raise inner_refusal(host_of(request.url))  # the resolver does not check it, so no registry may be there
        return await send(request)

    return check


def _address_of(url: URL) -> tuple[str, int]:
    return url.raw_host or "", url.port or 0
