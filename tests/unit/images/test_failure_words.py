"""What a pod's author reads of a failure, and what several failures come to."""

import pytest

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
from extender.images.failures import DENIED, depends_on_credential, failure_of, summary
from extender.placement.facts import PodImage, Unknown
from extender.placement.reasons import retry_text
from extender.registry.http import MOST_SAID

MISSING = failure_of(ManifestNotFound("x"))
PARTLY_ASKED = failure_of(EndpointUnavailable("x"))
REFUSED = failure_of(RegistryRefusedImage("x", 412))
UNAVAILABLE = failure_of(RegistryUnavailable("x"))


class TagNotFound(ManifestNotFound):
    """A leaf that nobody has ever heard of."""


CAUSES: dict[Cause, tuple[Exception, ...]] = {
    Cause.MISSING: (ManifestNotFound("x"), TagNotFound("x")),
    Cause.DENIED: (RegistryDenied("x"),),
    Cause.REFUSED: (RegistryRefusedImage("x", 412),),
    Cause.THROTTLED: (RegistryThrottled("x", 17.0),),
    Cause.UNAVAILABLE: (RegistryUnavailable("x"), RegistryNotAsked("x"), NameUnresolved("x"), EndpointUnavailable("x")),
    Cause.INVALID: (InvalidManifest("x"),),
    Cause.UNSUPPORTED: (UnsupportedManifest("x"),),
    Cause.INVALID_REFERENCE: (InvalidReference("x"),),
}


def test_every_error_has_a_cause() -> None:
    for cause, errors in CAUSES.items():
        assert {failure_of(error).cause for error in errors} == {cause}
    assert failure_of(KeyError("x")).cause is Cause.UNAVAILABLE


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
        pytest.param([DENIED, PARTLY_ASKED], PARTLY_ASKED, id="unavailable-at-a-mirror"),
        pytest.param([PARTLY_ASKED, MISSING, REFUSED], PARTLY_ASKED, id="a-mirror-may-have-what-others-lack"),
    ],
)
def test_the_failures_of_several_credentials_come_to_one(failures: list[Failure], result: Failure) -> None:
    assert summary(failures) == result


def test_another_credential_helps_against_a_no_alone() -> None:
    """And where a mirror that failed may have it, but not where the registry fails."""
    assert all(map(depends_on_credential, (DENIED, MISSING, REFUSED, PARTLY_ASKED)))
    assert not depends_on_credential(UNAVAILABLE)
