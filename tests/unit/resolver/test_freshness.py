"""How long an answer holds, how it is renewed, and where it comes from."""

from collections.abc import Awaitable, Callable

import pytest

from extender.errors import InvalidManifest, RegistryThrottled, RegistryUnavailable
from extender.images.content import Cause, Evidence
from extender.images.manifest import OCI_INDEX, Image, Kind
from extender.resolver.image_cache import LOOKUPS, ImageQuery
from extender.resolver.resolver import Resolver
from testbed.clock import Clock
from tests.unit.resolver.fake_registry import (
    APP,
    OTHER,
    PUBLIC,
    REPOSITORY,
    TENANT,
    FakeRegistry,
    ask,
    cause_of,
    index_of,
    keyring_of,
    make_resolver,
    peek,
)

TWO, LATEST = f"{REPOSITORY}:2", f"{REPOSITORY}:latest"
OLD, NEW = index_of("linux/amd64"), index_of("linux/amd64", "linux/arm64")
PRIVATE = keyring_of(TENANT)

Finished = Callable[[], Awaitable[None]]


@pytest.fixture
async def known(resolver: Resolver, registry: FakeRegistry) -> None:
    """The image has just been resolved as amd64-only, and no request has been counted yet."""
    registry.push(APP, "linux/amd64")
    assert await ask(resolver) == OLD
    registry.requests.clear()


@pytest.mark.usefixtures("known")
async def test_a_stale_tag_serves_while_it_is_revalidated_by_head(
    resolver: Resolver, registry: FakeRegistry, clock: Clock, finished: Finished
) -> None:
    """The answer comes at once, one HEAD confirms it, and it is fresh for another 900 s."""
    clock.advance(900)
    registry.open.clear()
    assert await ask(resolver) == OLD
    assert resolver.counts()["in_flight"] == 1
    registry.open.set()
    await finished()
    clock.advance(899)
    assert await ask(resolver, revalidate=True) == OLD
    assert registry.requests == [("HEAD", APP, "anonymous")]


@pytest.mark.usefixtures("known")
async def test_a_tag_that_moved_is_fetched_once_and_swapped(
    resolver: Resolver, registry: FakeRegistry, clock: Clock, finished: Finished
) -> None:
    """Until the new content is there, the old one serves."""
    digest = registry.push(APP, "linux/amd64", "linux/arm64")
    clock.advance(900)
    assert await ask(resolver, wait_seconds=0) == OLD
    await finished()
    assert peek(resolver) == NEW
    assert registry.requests == [("HEAD", APP, "anonymous"), ("GET", f"{REPOSITORY}@{digest}", "anonymous")]


@pytest.mark.usefixtures("known")
async def test_a_tag_that_moves_back_costs_only_a_head(
    resolver: Resolver, registry: FakeRegistry, clock: Clock
) -> None:
    """The repository has shown both contents."""
    for platforms in (("linux/amd64", "linux/arm64"), ("linux/amd64",)):
        registry.push(APP, *platforms)
        clock.advance(900)
        assert await ask(resolver, revalidate=True) == index_of(*platforms)
    assert registry.methods() == {"HEAD": 2, "GET": 1}


@pytest.mark.parametrize(("image", "always"), [(APP, True), (LATEST, False), (REPOSITORY, False)])
async def test_what_is_resolved_at_every_start_is_stale_after_a_minute(
    resolver: Resolver, registry: FakeRegistry, clock: Clock, image: str, always: bool
) -> None:
    """The node will ask the registry anew, so an old answer is worth less."""
    registry.push(APP, "linux/amd64")
    registry.push(LATEST, "linux/amd64")
    for seconds, heads in ((0, 1), (59, 1), (1, 2)):
        clock.advance(seconds)
        await ask(resolver, image=image, always=always, revalidate=True)
        assert registry.methods() == {"HEAD": heads, "GET": 1}


@pytest.mark.usefixtures("known")
async def test_after_a_day_unconfirmed_content_is_no_answer(
    resolver: Resolver, registry: FakeRegistry, clock: Clock
) -> None:
    """The lookup is waited for as if nothing had been known, and costs a HEAD only."""
    clock.advance(86_399)
    assert peek(resolver) == OLD
    clock.advance(1)
    assert peek(resolver) is None
    assert await ask(resolver) == OLD
    assert registry.methods() == {"HEAD": 1}


@pytest.mark.parametrize(
    "error",
    [RegistryUnavailable("x"), RegistryThrottled("x", 5.0), InvalidManifest("x"), KeyError("a defect of ours")],
    ids=["unavailable", "throttled", "invalid", "crashed"],
)
@pytest.mark.usefixtures("known")
async def test_the_last_good_answer_beats_a_failed_revalidation(
    resolver: Resolver, registry: FakeRegistry, clock: Clock, error: Exception
) -> None:
    """Whether or not it is waited for; the failure only keeps us from asking again at once."""
    registry.fault = lambda method, reference: error
    clock.advance(900)
    for _ in range(2):
        assert await ask(resolver, revalidate=True) == peek(resolver) == OLD
        resolver.start(ImageQuery(APP), PUBLIC)
        assert resolver.counts()["in_flight"] == 0
        assert len(registry.requests) == 1


@pytest.mark.usefixtures("known")
async def test_a_tag_that_was_deleted_serves_on_for_a_day(
    resolver: Resolver, registry: FakeRegistry, clock: Clock
) -> None:
    """Nodes may still have it; after that it is missing."""
    registry.remove(APP)
    clock.advance(900)
    assert await ask(resolver, revalidate=True) == OLD
    clock.advance(86_400)
    assert cause_of(await ask(resolver)) is Cause.MISSING


