"""The SQLite store against real files, good and bad."""

import asyncio
import contextlib
import random
import sqlite3
import stat
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from extender.credentials.keyring import ANONYMOUS, CredentialId
from extender.images.reference import PackedDigest, digest_of, pack_digest
from extender.store.rows import Batch, NameRow, StoreError
from extender.store.sqlite import SqliteStore
from tests.unit.resolver.fake_registry import index_of

PUBLIC, TENANT = ANONYMOUS.id, CredentialId("tenant")
CONTENTS = [index_of("linux/amd64"), index_of("linux/arm64")]
NONE: dict[tuple[str, PackedDigest, CredentialId], float] = {}

Open = Callable[..., SqliteStore]


class FullConnection(sqlite3.Connection):
    """One whose file cannot grow."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.execute("PRAGMA max_page_count = 1")  # no less than there are already


def row(number: int, credential_id: CredentialId = PUBLIC, repository: str = "ghcr.io/team/app") -> NameRow:
    packed = pack_digest(digest_of(str(number).encode()))
    return NameRow(repository, f"v{number}", credential_id, packed, CONTENTS[number % 2], 1e9 + number)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "images.sqlite"


@pytest.fixture
async def open_store(path: Path) -> AsyncIterator[Open]:
    opened = []

    def open_it(size: int = 1000, *, busy_seconds: float = 0.5) -> SqliteStore:
        opened.append(SqliteStore(path, size=size, busy_seconds=busy_seconds))
        return opened[-1]

    yield open_it
    for store in opened:
        await store.close()


async def everything(store: SqliteStore) -> list[NameRow | None]:
    return [row async for rows in store.rows() for row in rows]


async def names(store: SqliteStore) -> list[NameRow]:
    return [row for row in await everything(store) if row]


async def reason_of(work: AsyncIterator[object] | object) -> str:
    with pytest.raises(StoreError) as caught:
        await work  # type: ignore[misc]  # whatever a store's method gives
    return caught.value.reason


async def test_rows_outlive_the_store(open_store: Open) -> None:
    """By tag and by digest, for each scope its own."""
    by_digest = NameRow("ghcr.io/team/app", row(1).packed, TENANT, row(1).packed, CONTENTS[1], 5.0)
    first = open_store()
    await first.put(Batch([row(0), row(0, TENANT), by_digest], NONE))
    await first.close()
    second = open_store()
    ids = [PUBLIC, TENANT, CredentialId("other")]
    assert await second.get("ghcr.io/team/app", "v0", ids) == [row(0), row(0, TENANT)]
    assert await second.get("ghcr.io/team/app", row(1).packed, [PUBLIC, TENANT]) == [by_digest]
    assert await second.get("ghcr.io/team/other", "v0", [PUBLIC]) == []


async def test_what_was_written_longest_ago_comes_first_and_goes_first(open_store: Open) -> None:
    """Over as many slices as it takes; a row that was renewed is among the last."""
    store = open_store(1000)
    await store.put(Batch([row(number) for number in range(1000)], NONE))
    await store.put(Batch([row(3)], NONE))
    await store.put(Batch([row(1000)], NONE))
    found = await names(store)
    assert [item.name for item in found] == [f"v{number}" for number in (*range(1, 3), *range(4, 1000), 3, 1000)]
    assert found[-2] == row(3)


async def test_a_denial_removes_one_row(open_store: Open) -> None:
    """Not those that come with it, nor that of another name, credential or repository."""
    store = open_store()
    others = [row(1), row(0, TENANT), row(0, repository="ghcr.io/team/other")]
    await store.put(Batch([row(0), *others], NONE))
    await store.put(Batch([row(5)], {("ghcr.io/team/app", row(0).name, PUBLIC): 1e10}))
    assert await names(store) == [*others, row(5)]


async def test_the_file_is_for_our_eyes_only(open_store: Open, path: Path) -> None:
    """It tells which private repositories there are."""
    store = open_store()
    await store.put(Batch([row(0)], NONE))
    files = [item for item in path.parent.iterdir() if item.name.startswith(path.name)]
    assert len(files) == 3  # with the write-ahead log and its index
    assert {stat.S_IMODE(item.stat().st_mode) for item in files} == {0o600}
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def of_version(path: Path, version: int) -> None:
    with contextlib.closing(sqlite3.connect(path)) as file:
        file.execute(f"PRAGMA user_version = {version}")


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda path: path.write_bytes(b"no database at all, but some text" * 100), "corrupt"),
        (lambda path: path.write_bytes(path.read_bytes()[:100] + bytes(4096)), "corrupt"),
        (lambda path: path.write_bytes(path.read_bytes()[:5000]), "corrupt"),
        *((partial(of_version, version=version), "schema") for version in (0, 2, 99)),  # rows are not guessed at
    ],
    ids=["text", "zeroes", "cut", "no-version", "newer", "much-newer"],
)
async def test_a_file_that_cannot_be_used_is_set_aside_and_another_begun(
    open_store: Open, path: Path, damage: Callable[[Path], object], reason: str
) -> None:
    """The first who meets it is told; who comes next finds an empty store that works."""
    first = open_store()
    await first.put(Batch([row(number) for number in range(100)], NONE))
    await first.close()
    damage(path)
    damaged = path.read_bytes()
    second = open_store()
    assert await reason_of(second.put(Batch([row(1)], NONE))) == reason
    assert path.with_name("images.sqlite.aside").read_bytes() == damaged
    assert await everything(second) == []
    await second.put(Batch([row(2)], NONE))
    assert await names(second) == [row(2)]


async def test_a_file_damaged_anywhere_never_gives_a_wrong_answer(open_store: Open, path: Path) -> None:
    """Whatever bytes change: rows are as they were written or are not there, and the store can be used again."""
    first = open_store()
    await first.put(Batch([row(number) for number in range(200)], NONE))
    await first.close()
    good, written = path.read_bytes(), [row(number) for number in range(200)]
    chance = random.Random(20)
    survived = 0
    for _ in range(60):
        damaged = bytearray(good)
        for _ in range(chance.choice([1, 30, 300])):
            damaged[chance.randrange(len(good))] = chance.randrange(256)
        path.write_bytes(damaged)
        store = SqliteStore(path, size=1000)
        found: list[NameRow | None] = []
        try:
            found = await everything(store)
        except StoreError as exc:
            assert exc.reason in ("corrupt", "schema", "unwritable")  # noqa: PT017 -- both ways are right
        assert all(item in written for item in found if isinstance(item, NameRow))
        survived += len(found)
        await store.close()
        for leftover in path.parent.iterdir():
            leftover.unlink()
    assert survived


async def test_someone_else_s_database_is_left_alone(open_store: Open, path: Path) -> None:
    """A wrong path in the configuration must not cost anybody their data."""
    path.parent.mkdir()
    with contextlib.closing(sqlite3.connect(path)) as file:
        file.execute("CREATE TABLE precious (data)")
    before = path.read_bytes()
    for _ in range(2):
        assert await reason_of(open_store().put(Batch([row(0)], NONE))) == "unwritable"
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


async def test_a_locked_file_is_no_store_until_it_is_free(open_store: Open, path: Path) -> None:
    first = open_store()
    await first.put(Batch([row(0)], NONE))
    await first.close()
    other = sqlite3.connect(path, isolation_level=None)
    other.executescript("PRAGMA locking_mode = EXCLUSIVE; BEGIN EXCLUSIVE")
    store = open_store(busy_seconds=0.01)
    assert await reason_of(everything(store)) == "locked"
    assert await reason_of(store.put(Batch([row(1)], NONE))) == "locked"
    other.close()
    await store.put(Batch([row(1)], NONE))
    assert await names(store) == [row(0), row(1)]


@pytest.mark.parametrize("location", ["file/images.sqlite", "folder"], ids=["no-folder", "no-file"])
async def test_a_path_that_cannot_be_written_is_no_store(tmp_path: Path, location: str) -> None:
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "folder").mkdir()
    store = SqliteStore(tmp_path / location, size=10)
    for _ in range(2):
        assert await reason_of(store.get("ghcr.io/team/app", "v0", [PUBLIC])) == "unwritable"
    await store.close()


async def test_a_disk_that_is_full_loses_nothing_that_is_there(
    open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch fails as a whole."""
    first = open_store()
    await first.put(Batch([row(0)], NONE))
    await first.close()
    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=FullConnection))
    store = open_store()
    many = [row(number) for number in range(1, 1000)]
    assert await reason_of(store.put(Batch(many, NONE))) == "unwritable"
    assert await names(store) == [row(0)]


async def test_two_processes_may_share_a_file(path: Path) -> None:
    stores = [SqliteStore(path, size=1000) for _ in range(3)]
    await stores[0].put(Batch([row(0)], NONE))
    for number in range(1, 20):
        await asyncio.gather(*(store.put(Batch([row(number)], NONE)) for store in stores))
    for store in stores:
        assert [item.name for item in await names(store)] == [f"v{number}" for number in range(20)]
        await store.close()
