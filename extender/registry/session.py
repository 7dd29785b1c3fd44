"""The HTTP session for registries and token servers, in which the guard checks every request.

Sets TLS trust and connection limits. Other files send the requests and obtain the credentials.
"""

import asyncio
import functools
import socket
import ssl
from collections.abc import Sequence
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.client_proto import ResponseHandler
from aiohttp.resolver import ThreadedResolver
from yarl import URL

from extender import __version__
from extender.errors import ConfigError
from extender.registry.addresses import AddressGuard, inner_refusal
from extender.registry.transport import BodiesUnderWay, CappedConnection, host_of, proxy_of
from extender.tls_context import CurrentContext, new_client_context
from extender.watched_files import FileSetting, WatchedFiles

_CONNECTIONS = 256  # over all hosts, as many as lookups are under way at once
_IDLE_SECONDS = 1.0  # a connection is kept for the next request of the same lookup, and takes 40 KB or more
# Two attempts of the C library at a name server, if each takes two seconds as `fetcher` has it.
_RESOLVE_SECONDS = 5.0
_NAME_SECONDS = 10
# Addresses of one name that are used, the first ones: a zone could name thousands.
_MOST_ADDRESSES = 32


class RegistryTrust:
    """The system's authorities and those in `ca_files`, which are PEM bundles and may change.

    `context` trusts what the files hold when a connection is opened. Connections that are open stay open.

    Raises:
        ConfigError: one of the files cannot be read or holds no certificate.
    """

    def __init__(self, ca_files: Sequence[str] = ()) -> None:
        self.files = WatchedFiles.of_setting(FileSetting.CA_FILES, ca_files, lambda: _trusting(ca_files))
        self.context = CurrentContext.of(lambda: self.files.value)
        self.ca_files = tuple(ca_files)


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
            limit=_CONNECTIONS,
            keepalive_timeout=_IDLE_SECONDS,
            ttl_dns_cache=_NAME_SECONDS,
            resolver=_GuardedResolver(ThreadedResolver(), guard, proxies),
        ),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None),
        headers={"User-Agent": f"multiarch-extender/{__version__}", "Accept-Encoding": "identity"},
        auto_decompress=False,
        middlewares=[_checking(guard, proxies)],
    )


class _Connector(aiohttp.TCPConnector):
    """aiohttp's, with connections that limit what they receive."""

    def __init__(self, **parameters: Any) -> None:  # noqa: ANN401 - aiohttp's own
        super().__init__(**parameters)
        self._factory = functools.partial(_new_connection, self._loop, BodiesUnderWay())


def _new_connection(loop: asyncio.AbstractEventLoop, bodies: BodiesUnderWay) -> ResponseHandler:
    return CappedConnection(loop, bodies)


class _GuardedResolver(AbstractResolver):
    """Resolves a name to the addresses that the guard allows. aiohttp connects to these without another lookup.

    Names resolve by the C library, in a thread of the event loop: as in every other program of the machine, by its
    hosts file, name service switch and search domains.
    """

    def __init__(self, resolver: AbstractResolver, guard: AddressGuard, proxies: frozenset[tuple[str, int]]) -> None:
        self._resolver = resolver
        self._guard = guard
        self._proxies = proxies

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        try:
            async with asyncio.timeout(_RESOLVE_SECONDS):
                found = (await self._resolver.resolve(host, port, family))[:_MOST_ADDRESSES]
        except TimeoutError:
            raise socket.gaierror(socket.EAI_AGAIN, "the name has not resolved in time") from None
        return found if (host, port) in self._proxies else self._guard.keep_reachable(host, port, found)

    async def close(self) -> None:
        await self._resolver.close()


def _checking(guard: AddressGuard, proxies: frozenset[tuple[str, int]]) -> aiohttp.ClientMiddlewareType:
    """Returns a middleware that checks the host of each request.

    The resolver is not enough: aiohttp does not call it for literal addresses, and a proxy resolves names itself.
    """

    async def check(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        guard.check_host(request.url)
        if request.proxy is None and _address_of(request.url) in proxies:
            raise inner_refusal(host_of(request.url))  # the resolver does not check it, so no registry may be there
        return await send(request)

    return check


def _address_of(url: URL) -> tuple[str, int]:
    return url.raw_host or "", url.port or 0


def _trusting(ca_files: Sequence[str]) -> ssl.SSLContext:
    context = new_client_context()
    for path in ca_files:
        try:
            context.load_verify_locations(path)
        except OSError as exc:  # ssl.SSLError is one
            raise ConfigError(f"registry.ca_files: {path} holds no certificates: {exc.strerror or exc}") from exc
    return context
