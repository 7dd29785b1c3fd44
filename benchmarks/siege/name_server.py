"""A name server on UDP: honest names resolve, and the zones of attackers are slow, fail, or never answer."""

import asyncio
import socket
import struct
from typing import cast

import msgspec

from benchmarks.siege.network import ATTACKING_REGISTRY, ATTACKING_ZONE, HONEST_REGISTRIES, HONEST_ZONE

LATE_SECONDS = 4.0  # the C library asks again after five
SILENT, LATE, FAILING = "silent", "late", "failing"
"""The zones below the attackers' whose names do not resolve as they should."""
_NO_ERROR, _SERVER_FAILURE, _NO_NAME = 0, 2, 3
_A = 1
_TTL_SECONDS = 5


class Resolution(msgspec.Struct, frozen=True):
    """What is answered about a name: an address or a code, after a while; `after_seconds` of None is never."""

    address: str = ""
    code: int = _NO_ERROR
    after_seconds: float | None = 0.0


def resolution_of(name: str) -> Resolution:
    """Returns what is answered about this name."""
    label, _, zone = name.partition(".")
    number = label.removeprefix("registry-")
    if zone == HONEST_ZONE and number.isdigit() and 0 < int(number) <= len(HONEST_REGISTRIES):
        return Resolution(HONEST_REGISTRIES[int(number) - 1])
    if not name.endswith(f".{ATTACKING_ZONE}"):
        return Resolution(code=_NO_NAME)
    match zone.removesuffix(f".{ATTACKING_ZONE}"):
        case "silent":
            return Resolution(after_seconds=None)
        case "failing":
            return Resolution(code=_SERVER_FAILURE)
        case "late":
            return Resolution(ATTACKING_REGISTRY, after_seconds=LATE_SECONDS)
    return Resolution(ATTACKING_REGISTRY)


class NameServer(asyncio.DatagramProtocol):
    """Answers queries (RFC 1035) for one name each. Names have IPv4 addresses only."""

    def __init__(self) -> None:
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keeps the transport for the answers."""
        self._transport = cast("asyncio.DatagramTransport", transport)  # uvloop's is not derived from asyncio's

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        """Answers one query, now, later or never."""
        name, kind, end = _read_question(data)
        found = resolution_of(name.lower())
        if found.after_seconds is None or self._transport is None:
            return
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
