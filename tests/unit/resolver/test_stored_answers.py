"""What a resolver makes of a store: answers of an earlier life and of other replicas, damage and failures."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

import pytest
from structlog.testing import capture_logs

from extender.credentials.keyring import ANONYMOUS, Credential, CredentialId, Keyring
from extender.errors import RegistryUnavailable
from extender.images.content import Cause, Content, Failure
from extender.images.reference import ImageReference, PackedDigest, digest_of, pack_digest
from extender.metrics import REGISTRY
from extender.resolver.image_cache import CachedImage
from extender.resolver.persistence import ROWS, Persistence, PersistenceLimits
from extender.resolver.resolver import Resolver
from extender.store.rows import Batch, NameRow, StoreError
from testbed.clock import Clock
from tests.unit.resolver.fake_registry import (
    APP,
    OTHER,
    PUBLIC,
    REPOSITORY,
    TENANT,
    WithLogins,
    World,
    ask,
    index_of,
    keyring_of,
    make_resolver,
    target_of,
)

CONTENT, SECOND = index_of("linux/arm64"), f"{REPOSITORY}:2"
TARGET = target_of(APP)
LOCKED = StoreError("locked", "somebody has it")
KEY = (TARGET.repository, TARGET.name, ANONYMOUS.id)
KNOWN = CachedImage(CONTENT, pack_digest(digest_of(b"x")), 0.0)

Replica = Callable[..., Resolver]


class FakeStore:
    """A `Store` that is `shared`, or of one process."""

    location = "fake:"

    def __init__(self, *, shared: bool = False) -> None:
        self.is_shared = shared
        self.names: dict[tuple[str, PackedDigest, CredentialId], NameRow | None] = {}
        self.batches: list[Batch] = []
        self.reads = 0
        self.asked_for: list[list[str]] = []
        self.is_closed = False
        self.fault: Exception | None = None
        self.open = asyncio.Event()  # while it is cleared, calls wait
        self.open.set()

    async def rows(self) -> AsyncIterator[Sequence[NameRow | None]]:
        await self._visit()
        for row in self.names.values():
            yield [row]

    async def get(
        self, repository: str, name: PackedDigest, credential_ids: Sequence[CredentialId]
    ) -> Sequence[NameRow | None]:
        self.reads += 1
        self.asked_for.append(list(credential_ids))
        await self._visit()
        keys = [(repository, name, credential_id) for credential_id in credential_ids]
        return [self.names[key] for key in keys if key in self.names]

    async def put(self, batch: Batch) -> None:
        await self._visit()
        self.batches.append(batch)
        for key in batch.denials:
            self.names.pop(key, None)
        for row in batch.names:
            self.names[row.repository, row.name, row.credential_id] = row

    async def close(self) -> None:
        self.is_closed = True

    async def _visit(self) -> None:
        await self.open.wait()
        if self.fault:
            raise self.fault


@pytest.fixture
async def store() -> FakeStore:
    return FakeStore(shared=True)


@pytest.fixture
async def replica(world: World, store: FakeStore) -> AsyncIterator[Replica]:
    resolvers = []

    def start(over: FakeStore = store) -> Resolver:
        wall_clock, limits = world.clock.ahead(1e9), PersistenceLimits(read_seconds=60)
        persistence = Persistence(over, persist_private=True, clock=world.clock, wall_clock=wall_clock, limits=limits)
        resolvers.append(make_resolver(world, world.clock, persistence=persistence))
        return resolvers[-1]

    yield start
    store.fault = None
    store.open.set()
    for resolver in resolvers:
        await resolver.close()


async def learned(resolver: Resolver, keys: Keyring = PUBLIC, image: str = APP) -> None:
    await ask(resolver, keys, image)
    await resolver.flush()


class Hanging(WithLogins):
    """Logins that are known by their ids, and never load."""

    async def load(self, reference: ImageReference, *, refresh: bool = False) -> tuple[Credential, ...]:
        await asyncio.Event().wait()
        return ()


async def test_a_stored_answer_needs_no_credentials_to_load(world: World, replica: Replica) -> None:
    world.push(APP, "linux/arm64")
    world.readers[REPOSITORY] = {"tenant"}
    await learned(replica(), keyring_of(TENANT))
    world.requests.clear()
    assert await ask(replica(), Hanging(TENANT, tenant="shop")) == CONTENT
    assert world.requests == []


class Unread(WithLogins):
    """Logins whose ids are not known before they have been loaded."""

    is_loaded = False

    def own_ids_for(self, reference: ImageReference) -> tuple[CredentialId, ...]:
        return super().own_ids_for(reference) if self.is_loaded else ()

    async def load(self, reference: ImageReference, *, refresh: bool = False) -> tuple[Credential, ...]:
        self.is_loaded = True
        return await super().load(reference, refresh=refresh)


@pytest.mark.parametrize(
    ("readers", "keys", "asked_for"),
    [
        ({"anonymous"}, PUBLIC, [["anonymous"]]),
        ({"tenant"}, keyring_of(TENANT), [["tenant", "anonymous"]]),
        ({"tenant"}, Unread(TENANT), [["anonymous"], ["tenant"]]),
        (set(), keyring_of(TENANT), [["tenant", "anonymous"]]),
    ],
    ids=["public", "known logins", "unread logins", "denied"],
)
async def test_a_lookup_reads_the_store_once_for_each_credential(
    world: World, replica: Replica, store: FakeStore, readers: set[str], keys: Keyring, asked_for: list[list[str]]
) -> None:
    """In one call where the ids are known; those of secrets are read only where what is public does not suffice."""
    world.push(APP, "linux/arm64")
    world.readers[REPOSITORY] = readers
    await ask(replica(), keys)
    assert store.asked_for == asked_for


def down(method: str, reference: object) -> Exception:
    return RegistryUnavailable("the registry is down")


async def test_a_tag_that_one_replica_has_confirmed_is_confirmed_for_all(world: World, replica: Replica) -> None:
    """Any number of them asks the registry as often as one would."""
    world.push(APP, "linux/arm64")
    replicas = [replica() for _ in range(3)]
    for one in replicas:
        await learned(one)
    world.requests.clear()
    for _ in range(4):
        world.advance(900)
        for one in replicas:
            assert await ask(one, revalidate=True) == CONTENT
            await one.flush()
    assert world.methods() == {"HEAD": 4}


async def test_stored_answers_hold_as_long_as_remembered_ones(world: World, replica: Replica) -> None:
    """With its registry down an image is known until `stale_seconds` are over, then it is not."""
    world.push(APP, "linux/arm64")
    await learned(replica())
    world.fault = down
    world.advance(86_399)
    assert await ask(replica()) == CONTENT
    world.advance(1)
    answer = await ask(replica())
    assert isinstance(answer, Failure)
    assert answer.cause is Cause.UNAVAILABLE


async def test_a_store_that_hangs_holds_up_no_call(world: World, replica: Replica, store: FakeStore) -> None:
    """The call ends when its time is over, and the lookup goes on; peeking never asks the store at all."""
    world.push(APP, "linux/arm64")
    store.open.clear()
    world.resolver = replica()
    assert world.peek() is None
    assert store.reads == 0
    assert await world.ask(wait_seconds=0) is None
    store.open.set()
    assert await world.ask() == CONTENT


async def test_a_store_that_never_answers_is_given_up(world: World, store: FakeStore) -> None:
    """The registry is asked in its place, and the store is left alone for a while."""
    store.open.clear()
    world.push(APP, "linux/arm64")
    world.push(SECOND, "linux/arm64")
    limits = PersistenceLimits(read_seconds=0.05, close_seconds=0.05)
    persistence = Persistence(store, clock=world.clock, wall_clock=world.clock.ahead(1e9), limits=limits)
    world.resolver = make_resolver(world, world.clock, persistence=persistence)
    async with asyncio.timeout(60):
        assert await world.ask() == CONTENT
        assert await world.ask(image=SECOND) == CONTENT
    assert store.reads == 1
    await world.resolver.close()


async def test_a_store_that_fails_costs_no_answer(world: World, replica: Replica, store: FakeStore) -> None:
    """The registry is asked, as if there were none; while it is left alone, no lookup tries it."""
    store.fault = LOCKED
    world.push(APP, "linux/arm64")
    world.push(SECOND, "linux/arm64")
    world.resolver = replica()
    assert await world.ask() == CONTENT
    reads = store.reads
    assert await world.ask(image=SECOND) == CONTENT
    assert store.reads == reads


async def test_what_a_denial_took_away_stays_away_after_a_restart(world: World, replica: Replica) -> None:
    """Another tag of the repository serves until it is denied as well; other credentials keep theirs."""
    world.push(SECOND, "linux/arm64")
    world.push(APP, "linux/arm64")
    world.readers[REPOSITORY] = {"tenant", "other"}
    first = replica()
    for keys in (keyring_of(TENANT), keyring_of(OTHER)):
        await learned(first, keys)
        await learned(first, keys, SECOND)
    world.readers[REPOSITORY] = {"other"}
    world.advance(900)
    await ask(first, keyring_of(TENANT), revalidate=True)
    await first.flush()
    world.fault = down
    assert isinstance(await ask(replica(), keyring_of(TENANT)), Failure)
    assert await ask(replica(), keyring_of(TENANT), SECOND) == CONTENT
    world.fault = lambda _method, _reference: None
    await ask(first, keyring_of(TENANT), SECOND, revalidate=True)
    await first.flush()
    world.fault = down
    for lookup in (APP, SECOND):
        assert isinstance(await ask(replica(), keyring_of(TENANT), lookup), Failure)
        assert await ask(replica(), keyring_of(OTHER), lookup) == CONTENT


async def test_loading_holds_up_neither_start_nor_end(world: World, replica: Replica) -> None:
    """After its time it goes on in the background, and a lookup asks for the one row it wants. An end ends it."""
    own = FakeStore()
    world.push(APP, "linux/arm64")
    await learned(replica(own))
    world.requests.clear()
    own.open.clear()
    ended, fresh = replica(own), replica(own)
    for each in (ended, fresh):
        await each.load(0)
    await ended.close()
    assert own.is_closed
    own.open.set()
    assert await ask(fresh) == CONTENT
    assert world.requests == []


async def test_what_takes_much_memory_is_not_stored(world: World, replica: Replica, store: FakeStore) -> None:
    """An image of 64 unusual platforms is looked up again after a restart, and cannot fill the store with its like."""
    world.push("evil.example/app:1", *(f"linux/{number:032d}" for number in range(64)))
    world.push(APP, "linux/arm64", "linux/amd64", "linux/loongarch-of-our-own")
    one = replica()
    for reference in ("evil.example/app:1", APP):
        assert isinstance(await ask(one, image=reference), Content)
    await one.flush()
    assert [repository for repository, *_ in store.names] == [REPOSITORY]


@pytest.fixture
def persistence(store: FakeStore, clock: Clock) -> Persistence:
    return Persistence(store, clock=clock, wall_clock=clock)


async def is_asked(persistence: Persistence, store: FakeStore) -> bool:
    before = store.reads
    await persistence.find(TARGET, [ANONYMOUS.id])
    return store.reads > before


async def test_damaged_rows_are_all_counted_and_logged_once_a_minute(
    world: World, persistence: Persistence, store: FakeStore
) -> None:
    """Who can write to the store can damage a row for each lookup, and must not fill the log."""
    store.names[KEY] = None
    damaged = ROWS["damaged"].value
    with capture_logs() as lines:
        for seconds in (0, 1, 58, 1, 59):
            world.advance(seconds)
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
    world: World, persistence: Persistence, store: FakeStore
) -> None:
    async def do(*, is_well: bool) -> None:
        store.fault = None if is_well else LOCKED
        world.advance(100)
        await persistence.flush()
        await is_asked(persistence, store)

    before = REGISTRY.get_sample_value("multiarch_store_errors_total", {"reason": "locked"}) or 0.0
    persistence.note(KEY, KNOWN)
    with capture_logs() as events:
        for is_well in (False, False, True, True):
            await do(is_well=is_well)
    assert REGISTRY.get_sample_value("multiarch_store_errors_total", {"reason": "locked"}) == before + 4
    failed, recovered = events
    assert failed == {
        "event": "store.failed", "log_level": "warning", "store": "fake:", "doing": "writing", "reason": "locked",
        "detail": "somebody has it",
    }  # fmt: skip
    assert recovered == {"event": "store.recovered", "log_level": "info", "store": "fake:"}
    await persistence.close()
