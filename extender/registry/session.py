"""The HTTP session that registries and token servers are asked through: none of its connections escapes the guard.

Knows TLS trust, connection limits and where a connection is opened. Knows no registry, no credential and no request.
"""

import socket
import ssl
from collections.abc import Sequence

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from extender import __version__
from extender.errors import ConfigError
from extender.registry.addresses import AddressGuard, inner_refusal
from extender.registry.transport import host_of, proxy_of
from extender.tables import declare_cache

_RESOLVED_SECONDS = 10
# What names resolve to, checked before it is kept.
_ADDRESSES = declare_cache(
    "registry.session.addresses", key="host, port", lifetime=f"{_RESOLVED_SECONDS} s", bound=1000
)
_CONNECTIONS = 256  # over all hosts, so that no reference can use up the file descriptors; each host has its own bound


def open_session(*, guard: AddressGuard, ca_files: Sequence[str] = ()) -> aiohttp.ClientSession:
    """A session for `RegistryClient` and `Authenticator`: no cookies, no time-out of its own, nothing from ~/.netrc.

    Whatever is asked through it is checked by `guard` and raises AddressRefused where that
    refuses: the host of each request, and each address right before it is connected to, so that a name cannot mean
    another one by then. A proxy of the environment connects for us, so names and literals alone can be checked; its own
    address is not. `ca_files` are PEM bundles trusted besides the system's. Call it with a loop running and close it
    when done.

    Raises:
        ConfigError: one of `ca_files` cannot be read or holds no certificate.
    """
    proxies = frozenset(_address_of(proxy) for proxy in map(proxy_of, ("http", "https")) if proxy)
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            ssl=_trusting(ca_files),
            limit=_CONNECTIONS,
            resolver=_GuardedResolver(guard, proxies),
            ttl_dns_cache=_RESOLVED_SECONDS,
            dns_cache_max_size=_ADDRESSES.rows,
        ),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None),
        headers={"User-Agent": f"multiarch-extender/{__version__}"},
        middlewares=[_checking(guard, proxies)],
    )


class _GuardedResolver(AbstractResolver):
    """Resolves a name to those of its addresses that may be reached. aiohttp connects to these and asks no more."""

    def __init__(self, guard: AddressGuard, proxies: frozenset[tuple[str, int]]) -> None:
        self._guard = guard
        self._proxies = proxies
        self._resolver = aiohttp.DefaultResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await self._resolver.resolve(host, port, family)
        return found if (host, port) in self._proxies else self._guard.keep_reachable(host, port, found)

    async def close(self) -> None:
        await self._resolver.close()


def _checking(guard: AddressGuard, proxies: frozenset[tuple[str, int]]) -> aiohttp.ClientMiddlewareType:
    """Checks the host of each request: aiohttp shows literal addresses to no resolver, and proxies resolve for us."""

    async def check(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        guard.check_host(request.url)
        if request.proxy is None and _address_of(request.url) in proxies:
            raise inner_refusal(host_of(request.url))  # the proxy's address is not checked, so it is none of a registry
        return await send(request)

    return check


def _address_of(url: URL) -> tuple[str, int]:
    return url.raw_host or "", url.port or 0


def _trusting(ca_files: Sequence[str]) -> ssl.SSLContext:
    context = ssl.create_default_context()
    for path in ca_files:
        try:
            context.load_verify_locations(path)
        except OSError as exc:  # ssl.SSLError is one
            raise ConfigError(f"registry.ca_files: {path} holds no certificates: {exc.strerror or exc}") from exc
    return context
