"""Decides which hosts and addresses lookups may contact, by the operator's rules and by address ranges.

Whoever can create a pod chooses hosts, and whoever owns a host chooses its addresses, its token server and its
redirects. Opens no connection and resolves no name.
"""

import functools
import re
import socket
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import NamedTuple
from urllib.parse import unquote

import structlog
from aiohttp.abc import ResolveResult
from yarl import URL

from extender.errors import (
    AddressRefused,
    ConfigError,
    HostDenied,
    InnerAddress,
    PrivateAddress,
    RegistryNotAllowed,
)
from extender.images.reference import HUB, HUB_HOST, HUB_LOGIN

log = structlog.get_logger()

Address = IPv4Address | IPv6Address

# Ranges without any cluster's registry, in which a request can do great harm. Clouds' metadata services are at
# link-local addresses and at the single addresses listed here.
_NEVER = tuple(
    ip_network(text)
    for text in (
        "0.0.0.0/8",  # this host
        "100.100.100.200/32",  # metadata of Alibaba Cloud
        "127.0.0.0/8",
        "168.63.129.16/32",  # the wire server of Azure, a public address
        "169.254.0.0/16",  # link-local: metadata of most clouds, credentials of ECS and EKS pods
        "192.0.0.0/24",  # protocol assignments; metadata of Oracle Cloud at 192.0.0.192
        "192.0.2.0/24",
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, broadcast
        "2001::/23",  # protocol assignments
        "2001:db8::/32",
        "3fff::/20",  # documentation
        "fd00:42::42/128",  # metadata of Scaleway
        "fd00:a9fe:a9fe::/48",  # metadata of Linode
        "fd00:c1::a9fe:a9fe/128",  # metadata of Oracle Cloud
        "fd00:ec2::/32",  # metadata, DNS, time and pod credentials of AWS
        "fd20:ce::254/128",  # metadata of Google Cloud
    )
)
# Ranges for the registries of a cluster or a company. Shared address space (RFC 6598) counts as private: EKS and
# others use it for pods.
_PRIVATE = tuple(
    ip_network(text) for text in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7")
)
# The only IPv6 addresses that are allocated. All others outside _PRIVATE are loopback, unspecified, link-local,
# site-local, multicast, or not assigned yet.
_GLOBAL_UNICAST = IPv6Network("2000::/3")
_NAT64 = IPv6Network("64:ff9b::/96")

# Names of this host, of metadata services and of the cluster's API server. They are checked by name because we see no
# address when a proxy resolves them.
_INNER_NAME = re.compile(
    r"(.*\.)?localhost|metadata(\.google\.internal|\.goog|\.azure\.internal)?|instance-data(\..*)?"
    r"|kubernetes(\.default(\.svc(\..*)?)?)?",
    re.DOTALL,
)

# An ASCII host, in brackets if it is an IPv6 address, and a port; `*` stands for any characters.
_PATTERN = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._*-]+)(?::(?P<port>[0-9]{1,5}|\*))?")


class _HostPattern(NamedTuple):
    """A glob for hosts. `port` is None if every port matches."""

    host: re.Pattern[str]
    port: int | None
    is_name: bool

    def matches(self, host: str, port: int | None) -> bool:
        return self.port in (None, port) and self.host.fullmatch(host) is not None


class AddressGuard:
    """The operator's rules. Refusals raise `AddressRefused`, whose message names hosts but no addresses.

    A host that a pattern of `allow` names may be at any address, since the operator chose it. A pattern names the hosts
    it matches if its host has a letter or a digit: `*` alone names none.
    """

    def __init__(
        self, *, allow: Sequence[str] = ("*",), deny: Sequence[str] = (), private_addresses: bool = True
    ) -> None:
        """`allow` and `deny` are globs for `host` (any port) or `host:port`.

        Without `private_addresses` only public addresses may be contacted.

        Raises:
            ConfigError: a glob is malformed.
        """
        self._allow = tuple(_parse_pattern("registry.allow", text) for text in allow)
        self._deny = tuple(_parse_pattern("registry.deny", text) for text in deny)
        self._private_addresses = private_addresses

    def check_registry(self, url: URL) -> None:
        """Raises AddressRefused unless `allow` and `deny` permit a registry or mirror at this URL.

        Does not check its address.
        """
        host, port = _canonical(url.raw_host or ""), url.port
        if _matches(self._deny, host, port):
            raise _denied(host)
        if not _matches(self._allow, host, port):
            raise _refusal("allow", host, RegistryNotAllowed, "is not in registry.allow")

    def check_host(self, url: URL) -> None:
        """Raises AddressRefused if no request may go to the URL's host, by its name or its literal address.

        Applies to every request: to registry, mirror and token server, and after each redirect.
        """
        host, port = _canonical(url.raw_host or ""), url.port
        if _matches(self._deny, host, port):
            raise _denied(host)
        if self._is_named(host, port):
            return
        literal = literal_address(host)
        if literal is not None and not self._is_open(literal):
            raise self._refusal_at(host, port, [literal])
        if _INNER_NAME.fullmatch(host):
            raise inner_refusal(host)

    def keep_reachable(self, host: str, port: int, found: Iterable[ResolveResult]) -> list[ResolveResult]:
        """Returns the addresses of a host that may be connected to. Raises AddressRefused if there are none."""
        name = _canonical(host)
        named = self._is_named(name, port)
        results = list(found)
        kept = [result for result in results if self._may_connect(result["host"], port, named=named)]
        if not kept:
            addresses = [address for result in results if (address := literal_address(result["host"]))]
            raise self._refusal_at(name, port, addresses)
        return kept

    def _may_connect(self, text: str, port: int, *, named: bool) -> bool:
        address = literal_address(text)
        if address is None or _matches(self._deny, str(address), port):
            return False
        return named or self._is_open(address)

    def _refusal_at(self, host: str, port: int | None, addresses: Sequence[Address]) -> AddressRefused:
        """The refusal of a host at these addresses, none of which may be contacted."""
        if any(_matches(self._deny, str(each), port) for each in addresses):
            return _denied(host)
        if not self._private_addresses and any(map(_is_private, addresses)):
            words = "is at a private address, which registry.private_addresses forbids"
            return _refusal("address", host, PrivateAddress, words)
        return inner_refusal(host)

    def _is_named(self, host: str, port: int | None) -> bool:
        return _matches((pattern for pattern in self._allow if pattern.is_name), host, port)

    def _is_open(self, address: Address) -> bool:
        """Whether an address may be contacted at a host that `allow` does not name.

        An IPv6 address with IPv4 addresses inside may be contacted if all of those may.
        """
        inside = _addresses_inside(address)
        return all(map(self._is_open, inside)) if inside else self._is_open_itself(address)

    def _is_open_itself(self, address: Address) -> bool:
        if _is_in(address, _NEVER):
            return False
        if _is_in(address, _PRIVATE):
            return self._private_addresses
        return isinstance(address, IPv4Address) or address in _GLOBAL_UNICAST


