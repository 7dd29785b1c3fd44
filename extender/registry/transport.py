"""One HTTP exchange with a host we do not trust: capped, timed, counted, and every failure in our own words.

Knows HTTP and nothing of registries. Whatever aiohttp, the TLS library or the resolver raises becomes
`RegistryUnavailable` here; a message names the host and never the path, the query or anything the host sent.
"""

import asyncio
import contextlib
import functools
import os
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import NamedTuple
from urllib.request import getproxies, proxy_bypass

import aiohttp
from multidict import CIMultiDictProxy
from prometheus_client import Gauge
from yarl import URL

from extender import metrics
from extender.errors import RegistryThrottled, RegistryUnavailable
from extender.tables import declare_cache

_CODES = ("2xx", "3xx", "401", "403", "404", "429", "4xx", "5xx", "error")
_REQUESTS = metrics.counter(
    "multiarch_registry_requests_total", "Requests to registries and token servers, by status code.", "code", _CODES
)
_THROTTLED = Gauge(
    "multiarch_registry_throttled_seconds",
    "Seconds until the registry that throttled us last may be asked again; 0 when none does.",
    registry=metrics.REGISTRY,
)

_CHUNK_BYTES = 65536
_MAX_REDIRECTS = 5  # registry.k8s.io needs two; aiohttp's own limit is 10
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_MIN_RETRY_SECONDS, _MAX_RETRY_SECONDS = 1.0, 3600.0
_PROXY_VARIABLES = (
    "http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "no_proxy", "NO_PROXY",
    "REQUEST_METHOD",  # in a CGI script HTTP_PROXY is a caller's header
)  # fmt: skip
_SECONDS = re.compile(r"[+-]?[0-9]+(?:\.[0-9]+)?", re.ASCII)

# The first class that an exception belongs to gives the words that follow the host's name.
_FAULTS: tuple[tuple[type[Exception], str], ...] = (
    (aiohttp.ClientConnectorCertificateError, "shows a certificate that is not trusted"),
    (aiohttp.ClientSSLError, "cannot be reached over TLS"),
    (aiohttp.ClientConnectorDNSError, "has a name that does not resolve"),
    (aiohttp.ClientProxyConnectionError, "cannot be reached, since the proxy does not accept connections"),
    (aiohttp.ClientHttpProxyError, "cannot be reached through the proxy"),
    (aiohttp.ClientConnectorError, "does not accept connections"),
    (aiohttp.ClientResponseError, "sent something that is no HTTP answer"),
    (TimeoutError, "did not answer in time"),
    (ValueError, "is no address to connect to"),
    (Exception, "broke off the connection"),
)


class Response(NamedTuple):
    """An answer. `body` is empty unless the status is 200, and where it was longer than the limit: `truncated`."""

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
    """The answer to one request, redirects not followed. At most `limit_bytes` of the body, after decompression.

    Name and password in `url` are left out. The proxy is the environment's. `tls` checks this one host, in the
    session's own way where it is True; `connect_seconds` bounds the making of a connection.

    Raises:
        AddressRefused: the session's guard does not let us reach the host.
        RegistryUnavailable: there is no complete answer.
    """
    host = host_of(url)
    try:
        async with session.request(
            method,
            url.with_user(None),
            headers=headers,
            allow_redirects=False,
            proxy=proxy_for(url),
            ssl=tls,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_seconds),
        ) as response:
            body, truncated = await _read(response, limit_bytes) if response.status == 200 else (b"", False)
    except (aiohttp.ClientError, OSError, ValueError) as exc:  # TimeoutError is an OSError, UnicodeError a ValueError
        _REQUESTS["error"].inc()
        words = next(words for kind, words in _FAULTS if isinstance(exc, kind))
        raise RegistryUnavailable(f"{host} {words}") from exc
    _REQUESTS[_code_of(response.status)].inc()
    return Response(url, response.status, response.headers, body, truncated)


async def follow(url: URL, send_to: Callable[[URL], Awaitable[Response]]) -> Response:
    """The first answer that is no redirect, from `url` on. `send_to` decides what each hop may be shown.

    Raises:
        RegistryUnavailable: more than five redirects, one from https to http, or one to no place.
    """
    for _ in range(_MAX_REDIRECTS + 1):
        answer = await send_to(url)
        if answer.status not in _REDIRECTS:
            return answer
        url = resolve_url(url, answer.headers.get("Location", ""))
    raise RegistryUnavailable(f"{host_of(url)} redirects more than {_MAX_REDIRECTS} times")


