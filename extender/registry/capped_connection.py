"""Connections that read the heads of answers as Go's client on nodes does, and end when they receive too much.

Go's client takes lines that end in LF alone, spaces before a colon, folded lines, lengths that are stated twice, and a
length beside chunks. What it takes for no answer is none here. Interim answers, headers and framing count towards what
an answer may have. Bodies share 48 MiB; above that, the oldest is aborted, since honest ones take little time.
"""

import asyncio
import re
from typing import Any, NamedTuple

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.http import HttpProcessingError, RawResponseMessage
from aiohttp.streams import StreamReader

# Real answers have 2 KB of headers, and some 10 KB in one of them. Interim answers before the final one count too.
MOST_HEAD_BYTES = 64 << 10
# Servers send one or two, and each costs as much to read as a final answer. Go's client had this bound up to Go 1.23.
_MOST_INTERIM = 5
# Bytes besides the body, and for each byte of the body: chunks of one byte cost five more, and servers send kilobytes.
# What is read at once counts before its body does, which is a quarter of a megabyte at most.
_FRAMING_BYTES, _FRAMING_PER_BYTE = 512 << 10, 2
# Ends of lines in a body in chunks, each of which may begin one. aiohttp takes some 7 microseconds for a chunk, however
# small it is; servers send kilobytes, and of JSON with Windows' ends of lines a line has 40 bytes.
_MOST_LINES, _BYTES_PER_LINE = 4_096, 32
_MOST_UNDER_WAY_BYTES = 48 << 20
_AIOHTTPS_LIMITS = {"max_line_size": MOST_HEAD_BYTES, "max_field_size": MOST_HEAD_BYTES, "max_headers": MOST_HEAD_BYTES}

_VERSION = re.compile(rb"HTTP/[0-9]\.[0-9]")
_STATUS = re.compile(rb"[0-9]{3}")
_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z -]+")
_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
_LENGTH = re.compile(rb"[0-9]{1,4096}")
_MOST_LENGTH = (1 << 63) - 1
_END = re.compile(rb"\n\r?\n")
_CHUNKED = b"Transfer-Encoding: chunked"
# What nobody has asked for, and what would make aiohttp change the protocol or refuse the answer.
_LEFT_OUT = frozenset({b"upgrade", b"sec-websocket-key1"})


class AnswerTooLong(aiohttp.ClientPayloadError):
    """The server sent more than an answer may have, besides its body."""


class BodiesUnderWay:
    """How much of bodies that are not complete has been received, by connection, the oldest first."""

    def __init__(self, most_bytes: int = _MOST_UNDER_WAY_BYTES) -> None:
        self._most_bytes = most_bytes
        self._bytes: dict[CappedConnection, int] = {}
        self._total = 0

    def note(self, connection: "CappedConnection", received_bytes: int) -> None:
        """Notes how much of a body has come; ends the oldest ones while all are too much together."""
        self._total += received_bytes - self._bytes.get(connection, 0)
        self._bytes[connection] = received_bytes
        while self._total > self._most_bytes:
            oldest = next(iter(self._bytes))
            self.forget(oldest)
            oldest.give_up()

    def forget(self, connection: "CappedConnection") -> None:
        """Notes that a body is complete, or is not read any more."""
        self._total -= self._bytes.pop(connection, 0)


