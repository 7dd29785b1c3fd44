"""What the service and its fetcher say to each other comes through whole, and nothing else is believed."""

import msgspec
import pytest

from extender.config.registry_section import RegistryConfig
from extender.credential_sources import Cloud
from extender.credentials.keyring import ANONYMOUS, Credential, CredentialId
from extender.errors import (
    RegistryRefusedImage,
    RegistryUnavailable,
)
from extender.fetcher.messages import (
    MOST_BYTES,
    FromFetcher,
    Look,
    OperatorIs,
    Ping,
    Pong,
    ProtocolError,
    PullAccess,
    Ready,
    Refused,
    SeenImage,
    ToFetcher,
    Unframer,
    Verify,
    decode_from_fetcher,
    decode_to_fetcher,
    failed_of,
    frame,
)
from extender.fetcher.settings import FetcherSettings
from extender.images.manifest import Image, Kind, PlatformEntry, Skipped
from extender.images.platform import parse_platform
from extender.images.reference import digest_of, parse_reference

APP = parse_reference("quay.io/team/app:1")
ANN = Credential("ann", "word", CredentialId("ann"))
DIGEST = digest_of(b"one")


def image(platforms: int = 2, parts: int = 1, **changes: object) -> Image:
    """An index of so many platforms."""
    made = Image(
        digest=DIGEST,
        media_type="application/vnd.oci.image.index.v1+json",
        kind=Kind.INDEX,
        entries=tuple(
            PlatformEntry(parse_platform(f"linux/p{number}"), digest_of(bytes([number])), number)
            for number in range(platforms)
        ),
        skipped=tuple(Skipped("" if number else DIGEST, "an attestation") for number in range(parts)),
        states_platforms=True,
    )
    return msgspec.structs.replace(made, **changes)


def received(message: ToFetcher | FromFetcher, *, cut: int = 7) -> bytes:
    """The message as it arrives in pieces of a few bytes."""
    framed, unframer = frame(message), Unframer()
    found = [each for start in range(0, len(framed), cut) for each in unframer.feed(framed[start : start + cut])]
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize(
    "question",
    [
        Look(id=1, seconds=2.5, tenant="team", reference=APP, kubelet_name=APP, access=PullAccess((ANN,), ANN.id)),
        Look(id=2, tenant="", reference=APP.with_digest(DIGEST), kubelet_name=APP, known=(DIGEST,), by_head=False),
        Verify(id=3, tenant="", reference=APP, kubelet_name=APP, platform=parse_platform("linux/arm64")),
        Ping(6),
        FetcherSettings(registry=RegistryConfig(timeout_seconds=10, plain_http=("a:1",), clouds=(Cloud.GCP,))),
    ],
    ids=lambda question: type(question).__name__,
)
def test_question_comes_through(question: ToFetcher) -> None:
    """With its reference, its credential and its provider."""
    assert decode_to_fetcher(received(question)) == question


@pytest.mark.parametrize(
    "answer",
    [
        Ready(),
        Refused("registry.ca_files: no"),
        OperatorIs(CredentialId("operator")),
        SeenImage(id=1, by=ANN.id, digest=DIGEST, denied=(ANONYMOUS.id,)),
        SeenImage(id=2, by=ANONYMOUS.id, digest=DIGEST, image=image(64, 65)),
        SeenImage(
            id=2, by=ANN.id, digest=DIGEST, image=image(0, 0, kind=Kind.ARTIFACT, states_platforms=False), label="x"
        ),
        failed_of(RegistryRefusedImage("x refuses it", 412, "too many holes"), by=ANN.id, denied=(ANONYMOUS.id,)),
        Pong(4, {("multiarch_registry_requests_total", "2xx"): 3.0}, {("family", ""): 1.0}),
    ],
    ids=lambda answer: type(answer).__name__,
)
def test_answer_comes_through(answer: FromFetcher) -> None:
    """Whole images, logins and figures."""
    assert decode_from_fetcher(received(answer)) == answer


def test_usual_platforms_are_one_object() -> None:
    """Caches hold platforms by the thousand."""
    entry = PlatformEntry(parse_platform("linux/arm64"), DIGEST, 1)
    seen = SeenImage(by=ANN.id, digest=DIGEST, image=image(0, entries=(entry,)))
    answer = decode_from_fetcher(received(seen))
    assert isinstance(answer, SeenImage)
    assert answer.image
    assert answer.image.entries[0].platform is entry.platform


def test_long_text_is_cut_off() -> None:
    """Whatever wrote it."""
    assert len(failed_of(RegistryUnavailable("x" * 10_000)).why) == 1024


@pytest.mark.parametrize(
    "answer",
    [
        Pong(1, {("family", "x"): -1.0}, {}),
        Pong(1, {}, {("family", "x"): float("inf")}),
    ],
    ids=str,
)
def test_figure_that_no_metric_can_take_is_refused(answer: FromFetcher) -> None:
    """A counter never decreases."""
    with pytest.raises(ProtocolError):
        decode_from_fetcher(received(answer))


@pytest.mark.parametrize("message", [b"", b"\xc1", b"\x80", b"\x81\xa4type\xa5ready\x00", msgspec.msgpack.encode(1)])
def test_bytes_that_are_no_message(message: bytes) -> None:
    """Are refused on both sides."""
    for decode in (decode_from_fetcher, decode_to_fetcher):
        with pytest.raises(ProtocolError):
            decode(message)


def test_length_beyond_all_messages_is_not_waited_for() -> None:
    """Four bytes could announce four gigabytes."""
    with pytest.raises(ProtocolError):
        list(Unframer().feed((MOST_BYTES + 1).to_bytes(4, "big")))
    with pytest.raises(ProtocolError):
        frame(Refused("x" * MOST_BYTES))