def resolve_url(base: URL, location: str) -> URL:
    """Where `location`, which may be relative, leads from `base`.

    Raises:
        RegistryUnavailable: it is no http or https address, or would leave https for http.
    """
    nowhere = f"{host_of(base)} points to an address that is none"
    try:
        url = base.join(URL(location))
        usable = location and url.raw_host and url.scheme in ("http", "https")  # yarl reads a host on first use
    except (ValueError, LookupError) as exc:  # `https://[]@` is an IndexError in yarl
        raise RegistryUnavailable(nowhere) from exc
    if not usable:
        raise RegistryUnavailable(nowhere)
    if base.scheme == "https" and url.scheme == "http":
        raise RegistryUnavailable(f"{host_of(base)} points from https to http")
    return url


@contextlib.asynccontextmanager
async def deadline(host: str, timeout_seconds: float) -> AsyncIterator[None]:
    """What happens inside ends in time, or with RegistryUnavailable."""
    try:
        async with asyncio.timeout(timeout_seconds):
            yield
    except TimeoutError as exc:
        _REQUESTS["error"].inc()
        raise RegistryUnavailable(f"{host} did not answer within {timeout_seconds:g} s") from exc


def throttled(answer: Response, wall_clock: Callable[[], float]) -> RegistryThrottled:
    """The error for a 429; `wall_clock` gives seconds since the epoch, for a Retry-After that is a date."""
    seconds = retry_after_seconds(answer.headers.get("Retry-After", ""), wall_clock())
    if seconds is not None:
        until = wall_clock() + seconds
        _THROTTLED.set_function(lambda: max(0.0, until - wall_clock()))
    return RegistryThrottled(f"{host_of(answer.url)} asks us to come back later (429)", seconds)


def retry_after_seconds(value: str, now: float) -> float | None:
    """The wait in a Retry-After header, between a second and an hour; None where it names none (RFC 9110 §10.2.3).

    `now` is in seconds since the epoch. An hour is long enough to be polite, and a lying or mistaken registry can
    silence us no longer.
    """
    if _SECONDS.fullmatch(value.strip()):
        seconds = float(value)
    else:
        try:
            date = parsedate_to_datetime(value)
        except (ValueError, OverflowError):
            return None
        seconds = (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - now
    return min(max(seconds, _MIN_RETRY_SECONDS), _MAX_RETRY_SECONDS)


def proxy_for(url: URL) -> URL | None:
    """The proxy that HTTPS_PROXY, HTTP_PROXY and NO_PROXY name for `url`, None for none.

    aiohttp's `trust_env` would do this too, and read ~/.netrc for credentials to send with it.
    """
    if not url.raw_host:
        return None
    return _find_proxy(url.scheme, f"{url.raw_host}:{url.port}", tuple(map(os.environ.get, _PROXY_VARIABLES)))


_PROXIES = declare_cache("registry.transport.proxies", key="scheme, host, proxy variables", bound=1024)


@functools.lru_cache(_PROXIES.rows)
def _find_proxy(scheme: str, host: str, environment: tuple[str | None, ...]) -> URL | None:
    """As `proxy_for`; urllib reads the whole environment for it, which takes as long as the rest of a request."""
    del environment  # what the answer hangs on
    return None if proxy_bypass(host) else proxy_of(scheme)


def proxy_of(scheme: str) -> URL | None:
    """The proxy that the environment names for a scheme, None for none."""
    proxy = getproxies().get(scheme)
    if not proxy:
        return None
    return URL(proxy if "://" in proxy else f"http://{proxy}")


def host_of(url: URL) -> str:
    """The host to name in a message, with a port that is not the scheme's own."""
    return url.host_port_subcomponent or "the registry"


async def _read(response: aiohttp.ClientResponse, limit_bytes: int) -> tuple[bytes, bool]:
    """The body, and whether it was longer than the limit; not a byte more is kept, whatever Content-Length says."""
    body = bytearray()
    async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
        body += chunk
        if len(body) > limit_bytes:
            return b"", True
    return bytes(body), False


def _code_of(status: int) -> str:
    exact, family = str(status), f"{status // 100}xx"
    return exact if exact in _CODES else family if family in _CODES else "error"