def _is_in(address: Address, networks: Iterable[IPv4Network | IPv6Network]) -> bool:
    return any(address in network for network in networks)


def _is_private(address: Address) -> bool:
    """Whether it can be contacted where private addresses may be."""
    inside = _addresses_inside(address) or (address,)
    return any(_is_in(each, _PRIVATE) for each in inside) and not any(_is_in(each, _NEVER) for each in inside)


def patterns_of_others(patterns: Sequence[str], host: str) -> list[str]:
    """The globs of `allow` or `deny` that do not match the host, which may have a port."""
    url = URL(f"https://{host}")
    name, port = _canonical(url.raw_host or ""), url.port
    return [each for each in patterns if not _parse_pattern("", each).matches(name, port)]


def literal_address(host: str) -> Address | None:
    """Returns the address that a host spells, in any form that the C library accepts (`0x7f.1`, `2130706433`).

    None if the host is not an address.
    """
    try:
        address = ip_address(host)
    except ValueError:
        try:
            return IPv4Address(socket.inet_aton(host))
        except (OSError, ValueError):  # ValueError: characters outside ASCII
            return None
    return (isinstance(address, IPv6Address) and address.ipv4_mapped) or address


def _addresses_inside(address: Address) -> tuple[IPv4Address, ...]:
    """Returns the IPv4 addresses that packets to an IPv6 address may reach: mapped, NAT64, 6to4, Teredo."""
    if isinstance(address, IPv4Address):
        return ()
    translated = IPv4Address(int(address) & 0xFFFFFFFF) if address in _NAT64 else None
    found = (address.ipv4_mapped, translated, address.sixtofour, *(address.teredo or ()))
    return tuple(inside for inside in found if inside is not None)


@functools.lru_cache(1024)
def _canonical(host: str) -> str:
    """Returns one spelling per host: lower case, no final dot, addresses in canonical form, one name for Docker Hub."""
    name = unquote(host).lower().rstrip(".")
    literal = literal_address(name)
    return str(literal) if literal else HUB if name in (HUB_LOGIN, HUB_HOST) else name


def _parse_pattern(setting: str, text: str) -> _HostPattern:
    parts = _PATTERN.fullmatch(text)
    if parts is None:
        raise ConfigError(f"{setting}: {text!r} is no host or host:port, with * for any characters")
    host, port = _canonical(parts["host"].strip("[]")), parts["port"]
    expression = ".*".join(map(re.escape, host.split("*")))
    return _HostPattern(
        re.compile(expression, re.DOTALL), int(port) if port not in (None, "*") else None, host.strip("*.-_:") != ""
    )


def _matches(patterns: Iterable[_HostPattern], host: str, port: int | None) -> bool:
    return any(pattern.matches(host, port) for pattern in patterns)


def inner_refusal(host: str) -> AddressRefused:
    """Logs a refusal because of a host's address; returns the error."""
    return _refusal("address", host, InnerAddress, "is at an address that is asked only where registry.allow names it")


def _denied(host: str) -> AddressRefused:
    return _refusal("deny", host, HostDenied, "is denied by registry.deny")


def _refusal(rule: str, host: str, kind: type[AddressRefused], words: str) -> AddressRefused:
    log.info("address.refused", registry=host, rule=rule)
    return kind(f"{host} {words}")
