"""What becomes of rows that are damaged."""

from structlog.testing import capture_logs

from extender.credentials.keyring import ANONYMOUS
from extender.resolver.image_cache import References, Target
from extender.resolver.persistence import ROWS, Persistence
from testbed.clock import Clock
from tests.unit.resolver.fake_store import FakeStore


async def test_damaged_rows_are_all_counted_and_logged_once_a_minute() -> None:
    """Who can write to the store can damage a row for each lookup, and must not fill the log."""
    clock, store = Clock(), FakeStore(shared=True)
    target = References(1).target_of("ghcr.io/team/app:1")
    assert isinstance(target, Target)
    store.names[target.repository, target.name, ANONYMOUS.id] = None
    persistence = Persistence(store, clock=clock)
    damaged = ROWS["damaged"].value
    with capture_logs() as lines:
        for seconds in (0, 1, 58, 1, 59):
            clock.advance(seconds)
            assert await persistence.find(target, [ANONYMOUS.id]) == []
    assert ROWS["damaged"].value == damaged + 5
    assert [(line["event"], line["log_level"], line["store"], line["rows"]) for line in lines] == [
        ("store.damaged", "warning", "fake:", 1),
        ("store.damaged", "warning", "fake:", 3),
    ]
    await persistence.close()
