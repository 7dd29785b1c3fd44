"""What the service and its fetcher say to each other comes through whole, and nothing else is believed."""

import msgspec
import pytest

from extender.config.registry_section import RegistryConfig
from extender.credential_sources import Cloud
from extender.credentials.keyring import ANONYMOUS, Credential, CredentialId
from extender.credentials.logins import Login
from extender.credentials.provider_specs import CloudSpec, HelpersSpec, PluginSpec
from extender.credentials.providers import CredentialsUnavailable, ProvidedCredentials
from extender.errors import (
    AddressRefused,
    EndpointUnavailable,
    ExtenderError,
    InvalidManifest,
    ManifestNotFound,
    NameUnresolved,
    RegistryDenied,
    RegistryError,
    RegistryFailed,
    RegistryNotAsked,
    RegistryRefusedImage,
    RegistryThrottled,
    RegistryUnavailable,
    RegistryUnreachable,
    UnsupportedManifest,
)
from extender.fetcher.messages import (
    MOST_BYTES,
    Describe,
    Described,
    DigestStated,
    FailedAnswer,
    FromFetcher,
    Ping,
    Pong,
    ProtocolError,
    Provide,
    Provided,
    Ready,
    Refused,
    StateDigest,
    ToFetcher,
    Unframer,
    decode_from_fetcher,
    decode_to_fetcher,
    error_of,
    failure_of,
    frame,
)
from extender.fetcher.settings import FetcherSettings
from extender.images.manifest import Image, Kind, PlatformEntry, Skipped
from extender.images.platform import parse_platform
from extender.images.reference import digest_of, parse_reference
from extender.kubernetes.credential_provider_v1 import CacheKeyType, CredentialProvider, ExecEnvVar

APP = parse_reference("quay.io/team/app:1")
ANN = Credential("ann", "word", CredentialId("ann"))
DIGEST = digest_of(b"one")
PLUGIN = CredentialProvider("ecr", ("*.ecr.aws",), "1h", "credentialprovider.kubelet.k8s.io/v1", ("-v",),
                            (ExecEnvVar("A", "b"),))  # fmt: skip


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
        StateDigest(id=1, seconds=2.5, tenant="team", reference=APP, credential=ANN),
        Describe(id=2, seconds=2.5, tenant="", reference=APP.with_digest(DIGEST), credential=ANONYMOUS),
        Provide(id=3, provider=PluginSpec(PLUGIN, "/bin", 60.0), repository="a.ecr.aws/b"),
        Provide(id=4, provider=HelpersSpec({"quay.io": "pass"}, "store"), repository="quay.io/b"),
        Provide(id=5, provider=CloudSpec(Cloud.ECR), repository="x"),
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
        DigestStated(1, DIGEST),
        DigestStated(1, None),
        Described(2, image(64, 65)),
        Described(2, image(0, 0, kind=Kind.ARTIFACT, states_platforms=False)),
        Provided(3, ProvidedCredentials((Login("quay.io", "ann", "word"),), 60.0, CacheKeyType.GLOBAL)),
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
    answer = decode_from_fetcher(received(Described(1, image(0, entries=(entry,)))))
    assert isinstance(answer, Described)
    assert answer.image.entries[0].platform is entry.platform


WELL = RegistryUnavailable("a mirror answered")
WELL.host_is_well = True


@pytest.mark.parametrize(
    "error",
    [
        AddressRefused("x is denied"),
        CredentialsUnavailable("x"),
        EndpointUnavailable("x"),
        InvalidManifest("x"),
        ManifestNotFound("x"),
        NameUnresolved("x"),
        RegistryDenied("x"),
        RegistryFailed("x answered 500"),
        RegistryNotAsked("x"),
        RegistryRefusedImage("x refuses it", 412, "too many holes"),
        RegistryThrottled("later", 90.0),
        RegistryThrottled("later", None),
        RegistryUnavailable("x"),
        RegistryUnreachable("x"),
        UnsupportedManifest("x"),
        WELL,
    ],
    ids=lambda error: type(error).__name__,
)
def test_error_is_the_same_error_again(error: ExtenderError) -> None:
    """Of its own class, with all that the class has."""
    answer = decode_from_fetcher(received(failure_of(error, 7)))
    assert isinstance(answer, FailedAnswer)
    again = error_of(answer)
    marks = {"host_is_well": error.host_is_well} if isinstance(error, RegistryError) else {}
    assert (type(again), str(again), vars(again)) == (type(error), str(error), marks | vars(error))


def test_long_text_is_cut_off() -> None:
    """Whatever wrote it."""
    assert len(str(error_of(failure_of(RegistryUnavailable("x" * 10_000), 1)))) == 1024


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


def test_error_of_no_known_class_is_that_the_registry_is_unavailable() -> None:
    """Nobody waits for ever for what the fetcher says and this version does not know."""
    assert isinstance(error_of(FailedAnswer(1, "ConfigError", "x")), RegistryUnavailable)