class CappedConnection(ResponseHandler):
    """aiohttp's connection, which reads heads as Go's client does, and ends when it has received too much.

    It drops interim answers, since nobody waits for one that says `100 Continue` or gives early hints, and what comes
    behind an answer.
    """

    _received_bytes = 0
    _interim_answers = 0
    _is_chunked = False
    _lines = 0
    _body: StreamReader | None = None

    def __init__(self, loop: asyncio.AbstractEventLoop, bodies: BodiesUnderWay) -> None:
        """`bodies` are those of all connections."""
        super().__init__(loop)
        self._bodies = bodies
        self._head = bytearray()

    def set_response_params(self, **parameters: Any) -> None:  # noqa: ANN401 - aiohttp's own
        """Begins to count anew, for the next request."""
        self._received_bytes, self._interim_answers, self._lines, self._body = 0, 0, 0, None
        self._head.clear()
        self._bodies.forget(self)
        super().set_response_params(**{**parameters, **_AIOHTTPS_LIMITS})

    def feed_data(self, data: tuple[RawResponseMessage, StreamReader], size: int = 0) -> None:
        """Passes an answer on to who waits for it."""
        _, self._body = data
        super().feed_data(data, size)

    def data_received(self, data: bytes) -> None:
        """Parses what has come, unless it is too much. Nothing comes when a paused parser is to go on."""
        if not data or self._parser is None:
            super().data_received(data)
            return
        self._received_bytes += len(data)
        if self._body is None:
            data = self._take_head(data)
        body = self._body
        if body is None:
            if self._received_bytes > MOST_HEAD_BYTES:
                self.give_up()
            return
        if body.is_eof():
            self._end_before(data)
        elif self._is_in_small_chunks(data):
            self.give_up()
        else:
            if data:
                super().data_received(data)
            self._note_body(body)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Ends."""
        self._bodies.forget(self)
        super().connection_lost(exc)

    def close(self) -> None:
        """Ends, when nobody reads the answer any more."""
        self._bodies.forget(self)
        super().close()

    def _take_head(self, data: bytes) -> bytes:
        """Has the final answer's head parsed once it is all there; returns what has come behind it."""
        searched = len(self._head)
        self._head += data
        while end := end_of_head(self._head, searched):
            if end > MOST_HEAD_BYTES:
                self.give_up()
                return b""
            raw, searched = bytes(self._head[:end]), 0
            del self._head[:end]
            try:
                head = read_answer_head(raw)
            except MalformedHead as exc:
                self._fail(HttpProcessingError(message=str(exc)))
                return b""
            if not 100 <= head.status < 200 or head.status == 101:
                self._is_chunked = head.is_chunked
                super().data_received(head.canonical)
                behind = bytes(self._head)
                self._head.clear()
                return behind
            self._interim_answers += 1
            if self._interim_answers > _MOST_INTERIM:
                self.give_up()
                return b""
        return b""

    def _is_in_small_chunks(self, data: bytes) -> bool:
        """Whether the body, with what has come now, has too many chunks to parse."""
        if not self._is_chunked:
            return False
        self._lines += data.count(b"\r\n")
        return self._lines > _MOST_LINES + self._received_bytes // _BYTES_PER_LINE

    def _note_body(self, body: StreamReader) -> None:
        """Ends if the body is wrong or too much; else notes how much has come."""
        if body.is_eof():
            self._bodies.forget(self)
        elif self.exception():  # of the framing, which aiohttp does not report to who reads the body
            self._fail(aiohttp.ClientPayloadError("the body's framing is wrong"))
        elif self._received_bytes > self._most_bytes(body):
            self.give_up()
        else:
            self._bodies.note(self, self._received_bytes)

    def _end_before(self, data: bytes) -> None:
        """Drops what comes behind an answer, and asks nothing more over this connection."""
        self._bodies.forget(self)
        if data:
            self.force_close()

    def _most_bytes(self, body: StreamReader) -> int:
        return MOST_HEAD_BYTES + _FRAMING_BYTES + _FRAMING_PER_BYTE * body.total_bytes

    def give_up(self) -> None:
        """Ends with an error for whoever waits for the answer."""
        self._fail(AnswerTooLong("the answer is too long"))

    def _fail(self, error: Exception) -> None:
        self._bodies.forget(self)
        self.set_exception(error)
        if self._body:
            self._body.set_exception(error)
        if self.transport:
            self.transport.abort()


class MalformedHead(ValueError):
    """The bytes are no head of an answer."""


class AnswerHead(NamedTuple):
    """The status, and the head in one form: CRLF, no folding, one way to state the body's length."""

    status: int
    canonical: bytes
    is_chunked: bool


def end_of_head(received: bytes | bytearray, start: int = 0) -> int:
    """Returns where the head ends, if its end lies behind `start`; 0 if it is not all there."""
    found = _END.search(received, max(0, start - 2))
    return found.end() if found else 0


def read_answer_head(head: bytes) -> AnswerHead:
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
    framing = _framing(fields, knows_chunks)
    lines = [(b"HTTP/1.1 " if knows_chunks else b"HTTP/1.0 ") + status + b" ", *framing]
    lines += [name + b": " + value for name, value in fields if _is_passed_on(name.lower())]
    return AnswerHead(int(status), b"\r\n".join((*lines, b"", b"")), framing == [_CHUNKED])


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
    """Returns the line that states the body's length; none if the body ends with the connection."""
    encodings = [value.lower() for name, value in fields if name.lower() == b"transfer-encoding"]
    lengths = {value for name, value in fields if name.lower() == b"content-length"}
    if len(lengths) > 1 or any(not _LENGTH.fullmatch(each) or int(each) > _MOST_LENGTH for each in lengths):
        raise MalformedHead("a length that is none")
    if knows_chunks and encodings:
        if encodings != [b"chunked"]:
            raise MalformedHead("an encoding that is not known")
        return [_CHUNKED]
    return [b"Content-Length: " + each for each in lengths]


def _is_passed_on(name: bytes) -> bool:
    """Whether others read the field: not if its name has a space, by which Go's client does not find it either."""
    return b" " not in name and name not in _LEFT_OUT and name not in (b"content-length", b"transfer-encoding")
