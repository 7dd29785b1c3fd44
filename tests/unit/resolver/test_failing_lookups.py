"""What lookups that fail leave behind."""

import pytest
from structlog.testing import capture_logs

from extender.credentials.keyring import ANONYMOUS
from extender.errors import (
    EndpointUnavailable,
    InvalidManifest,
    ManifestNotFound,
    RegistryFailed,
    RegistryNotAsked,
    RegistryRefusedImage,
    RegistryThrottled,
    RegistryUnavailable,
    RegistryUnreachable,
    UnsupportedManifest,
)
from extender.images.content import Answer, Cause, Failure
from extender.images.reference import ImageReference
from extender.resolver.image_cache import ImageQuery
from extender.resolver.resolver import Resolver
from testbed.clock import Clock
from tests.unit.resolver.fake_registry import OTHER, TENANT, FakeRegistry, Keys, index_of

APP = "ghcr.io/team/app:1"
PUBLIC = Keys(ANONYMOUS)


async def ask(resolver: Resolver, reference: str = APP) -> Answer:
    return (await resolver.resolve_all([ImageQuery(reference)], PUBLIC, 60))[0]


def cause_of(answer: Answer) -> Cause | None:
    return answer.cause if isinstance(answer, Failure) else None


@pytest.mark.parametrize(
    ("error", "cause", "seconds"),
    [
        pytest.param(ManifestNotFound("x"), Cause.MISSING, 5, id="missing"),
        pytest.param(RegistryThrottled("x", 45.0), Cause.THROTTLED, 45, id="throttled"),
        pytest.param(RegistryThrottled("x"), Cause.THROTTLED, 30, id="throttled-without-a-time"),
        pytest.param(RegistryUnavailable("x"), Cause.UNAVAILABLE, 10, id="unavailable"),
        pytest.param(EndpointUnavailable("x"), Cause.UNAVAILABLE, 10, id="unavailable-at-a-mirror"),
        pytest.param(RegistryNotAsked("x"), Cause.UNAVAILABLE, 2, id="not-asked"),
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
    assert await ask(resolver) == resolver.peek(ImageQuery(APP), PUBLIC) == failure
    resolver.start(ImageQuery(APP), PUBLIC)
    assert resolver.counts()["in_flight"] == 0
    assert registry.requests == []
    clock.advance(0.001)
    assert resolver.peek(ImageQuery(APP), PUBLIC) is None
    assert await ask(resolver) == index_of("linux/arm64")


async def test_an_image_that_stays_unavailable_is_asked_for_more_and_more_seldom(
    resolver: Resolver, registry: FakeRegistry, clock: Clock
) -> None:
    """10 s, 20 s, 40 s and so on up to 300 s; a success starts anew."""
    registry.push(APP, "linux/arm64")
    registry.fault = lambda method, reference: RegistryUnavailable("x")
    for seconds in (10, 20, 40, 80, 160, 300, 300):
        await ask(resolver)
        clock.advance(seconds - 0.001)
        assert cause_of(resolver.peek(ImageQuery(APP), PUBLIC)) is Cause.UNAVAILABLE
        clock.advance(0.001)
        assert resolver.peek(ImageQuery(APP), PUBLIC) is None
    registry.fault = lambda method, reference: None
    await ask(resolver)
    assert resolver.counts()["failed"] == 0


async def test_lookups_that_make_way_for_a_probe_are_not_failures_of_their_images(
    resolver: Resolver, registry: FakeRegistry, clock: Clock
) -> None:
    """Of two begun when a breaker's time is over one is the probe; the other may go as soon as that has an answer."""
    images = [APP, "ghcr.io/team/other:1"]
    for image in images:
        registry.push(image, "linux/arm64")
    registry.fault = throttle_ghcr
    await ask(resolver, "ghcr.io/team/third:1")
    registry.fault = lambda method, reference: None
    clock.advance(20)
    probe, other = await resolver.resolve_all([ImageQuery(image) for image in images], PUBLIC, 60)
    assert probe == index_of("linux/arm64")
    assert cause_of(other) is Cause.THROTTLED
    assert resolver.counts()["failed"] == 1
    assert await ask(resolver, images[1]) == index_of("linux/arm64")


async def test_a_throttling_host_is_left_alone_for_all_its_images(
    resolver: Resolver, registry: FakeRegistry, clock: Clock
) -> None:
    """Even for those never asked for, which are throttled without a request or a wait; other hosts are asked."""
    registry.push("ghcr.io/team/other:1", "linux/arm64")
    registry.push("quay.io/team/app:1", "linux/arm64")
    registry.fault = throttle_ghcr
    await ask(resolver)
    registry.requests.clear()
    assert cause_of(await ask(resolver, "ghcr.io/team/other:1")) is Cause.THROTTLED
    assert cause_of(resolver.peek(ImageQuery("ghcr.io/team/third:1"), PUBLIC)) is Cause.THROTTLED
    assert registry.requests == []
    assert await ask(resolver, "quay.io/team/app:1") == index_of("linux/arm64")
    clock.advance(20)
    registry.fault = lambda method, reference: None
    assert await ask(resolver, "ghcr.io/team/other:1") == index_of("linux/arm64")


async def test_a_throttled_tenant_waits_alone(resolver: Resolver, registry: FakeRegistry) -> None:
    """A 429 for one credential leaves the host to every other one, cold lookups and refreshes alike."""
    registry.push(APP, "linux/arm64")
    registry.fault = throttle_ghcr
    tenant = Keys(TENANT, ANONYMOUS)
    failed = await resolver.resolve_all([ImageQuery("ghcr.io/team/other:1")], tenant, 60)
    assert cause_of(failed[0]) is Cause.THROTTLED
    registry.fault = lambda method, reference: None
    registry.requests.clear()
    assert cause_of((await resolver.resolve_all([ImageQuery(APP)], tenant, 60))[0]) is Cause.THROTTLED
    assert registry.requests == []
    assert await resolver.resolve_all([ImageQuery(APP)], Keys(OTHER), 60) == [index_of("linux/arm64")]
    assert await ask(resolver) == index_of("linux/arm64")


def throttle_ghcr(method: str, reference: ImageReference) -> Exception | None:
    return RegistryThrottled("x", 20.0) if reference.domain == "ghcr.io" else None


async def test_stale_content_of_a_resting_host_serves_without_a_wait(
    resolver: Resolver, registry: FakeRegistry, clock: Clock
) -> None:
    """Not even revalidation is tried while the breaker is open."""
    registry.push(APP, "linux/arm64")
    await ask(resolver)
    clock.advance(900)
    registry.fault = throttle_ghcr
    await ask(resolver, "ghcr.io/team/other:1")
    registry.requests.clear()
    resolver.start(ImageQuery(APP), PUBLIC)
    assert resolver.counts()["in_flight"] == 0
    assert await resolver.resolve_all([ImageQuery(APP)], PUBLIC, 60, revalidate=True) == [index_of("linux/arm64")]
    assert registry.requests == []


async def test_a_dead_host_is_found_out_by_a_few_images(resolver: Resolver, registry: FakeRegistry) -> None:
    """A hundred images of it cost no more than the requests already under way."""
    registry.fault = lambda method, reference: RegistryUnreachable("x")
    lookups = [ImageQuery(f"ghcr.io/team/app-{number}:1") for number in range(100)]
    answers = await resolver.resolve_all(lookups, PUBLIC, 60)
    assert [cause_of(answer) for answer in answers] == [Cause.UNAVAILABLE] * 100
    assert len(registry.requests) <= 18
    assert cause_of(await ask(resolver, "ghcr.io/team/yet-another:1")) is Cause.UNAVAILABLE


async def test_a_host_that_answers_5xx_is_asked_for_each_name(resolver: Resolver, registry: FakeRegistry) -> None:
    """Whoever makes up names that fail keeps nobody from the others."""
    registry.push("ghcr.io/team/other:1", "linux/arm64")
    registry.fault = lambda method, reference: RegistryFailed("x") if "made-up" in reference.path else None
    for number in range(20):
        assert cause_of(await ask(resolver, f"ghcr.io/team/made-up-{number}:1")) is Cause.UNAVAILABLE
    assert await ask(resolver, "ghcr.io/team/other:1") == index_of("linux/arm64")


async def test_an_image_that_fails_alone_leaves_its_host_open(resolver: Resolver, registry: FakeRegistry) -> None:
    """One broken repository is no reason not to ask for the others."""
    registry.push("ghcr.io/team/other:1", "linux/arm64")
    registry.fault = lambda method, reference: RegistryUnavailable("x") if reference.path == "team/app" else None
    assert cause_of(await ask(resolver)) is Cause.UNAVAILABLE
    assert await ask(resolver, "ghcr.io/team/other:1") == index_of("linux/arm64")


async def test_images_that_their_registry_refuses_leave_the_host_open(
    resolver: Resolver, registry: FakeRegistry
) -> None:
    """However many they are."""
    registry.push("ghcr.io/team/other:1", "linux/arm64")
    registry.fault = lambda method, reference: (
        RegistryRefusedImage("x", 412) if "vulnerable" in reference.path else None
    )
    for number in range(5):
        answer = await ask(resolver, f"ghcr.io/team/vulnerable-{number}:1")
        assert cause_of(answer) is Cause.REFUSED
    assert await ask(resolver, "ghcr.io/team/other:1") == index_of("linux/arm64")


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
    assert await ask(resolver, "ghcr.io/team/other:1") == index_of("linux/arm64")
    clock.advance(10)
    assert resolver.peek(ImageQuery(APP), PUBLIC) is None


async def test_failures_are_bounded_apart_from_what_is_known(registry: FakeRegistry, clock: Clock) -> None:
    """Names that do not exist push out neither content nor more than a tenth as many failures."""
    resolver = Resolver(registry, size=20_000, tag_seconds=900, stale_seconds=86_400, clock=clock)
    registry.push(APP, "linux/arm64")
    await ask(resolver)
    lookups = [ImageQuery(f"ghcr.io/team/app:missing-{number}") for number in range(2100)]
    await resolver.resolve_all(lookups, PUBLIC, 60)
    counts = resolver.counts()
    assert (counts["known"], counts["failed"], counts["in_flight"]) == (1, 2000, 0)
    assert resolver.peek(ImageQuery(APP), PUBLIC) == index_of("linux/arm64")
    await resolver.close()
