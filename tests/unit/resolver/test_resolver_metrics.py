"""What the resolver counts."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from extender.credentials.keyring import Credential
from extender.errors import RegistryThrottled
from extender.images.content import Failure
from extender.metrics import REGISTRY
from extender.resolver.image_cache import LOOKUPS, ImageQuery
from extender.resolver.resolver import Resolver
from testbed.clock import Clock
from tests.unit.resolver.fake_registry import APP, OTHER, PUBLIC, TENANT, FakeRegistry, keyring_of

LOOKUP = ImageQuery(APP)


@pytest.fixture
def counted() -> Callable[[], dict[str, float]]:
    before = {result: count.value for result, count in LOOKUPS.items()}
    return lambda: {each: LOOKUPS[each].value - before[each] for each in before if LOOKUPS[each].value != before[each]}


NOTHING = dict.fromkeys(("known", "failed", "in_flight", "verified", "missing", "contradictory", "refuted"), 0)


def images() -> dict[str, float | None]:
    return {state: REGISTRY.get_sample_value("multiarch_images", {"state": state}) for state in NOTHING}


async def test_every_answer_counts_once(
    resolver: Resolver,
    registry: FakeRegistry,
    clock: Clock,
    finished: Callable[[], Awaitable[None]],
    counted: Callable[[], dict[str, float]],
) -> None:
    """By what answered: a lookup of its own, one under way, memory fresh or stale, or a failure that stands."""
    registry.push(APP, "linux/arm64")
    await asyncio.gather(*(resolver.resolve_all([LOOKUP], PUBLIC, 60) for _ in range(3)))
    assert counted() == {"fetched": 1, "shared": 2}
    await resolver.resolve_all([LOOKUP, LOOKUP], PUBLIC, 60)
    resolver.peek(LOOKUP, PUBLIC)
    assert counted() == {"fetched": 1, "shared": 2, "hit": 3}
    clock.advance(900)
    await resolver.resolve_all([LOOKUP], PUBLIC, 0)
    resolver.peek(LOOKUP, PUBLIC)
    await finished()
    assert counted() == {"fetched": 2, "shared": 2, "hit": 3, "stale": 2}
    for _ in range(2):
        await resolver.resolve_all([ImageQuery("ghcr.io/team/missing:1")], PUBLIC, 60)
    assert counted() == {"fetched": 2, "shared": 2, "hit": 3, "stale": 2, "error": 1, "negative": 1}


async def test_a_lookup_s_duration_is_measured_from_start_to_end(
    resolver: Resolver, registry: FakeRegistry, clock: Clock
) -> None:
    """On the resolver's clock."""
    before = REGISTRY.get_sample_value("multiarch_lookup_duration_seconds_sum") or 0.0
    registry.push(APP, "linux/arm64")
    registry.open.clear()
    caller = asyncio.create_task(resolver.resolve_all([LOOKUP], PUBLIC, 60))
    await registry.visited.wait()
    clock.advance(3)
    registry.open.set()
    await caller
    assert REGISTRY.get_sample_value("multiarch_lookup_duration_seconds_sum") == before + 3


@pytest.mark.parametrize(
    ("image", "credentials", "tenants", "seconds"),
    [
        pytest.param("evil.example/team/app:1", (), (), 0, id="any-registry"),
        pytest.param("evil.example/team/app:1", (), (TENANT,), 0, id="any-registry-with-a-pull-secret"),
        pytest.param("docker.io/team/app:1", (), (TENANT,), 0, id="docker-hub-with-a-pull-secret"),
        pytest.param("docker.io/team/app:1", (), (), 90, id="docker-hub"),
        pytest.param("ghcr.io/team/app:1", (OTHER,), (), 90, id="the-operators-login"),
        pytest.param("ghcr.io/team/app:1", (OTHER,), (TENANT,), 0, id="a-pull-secret-beside-it"),
    ],
)
async def test_throttling_shows_if_it_is_the_operators(
    resolver: Resolver,
    registry: FakeRegistry,
    clock: Clock,
    image: str,
    credentials: tuple[Credential, ...],
    tenants: tuple[Credential, ...],
    seconds: float,
) -> None:
    """Whoever writes a pod may name registries and logins that are throttled for ever, and raises no alert by that."""
    registry.fault = lambda method, reference: RegistryThrottled("later", 90.0)
    registry.operator.tell_cluster_logins(dict.fromkeys(["ghcr.io"] * len(credentials), ("other", "secret")))
    keyring = keyring_of(*tenants, tenant="team", operator=lambda: registry.operator_id)
    await resolver.resolve_all([ImageQuery(image)], keyring, 5.0)
    assert REGISTRY.get_sample_value("multiarch_registry_throttled_seconds") == seconds
    clock.advance(90)
    assert REGISTRY.get_sample_value("multiarch_registry_throttled_seconds") == 0


async def test_images_are_counted_by_state_when_they_are_asked_for(resolver: Resolver, registry: FakeRegistry) -> None:
    """Known digests, failed names, lookups in flight; all zero when the resolver has gone."""
    registry.push(APP, "linux/arm64")
    await resolver.resolve_all([LOOKUP, ImageQuery("ghcr.io/team/missing:1")], PUBLIC, 60)
    registry.open.clear()
    await resolver.resolve_all([ImageQuery("ghcr.io/team/slow:1")], PUBLIC, 0)
    assert images() == resolver.counts() == NOTHING | {"known": 1, "failed": 1, "in_flight": 1}
    await resolver.close()
    assert images() == NOTHING


async def test_lookups_beyond_the_bound_stay_pending_and_count_as_refused(
    resolver: Resolver, registry: FakeRegistry, counted: Callable[[], dict[str, float]]
) -> None:
    """They are looked up when they are asked for again and there is room."""
    images = [ImageQuery(f"ghcr.io/team/app:{number}") for number in range(117)]
    for image in images:
        registry.push(image.reference, "linux/arm64")
    shop = keyring_of(tenant="shop")
    registry.open.clear()
    assert await resolver.resolve_all(images, shop, 0) == [None] * 117
    assert resolver.counts()["in_flight"] == 116
    assert counted() == {"refused": 1}
    registry.open.set()
    assert None not in await resolver.resolve_all(images[:116], shop, 60)
    assert None not in await resolver.resolve_all(images, shop, 60)
    await resolver.close()
    assert isinstance(await resolver.describe(images[0].reference, shop), Failure)
    assert counted()["refused"] == 2
