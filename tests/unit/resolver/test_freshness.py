"""How long an answer or a failure holds, how it is renewed, and where it comes from."""

import pytest
from structlog.testing import capture_logs

from extender import errors
from extender.images.content import Cause, Evidence, Failure
from extender.images.manifest import OCI_INDEX, Image, Kind
from extender.resolver.failures import hold_seconds
from extender.resolver.image_cache import LOOKUPS, ImageQuery
from tests.unit.resolver.fake_registry import (
    APP,
    OTHER,
    PUBLIC,
    REPOSITORY,
    TENANT,
    World,
    cause_of,
    index_of,
    keyring_of,
    make_resolver,
)

TWO, LATEST = f"{REPOSITORY}:2", f"{REPOSITORY}:latest"
ARM64, BAD = index_of("linux/arm64"), "Not An Image"
OLD, NEW = index_of("linux/amd64"), index_of("linux/amd64", "linux/arm64")
PRIVATE = keyring_of(TENANT)


@pytest.fixture
async def known(world: World) -> World:
    """The image has just been resolved as amd64-only, and no request has been counted yet."""
    world.push(APP, "linux/amd64")
    assert await world.ask() == OLD
    world.requests.clear()
    return world


async def test_a_stale_tag_serves_while_it_is_revalidated_by_head(known: World) -> None:
    """The answer comes at once, one HEAD confirms it, and it is fresh for another 900 s."""
    known.advance(900)
    known.open.clear()
    assert await known.ask() == OLD
    assert known.resolver.counts()["in_flight"] == 1
    known.open.set()
    await known.finished()
    known.advance(899)
    assert await known.ask(revalidate=True) == OLD
    assert known.requests == [("HEAD", APP, "anonymous")]


async def test_a_tag_that_moved_is_fetched_once_and_swapped(known: World) -> None:
    """Until the new content is there the old one serves; when it moves back, the repository has shown both."""
    digest = known.push(APP, "linux/amd64", "linux/arm64")
    known.advance(900)
    assert await known.ask(wait_seconds=0) == OLD
    await known.finished()
    assert known.peek() == NEW
    assert known.requests == [("HEAD", APP, "anonymous"), ("GET", f"{REPOSITORY}@{digest}", "anonymous")]
    known.push(APP, "linux/amd64")
    known.advance(900)
    assert await known.ask(revalidate=True) == OLD
    assert known.methods() == {"HEAD": 2, "GET": 1}


@pytest.mark.parametrize(("image", "always"), [(APP, True), (LATEST, False), (REPOSITORY, False)])
async def test_what_is_resolved_at_every_start_is_stale_after_a_minute(world: World, image: str, always: bool) -> None:
    """The node will ask the registry anew, so an old answer is worth less."""
    world.push(APP, "linux/amd64")
    world.push(LATEST, "linux/amd64")
    for seconds, methods in ((0, {"GET": 1}), (59, {"GET": 1}), (1, {"GET": 1, "HEAD": 1})):
        world.advance(seconds)
        await world.ask(image=image, always=always, revalidate=True)
        assert world.methods() == methods


async def test_after_a_day_unconfirmed_content_is_no_answer(known: World) -> None:
    """The lookup is waited for as if nothing had been known, and costs a HEAD only."""
    known.advance(86_399)
    assert known.peek() == OLD
    known.advance(1)
    assert known.peek() is None
    assert await known.ask() == OLD
    assert known.methods() == {"HEAD": 1}


@pytest.mark.parametrize(
    ("error", "requests"),
    [
        (errors.RegistryUnavailable("x"), 2),  # what a HEAD ends with is not believed before a GET
        (errors.RegistryThrottled("x", 5.0), 1),
        (errors.InvalidManifest("x"), 1),
        (KeyError("a defect of ours"), 1),
    ],
    ids=["unavailable", "throttled", "invalid", "crashed"],
)
async def test_the_last_good_answer_beats_a_failed_revalidation(known: World, error: Exception, requests: int) -> None:
    """Whether or not it is waited for; the failure only keeps us from asking again at once."""
    known.fault = lambda method, reference: error
    known.advance(900)
    for _ in range(2):
        assert await known.ask(revalidate=True) == known.peek() == OLD
        known.resolver.start(ImageQuery(APP), PUBLIC)
        assert known.resolver.counts()["in_flight"] == 0
        assert len(known.requests) == requests


