"""Which proxy the environment names for a URL, as Go's clients on nodes read HTTPS_PROXY, HTTP_PROXY and NO_PROXY.

Follows golang.org/x/net/http/httpproxy. aiohttp's `trust_env` has urllib's rules, and would send credentials from
~/.netrc. Departure: REQUEST_METHOD means nothing, since no service runs as a CGI script.
"""

import functools
import os
import re
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import NamedTuple

from yarl import URL

_VARIABLES = ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy")
_HOST_AND_PORT = re.compile(r"\[([^\[\]]*)\]:([^:\[\]]*)|([^:\[\]]*):([^:\[\]]*)")
_NETWORK = re.compile(r"[0-9a-f.:]+/[0-9]{1,3}")
_Address = IPv4Address | IPv6Address


def proxy_for(url: URL) -> URL | None:
    """Returns the proxy that is named for the URL; None if there is none."""
    environment = tuple(map(os.environ.get, _VARIABLES))
    if not url.raw_host or not any(environment):
        return None
    return _find_proxy(url.scheme, url.raw_host, str(url.port), environment)


def proxy_of(scheme: str) -> URL | None:
    """Returns the proxy that is named for a scheme; None if there is none."""
    text = _variable(f"{scheme}_proxy".upper())
    if not text:
        return None
    return URL(text if "://" in text else f"http://{text}")


@functools.lru_cache(1024)
def _find_proxy(scheme: str, host: str, port: str, _environment: tuple[str | None, ...]) -> URL | None:
    return None if _is_reached_directly(host, port, _read_rules(_variable("NO_PROXY"))) else proxy_of(scheme)


def _variable(name: str) -> str:
    return os.environ.get(name) or os.environ.get(name.lower()) or ""


class _DirectHosts(NamedTuple):
    """An entry of NO_PROXY: a network, or the end of a name with the dot before it. An empty port is any."""

    network: IPv4Network | IPv6Network | None = None
    suffix: str = ""
    is_own: bool = False
    """Whether the name itself is meant too, beside those below it."""
    port: str = ""

    def holds(self, host: str, address: _Address | None, port: str) -> bool:
        if self.port not in ("", port):
            return False
        if address is not None:
            return self.network is not None and address in self.network
        return bool(self.suffix) and (host.endswith(self.suffix) or (self.is_own and host == self.suffix[1:]))


@functools.lru_cache(4)
def _read_rules(text: str) -> tuple[_DirectHosts, ...] | None:
    """Returns the entries; None if one stands for everything."""
    entries = [entry for each in text.lower().split(",") if (entry := each.strip())]
    return None if "*" in entries else tuple(filter(None, map(_read_rule, entries)))


def _read_rule(entry: str) -> _DirectHosts | None:
    if _NETWORK.fullmatch(entry):
        try:
            return _DirectHosts(ip_network(entry, strict=False))
        except ValueError:
            pass  # no network: a name, which no host has
    split = _HOST_AND_PORT.fullmatch(entry)
    host, port = (split[1] or split[3] or "", split[2] or split[4] or "") if split else (entry, "")
    if not host:
        return None
    if "%" not in host and (address := _address_of(host)):
        return _DirectHosts(ip_network(address), port=port)
    name = host[1:] if host.startswith("*.") else host
    is_own = not name.startswith(".")
    return _DirectHosts(suffix=_in_ascii(f".{name}" if is_own else name), is_own=is_own, port=port)


def _is_reached_directly(host: str, port: str, rules: tuple[_DirectHosts, ...] | None) -> bool:
    address = _address_of(host.partition("%")[0])
    if rules is None or host == "localhost" or (address and address.is_loopback):
        return True
    return any(rule.holds(host.lower(), address, port) for rule in rules)


def _address_of(host: str) -> _Address | None:
    """Returns the address that the text is, an IPv4 one for one that is mapped into IPv6; None for a name."""
    try:
        address = ip_address(host)
    except ValueError:
        return None
    return (address.ipv4_mapped if isinstance(address, IPv6Address) else None) or address


def _in_ascii(suffix: str) -> str:
    """Returns a name behind a dot as URLs have it; as it is if it is no name."""
    if suffix.isascii():
        return suffix
    try:
        return f".{suffix[1:].encode('idna').decode()}"
    except UnicodeError:
        return suffix
