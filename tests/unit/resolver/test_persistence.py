"""What becomes of rows that are damaged, and when a store that failed is asked again."""

import pytest
from structlog.testing import capture_logs

from extender.credentials.keyring import ANONYMOUS
from extender.images.reference import digest_of, pack_digest
from extender.metrics import REGISTRY
from extender.resolver.image_cache import CachedImage, References, Target
from extender.resolver.persistence import ROWS, Persistence
from testbed.clock import Clock
from tests.unit.resolver.fake_registry import index_of
from tests.unit.resolver.fake_store import LOCKED, FakeStore


def target_of(text: str) -> Target:
    target = References(1).target_of(text)
    assert isinstance(target, Target)
    return target


TARGET = target_of("ghcr.io/team/app:1")
KEY = (TARGET.repository, TARGET.name, ANONYMOUS.id)
KNOWN = CachedImage(index_of("linux/arm64"), pack_digest(digest_of(b"x")), 0.0)


@pytest.fixture
def store() -> FakeStore:
    return FakeStore(shared=True)


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


async def test_after_failures_it_is_left_alone_for_longer_and_longer(
    persistence: Persistence, store: FakeStore, clock: Clock
) -> None:
    """One second doubling to a minute; then a single read goes through, and its success ends that."""
    store.fault = LOCKED
    for seconds in (1, 2, 4, 8, 16, 32, 60, 60):
        assert await is_asked(persistence, store)
        assert not persistence.may_know([ANONYMOUS.id])
        clock.advance(seconds - 0.5)
        assert not await is_asked(persistence, store)
        clock.advance(0.5)
        assert persistence.may_know([ANONYMOUS.id])
    store.fault = None
    for _ in range(3):
        assert await is_asked(persistence, store)


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