async def test_a_tag_that_was_deleted_serves_on_for_a_day(known: World) -> None:
    known.remove(APP)
    known.advance(900)
    assert await known.ask(revalidate=True) == OLD
    known.advance(86_400)
    assert cause_of(await known.ask()) is Cause.MISSING


async def test_a_tag_is_asked_for_again_once_it_is_older_than_the_caller_likes(known: World) -> None:
    """Fresh or not. What was never known, is no image, or has a digest is not."""
    known.push(APP, "linux/amd64", "linux/arm64")
    queries = [ImageQuery(each) for each in (APP, TWO, BAD, f"{REPOSITORY}@sha256:{'d' * 64}")]
    for seconds, heads in ((5, 0), (1, 1)):
        known.advance(seconds)
        await known.resolver.confirm_all(queries, PUBLIC, 5, 60)
        assert known.methods()["HEAD"] == heads
    assert known.peek() == NEW


async def test_a_public_digest_is_known_for_ever(world: World) -> None:
    image = f"{REPOSITORY}@{world.push(APP, 'linux/amd64')}"
    assert await world.ask(image=image) == OLD
    world.advance(10 * 86_400)
    assert await world.ask(image=image, always=True, revalidate=True) == OLD
    assert world.methods() == {"GET": 1}


@pytest.mark.parametrize("by_digest", [False, True])
async def test_a_denied_revalidation_takes_a_private_answer_away_at_once(world: World, by_digest: bool) -> None:
    """By digest too: the content stays true, but the right to know it may end."""
    digest = world.push(APP, "linux/amd64")
    world.readers[REPOSITORY] = {"tenant"}
    image = f"{REPOSITORY}@{digest}" if by_digest else APP
    for _ in range(2):
        assert await world.ask(PRIVATE, image, revalidate=True) == OLD
        world.advance(900)
    assert world.methods() == {"GET": 1, "HEAD": 1}
    world.readers[REPOSITORY] = set()
    denied = await world.ask(PRIVATE, image, revalidate=True)
    assert cause_of(denied) is Cause.DENIED
    assert world.peek(PRIVATE, image) == denied


async def test_what_is_fresh_is_answered_at_once_or_nothing_is(known: World) -> None:
    """In order, repeats included. One image that is not known or stale leaves nothing, and nothing is counted."""
    known.push(TWO, "linux/amd64", "linux/arm64")
    await known.ask(image=TWO)
    one, two, often = ImageQuery(APP), ImageQuery(TWO), ImageQuery(APP, always=True)
    for keyring in (PUBLIC, PRIVATE, keyring_of(tenant="shop")):
        assert known.resolver.cache.fresh([two, one, two], keyring) == [NEW, OLD, NEW]
    before = LOOKUPS["hit"].value
    for other in (ImageQuery(f"{REPOSITORY}:3"), ImageQuery("Not A Reference")):
        assert known.resolver.cache.fresh([one, other], PUBLIC) is None
    known.advance(60)
    assert known.resolver.cache.fresh([often, two], PUBLIC) is None
    assert LOOKUPS["hit"].value == before
    assert known.resolver.peek_all([often, two], PUBLIC) == [OLD, NEW]


