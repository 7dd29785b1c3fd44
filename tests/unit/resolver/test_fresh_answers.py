"""What is answered without awaiting anything: all of it from memory and fresh, or nothing at all."""

import pytest

from extender.credentials.keyring import Keyring
from extender.images.content import Cause, Failure
from extender.resolver.image_cache import LOOKUPS, ImageQuery
from extender.resolver.resolver import Resolver
from testbed.clock import Clock
from tests.unit.resolver.fake_registry import OTHER, TENANT, FakeRegistry, index_of, keyring_of

ONE, TWO = ImageQuery("ghcr.io/team/one:1"), ImageQuery("ghcr.io/team/two:1")
PUBLIC = keyring_of()
AMD64, BOTH = index_of("linux/amd64"), index_of("linux/amd64", "linux/arm64")


@pytest.fixture(autouse=True)
async def known(resolver: Resolver, registry: FakeRegistry) -> None:
    """Two public images have just been resolved, and no request has been counted yet."""
    registry.push(ONE.reference, "linux/amd64")
    registry.push(TWO.reference, "linux/amd64", "linux/arm64")
    await resolver.resolve_all([ONE, TWO], PUBLIC, 60)
    registry.requests.clear()


@pytest.mark.parametrize("keyring", [PUBLIC, keyring_of(TENANT), keyring_of(tenant="shop")])
def test_what_is_fresh_is_recalled_in_order(resolver: Resolver, keyring: Keyring) -> None:
    """Repeats included, for whoever may know it."""
    assert resolver.cache.fresh([TWO, ONE, TWO], keyring) == [BOTH, AMD64, BOTH]
    assert resolver.cache.fresh([], keyring) == []


@pytest.mark.parametrize("other", ["ghcr.io/team/three:1", "Not A Reference"])
def test_one_that_is_not_known_leaves_nothing_to_recall(resolver: Resolver, registry: FakeRegistry, other: str) -> None:
    """Nothing is counted and no lookup started; peeking tells what there is."""
    before = LOOKUPS["hit"].value
    assert resolver.cache.fresh([ONE, ImageQuery(other)], PUBLIC) is None
    assert LOOKUPS["hit"].value == before
    assert resolver.counts()["in_flight"] == 0
    assert resolver.peek_all([ONE, ImageQuery(other)], PUBLIC)[0] == AMD64
    assert registry.requests == []


def test_a_reference_that_is_none_is_peeked_as_a_failure(resolver: Resolver) -> None:
    """Beside what is known."""
    answers = resolver.peek_all([ImageQuery("Not A Reference"), TWO], PUBLIC)
    assert isinstance(answers[0], Failure)
    assert answers[0].cause is Cause.INVALID_REFERENCE
    assert answers[1] == BOTH


def test_one_that_is_stale_leaves_nothing_to_recall(resolver: Resolver, clock: Clock) -> None:
    """Its refreshing has to be started; with imagePullPolicy Always that is so after a minute."""
    always = ImageQuery(ONE.reference, always=True)
    clock.advance(59)
    assert resolver.cache.fresh([always, TWO], PUBLIC) == [AMD64, BOTH]
    clock.advance(1)
    assert resolver.cache.fresh([always, TWO], PUBLIC) is None
    assert resolver.cache.fresh([ONE, TWO], PUBLIC) == [AMD64, BOTH]
    assert resolver.peek_all([always, TWO], PUBLIC) == [AMD64, BOTH]
    clock.advance(840)
    assert resolver.cache.fresh([ONE], PUBLIC) is None


async def test_what_was_told_to_one_is_not_recalled_for_another(
    resolver: Resolver, registry: FakeRegistry, clock: Clock
) -> None:
    """Nor for the one who was denied since."""
    private = ImageQuery("ghcr.io/private/app:1")
    registry.push(private.reference, "linux/arm64")
    registry.readers["ghcr.io/private/app"] = {"tenant"}
    await resolver.resolve_all([private], keyring_of(TENANT), 60)
    assert resolver.cache.fresh([private, ONE], keyring_of(TENANT)) == [index_of("linux/arm64"), AMD64]
    assert resolver.cache.fresh([private], PUBLIC) is None
    assert resolver.cache.fresh([private], keyring_of(OTHER)) is None
    registry.readers["ghcr.io/private/app"] = set()
    clock.advance(60)
    await resolver.resolve_all([ImageQuery("ghcr.io/private/app:2")], keyring_of(TENANT), 60)
    assert resolver.cache.fresh([private], keyring_of(TENANT)) is None


async def test_what_is_recalled_is_used_and_not_the_next_to_go(registry: FakeRegistry, clock: Clock) -> None:
    """Of two rows the one that was recalled stays when a third comes."""
    resolver = Resolver(registry, size=2, tag_seconds=900, stale_seconds=86_400, clock=clock)
    await resolver.resolve_all([ONE], PUBLIC, 60)
    await resolver.resolve_all([TWO], PUBLIC, 60)
    assert resolver.cache.fresh([ONE], PUBLIC) == [AMD64]
    third = ImageQuery("ghcr.io/team/three:1")
    registry.push(third.reference, "linux/amd64")
    await resolver.resolve_all([third], PUBLIC, 60)
    assert resolver.cache.fresh([ONE], PUBLIC) == [AMD64]
    assert resolver.cache.fresh([TWO], PUBLIC) is None
    await resolver.close()
