"""What a fetcher may say to the service: what is malformed or too long is refused, whatever it says."""

from extender.errors import ExtenderError
from extender.fetcher.messages import (
    MOST_BYTES,
    FailedAnswer,
    Pong,
    ProtocolError,
    Unframer,
    decode_from_fetcher,
    error_of,
    frame,
)
from tests.fuzz.target import Target, check_sentence


def messages(data: bytes) -> None:
    """A message is refused, or is one that can be sent again, and an error of it or a figure can be used."""
    try:
        received = [decode_from_fetcher(message) for message in Unframer().feed(data)]
    except ProtocolError:
        return
    for answer in received:
        assert len(frame(answer)) <= MOST_BYTES + 4
        match answer:
            case FailedAnswer():
                error = error_of(answer)
                assert isinstance(error, ExtenderError)
                check_sentence(str(error)[:1000])
            case Pong():
                assert all(value >= 0 for value in answer.counted.values())


_WORDS = tuple(
    bytes([0xA0 | len(word)]) + word
    for word in (b"type", b"id", b"stated", b"digest", b"described", b"image", b"entries", b"failed", b"kind", b"text",
                 b"pong", b"counted", b"gauges", b"ready", b"refused", b"provided", b"platform", b"skipped")
)  # fmt: skip

TARGETS = (Target("fetcher_messages", messages, (*_WORDS, b"\x00\x00\x00\x10"), most_bytes=8192),)