async def test_what_was_told_to_one_is_nothing_to_another(world: World) -> None:
    """Neither its content nor where that is from; nor for the one who was denied since."""
    digest = world.push(APP, "linux/amd64")
    world.readers[REPOSITORY] = {"tenant"}
    await world.ask(PRIVATE)
    query = ImageQuery(APP)
    assert world.resolver.cache.fresh([query], PRIVATE) == [OLD]
    for other in (PUBLIC, keyring_of(OTHER)):
        assert world.resolver.cache.fresh([query], other) is None
        assert world.resolver.evidence(query, other) == Evidence(answer=None)
    world.advance(60)
    found = world.resolver.evidence(query, PRIVATE)
    assert found == Evidence(answer=OLD, digest=digest, credential="login tenant", age_seconds=60, is_fresh=True)
    world.readers[REPOSITORY] = set()
    await world.ask(PRIVATE, TWO)
    assert world.resolver.cache.fresh([query], PRIVATE) is None
    assert not world.resolver.evidence(query, PRIVATE).is_fresh


async def test_what_is_used_is_not_the_next_to_go(world: World) -> None:
    """Of two rows the one that was recalled stays when a third comes."""
    world.resolver = make_resolver(world, world.clock, size=2)
    for image in (APP, TWO, LATEST):
        world.push(image, "linux/amd64")
        await world.ask(image=image)
        assert world.resolver.cache.fresh([ImageQuery(APP)], PUBLIC) == [OLD]
    assert world.resolver.cache.fresh([ImageQuery(TWO)], PUBLIC) is None


async def test_an_image_is_described_as_it_is_now(world: World) -> None:
    """One GET brings all details, however fresh an answer is, and the service knows the image afterwards."""
    world.push(APP, "linux/amd64")
    await world.resolver.describe(APP, PUBLIC)
    digest = world.push(APP, "linux/amd64", "linux/arm64")
    image = await world.resolver.describe(APP, PUBLIC)
    assert isinstance(image, Image)
    assert (image.digest, image.media_type, image.kind) == (digest, OCI_INDEX, Kind.INDEX)
    assert [str(entry.platform) for entry in image.entries] == ["linux/amd64", "linux/arm64"]
    assert world.peek() == NEW
    assert world.methods() == {"GET": 2}


async def test_what_cannot_be_described_is_a_failure(world: World) -> None:
    """With the cause that the service would give, no second request while it stands, and no evidence besides."""
    for _ in range(2):
        assert cause_of(await world.resolver.describe(APP, PUBLIC)) is Cause.MISSING
    assert world.methods() == {"GET": 1}
    assert cause_of(world.resolver.evidence(ImageQuery(APP), PUBLIC).answer) is Cause.MISSING
    for answer in (await world.resolver.describe(BAD, PUBLIC), world.resolver.evidence(ImageQuery(BAD), PUBLIC).answer):
        assert cause_of(answer) is Cause.INVALID_REFERENCE


@pytest.mark.parametrize(
    ("error", "cause", "seconds"),
    [
        pytest.param(errors.ManifestNotFound("x"), Cause.MISSING, 5, id="missing"),
        pytest.param(errors.RegistryThrottled("x", 45.0), Cause.THROTTLED, 45, id="throttled"),
        pytest.param(errors.RegistryThrottled("x"), Cause.THROTTLED, 30, id="throttled-without-a-time"),
        pytest.param(errors.RegistryUnavailable("x"), Cause.UNAVAILABLE, 10, id="unavailable"),
        pytest.param(errors.EndpointUnavailable("x"), Cause.UNAVAILABLE, 10, id="unavailable-at-a-mirror"),
        pytest.param(errors.RegistryNotAsked("x"), Cause.UNAVAILABLE, 2, id="not-asked"),
        pytest.param(errors.RegistryUnavailable("it rests", 17.0), Cause.UNAVAILABLE, 17, id="resting"),
        pytest.param(errors.NameUnresolved("x"), Cause.UNAVAILABLE, 10, id="without-a-name"),
        pytest.param(errors.RegistryDenied("x"), Cause.DENIED, 300, id="denied"),
        pytest.param(errors.HostDenied("x"), Cause.NOT_ALLOWED, 300, id="not-allowed"),
        pytest.param(errors.RegistryRefusedImage("x", 412), Cause.REFUSED, 300, id="refused"),
        pytest.param(errors.InvalidManifest("x"), Cause.INVALID, 3600, id="invalid"),
        pytest.param(errors.UnsupportedManifest("x"), Cause.UNSUPPORTED, 3600, id="unsupported"),
    ],
)
async def test_a_failure_answers_without_a_request_until_its_time_is_over(
    world: World, error: Exception, cause: Cause, seconds: float
) -> None:
    """Then nothing is known any more, and the next who asks has the image looked up."""
    world.push(APP, "linux/arm64")
    world.fault = lambda method, reference: error
    failure = await world.ask()
    assert cause_of(failure) is cause
    world.fault = lambda method, reference: None
    world.requests.clear()
    world.advance(seconds - 0.001)
    assert await world.ask() == world.peek() == failure
    world.resolver.start(ImageQuery(APP), PUBLIC)
    assert world.resolver.counts()["in_flight"] == 0
    assert world.requests == []
    world.advance(0.001)
    assert world.peek() is None
    assert await world.ask() == ARM64


