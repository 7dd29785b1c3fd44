"""What the service and its fetcher say to each other comes through whole, and nothing else is believed."""

import msgspec
import pytest

from extender.credentials.keyring import ANONYMOUS
from extender.errors import RegistryUnavailable
from extender.fetcher import messages
from extender.images.manifest import OCI_INDEX, Image, Kind, PlatformEntry
from extender.images.platform import parse_platform
from extender.images.reference import digest_of

DIGEST = digest_of(b"one")


def received(message: messages.FromFetcher, *, cut: int = 7) -> messages.FromFetcher:
    framed, found = messages.frame(message), list[bytes]()
    channel = messages.Channel(found.append, lambda: None)
    for start in range(0, len(framed), cut):
        channel.data_received(framed[start : start + cut])
    (only,) = found
    return messages.decode_from_fetcher(only)


def test_usual_platforms_are_one_object() -> None:
    """Caches hold platforms by the thousand."""
    entry = PlatformEntry(parse_platform("linux/arm64"), DIGEST, 1)
    image = Image(digest=DIGEST, media_type=OCI_INDEX, kind=Kind.INDEX, entries=(entry,), states_platforms=True)
    seen = messages.SeenImage(by=ANONYMOUS.id, digest=DIGEST, image=image)
    answer = received(seen)
    assert isinstance(answer, messages.SeenImage)
    assert answer.image
    assert answer == seen
    assert answer.image.entries[0].platform is entry.platform


def test_long_text_is_cut_off() -> None:
    assert len(messages.failed_of(RegistryUnavailable("x" * 10_000)).why) == 1024


@pytest.mark.parametrize(
    "answer",
    [messages.Pong(1, {("family", "x"): -1.0}, {}), messages.Pong(1, {}, {("family", "x"): float("inf")})],
    ids=str,
)
def test_figure_that_no_metric_can_take_is_refused(answer: messages.FromFetcher) -> None:
    """A counter never decreases."""
    with pytest.raises(messages.ProtocolError):
        received(answer)


@pytest.mark.parametrize("message", [b"", b"\xc1", b"\x80", b"\x81\xa4type\xa5ready\x00", msgspec.msgpack.encode(1)])
def test_bytes_that_are_no_message(message: bytes) -> None:
    for decode in (messages.decode_from_fetcher, messages.decode_to_fetcher):
        with pytest.raises(messages.ProtocolError):
            decode(message)


def test_length_beyond_all_messages_is_not_waited_for() -> None:
    """Four bytes could announce four gigabytes."""
    channel = messages.Channel(lambda _: None, lambda: None)
    channel.data_received((messages.MOST_BYTES + 1).to_bytes(4, "big"))
    assert channel.is_garbled
    with pytest.raises(messages.ProtocolError):
        messages.frame(messages.Refused("x" * messages.MOST_BYTES))
