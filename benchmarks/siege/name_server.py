"""A name server on UDP: honest names resolve, and the zones of attackers are slow, fail, or never answer."""

import asyncio
import socket
import struct
from typing import NamedTuple, cast

from benchmarks.siege.network import (
    ATTACKING_REGISTRY,
    ATTACKING_ZONE,
    HONEST_REGISTRIES,
    MIRROR,
    MIRROR_ADDRESS,
    honest_host,
)

LATE_SECONDS = 4.0  # the C library asks again after five
_SERVER_FAILURE, _NO_NAME, _A, _TTL_SECONDS = 2, 3, 1, 5


class Resolution(NamedTuple):
    """What is answered about a name: an address or a code, after a while; `after_seconds` of None is never."""

    address: str = ""
    code: int = 0
    after_seconds: float | None = 0.0


_ADDRESSES = {honest_host(number): address for number, address in enumerate(HONEST_REGISTRIES)} | {
    MIRROR: MIRROR_ADDRESS
}
_ZONES = {
    "silent": Resolution(after_seconds=None),
    "failing": Resolution(code=_SERVER_FAILURE),
    "late": Resolution(ATTACKING_REGISTRY, after_seconds=LATE_SECONDS),
}


def resolution_of(name: str) -> Resolution:
    """Returns what is answered about this name."""
    if name in _ADDRESSES:
        return Resolution(_ADDRESSES[name])
    if not name.endswith(f".{ATTACKING_ZONE}"):
        return Resolution(code=_NO_NAME)
    zone = name.partition(".")[2].removesuffix(f".{ATTACKING_ZONE}")
    return _ZONES.get(zone, Resolution(ATTACKING_REGISTRY))


class NameServer(asyncio.DatagramProtocol):
    """Answers queries (RFC 1035) for one name each. Names have IPv4 addresses only."""

    _transport: asyncio.DatagramTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keeps the transport for the answers."""
        self._transport = cast("asyncio.DatagramTransport", transport)  # uvloop's is not derived from asyncio's

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        """Answers one query, now, later or never."""
        name, kind, end = _read_question(data)
        found = resolution_of(name.lower())
        if found.after_seconds is not None:
            answer = _answer(data, end, found, kind)
            asyncio.get_running_loop().call_later(found.after_seconds, self._transport.sendto, answer, addr)


def _read_question(query: bytes) -> tuple[str, int, int]:
    """Returns the name, the type of the record, and the position after the question."""
    labels, at = list[str](), 12
    while length := query[at]:
        labels.append(query[at + 1 : at + 1 + length].decode(errors="replace"))
        at += 1 + length
    kind: int = struct.unpack_from(">H", query, at + 1)[0]
    return ".".join(labels), kind, at + 5


def _answer(query: bytes, end: int, found: Resolution, kind: int) -> bytes:
    has_record = bool(found.address) and kind == _A
    head = query[:2] + struct.pack(">HHHHH", 0x8180 | found.code, 1, int(has_record), 0, 0)
    if not has_record:
        return head + query[12:end]
    record = struct.pack(">HHHIH", 0xC00C, _A, 1, _TTL_SECONDS, 4) + socket.inet_aton(found.address)
    return head + query[12:end] + record
