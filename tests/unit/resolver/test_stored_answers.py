"""What a resolver makes of a store: answers of an earlier life and of other replicas, damage and failures."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
from structlog.testing import capture_logs

from extender.credentials.keyring import ANONYMOUS, Credential, Keyring
from extender.errors import RegistryUnavailable
from extender.images.content import Cause, Content, Failure
from extender.images.reference import ImageReference, digest_of, pack_digest
from extender.metrics import REGISTRY
from extender.resolver.image_cache import CachedImage
from extender.resolver.persistence import ROWS, Persistence, PersistenceLimits
from extender.resolver.resolver import Resolver
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
    target_of,
)
from tests.unit.resolver.fake_store import LOCKED, FakeStore

CONTENT = index_of("linux/arm64")
TARGET = target_of("ghcr.io/team/app:1")
KEY = (TARGET.repository, TARGET.name, ANONYMOUS.id)
KNOWN = CachedImage(index_of("linux/arm64"), pack_digest(digest_of(b"x")), 0.0)

Replica = Callable[..., Resolver]


@pytest.fixture
async def store() -> FakeStore:
    return FakeStore(shared=True)


@pytest.fixture
async def replica(registry: FakeRegistry, clock: Clock, store: FakeStore) -> AsyncIterator[Replica]:
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
    store.fault = LOCKED
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


@pytest.fixture
def persistence(store: FakeStore, clock: Clock) -> Persistence:
    return Persistence(store, clock=clock)


async def is_asked(persistence: Persistence, store: FakeStore) -> bool:
    before = store.reads
    await persistence.find(TARGET, [ANONYMOUS.id])
    return store.reads > before


async def test_damaged_rows_are_all_counted_and_logged_once_a_minute(
    persistence: Persistence, store: FakeStore, clock: Clock
) -> None:
    """Who can write to the store can damage a row for each lookup, and must not fill the log."""
    store.names[KEY] = None
    damaged = ROWS["damaged"].value
    with capture_logs() as lines:
        for seconds in (0, 1, 58, 1, 59):
            clock.advance(seconds)
            assert await persistence.find(TARGET, [ANONYMOUS.id]) == []
    assert ROWS["damaged"].value == damaged + 5
    assert [(line["event"], line["log_level"], line["store"], line["rows"]) for line in lines] == [
        ("store.damaged", "warning", "fake:", 1),
        ("store.damaged", "warning", "fake:", 3),
    ]


async def test_a_store_that_cannot_be_written_may_still_be_read(persistence: Persistence, store: FakeStore) -> None:
    """A full disk, or a server that is out of memory."""
    store.fault = LOCKED
    persistence.note(KEY, KNOWN)
    await persistence.flush()
    assert await is_asked(persistence, store)
    await persistence.close()


async def test_failure_is_counted_each_time_and_logged_once_as_its_end_is(
    persistence: Persistence, store: FakeStore, clock: Clock
) -> None:
    """However often it fails meanwhile, reading or writing."""

    async def do(*, is_well: bool) -> None:
        store.fault = None if is_well else LOCKED
        clock.advance(100)
        await persistence.flush()
        await is_asked(persistence, store)

    before = REGISTRY.get_sample_value("multiarch_store_errors_total", {"reason": "locked"}) or 0.0
    persistence.note(KEY, KNOWN)
    with capture_logs() as events:
        for is_well in (False, False, True, True):
            await do(is_well=is_well)
    assert REGISTRY.get_sample_value("multiarch_store_errors_total", {"reason": "locked"}) == before + 4
    assert events == [
        {
            "event": "store.failed",
            "log_level": "warning",
            "store": "fake:",
            "doing": "writing",
            "reason": "locked",
            "detail": "somebody has it",
        },
        {"event": "store.recovered", "log_level": "info", "store": "fake:"},
    ]
    await persistence.close()
