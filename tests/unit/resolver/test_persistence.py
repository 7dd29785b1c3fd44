"""What is written behind the memory, and what is read back."""

import asyncio
from collections.abc import AsyncIterator, Callable

import msgspec
import pytest
import structlog

from extender.credentials.keyring import ANONYMOUS, CredentialId
from extender.images.digest import digest_of, pack_digest
from extender.metrics import REGISTRY
from extender.resolver import persistence as module
from extender.resolver.image_cache import CachedImage, NameKey
from extender.resolver.persistence import Persistence
from extender.resolver.references import References, Target
from extender.store.rows import ContentRow, NameRow
from testbed.clock import Clock
from tests.unit.resolver.fake_registry import index_of
from tests.unit.resolver.fake_store import LOCKED, FakeStore

REPOSITORY = "ghcr.io/team/app"
PUBLIC, TENANT = ANONYMOUS.id, CredentialId("tenant")
PACKED = pack_digest(digest_of(b"x"))
CONTENT = index_of("linux/amd64")
AHEAD = 1_000_000.0  # of the wall clock

Open = Callable[..., Persistence]


def key(tag: str = "1", credential_id: CredentialId = PUBLIC, repository: str = REPOSITORY) -> NameKey:
    return repository, tag, credential_id


def target(tag: str = "1") -> Target:
    found = References(1).target_of(f"{REPOSITORY}:{tag}")
    assert isinstance(found, Target)
    return found


def known(at: float) -> CachedImage:
    return CachedImage(CONTENT, PACKED, at)


@pytest.fixture
async def store() -> FakeStore:
    """Empty, and of one process alone."""
    return FakeStore()


@pytest.fixture
async def open_persistence(store: FakeStore, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Open]:
    """Over that store or another, closed at the end; it writes only when a test says so."""
    monkeypatch.setattr(module, "_GATHER_SECONDS", 3600)
    opened = []

    def open_it(over: FakeStore | None = store, *, private: bool = False, read_seconds: float = 60) -> Persistence:
        opened.append(
            Persistence(
                over,
                persist_private=private,
                clock=clock,
                wall_clock=clock.ahead(AHEAD),
                random=lambda: 0.0,
                read_seconds=read_seconds,
            )
        )
        return opened[-1]

    yield open_it
    store.fault = None
    store.open.set()
    for one in opened:
        await one.close()


async def load(persistence: Persistence) -> dict[NameKey, CachedImage]:
    found: dict[NameKey, CachedImage] = {}
    await persistence.load(found.__setitem__, lambda repository, packed, content: None)
    return found


def rows(event: str) -> float:
    return REGISTRY.get_sample_value("multiarch_store_rows_total", {"event": event}) or 0.0


def reads() -> dict[str, float]:
    return {
        result: REGISTRY.get_sample_value("multiarch_store_reads_total", {"result": result}) or 0.0
        for result in ("hit", "miss", "error")
    }


async def test_what_was_noted_is_found_at_its_time_in_another_life(
    open_persistence: Open, clock: Clock, store: FakeStore
) -> None:
    """Monotonic clocks start anew with the machine; the time of day tells how old a row is."""
    first = open_persistence()
    first.note(key(), known(clock.now - 5))
    await first.flush()
    assert [row.confirmed_at for row in store.batches[0].names] == [clock.now - 5 + AHEAD]
    second = Persistence(store, clock=lambda: 50.0, wall_clock=clock.ahead(AHEAD + 60))
    assert await second.find(target(), [PUBLIC]) == [(key(), known(50.0 - 65))]
    assert await load(second) == {key(): known(50.0 - 65)}


async def test_a_row_from_the_future_was_proven_now(open_persistence: Open, clock: Clock, store: FakeStore) -> None:
    """The wall clock was set back; nothing is younger than this moment."""
    store.names[key()] = NameRow(*key(), PACKED, CONTENT, clock.now + AHEAD + 500)
    assert await open_persistence().find(target(), [PUBLIC]) == [(key(), known(clock.now))]


