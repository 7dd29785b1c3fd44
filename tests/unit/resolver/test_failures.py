"""How long a failure holds, and what a person reads."""

import pytest

from extender.credentials.keyring import CredentialId
from extender.errors import (
    EndpointUnavailable,
    InvalidManifest,
    InvalidReference,
    ManifestNotFound,
    NameUnresolved,
    RegistryDenied,
    RegistryNotAsked,
    RegistryRefusedImage,
    RegistryThrottled,
    RegistryUnavailable,
    UnsupportedManifest,
)
from extender.images.content import Cause, Failure
from extender.placement.facts import PodImage, Unknown
from extender.placement.reasons import retry_text
from extender.registry.http import MOST_SAID
from extender.resolver.failures import DENIED, Failures, failure_of, lifetime_seconds, summary
from extender.resolver.image_cache import References, Target
from testbed.clock import Clock

A, B = CredentialId("a"), CredentialId("b")
MISSING = failure_of(ManifestNotFound("x"))
PARTLY_ASKED = failure_of(EndpointUnavailable("x"))
REFUSED = failure_of(RegistryRefusedImage("x", 412))
UNAVAILABLE = failure_of(RegistryUnavailable("x"))


class TagNotFound(ManifestNotFound):
    """A leaf that the resolver has never heard of."""


@pytest.fixture
def target() -> Target:
    found = References(1).target_of("ghcr.io/team/app:1")
    assert isinstance(found, Target)
    return found


@pytest.mark.parametrize(
    ("error", "cause", "seconds"),
    [
        pytest.param(ManifestNotFound("x"), Cause.MISSING, 5, id="missing"),
        pytest.param(RegistryDenied("x"), Cause.DENIED, 300, id="denied"),
        pytest.param(RegistryRefusedImage("x", 412), Cause.REFUSED, 300, id="refused"),
        pytest.param(RegistryThrottled("x", 17.0), Cause.THROTTLED, 17, id="throttled-with-a-time"),
        pytest.param(RegistryThrottled("x"), Cause.THROTTLED, 30, id="throttled-without"),
        pytest.param(RegistryUnavailable("x"), Cause.UNAVAILABLE, 10, id="unavailable"),
        pytest.param(RegistryNotAsked("x"), Cause.UNAVAILABLE, 2, id="not-asked"),
        pytest.param(NameUnresolved("x"), Cause.UNAVAILABLE, 10, id="without-a-name"),
        pytest.param(EndpointUnavailable("x"), Cause.UNAVAILABLE, 10, id="a-mirror-unavailable"),
        pytest.param(TagNotFound("x"), Cause.MISSING, 5, id="a-leaf-of-missing"),
        pytest.param(KeyError("x"), Cause.UNAVAILABLE, 10, id="a-defect-of-ours"),
        pytest.param(InvalidManifest("x"), Cause.INVALID, 3600, id="invalid"),
        pytest.param(UnsupportedManifest("x"), Cause.UNSUPPORTED, 3600, id="unsupported"),
        pytest.param(InvalidReference("x"), Cause.INVALID_REFERENCE, 3600, id="no-address-to-connect-to"),
    ],
)
def test_each_failure_stands_for_its_own_time(
    error: Exception, cause: Cause, seconds: float, target: Target, clock: Clock
) -> None:
    """It is there until the moment its lifetime ends, and gone from then on."""
    failures = Failures(10, clock, lambda: 0.0)
    failure = failures.remember(target, A, error)
    assert failure.cause is cause
    clock.advance(seconds - 0.001)
    assert failures.current(target, A) == failure
    clock.advance(0.001)
    assert failures.current(target, A) is None


@pytest.mark.parametrize(("in_a_row", "seconds"), [(1, 10), (2, 20), (3, 40), (4, 80), (5, 160), (6, 300), (5000, 300)])
def test_unavailability_doubles_up_to_five_minutes(in_a_row: int, seconds: float) -> None:
    """A registry that stays away is asked more and more seldom, though never given up."""
    assert lifetime_seconds(RegistryUnavailable("x"), in_a_row, lambda: 0.0) == seconds


@pytest.mark.parametrize("in_a_row", [1, 2, 5000])
def test_our_own_shortage_does_not_add_up(in_a_row: int) -> None:
    """No host has failed, and the images are wanted as soon as there is a fetcher again."""
    assert lifetime_seconds(RegistryNotAsked("x"), in_a_row, lambda: 0.9) == 2


@pytest.mark.parametrize(("in_a_row", "seconds"), [(1, 5), (12, 5), (13, 60), (5000, 60)])
def test_missing_is_asked_for_soon_at_first(in_a_row: int, seconds: float) -> None:
    """A tag that is pushed after its pod is found while the pod is still pending; one that stays away costs little."""
    assert lifetime_seconds(ManifestNotFound("x"), in_a_row, lambda: 0.0) == seconds


