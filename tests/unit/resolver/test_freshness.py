"""How long an answer holds, and how it is renewed."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from extender.errors import InvalidManifest, RegistryThrottled, RegistryUnavailable
from extender.images.content import Answer, Cause, Failure
from extender.resolver.image_cache import ImageQuery
from extender.resolver.resolver import Resolver
from testbed.clock import Clock
from tests.unit.resolver.fake_registry import TENANT, FakeRegistry, index_of, keyring_of

APP = "ghcr.io/team/app:1"
LOOKUP = ImageQuery(APP)
PUBLIC = keyring_of()
OLD, NEW = index_of("linux/amd64"), index_of("linux/amd64", "linux/arm64")

Finished = Callable[[], Awaitable[None]]


@pytest.fixture
async def known(resolver: Resolver, registry: FakeRegistry) -> None:
    """The image has just been resolved as amd64-only, and no request has been counted yet."""
    registry.push(APP, "linux/amd64")
    assert await ask(resolver) == OLD
    registry.requests.clear()


async def ask(resolver: Resolver, lookup: ImageQuery = LOOKUP, wait_seconds: float = 60, **options: bool) -> Answer:
    return (await resolver.resolve_all([lookup], PUBLIC, wait_seconds, **options))[0]


@pytest.mark.usefixtures("known")
async def test_a_tag_is_not_asked_for_while_fresh(resolver: Resolver, registry: FakeRegistry, clock: Clock) -> None:
    """Just under 900 s it is still fresh."""
    clock.advance(899)
    assert await ask(resolver, revalidate=True) == OLD
    assert registry.requests == []


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
    assert registry.requests == [("HEAD", APP, "anonymous")]
    clock.advance(899)
    assert await ask(resolver) == OLD
    assert registry.methods() == {"HEAD": 1}


@pytest.mark.usefixtures("known")
async def test_a_tag_that_moved_is_fetched_once_and_swapped(
    resolver: Resolver, registry: FakeRegistry, clock: Clock, finished: Finished
) -> None:
    """Until the new content is there, the old one serves."""
    digest = registry.push(APP, "linux/amd64", "linux/arm64")
    clock.advance(900)
    assert await ask(resolver, wait_seconds=0) == OLD
    await finished()
    assert resolver.peek(LOOKUP, PUBLIC) == NEW
    assert registry.requests == [("HEAD", APP, "anonymous"), ("GET", f"ghcr.io/team/app@{digest}", "anonymous")]


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


@pytest.mark.usefixtures("known")
async def test_revalidation_can_be_waited_for(resolver: Resolver, registry: FakeRegistry, clock: Clock) -> None:
    """The webhook writes down what outlives the fact, so it wants the newest; up to its deadline."""
    registry.push(APP, "linux/amd64", "linux/arm64")
    clock.advance(900)
    registry.open.clear()
    assert await ask(resolver, wait_seconds=0, revalidate=True) == OLD
    registry.open.set()
    assert await ask(resolver, revalidate=True) == NEW


@pytest.mark.parametrize(
    "lookup",
    [ImageQuery(APP, always=True), ImageQuery("ghcr.io/team/app:latest"), ImageQuery("ghcr.io/team/app")],
    ids=["always", "latest", "no-tag"],
)
async def test_what_is_resolved_at_every_start_is_stale_after_a_minute(
    resolver: Resolver, registry: FakeRegistry, clock: Clock, lookup: ImageQuery
) -> None:
    """The node will ask the registry anew, so an old answer is worth less."""
    registry.push(APP, "linux/amd64")
    registry.push("ghcr.io/team/app:latest", "linux/amd64")
    await ask(resolver, lookup)
    clock.advance(59)
    await ask(resolver, lookup, revalidate=True)
    assert registry.count("HEAD") == 1
    clock.advance(1)
    await ask(resolver, lookup, revalidate=True)
    assert registry.methods() == {"HEAD": 2, "GET": 1}


@pytest.mark.usefixtures("known")
async def test_peek_gives_stale_content_and_asks_nobody(
    resolver: Resolver, registry: FakeRegistry, clock: Clock, finished: Finished
) -> None:
    """Renewing it is what `start` is for."""
    clock.advance(86_399)
    assert resolver.peek(LOOKUP, PUBLIC) == OLD
    assert resolver.counts()["in_flight"] == 0
    resolver.start(LOOKUP, PUBLIC)
    await finished()
    assert registry.methods() == {"HEAD": 1}


@pytest.mark.usefixtures("known")
async def test_after_a_day_unconfirmed_content_is_no_answer(
    resolver: Resolver, registry: FakeRegistry, clock: Clock
) -> None:
    """The lookup is waited for as if nothing had been known, and costs a HEAD only."""
    clock.advance(86_400)
    assert resolver.peek(LOOKUP, PUBLIC) is None
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
    assert await ask(resolver, revalidate=True) == OLD
    assert resolver.peek(LOOKUP, PUBLIC) == OLD
    resolver.start(LOOKUP, PUBLIC)
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
    failure = await ask(resolver)
    assert isinstance(failure, Failure)
    assert failure.cause is Cause.MISSING


@pytest.mark.usefixtures("known")
async def test_a_denied_revalidation_takes_the_answer_away_at_once(
    resolver: Resolver, registry: FakeRegistry, clock: Clock
) -> None:
    """Who may no longer read the image may no longer learn where it runs."""
    registry.readers["ghcr.io/team/app"] = set()
    clock.advance(900)
    failure = await ask(resolver, revalidate=True)
    assert isinstance(failure, Failure)
    assert failure.cause is Cause.DENIED
    assert resolver.peek(LOOKUP, PUBLIC) == failure


async def test_a_public_digest_is_known_for_ever(resolver: Resolver, registry: FakeRegistry, clock: Clock) -> None:
    """Its bytes cannot change, and everybody may know them."""
    digest = registry.push(APP, "linux/amd64")
    lookup = ImageQuery(f"ghcr.io/team/app@{digest}", always=True)
    assert await ask(resolver, lookup) == OLD
    clock.advance(10 * 86_400)
    assert await ask(resolver, lookup, revalidate=True) == OLD
    assert registry.methods() == {"GET": 1}


async def test_a_private_digest_s_access_is_proven_again_like_a_tag(
    resolver: Resolver, registry: FakeRegistry, clock: Clock
) -> None:
    """The content stays true, but the right to know it may end."""
    digest = registry.push(APP, "linux/amd64")
    registry.readers["ghcr.io/team/app"] = {"tenant"}
    lookups, keys = [ImageQuery(f"ghcr.io/team/app@{digest}")], keyring_of(TENANT)
    assert await resolver.resolve_all(lookups, keys, 60) == [OLD]
    clock.advance(900)
    assert await resolver.resolve_all(lookups, keys, 60, revalidate=True) == [OLD]
    assert registry.methods() == {"GET": 1, "HEAD": 1}
    registry.readers["ghcr.io/team/app"] = set()
    clock.advance(900)
    answer = (await resolver.resolve_all(lookups, keys, 60, revalidate=True))[0]
    assert isinstance(answer, Failure)
    assert answer.cause is Cause.DENIED


@pytest.mark.usefixtures("known")
async def test_revalidations_are_shared(resolver: Resolver, registry: FakeRegistry, clock: Clock) -> None:
    """A thousand pods that meet a stale tag at once cost one HEAD."""
    clock.advance(900)
    await asyncio.gather(*(ask(resolver, revalidate=True) for _ in range(1000)))
    assert registry.methods() == {"HEAD": 1}