async def test_changes_of_one_name_are_written_once(open_persistence: Open, store: FakeStore) -> None:
    """The last one, and after what changed before it."""
    persistence = open_persistence()
    for at, tag in enumerate(["1", "2", "1"]):
        persistence.note(key(tag), known(at))
    await persistence.flush()
    assert [(row.name, row.confirmed_at - AHEAD) for batch in store.batches for row in batch.names] == [
        ("2", 1),
        ("1", 2),
    ]
    await persistence.flush()
    assert len(store.batches) == 1


async def test_many_changes_are_several_batches(
    open_persistence: Open, store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that no transaction takes long."""
    monkeypatch.setattr(module, "_BATCH_ROWS", 2)
    before = rows("written")
    persistence = open_persistence()
    for number in range(5):
        persistence.note(key(str(number)), known(1.0))
    await persistence.flush()
    assert [[row.name for row in batch.names] for batch in store.batches] == [["0", "1"], ["2", "3"], ["4"]]
    assert rows("written") - before == 5


async def test_changes_are_written_by_themselves_soon(
    open_persistence: Open, store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A denial at once, since a crash must not bring back what was taken away."""
    persistence = open_persistence()
    persistence.note_denial(REPOSITORY, PUBLIC, 1.0)
    await store.written.wait()
    store.written.clear()
    monkeypatch.setattr(module, "_GATHER_SECONDS", 0.001)
    persistence.note(key(), known(2.0))
    await store.written.wait()
    assert list(store.names) == [key()]


@pytest.mark.parametrize(("private", "kept"), [(False, [PUBLIC]), (True, [PUBLIC, TENANT])], ids=["no-key", "key-file"])
async def test_what_credentials_showed_is_kept_only_where_a_file_keys_scopes(
    open_persistence: Open, store: FakeStore, private: bool, kept: list[CredentialId]
) -> None:
    """Neither name nor content nor denial is written, and what another configuration wrote is not told."""
    persistence = open_persistence(private=private)
    for credential_id in (PUBLIC, TENANT):
        persistence.note(key(credential_id=credential_id, repository=f"ghcr.io/{credential_id}/app"), known(1.0))
        persistence.note_denial("ghcr.io/denied/app", credential_id, 1.0)
    await persistence.flush()
    assert [credential_id for _, _, credential_id in store.names] == kept
    assert [repository for repository, _ in store.contents] == [
        f"ghcr.io/{credential_id}/app" for credential_id in kept
    ]
    assert [credential_id for batch in store.batches for _, credential_id in batch.denials] == kept
    store.names = {
        key(credential_id=credential_id): NameRow(*key(credential_id=credential_id), PACKED, CONTENT, 1.0)
        for credential_id in (PUBLIC, TENANT)
    }
    assert [credential_id for _, _, credential_id in await load(persistence)] == kept
    assert persistence.may_know([TENANT]) is False  # everything has been loaded


async def test_a_denial_voids_what_waits_and_what_is_kept(open_persistence: Open, store: FakeStore) -> None:
    """Not what is proven after it, nor what other scopes know."""
    persistence = open_persistence(private=True)
    persistence.note(key("kept"), known(1.0))
    persistence.note(key("others", TENANT), known(1.0))
    await persistence.flush()
    persistence.note(key("waiting"), known(1.0))
    persistence.note_denial(REPOSITORY, PUBLIC, 2.0)
    persistence.note(key("again"), known(3.0))
    await persistence.flush()
    assert sorted(str(name) for _, name, _ in store.names) == ["again", "others"]


async def test_a_denial_that_waits_holds_for_what_is_read(open_persistence: Open, store: FakeStore) -> None:
    """The store has not heard of it yet."""
    store.names[key()] = NameRow(*key(), PACKED, CONTENT, AHEAD + 1.0)
    persistence = open_persistence()
    store.fault = LOCKED
    persistence.note_denial(REPOSITORY, PUBLIC, 2.0)
    await persistence.flush()
    store.fault = None
    assert await persistence.find(target(), [PUBLIC]) == []
    assert await load(persistence) == {}


async def test_a_denial_outlasts_rows_that_wait_behind_it(
    open_persistence: Open, store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of a later batch that were proven before it are void as well."""
    monkeypatch.setattr(module, "_BATCH_ROWS", 1)
    persistence = open_persistence()
    for number in range(3):
        persistence.note(key(str(number)), known(1.0))
    persistence.note(key("other", repository="ghcr.io/team/other"), known(1.0))
    persistence.note_denial(REPOSITORY, PUBLIC, 2.0)
    await persistence.flush()
    assert [repository for repository, _, _ in store.names] == ["ghcr.io/team/other"]


async def test_what_could_not_be_written_is_written_later(
    open_persistence: Open, store: FakeStore, clock: Clock
) -> None:
    """When the store is well again, with what has changed since; nothing raises meanwhile."""
    persistence = open_persistence()
    store.fault = LOCKED
    persistence.note(key("1"), known(1.0))
    persistence.note(key("2"), known(1.0))
    persistence.note_denial("ghcr.io/team/denied", PUBLIC, 1.0)
    await persistence.flush()
    store.fault = None
    await persistence.flush()
    assert store.batches == []  # it is left alone for a second
    persistence.note(key("1"), known(2.0))
    clock.advance(1)
    await persistence.flush()
    assert {row.name: row.confirmed_at - AHEAD for row in store.names.values() if row} == {"1": 2.0, "2": 1.0}
    assert list(store.batches[0].denials) == [("ghcr.io/team/denied", PUBLIC)]


async def test_a_write_that_is_broken_off_is_done_again(open_persistence: Open, store: FakeStore) -> None:
    """Whether or not it came through: writing a row twice does no harm."""
    persistence = open_persistence()
    persistence.note(key(), known(1.0))
    store.open.clear()
    flush = asyncio.create_task(persistence.flush())
    await store.visited.wait()
    flush.cancel()
    await asyncio.gather(flush, return_exceptions=True)
    store.open.set()
    await persistence.flush()
    assert list(store.names) == [key()]


async def test_what_waits_while_the_store_is_away_is_bounded(
    open_persistence: Open, store: FakeStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest rows go, and are counted."""
    for name in ("_WAITING_NAMES", "_WAITING_DENIALS"):
        monkeypatch.setattr(module, name, msgspec.structs.replace(getattr(module, name), bound=3))
    before = rows("dropped")
    persistence = open_persistence()
    store.fault = LOCKED
    for number in range(5):
        persistence.note(key(str(number)), known(1.0))
        persistence.note_denial(str(number), PUBLIC, 1.0)
        await persistence.flush()
    store.fault = None
    clock.advance(60)
    await persistence.flush()
    assert [name for _, name, _ in store.names] == ["2", "3", "4"]
    assert [repository for repository, _ in store.batches[0].denials] == ["2", "3", "4"]
    assert rows("dropped") - before == 4


async def test_closing_writes_what_waits(open_persistence: Open, store: FakeStore) -> None:
    """And closes the store."""
    persistence = open_persistence()
    persistence.note(key(), known(1.0))
    await persistence.close()
    assert list(store.names) == [key()]
    assert store.is_closed


async def test_closing_does_not_wait_for_a_store_that_hangs(
    open_persistence: Open, store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process has to end some time."""
    monkeypatch.setattr(module, "_CLOSE_SECONDS", 0.001)
    persistence = open_persistence()
    persistence.note(key(), known(1.0))
    store.open.clear()
    await persistence.close()
    assert store.is_closed


async def test_a_store_that_does_not_answer_soon_is_left_alone(
    open_persistence: Open, store: FakeStore, clock: Clock
) -> None:
    """The lookup goes on without, the next ones do not even ask, and later one tries again."""
    persistence = open_persistence(read_seconds=0.001)
    store.names[key()] = NameRow(*key(), PACKED, CONTENT, AHEAD)
    store.open.clear()
    before = reads()
    assert await persistence.find(target(), [PUBLIC]) == []
    assert persistence.may_know([PUBLIC]) is False
    assert await persistence.find(target(), [PUBLIC]) == []
    assert store.reads == 1
    clock.advance(1)
    store.open.set()
    assert persistence.may_know([PUBLIC])
    assert [found for found, _ in await persistence.find(target(), [PUBLIC])] == [key()]
    assert reads() == before | {"error": before["error"] + 1, "hit": before["hit"] + 1}


async def test_an_error_nobody_thought_of_ends_no_lookup(open_persistence: Open, store: FakeStore) -> None:
    """It is a defect, with an event to look into, and for the lookup the store is away."""
    store.fault = RuntimeError("whatever")
    with structlog.testing.capture_logs() as events:
        assert await open_persistence().find(target(), [PUBLIC]) == []
    assert [event["event"] for event in events] == ["store.crashed", "store.failed"]


async def test_damaged_rows_are_left_out_and_counted(open_persistence: Open, store: FakeStore) -> None:
    """The others still count."""
    before = rows("damaged")
    store.names[key("1")] = None
    store.names[key("2")] = NameRow(*key("2"), PACKED, CONTENT, AHEAD)
    assert [name for _, name, _ in await load(open_persistence())] == ["2"]
    assert await open_persistence().find(target("1"), [PUBLIC]) == []
    assert rows("damaged") - before == 2


async def test_after_everything_was_loaded_the_store_has_nothing_more_to_say(
    open_persistence: Open, store: FakeStore
) -> None:
    """Unless others write to it too."""
    shared = FakeStore(shared=True)
    own, common = open_persistence(), open_persistence(shared)
    for persistence in (own, common):
        assert persistence.may_know([PUBLIC])
        assert persistence.may_know([TENANT]) is False
        await load(persistence)
        await persistence.find(target(), [PUBLIC])
        await persistence.find_content(REPOSITORY, digest_of(b"x"))
    assert own.may_know([PUBLIC]) is False
    assert common.may_know([PUBLIC])
    assert (store.reads, shared.reads) == (0, 2)


async def test_where_loading_fails_names_are_asked_for_one_by_one(
    open_persistence: Open, store: FakeStore, clock: Clock
) -> None:
    """As soon as the store is well."""
    persistence = open_persistence()
    store.names[key()] = NameRow(*key(), PACKED, CONTENT, AHEAD)
    store.fault = LOCKED
    assert await load(persistence) == {}
    store.fault = None
    clock.advance(1)
    assert len(await persistence.find(target(), [PUBLIC])) == 1


async def test_loading_goes_on_when_another_read_has_failed(
    open_persistence: Open, store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes from the store in slices is not given up for a name that was not found in time."""
    persistence, names = open_persistence(), ["1", "2", "3"]

    async def rows() -> AsyncIterator[list[NameRow]]:
        for name in names:
            yield [NameRow(*key(name), PACKED, CONTENT, AHEAD)]
            store.fault = LOCKED
            await persistence.find(target("other"), [PUBLIC])

    monkeypatch.setattr(store, "rows", rows)
    assert [name for _, name, _ in await load(persistence)] == names
    assert store.reads == 1


async def test_contents_are_loaded_and_found_by_digest(open_persistence: Open, store: FakeStore) -> None:
    """Those that no name leads to any more as well."""
    store.contents[REPOSITORY, PACKED] = ContentRow(REPOSITORY, PACKED, CONTENT)
    persistence = open_persistence()
    assert await persistence.find_content(REPOSITORY, digest_of(b"x")) == CONTENT
    assert await persistence.find_content(REPOSITORY, digest_of(b"y")) is None
    found = []
    await persistence.load(lambda key, known: None, lambda *row: found.append(row))
    assert found == [(REPOSITORY, PACKED, CONTENT)]


async def test_without_a_store_nothing_happens(open_persistence: Open) -> None:
    """`cache:`."""
    persistence = open_persistence(None)
    persistence.note(key(), known(1.0))
    persistence.note_denial(REPOSITORY, PUBLIC, 1.0)
    await persistence.flush()
    assert await load(persistence) == {}
    assert persistence.may_know([PUBLIC]) is False
    assert await persistence.find(target(), [PUBLIC]) == []
    assert await persistence.find_content(REPOSITORY, digest_of(b"x")) is None
