"""The bytes of usual requests, POSTs as Go's and aiohttp's clients write them, and of their answers.

Whatever is not usual is read by aiohttp. Both ways agree on what is a request: a fuzzer compares them.
"""

import functools
import re
import time
from email.utils import formatdate
from http import HTTPStatus

from extender.tables import declare_cache

_HEAD_END = b"\r\n\r\n"
_HEAD_BYTES = 2048  # Go's have some 200; small enough for the cached heads to need little memory
# A head is usual only if it has no other fields than these, each on one line. Fields that frame a body in another way,
# end the connection or ask for more than an answer are not among them: Transfer-Encoding, Expect, Upgrade.
# `_parse` also wants a Host, and no field twice. aiohttp refuses any other such head, so that both ways agree on
# what is a request. No text matches in two ways, and quantifiers are possessive: otherwise a head of many fields would
# take time exponential in their number.
_FIELD = rb"(?:Host|User-Agent|Accept|Accept-Encoding|Content-Type|Traceparent|Tracestate):[ -~]*+\r\n"
_HEAD = re.compile(
    rb"(?-i:POST) (?P<path>/[!-~]*) (?-i:HTTP)/1\.1\r\n(?:%b)*+Content-Length: ?(?P<length>[0-9]{1,12})\r\n(?:%b)*+\r\n"
    % (_FIELD, _FIELD),
    re.IGNORECASE,
)
# The heads of one client differ only in Content-Length.
_HEADS = declare_cache("server.usual_posts.heads", key="request head", rows=256, most_mb=1.5)
_DATES = declare_cache("server.usual_posts.dates", key="second", rows=1, most_mb=0.01)
_ANSWER = b"HTTP/1.1 %d %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%b\r\n"


def split_request(data: bytes) -> tuple[bytes, str, int] | None:
    """The head with which the data begin, its path, and the length of the body behind it; None if it is not usual."""
    end = data.find(_HEAD_END, 0, _HEAD_BYTES)
    if end < 0:
        return None
    head = data[: end + len(_HEAD_END)]
    parsed = _parse(head)
    return (head, *parsed) if parsed else None


def head_of_answer(status: int, length: int, *, is_closing: bool) -> bytes:
    """The head of an answer with so much JSON; `is_closing` says that the connection ends."""
    fields = _date_field(int(time.time()))
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        fields += b"Retry-After: 1\r\n"
    if is_closing:
        fields += b"Connection: close\r\n"
    phrase = b"OK" if status == 200 else HTTPStatus(status).phrase.encode()
    return _ANSWER % (status, phrase, length, fields)


@functools.lru_cache(_HEADS.rows)
def _parse(head: bytes) -> tuple[str, int] | None:
    found = _HEAD.fullmatch(head)
    if not found:
        return None
    names = [line.partition(b":")[0].lower() for line in head.split(b"\r\n")[1:-2]]
    if b"host" not in names or len(set(names)) < len(names):
        return None
    return found["path"].partition(b"?")[0].decode(), int(found["length"])


@functools.lru_cache(_DATES.rows)
def _date_field(second: int) -> bytes:
    """The Date of answers in this second (RFC 9110, section 6.6.1)."""
    return b"Date: %b\r\n" % formatdate(second, usegmt=True).encode()