async def test_an_image_that_stays_unavailable_is_asked_for_more_and_more_seldom(world: World) -> None:
    """10 s, 20 s, 40 s and so on up to 300 s; a success starts anew, and so does a failure of another kind."""
    world.push(APP, "linux/arm64")
    world.fault = lambda method, reference: errors.RegistryUnavailable("x")
    for seconds in (10, 20, 40, 80, 160, 300, 300):
        await world.ask()
        world.advance(seconds - 0.001)
        assert cause_of(world.peek()) is Cause.UNAVAILABLE
        world.advance(0.001)
        assert world.peek() is None
    world.fault = lambda method, reference: errors.ManifestNotFound("x")
    await world.ask()
    world.advance(5)
    world.fault = lambda method, reference: errors.RegistryUnavailable("x")
    await world.ask()
    world.advance(10)
    assert world.peek() is None
    world.fault = lambda method, reference: None
    await world.ask()
    assert world.resolver.counts()["failed"] == 0


async def test_a_defect_of_ours_is_logged_and_answered_as_unavailable(world: World) -> None:
    """The event has an id and the traceback; the pod's author reads a sentence without either; the host stays open."""
    world.push("ghcr.io/team/other:1", "linux/arm64")
    world.fault = lambda method, reference: ZeroDivisionError("secret") if reference.path == "team/app" else None
    with capture_logs() as logs:
        answer = await world.ask()
    assert isinstance(answer, Failure)
    assert answer.cause is Cause.UNAVAILABLE
    assert "secret" not in answer.detail
    crashes = [entry for entry in logs if entry["event"] == "lookup.crashed"]
    assert [(entry["log_level"], entry["image"], len(entry["id"])) for entry in crashes] == [("error", APP, 8)]
    assert isinstance(crashes[0]["exc_info"], ZeroDivisionError)
    assert await world.ask(image="ghcr.io/team/other:1") == ARM64
    world.advance(10)
    assert world.peek() is None


async def test_failures_are_bounded_apart_from_what_is_known(world: World) -> None:
    """Names that do not exist push out neither content nor more than a tenth as many failures."""
    world.resolver = make_resolver(world, world.clock, size=20_000)
    world.push(APP, "linux/arm64")
    await world.ask()
    lookups = [ImageQuery(f"ghcr.io/team/app:missing-{number}") for number in range(2100)]
    await world.resolver.resolve_all(lookups, PUBLIC, 60)
    counts = world.resolver.counts()
    assert (counts["known"], counts["failed"], counts["in_flight"]) == (1, 2000, 0)
    assert world.peek() == ARM64


@pytest.mark.parametrize(("pause_seconds", "requests"), [(590, 1), (660, 12)], ids=["asked-lately", "forgotten"])
async def test_a_missing_tag_that_nobody_has_asked_for_lately_is_asked_for_often_again(
    world: World, pause_seconds: float, requests: int
) -> None:
    """Its next pod is pending for half a minute, however long the one before had waited for the tag."""
    for _ in range(13):
        await world.ask()
        world.advance(5)
    world.advance(pause_seconds)
    world.requests.clear()
    for _ in range(12):
        await world.ask()
        world.advance(5)
    assert len(world.requests) == requests


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
