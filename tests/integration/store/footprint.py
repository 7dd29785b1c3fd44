"""A process of the service with a full cache: `python -m tests.integration.store.footprint FILE SIZE`.

It imports what the service imports in a cluster and loads the store in FILE. It prints as JSON how many images are
cached, and its peak resident memory in bytes before and after loading.
"""

import asyncio
import json
import re
import sys
import time
from pathlib import Path

import extender.service.process  # noqa: F401 -- the imports of the whole service count
from extender.credentials.keyring import ANONYMOUS
from extender.images.content import Content
from extender.images.manifest import Kind
from extender.images.platform import parse_platform
from extender.images.reference import digest_of, pack_digest
from extender.resolver.persistence import Persistence
from extender.resolver.resolver import Resolver
from extender.store.rows import Batch, NameRow
from extender.store.sqlite import SqliteStore
from tests.unit.resolver.fake_registry import FakeRegistry

_PLATFORMS = ["linux/amd64", "linux/arm64", "linux/arm/v7", "linux/s390x", "linux/ppc64le", "linux/386"]
_CONTENTS = [
    Content(Kind.INDEX, frozenset(map(parse_platform, _PLATFORMS[:count])), states_platforms=True)
    for count in range(1, len(_PLATFORMS) + 1)
]


def row(number: int) -> NameRow:
    """Returns the row of a distinct image, ten of them in a repository, with names as long as those of companies."""
    repository = f"registry.example.com/department-{number // 1000}/team-{number // 100}/application-{number // 10}"
    packed = pack_digest(digest_of(str(number).encode()))
    return NameRow(repository, f"v1.{number}.0-4f9a1c2", ANONYMOUS.id, packed, _CONTENTS[number % 6], time.time())


async def fill(path: Path, size: int) -> None:
    """Writes a file with so many names and contents."""
    store = SqliteStore(path, size=size)
    for first in range(0, size, 20_000):
        await store.put(Batch([row(number) for number in range(first, min(size, first + 20_000))], {}))
    await store.close()


async def load(path: Path, size: int) -> int:
    """Starts with the file and returns how many images are cached."""
    persistence = Persistence(SqliteStore(path, size=size), clock=time.monotonic)
    resolver = Resolver(
        FakeRegistry(), size=size, tag_seconds=900, stale_seconds=86_400, clock=time.monotonic,
        persistence=persistence,
    )  # fmt: skip
    await resolver.load(60)
    known = resolver.counts()["known"]
    await resolver.close()
    return known


def most_bytes() -> int:
    found = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) * 1024


def main(path: Path, size: int) -> None:
    before = most_bytes()
    known = asyncio.run(load(path, size))
    print(json.dumps({"known": known, "before": before, "after": most_bytes()}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
