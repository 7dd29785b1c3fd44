"""A file that somebody has filled with the largest rows there can be."""

import gc
import time
import tracemalloc
from pathlib import Path

from extender.credentials.keyring import ANONYMOUS
from extender.images.content import Content
from extender.images.manifest import Kind
from extender.images.platform import normalize_platform
from extender.images.reference import digest_of, pack_digest
from extender.resolver.image_cache import ImageCache, Lifetimes, References, Target
from extender.resolver.persistence import Persistence
from extender.store.rows import Batch, NameRow
from extender.store.sqlite import SqliteStore
from tests.unit.resolver.fake_registry import index_of

HOSTILE, HONEST = 1_000, 100
MOST_BYTES = 8_000_000


def hostile_row(number: int) -> NameRow:
    """Returns a row of 64 platforms with three words of 32 characters each, which no other row has."""
    words = [f"{number:08d}{word:024d}" for word in range(192)]
    platforms = frozenset(normalize_platform(*words[at : at + 3]) for at in range(0, 192, 3))
    packed = pack_digest(digest_of(str(number).encode()))
    content = Content(Kind.INDEX, platforms, states_platforms=True)
    return NameRow(f"evil.example/{number}", "1", ANONYMOUS.id, packed, content, time.time())


def honest_row(number: int) -> NameRow:
    packed = pack_digest(digest_of(b"honest %d" % number))
    return NameRow("ghcr.io/team/app", f"v{number}", ANONYMOUS.id, packed, index_of("linux/arm64"), time.time())


async def test_honest_rows_are_loaded_and_the_rest_takes_no_memory(tmp_path: Path) -> None:
    """Though they were written first and last, and hostile rows between them."""
    store = SqliteStore(tmp_path / "images.sqlite", size=10_000)
    rows = [*map(honest_row, range(HONEST // 2)), *map(hostile_row, range(HOSTILE))]
    rows += map(honest_row, range(HONEST // 2, HONEST))
    await store.put(Batch(rows, {}))
    del rows
    cache = ImageCache(10_000, Lifetimes(tag_seconds=900, stale_seconds=86_400), time.monotonic)
    persistence = Persistence(store, clock=time.monotonic)
    gc.collect()
    tracemalloc.start()
    try:
        await persistence.load(cache.load)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        await persistence.close()
    assert peak < MOST_BYTES
    assert len(cache) == HONEST
    for number in range(HONEST):
        target = References(1).target_of(f"ghcr.io/team/app:v{number}")
        assert isinstance(target, Target)
        assert cache.find(target, ANONYMOUS.id)
