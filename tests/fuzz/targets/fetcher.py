"""What a fetcher may say to the service: nothing malformed is believed, and what is believed is bounded."""

from extender.errors import ExtenderError
from extender.fetcher.messages import (
    MOST_BYTES,
    Described,
    DigestStated,
    FailedAnswer,
    Pong,
    ProtocolError,
    Unframer,
    decode_from_fetcher,
    error_of,
    frame,
)
from extender.images.content import content_of
from extender.images.platform import normalize_platform
from extender.images.reference import is_digest
from tests.fuzz.target import Target, check_sentence


def messages(data: bytes) -> None:
    """A message is refused, or is one that can be sent again and says nothing that caches cannot hold."""
    try:
        received = [decode_from_fetcher(message) for message in Unframer().feed(data)]
    except ProtocolError:
        return
    for answer in received:
        assert len(frame(answer)) <= MOST_BYTES + 4
        match answer:
            case DigestStated(digest=digest):
                assert digest is None or is_digest(digest)
            case Described(image=image):
                assert len(image.entries) <= 64
                assert len(image.skipped) <= 65
                for platform in content_of(image).platforms:
                    assert platform == normalize_platform(platform.os, platform.architecture, platform.variant)
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
