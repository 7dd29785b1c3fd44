"""A process that writes rows until it is killed: `python -m tests.integration.store.writer FILE ROUNDS SEED`.

It forks a writer per round, kills it with SIGKILL during its work, and checks the file: every row must be as it was
written, and every acknowledged batch must be there. It prints its counts as JSON.
"""

import asyncio
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

from extender.credentials.keyring import ANONYMOUS
from extender.images.content import Content
from extender.images.reference import digest_of, pack_digest
from extender.resolver.image_cache import CachedImage
from extender.resolver.persistence import Persistence
from extender.store.sqlite import SqliteStore
from tests.unit.resolver.fake_registry import index_of

_ROWS = 20  # in a batch
_CONTENTS = [index_of("linux/amd64"), index_of("linux/arm64"), index_of("linux/amd64", "linux/arm64")]


def known(repository: str, tag: str) -> CachedImage:
    """Returns the image of a name, derived from the name, so that a row can be checked without a record of writes."""
    return CachedImage(content(repository, tag), pack_digest(digest_of(f"{repository}:{tag}".encode())), 5.0)


def content(repository: str, tag: str) -> Content:
    return _CONTENTS[len(f"{repository}{int(tag) % 7}") % 3 if int(tag) % 2 else int(tag) % 3]


async def write(path: Path, number: int, acknowledge: int) -> None:
    """Writes batch after batch, and acknowledges each one when it is written."""
    persistence = Persistence(SqliteStore(path, size=100_000), clock=lambda: 0.0, wall_clock=lambda: 0.0)
    for batch in range(1_000_000):
        for row in range(_ROWS):
            repository, tag = f"ghcr.io/team/app-{number}", str(batch * _ROWS + row)
            persistence.note((repository, tag, ANONYMOUS.id), known(repository, tag))
        await persistence.flush()
        os.write(acknowledge, b".")


def kill_a_writer(path: Path, number: int, chance: random.Random) -> int:
    """Starts a writer, kills it, and returns how many batches it acknowledged."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        asyncio.run(write(path, number, writing))
    os.close(writing)
    os.read(reading, 1)  # the first batch is written
    time.sleep(chance.random() * 0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    acknowledged = 1
    while said := os.read(reading, 4096):
        acknowledged += len(said)
    os.close(reading)
    return acknowledged


async def read(path: Path) -> tuple[dict[str, set[int]], int]:
    """Returns the tags in the file by repository, and how many rows are wrong."""
    tags: dict[str, set[int]] = {}
    wrong = 0
    store = SqliteStore(path, size=100_000)
    async for rows in store.rows():
        for row in rows:
            if row and isinstance(row.name, str):
                tags.setdefault(row.repository, set()).add(int(row.name))
                expected = known(row.repository, row.name)
                wrong += (row.packed, row.content, row.confirmed_at) != (expected.packed, expected.content, 5.0)
            else:
                wrong += 1
    await store.close()
    return tags, wrong


def main(path: Path, rounds: int, seed: int) -> None:
    chance = random.Random(seed)
    lost = torn = wrong = batches = 0
    for number in range(rounds):
        if path.exists() and path.stat().st_size > 500_000:
            path.unlink()
        acknowledged = kill_a_writer(path, number, chance)
        tags, bad = asyncio.run(read(path))
        found = tags.get(f"ghcr.io/team/app-{number}", set())
        lost += not found >= set(range(acknowledged * _ROWS))
        torn += len(found) % _ROWS != 0 or len(found) > (acknowledged + 1) * _ROWS
        wrong += bad
        batches += acknowledged
    aside = path.with_name(f"{path.name}.aside").exists()
    print(json.dumps({"batches": batches, "lost": lost, "torn": torn, "wrong": wrong, "set_aside": aside}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
