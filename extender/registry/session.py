"""The HTTP session for registries and token servers, in which the guard checks every request.

Sets TLS trust and connection limits. Other files send the requests and obtain the credentials.
"""

import socket
import ssl
import time
from collections.abc import Sequence

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from extender import __version__
from extender.budgets import declare_budget
from extender.errors import ConfigError
from extender.registry.addresses import AddressGuard, inner_refusal
from extender.registry.names import NameResolver
from extender.registry.transport import host_of, proxy_of, trace_waits
from extender.tls_context import CurrentContext
from extender.turns import Turns
from extender.watched_files import FileSetting, WatchedFiles

_CONNECTING_PER_SECOND = 100.0
_CONNECTING = declare_budget(
    "registry.session.connecting",
    unit="connections that begin at once, others wait",
    total=16,
    most_each=16,
    why=f"each takes 2 ms of processor time, mostly for TLS; {_CONNECTING_PER_SECOND:g} begin in a second, a fifth of "
    "a core, wherever images are and redirects lead; tenants take turns",
)
_CONNECTIONS = 256  # over all hosts, so that images cannot exhaust the file descriptors; each host has its own limit


class RegistryTrust:
    """The system's authorities and those in `ca_files`, which are PEM bundles and may change.

    `context` trusts what the files hold when a connection is opened. Connections that are open stay open.

    Raises:
        ConfigError: one of the files cannot be read or holds no certificate.
    """

    def __init__(self, ca_files: Sequence[str] = ()) -> None:
        self.files = WatchedFiles.of_setting(FileSetting.CA_FILES, ca_files, lambda: _trusting(ca_files))
        self.context = CurrentContext.of(lambda: self.files.value)


def open_session(*, guard: AddressGuard, trust: RegistryTrust | None = None) -> aiohttp.ClientSession:
    """Returns a session for `RegistryClient` and `Authenticator`, without cookies, timeout and ~/.netrc.

    `guard` checks the host of each request, and each address right before it is connected to, so that a name cannot
    resolve to another address in between. Requests that it refuses raise AddressRefused. A proxy that the environment
    names connects for us: then only names and literal addresses can be checked. The proxy's own address is not checked.
    Without `trust` only the system's authorities are trusted. Needs a running event loop; the caller closes
    the session.
    """
    proxies = frozenset(_address_of(proxy) for proxy in map(proxy_of, ("http", "https")) if proxy)
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            ssl=(trust or RegistryTrust()).context,
            limit=_CONNECTIONS,
            resolver=_GuardedResolver(NameResolver(clock=time.monotonic), guard, proxies),
            use_dns_cache=False,  # the resolver has one, and tells when a request waits for it
        ),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None),
        headers={"User-Agent": f"multiarch-extender/{__version__}"},
        middlewares=[_checking(guard, proxies)],
        trace_configs=[trace_waits(Turns(_CONNECTING, time.monotonic, per_second=_CONNECTING_PER_SECOND))],
    )


class _GuardedResolver(AbstractResolver):
    """Resolves a name to the addresses that the guard allows. aiohttp connects to these without another lookup."""

    def __init__(self, resolver: AbstractResolver, guard: AddressGuard, proxies: frozenset[tuple[str, int]]) -> None:
        self._resolver = resolver
        self._guard = guard
        self._proxies = proxies

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await self._resolver.resolve(host, port, family)
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
    context = ssl.create_default_context()
    for path in ca_files:
        try:
            context.load_verify_locations(path)
        except OSError as exc:  # ssl.SSLError is one
            raise ConfigError(f"registry.ca_files: {path} holds no certificates: {exc.strerror or exc}") from exc
    return context
