"""Reads the head of an HTTP answer as Go's client on nodes does, and writes it as any parser reads it.

That is: lines that end in LF alone, spaces before a colon, folded lines, lengths that are stated twice, a length beside
chunks. What Go's client takes for no answer is none here. Knows nothing of connections.
"""

import re
from typing import NamedTuple

_VERSION = re.compile(rb"HTTP/[0-9]\.[0-9]")
_STATUS = re.compile(rb"[0-9]{3}")
_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z -]+")
_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
_LENGTH = re.compile(rb"[0-9]{1,4096}")
_MOST_LENGTH = (1 << 63) - 1
_END = re.compile(rb"\n\r?\n")
# What nobody has asked for, and what would make aiohttp change the protocol or refuse the answer.
_LEFT_OUT = frozenset({b"upgrade", b"sec-websocket-key1"})


class MalformedHead(ValueError):
    """The bytes are no head of an answer."""


class AnswerHead(NamedTuple):
    """The status, and the head in one form: CRLF, no folding, one way to tell the body's length."""

    status: int
    canonical: bytes


def end_of_head(received: bytes | bytearray, start: int = 0) -> int:
    """Returns where the head ends, if its end lies behind `start`; 0 if it is not all there."""
    found = _END.search(received, max(0, start - 2))
    return found.end() if found else 0


def read_head(head: bytes) -> AnswerHead:
    """Returns a head that ends with an empty line. O(bytes).

    Raises:
        MalformedHead: Go's client would take it for no answer.
    """
    first, *rest = (line.removesuffix(b"\r") for line in head.split(b"\n"))
    version, _, words = first.partition(b" ")
    status = words.lstrip(b" ").partition(b" ")[0]
    if not _VERSION.fullmatch(version) or not _STATUS.fullmatch(status):
        raise MalformedHead("no status line")
    fields = [_field_of(line) for line in _unfolded(rest)]
    knows_chunks = version >= b"HTTP/1.1"
    lines = [(b"HTTP/1.1 " if knows_chunks else b"HTTP/1.0 ") + status + b" ", *_framing(fields, knows_chunks)]
    lines += [name + b": " + value for name, value in fields if _is_passed_on(name.lower())]
    return AnswerHead(int(status), b"\r\n".join((*lines, b"", b"")))


def _unfolded(lines: list[bytes]) -> list[bytes]:
    """Returns the lines up to the empty one, each with those that continue it."""
    whole: list[list[bytes]] = []
    for line in lines:
        if not line:
            break
        if line[:1] not in (b" ", b"\t"):
            whole.append([])
        elif not whole:
            raise MalformedHead("the first line continues none")
        whole[-1].append(line.strip(b" \t"))
    return [b" ".join(parts) for parts in whole]


def _field_of(line: bytes) -> tuple[bytes, bytes]:
    name, colon, value = line.partition(b":")
    if not colon or not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
        raise MalformedHead("a line is no field")
    return name, value.strip(b" \t")


def _framing(fields: list[tuple[bytes, bytes]], knows_chunks: bool) -> list[bytes]:
    """Returns the line that tells the body's length; none if the body ends with the connection."""
    encodings = [value.lower() for name, value in fields if name.lower() == b"transfer-encoding"]
    lengths = {value for name, value in fields if name.lower() == b"content-length"}
    if len(lengths) > 1 or any(not _LENGTH.fullmatch(each) or int(each) > _MOST_LENGTH for each in lengths):
        raise MalformedHead("a length that is none")
    if knows_chunks and encodings:
        if encodings != [b"chunked"]:
            raise MalformedHead("an encoding that is not known")
        return [b"Transfer-Encoding: chunked"]
    return [b"Content-Length: " + each for each in lengths]


def _is_passed_on(name: bytes) -> bool:
    """Whether others read the field: not if its name has a space, by which Go's client does not find it either."""
    return b" " not in name and name not in _LEFT_OUT and name not in (b"content-length", b"transfer-encoding")
