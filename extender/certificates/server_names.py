"""The names that a server certificate may be for, in the one form in which a certificate gives them back."""

import re
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address

_LABEL = r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"
_DNS_NAME = re.compile(rf"(\*\.)?({_LABEL}\.)*(?![0-9]+$){_LABEL}", re.ASCII)
_MOST_CHARACTERS = 253


def as_address(name: str) -> IPv4Address | IPv6Address | None:
    """The IP address, None if the name is none."""
    try:
        return ip_address(name)
    except ValueError:
        return None


def canonical_name(name: str) -> str:
    """A DNS name or IP address as it stands in a certificate, names in lower case.

    Raises:
        ValueError: it is neither, or a certificate cannot hold it; the message says what to write.
    """
    address = as_address(name)
    if address is not None:
        if isinstance(address, IPv6Address) and address.scope_id:
            raise ValueError("a certificate holds no zone of an address; leave out what follows the %")
        return str(address)
    if not name.isascii():
        raise ValueError("a certificate holds ASCII alone; write an international name as xn--…")
    lower = name.lower()
    if len(lower) > _MOST_CHARACTERS or not _DNS_NAME.fullmatch(lower):
        raise ValueError("it is no DNS name and no IP address; write one like webhook.example.com or 10.0.0.1")
    return lower


def names_of_server(names: Iterable[str], namespace: str) -> tuple[str, ...]:
    """The names, and after one that may be a Service of the namespace those by which the API server calls it.

    Raises:
        ValueError: as `canonical_name`.
    """
    found: dict[str, None] = {}
    for name in map(canonical_name, names):
        is_service = "." not in name and ":" not in name
        of_service = (f"{name}.{namespace}.svc", f"{name}.{namespace}.svc.cluster.local") if is_service else ()
        found |= dict.fromkeys((name, *of_service))
    return tuple(found)
