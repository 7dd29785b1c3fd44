"""What a resolver makes of a store: answers of an earlier life, and of other replicas."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from extender.credentials.keyring import Credential, Keyring
from extender.errors import RegistryUnavailable
from extender.images.content import Cause, Content, Failure
from extender.images.reference import ImageReference
from extender.resolver.persistence import Persistence, PersistenceLimits
from extender.resolver.resolver import Resolver
from extender.store.rows import StoreError
from testbed.clock import Clock
from tests.unit.resolver.fake_registry import (
    APP,
    OTHER,
    PUBLIC,
    REPOSITORY,
    TENANT,
    FakeRegistry,
    Logins,
    ask,
    index_of,
    keyring_of,
    make_resolver,
    peek,
)
from tests.unit.resolver.fake_store import FakeStore

CONTENT = index_of("linux/arm64")

Replica = Callable[..., Resolver]


@pytest.fixture
async def store() -> FakeStore:
    """Shared by all replicas."""
    return FakeStore(shared=True)


@pytest.fixture
async def replica(registry: FakeRegistry, clock: Clock, store: FakeStore) -> AsyncIterator[Replica]:
    """Starts another replica of the service; all are closed at the end."""
    resolvers = []

    def start(over: FakeStore = store) -> Resolver:
        persistence = Persistence(
            over,
            persist_private=True,
            clock=clock,
            wall_clock=clock.ahead(1e9),
            limits=PersistenceLimits(read_seconds=60),
        )
        resolvers.append(make_resolver(registry, clock, persistence=persistence))
        return resolvers[-1]

    yield start
    store.fault = None
    store.open.set()
    for resolver in resolvers:
        await resolver.close()


async def learned(resolver: Resolver, keys: Keyring = PUBLIC, image: str = APP) -> None:
    """The resolver has looked it up, and the store knows what came of it."""
    await ask(resolver, keys, image)
    await resolver.flush()


class Hanging(Logins):
    """Logins that are known by their ids, and never load."""

    async def load(self, reference: ImageReference, *, refresh: bool = False) -> tuple[Credential, ...]:
        await asyncio.Event().wait()
        return ()


async def test_a_stored_answer_needs_no_credentials_to_load(replica: Replica, registry: FakeRegistry) -> None:
    """The ids of the last load are enough to find it."""
    registry.push(APP, "linux/arm64")
    registry.readers[REPOSITORY] = {"tenant"}
    await learned(replica(), keyring_of(TENANT))
    registry.requests.clear()
    assert await ask(replica(), Keyring(Hanging(TENANT), tenant="shop")) == CONTENT
    assert registry.requests == []


def down(method: str, reference: object) -> Exception:
    return RegistryUnavailable("the registry is down")


async def test_what_one_replica_knows_costs_the_next_no_request(replica: Replica, registry: FakeRegistry) -> None:
    """By tag and by digest."""
    digest = registry.push(APP, "linux/arm64")
    lookups = [APP, f"{REPOSITORY}@{digest}"]
    for lookup in lookups:
        await learned(replica(), image=lookup)
    registry.requests.clear()
    other = replica()
    assert peek(other) is None
    assert [await ask(other, image=lookup) for lookup in lookups] == [CONTENT, CONTENT]
    assert peek(other) == CONTENT
    assert registry.requests == []


async def test_a_tag_that_one_replica_has_confirmed_is_confirmed_for_all(
    replica: Replica, registry: FakeRegistry, clock: Clock
) -> None:
    """Any number of them asks the registry as often as one would."""
    registry.push(APP, "linux/arm64")
    replicas = [replica() for _ in range(3)]
    for one in replicas:
        await learned(one)
    registry.requests.clear()
    for _ in range(4):
        clock.advance(900)
        for one in replicas:
            assert await ask(one, revalidate=True) == CONTENT
            await one.flush()
    assert registry.methods() == {"HEAD": 4}


async def test_a_stored_content_is_no_way_around_the_registry(replica: Replica, registry: FakeRegistry) -> None:
    """Who has not proven that they may read a digest has to, and is denied or not."""
    registry.readers[REPOSITORY] = {"tenant"}
    digest = registry.push(APP, "linux/arm64")
    await learned(replica(), keyring_of(TENANT), f"{REPOSITORY}@{digest}")
    registry.requests.clear()
    for lookup in (APP, f"{REPOSITORY}@{digest}"):
        answer = await ask(replica(), keyring_of(OTHER), lookup)
        assert isinstance(answer, Failure)
        assert answer.cause is Cause.DENIED
    assert registry.count("GET") == 4
    assert await ask(replica(), keyring_of(TENANT), f"{REPOSITORY}@{digest}") == CONTENT


async def test_stored_answers_hold_as_long_as_remembered_ones(
    replica: Replica, registry: FakeRegistry, clock: Clock
) -> None:
    """With its registry down an image is known until `stale_seconds` are over, then it is not."""
    registry.push(APP, "linux/arm64")
    await learned(replica())
    registry.fault = down
    clock.advance(86_399)
    assert await ask(replica()) == CONTENT
    clock.advance(1)
    answer = await ask(replica())
    assert isinstance(answer, Failure)
    assert answer.cause is Cause.UNAVAILABLE


async def test_a_stale_stored_answer_need_not_wait_for_a_registry_that_hangs(
    replica: Replica, registry: FakeRegistry, clock: Clock
) -> None:
    """When the wait is over, it is there."""
    registry.push(APP, "linux/arm64")
    await learned(replica())
    clock.advance(900)
    registry.open.clear()
    assert await ask(replica(), wait_seconds=0.05) == CONTENT
    registry.open.set()


async def test_a_store_that_hangs_holds_up_no_call(replica: Replica, registry: FakeRegistry, store: FakeStore) -> None:
    """The call ends when its time is over, and the lookup goes on; peeking never asks the store at all."""
    registry.push(APP, "linux/arm64")
    store.open.clear()
    resolver = replica()
    assert peek(resolver) is None
    assert store.reads == 0
    assert await ask(resolver, wait_seconds=0) is None
    store.open.set()
    assert await ask(resolver) == CONTENT


async def test_a_store_that_fails_costs_no_answer(replica: Replica, registry: FakeRegistry, store: FakeStore) -> None:
    """The registry is asked, as if there were none; while it is left alone, no lookup tries it."""
    store.fault = StoreError("unavailable", "gone")
    registry.push(APP, "linux/arm64")
    registry.push("ghcr.io/team/app:2", "linux/arm64")
    resolver = replica()
    assert await ask(resolver) == CONTENT
    reads = store.reads
    assert await ask(resolver, image="ghcr.io/team/app:2") == CONTENT
    assert store.reads == reads


async def test_what_a_denial_took_away_stays_away_after_a_restart(
    replica: Replica, registry: FakeRegistry, clock: Clock
) -> None:
    """Another tag of the repository serves until it is denied as well; other credentials keep theirs."""
    registry.push("ghcr.io/team/app:2", "linux/arm64")
    registry.push(APP, "linux/arm64")
    registry.readers[REPOSITORY] = {"tenant", "other"}
    second = f"{REPOSITORY}:2"
    first = replica()
    for keys in (keyring_of(TENANT), keyring_of(OTHER)):
        await learned(first, keys)
        await learned(first, keys, second)
    registry.readers[REPOSITORY] = {"other"}
    clock.advance(900)
    await ask(first, keyring_of(TENANT), revalidate=True)
    await first.flush()
    registry.fault = down
    assert isinstance(await ask(replica(), keyring_of(TENANT)), Failure)
    assert await ask(replica(), keyring_of(TENANT), second) == CONTENT
    registry.fault = lambda _method, _reference: None
    await ask(first, keyring_of(TENANT), second, revalidate=True)
    await first.flush()
    registry.fault = down
    for lookup in (APP, second):
        assert isinstance(await ask(replica(), keyring_of(TENANT), lookup), Failure)
        assert await ask(replica(), keyring_of(OTHER), lookup) == CONTENT


async def test_a_restart_finds_everything_in_memory(replica: Replica, registry: FakeRegistry) -> None:
    """With a store of our own it is loaded at once, so that even a peek finds it, and the store is not asked again."""
    own = FakeStore()
    registry.push(APP, "linux/arm64")
    await learned(replica(own))
    registry.fault = down
    fresh, reads = replica(own), own.reads
    await fresh.load(60)
    assert peek(fresh) == CONTENT
    await ask(fresh, image="ghcr.io/team/unheard-of:1")
    assert own.reads == reads


async def test_loading_holds_up_no_start(replica: Replica, registry: FakeRegistry) -> None:
    """After the time it is given it goes on in the background, and a lookup asks for the one row it wants."""
    own = FakeStore()
    registry.push(APP, "linux/arm64")
    await learned(replica(own))
    registry.requests.clear()
    own.open.clear()
    fresh = replica(own)
    await fresh.load(0)
    own.open.set()
    assert await ask(fresh) == CONTENT
    assert registry.requests == []


async def test_a_resolver_that_closes_while_it_loads_leaves_nothing_running(replica: Replica) -> None:
    """And what the store says afterwards is of no interest."""
    own = FakeStore()
    own.open.clear()
    resolver = replica(own)
    await resolver.load(0)
    await resolver.close()
    assert own.is_closed


async def test_what_takes_much_memory_is_not_stored(replica: Replica, registry: FakeRegistry, store: FakeStore) -> None:
    """An image of 64 unusual platforms is looked up again after a restart, and cannot fill the store with its like."""
    registry.push("evil.example/app:1", *(f"linux/{number:032d}" for number in range(64)))
    registry.push(APP, "linux/arm64", "linux/amd64", "linux/loongarch-of-our-own")
    one = replica()
    for reference in ("evil.example/app:1", APP):
        assert isinstance(await ask(one, image=reference), Content)
    await one.flush()
    assert [repository for repository, *_ in store.names] == [REPOSITORY]
