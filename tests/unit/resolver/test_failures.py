"""What lookups that fail leave behind, and for how long."""

import pytest
from structlog.testing import capture_logs

from extender.errors import (
    EndpointUnavailable,
    HostDenied,
    InvalidManifest,
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
from extender.resolver.failures import hold_seconds
from extender.resolver.image_cache import ImageQuery
from extender.resolver.resolver import Resolver
from testbed.clock import Clock
from tests.unit.resolver.fake_registry import APP, PUBLIC, FakeRegistry, ask, cause_of, index_of, make_resolver, peek


@pytest.mark.parametrize(
    ("error", "cause", "seconds"),
    [
        pytest.param(ManifestNotFound("x"), Cause.MISSING, 5, id="missing"),
        pytest.param(RegistryThrottled("x", 45.0), Cause.THROTTLED, 45, id="throttled"),
        pytest.param(RegistryThrottled("x"), Cause.THROTTLED, 30, id="throttled-without-a-time"),
        pytest.param(RegistryUnavailable("x"), Cause.UNAVAILABLE, 10, id="unavailable"),
        pytest.param(EndpointUnavailable("x"), Cause.UNAVAILABLE, 10, id="unavailable-at-a-mirror"),
        pytest.param(RegistryNotAsked("x"), Cause.UNAVAILABLE, 2, id="not-asked"),
        pytest.param(RegistryUnavailable("it rests", 17.0), Cause.UNAVAILABLE, 17, id="resting"),
        pytest.param(NameUnresolved("x"), Cause.UNAVAILABLE, 10, id="without-a-name"),
        pytest.param(RegistryDenied("x"), Cause.DENIED, 300, id="denied"),
        pytest.param(HostDenied("x"), Cause.NOT_ALLOWED, 300, id="not-allowed"),
        pytest.param(RegistryRefusedImage("x", 412), Cause.REFUSED, 300, id="refused"),
        pytest.param(InvalidManifest("x"), Cause.INVALID, 3600, id="invalid"),
        pytest.param(UnsupportedManifest("x"), Cause.UNSUPPORTED, 3600, id="unsupported"),
    ],
)
async def test_a_failure_answers_without_a_request_until_its_time_is_over(
    resolver: Resolver, registry: FakeRegistry, clock: Clock, error: Exception, cause: Cause, seconds: float
) -> None:
    """Then nothing is known any more, and the next who asks has the image looked up."""
    registry.push(APP, "linux/arm64")
    registry.fault = lambda method, reference: error
    failure = await ask(resolver)
    assert cause_of(failure) is cause
    registry.fault = lambda method, reference: None
    registry.requests.clear()
    clock.advance(seconds - 0.001)
    assert await ask(resolver) == peek(resolver) == failure
    resolver.start(ImageQuery(APP), PUBLIC)
    assert resolver.counts()["in_flight"] == 0
    assert registry.requests == []
    clock.advance(0.001)
    assert peek(resolver) is None
    assert await ask(resolver) == index_of("linux/arm64")


async def test_an_image_that_stays_unavailable_is_asked_for_more_and_more_seldom(
    resolver: Resolver, registry: FakeRegistry, clock: Clock
) -> None:
    """10 s, 20 s, 40 s and so on up to 300 s; a success starts anew, and so does a failure of another kind."""
    registry.push(APP, "linux/arm64")
    registry.fault = lambda method, reference: RegistryUnavailable("x")
    for seconds in (10, 20, 40, 80, 160, 300, 300):
        await ask(resolver)
        clock.advance(seconds - 0.001)
        assert cause_of(peek(resolver)) is Cause.UNAVAILABLE
        clock.advance(0.001)
        assert peek(resolver) is None
    registry.fault = lambda method, reference: ManifestNotFound("x")
    await ask(resolver)
    clock.advance(5)
    registry.fault = lambda method, reference: RegistryUnavailable("x")
    await ask(resolver)
    clock.advance(10)
    assert peek(resolver) is None
    registry.fault = lambda method, reference: None
    await ask(resolver)
    assert resolver.counts()["failed"] == 0


async def test_a_defect_of_ours_is_logged_and_answered_as_unavailable(
    resolver: Resolver, registry: FakeRegistry, clock: Clock
) -> None:
    """The event has an id and the traceback; the pod's author reads a sentence without either; the host stays open."""
    registry.push("ghcr.io/team/other:1", "linux/arm64")
    registry.fault = lambda method, reference: ZeroDivisionError("secret") if reference.path == "team/app" else None
    with capture_logs() as logs:
        answer = await ask(resolver)
    assert isinstance(answer, Failure)
    assert answer.cause is Cause.UNAVAILABLE
    assert "secret" not in answer.detail
    crashes = [entry for entry in logs if entry["event"] == "lookup.crashed"]
    assert [(entry["log_level"], entry["image"], len(entry["id"])) for entry in crashes] == [("error", APP, 8)]
    assert isinstance(crashes[0]["exc_info"], ZeroDivisionError)
    assert await ask(resolver, image="ghcr.io/team/other:1") == index_of("linux/arm64")
    clock.advance(10)
    assert peek(resolver) is None


async def test_failures_are_bounded_apart_from_what_is_known(registry: FakeRegistry, clock: Clock) -> None:
    """Names that do not exist push out neither content nor more than a tenth as many failures."""
    resolver = make_resolver(registry, clock, size=20_000)
    registry.push(APP, "linux/arm64")
    await ask(resolver)
    lookups = [ImageQuery(f"ghcr.io/team/app:missing-{number}") for number in range(2100)]
    await resolver.resolve_all(lookups, PUBLIC, 60)
    counts = resolver.counts()
    assert (counts["known"], counts["failed"], counts["in_flight"]) == (1, 2000, 0)
    assert peek(resolver) == index_of("linux/arm64")
    await resolver.close()


@pytest.mark.parametrize(
    ("cause", "in_a_row", "chance", "stated", "seconds"),
    [
        pytest.param(Cause.MISSING, 12, 0.0, None, 5, id="a-tag-is-often-pushed-after-its-pod"),
        pytest.param(Cause.MISSING, 13, 0.0, None, 60, id="one-that-stays-away-costs-little"),
        pytest.param(Cause.UNAVAILABLE, 5000, 0.0, 2, 2, id="a-stated-time-does-not-add-up"),
        pytest.param(Cause.THROTTLED, 1, 0.5, 20, 21, id="never-earlier-than-the-registry-said"),
        pytest.param(Cause.UNAVAILABLE, 99, 0.5, None, 270, id="a-fifth-shorter-at-most"),
    ],
)
def test_how_long_a_failure_holds(
    cause: Cause, in_a_row: int, chance: float, stated: float | None, seconds: float
) -> None:
    """What failed together does not come back together."""
    assert hold_seconds(Failure(cause, "why"), in_a_row, lambda: chance, stated) == pytest.approx(seconds)