async def test_a_public_digest_is_known_for_ever(resolver: Resolver, registry: FakeRegistry, clock: Clock) -> None:
    """Its bytes cannot change, and everybody may know them."""
    image = f"{REPOSITORY}@{registry.push(APP, 'linux/amd64')}"
    assert await ask(resolver, image=image) == OLD
    clock.advance(10 * 86_400)
    assert await ask(resolver, image=image, always=True, revalidate=True) == OLD
    assert registry.methods() == {"GET": 1}


@pytest.mark.parametrize("by_digest", [False, True])
async def test_a_denied_revalidation_takes_a_private_answer_away_at_once(
    resolver: Resolver, registry: FakeRegistry, clock: Clock, by_digest: bool
) -> None:
    """By digest too: the content stays true, but the right to know it may end."""
    digest = registry.push(APP, "linux/amd64")
    registry.readers[REPOSITORY] = {"tenant"}
    image = f"{REPOSITORY}@{digest}" if by_digest else APP
    for _ in range(2):
        assert await ask(resolver, PRIVATE, image, revalidate=True) == OLD
        clock.advance(900)
    assert registry.methods() == {"GET": 1, "HEAD": 1 + (not by_digest)}
    registry.readers[REPOSITORY] = set()
    denied = await ask(resolver, PRIVATE, image, revalidate=True)
    assert cause_of(denied) is Cause.DENIED
    assert peek(resolver, PRIVATE, image) == denied


@pytest.mark.usefixtures("known")
async def test_what_is_fresh_is_answered_at_once_or_nothing_is(
    resolver: Resolver, registry: FakeRegistry, clock: Clock
) -> None:
    """In order, repeats included. One image that is not known or stale leaves nothing, and nothing is counted."""
    registry.push(TWO, "linux/amd64", "linux/arm64")
    await ask(resolver, image=TWO)
    one, two, often = ImageQuery(APP), ImageQuery(TWO), ImageQuery(APP, always=True)
    for keyring in (PUBLIC, PRIVATE, keyring_of(tenant="shop")):
        assert resolver.cache.fresh([two, one, two], keyring) == [NEW, OLD, NEW]
    before = LOOKUPS["hit"].value
    for other in (ImageQuery(f"{REPOSITORY}:3"), ImageQuery("Not A Reference")):
        assert resolver.cache.fresh([one, other], PUBLIC) is None
    clock.advance(60)
    assert resolver.cache.fresh([often, two], PUBLIC) is None
    assert LOOKUPS["hit"].value == before
    assert resolver.peek_all([often, two], PUBLIC) == [OLD, NEW]


async def test_what_was_told_to_one_is_nothing_to_another(
    resolver: Resolver, registry: FakeRegistry, clock: Clock
) -> None:
    """Neither its content nor where that is from; nor for the one who was denied since."""
    digest = registry.push(APP, "linux/amd64")
    registry.readers[REPOSITORY] = {"tenant"}
    await ask(resolver, PRIVATE)
    query = ImageQuery(APP)
    assert resolver.cache.fresh([query], PRIVATE) == [OLD]
    for other in (PUBLIC, keyring_of(OTHER)):
        assert resolver.cache.fresh([query], other) is None
        assert resolver.evidence(query, other) == Evidence(answer=None)
    clock.advance(60)
    found = resolver.evidence(query, PRIVATE)
    assert found == Evidence(answer=OLD, digest=digest, credential="login tenant", age_seconds=60, is_fresh=True)
    registry.readers[REPOSITORY] = set()
    await ask(resolver, PRIVATE, TWO)
    assert resolver.cache.fresh([query], PRIVATE) is None
    assert not resolver.evidence(query, PRIVATE).is_fresh


async def test_a_failure_has_no_evidence_but_itself(resolver: Resolver) -> None:
    """Nor has a reference that is none."""
    await ask(resolver)
    assert cause_of(resolver.evidence(ImageQuery(APP), PUBLIC).answer) is Cause.MISSING
    assert cause_of(resolver.evidence(ImageQuery("No Image"), PUBLIC).answer) is Cause.INVALID_REFERENCE


async def test_what_is_used_is_not_the_next_to_go(registry: FakeRegistry, clock: Clock) -> None:
    """Of two rows the one that was recalled stays when a third comes."""
    resolver = make_resolver(registry, clock, size=2)
    for image in (APP, TWO, LATEST):
        registry.push(image, "linux/amd64")
        await ask(resolver, image=image)
        assert resolver.cache.fresh([ImageQuery(APP)], PUBLIC) == [OLD]
    assert resolver.cache.fresh([ImageQuery(TWO)], PUBLIC) is None
    await resolver.close()


async def test_an_image_is_described_as_it_is_now(resolver: Resolver, registry: FakeRegistry) -> None:
    """One GET brings all details, however fresh an answer is, and the service knows the image afterwards."""
    registry.push(APP, "linux/amd64")
    await resolver.describe(APP, PUBLIC)
    digest = registry.push(APP, "linux/amd64", "linux/arm64")
    image = await resolver.describe(APP, PUBLIC)
    assert isinstance(image, Image)
    assert (image.digest, image.media_type, image.kind) == (digest, OCI_INDEX, Kind.INDEX)
    assert [str(entry.platform) for entry in image.entries] == ["linux/amd64", "linux/arm64"]
    assert peek(resolver) == NEW
    assert registry.methods() == {"GET": 2}


async def test_what_cannot_be_described_is_a_failure(resolver: Resolver, registry: FakeRegistry) -> None:
    """With the cause that the service would give, and no second request while it stands."""
    for _ in range(2):
        assert cause_of(await resolver.describe(APP, PUBLIC)) is Cause.MISSING
    assert registry.methods() == {"GET": 1}
    assert cause_of(await resolver.describe("Not An Image", PUBLIC)) is Cause.INVALID_REFERENCE