def test_jitter_never_comes_back_earlier_than_the_registry_said() -> None:
    """Replicas that were throttled together come back apart, each after the time it was told."""
    assert lifetime_seconds(RegistryThrottled("x", 20.0), 1, lambda: 0.0) == 20
    assert lifetime_seconds(RegistryThrottled("x", 20.0), 1, lambda: 0.5) == pytest.approx(21)


def test_jitter_shortens_a_backoff_by_a_fifth_at_most() -> None:
    """What failed together does not come back together."""
    assert lifetime_seconds(RegistryUnavailable("x"), 1, lambda: 0.999) == pytest.approx(8, abs=0.01)
    assert lifetime_seconds(RegistryUnavailable("x"), 99, lambda: 0.5) == 270


def test_failures_in_a_row_are_counted_and_success_ends_the_row(target: Target, clock: Clock) -> None:
    """The second holds for 20 s, the first after a success for 10 s again, and so does one of another kind."""
    failures = Failures(10, clock, lambda: 0.0)
    failures.remember(target, A, RegistryUnavailable("x"))
    failures.remember(target, A, RegistryUnavailable("x"))
    clock.advance(19)
    assert failures.current(target, A)
    failures.forget(target, A)
    failures.remember(target, A, RegistryUnavailable("x"))
    clock.advance(10)
    assert failures.current(target, A) is None
    failures.remember(target, A, ManifestNotFound("x"))
    failures.remember(target, A, RegistryUnavailable("x"))
    clock.advance(10)
    assert failures.current(target, A) is None


def test_one_scope_s_failure_is_not_another_s(target: Target, clock: Clock) -> None:
    """A tenant with a wrong secret must not keep others from an image."""
    failures = Failures(10, clock, lambda: 0.0)
    failures.remember(target, A, RegistryDenied("x"))
    assert failures.current(target, B) is None


def test_failures_are_bounded(clock: Clock) -> None:
    """Names that do not exist cannot fill the memory."""
    failures, references = Failures(5, clock, lambda: 0.0), References(100)
    for number in range(50):
        target = references.target_of(f"ghcr.io/team/app:{number}")
        assert isinstance(target, Target)
        failures.remember(target, A, ManifestNotFound("x"))
    assert len(failures) == 5


def test_details_are_constant_and_hold_nothing_of_the_error() -> None:
    """What a registry wrote could hold anything, and would reach events that tenants read.

    The exception is why it refuses an image, of which the client has made a line.
    """
    for kind in (ManifestNotFound, RegistryDenied, RegistryThrottled, RegistryUnavailable, InvalidManifest):
        failure = failure_of(kind("https://10.0.0.1/ said <body>"))
        assert failure == failure_of(kind("something else"))
        assert "10.0.0.1" not in failure.detail
        assert len(failure.detail) < 100
    refused = failure_of(RegistryRefusedImage("https://10.0.0.1/ said <body>", 451))
    assert refused.detail == "its registry refuses to give it out, by a rule of its own (HTTP 451)"


def test_a_refusal_says_what_its_registry_says() -> None:
    """The longest text fits the part of a cause that events show, so that none of it is cut out."""
    said = "x" * MOST_SAID
    detail = failure_of(RegistryRefusedImage("x", 412, said)).detail
    assert detail == f"its registry refuses it (HTTP 412), and says: {said}"
    assert f"({Cause.REFUSED}: {detail})" in retry_text([(PodImage("a"), Unknown(Cause.REFUSED, detail))])


@pytest.mark.parametrize(
    ("failures", "result"),
    [
        pytest.param([], DENIED, id="no-credential-at-all"),
        pytest.param([DENIED, DENIED], DENIED, id="all-denied"),
        pytest.param([MISSING, DENIED], MISSING, id="who-is-let-in-knows-that-it-is-missing"),
        pytest.param([DENIED, MISSING], MISSING, id="missing-for-anonymous"),
        pytest.param([REFUSED, MISSING, DENIED], REFUSED, id="refused-to-the-one-who-is-let-in"),
        pytest.param([DENIED, MISSING, REFUSED], REFUSED, id="refused-to-the-last"),
        pytest.param([DENIED, UNAVAILABLE], UNAVAILABLE, id="unavailable-after-a-denial"),
        pytest.param([UNAVAILABLE, None], UNAVAILABLE, id="another-credential-would-not-help"),
        pytest.param([DENIED, PARTLY_ASKED], PARTLY_ASKED, id="unavailable-at-a-mirror"),
        pytest.param([PARTLY_ASKED, MISSING, REFUSED], PARTLY_ASKED, id="a-mirror-may-have-what-others-lack"),
        pytest.param([PARTLY_ASKED, None], None, id="another-credential-may-help-at-the-others"),
        pytest.param([DENIED, None], None, id="one-not-tried-yet"),
        pytest.param([None, DENIED], None, id="the-first-not-tried-yet"),
    ],
)
def test_the_failures_of_several_credentials_come_to_one(failures: list[Failure | None], result: Failure) -> None:
    """Only when every credential that counts has failed is the image a failure."""
    assert summary(failures) == result
