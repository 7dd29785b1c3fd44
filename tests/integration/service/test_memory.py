"""A real `serve` process in a control group that is too small for what its caches may take."""

import asyncio
import itertools
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from benchmarks.siege.memory_limit import MemoryLimit, memory_limit
from extender.credentials.keyring import ANONYMOUS
from extender.images.content import Content
from extender.images.digest import digest_of, pack_digest
from extender.images.manifest import Kind
from extender.images.platform import normalize_platform
from extender.store.rows import Batch, NameRow
from extender.store.sqlite import SqliteStore

ROWS = 100_000  # the default of `cache.size`
# The process takes 75 MB before it has loaded anything, and 150 MB with all rows.
LIMIT_BYTES = 112 << 20
_ARCHITECTURES = ("amd64", "arm64", "386", "ppc64le", "s390x", "riscv64", "mips64le", "loong64")
_PLATFORMS = [normalize_platform("linux", architecture, "") for architecture in _ARCHITECTURES]
_SETS = [frozenset(some) for size in range(3, 9) for some in itertools.combinations(_PLATFORMS, size)]


@pytest.fixture
def container() -> Iterator[MemoryLimit]:
    """A control group of so little memory."""
    with memory_limit(LIMIT_BYTES) as limit:
        if limit.folder is None:
            pytest.skip("no control group can be made here")
        yield limit


async def fill(path: Path) -> None:
    """Writes as many rows as a store has."""
    store = SqliteStore(path, size=ROWS)
    for first in range(0, ROWS, 10_000):
        await store.write(Batch([_row(number) for number in range(first, first + 10_000)], {}))
    await store.close()


def _row(number: int) -> NameRow:
    """An image with a long name and some platforms."""
    content = Content(Kind.INDEX, _SETS[number % len(_SETS)], states_platforms=True)
    packed = pack_digest(digest_of(b"%d" % number))
    return NameRow(f"registry.example/{'x' * 200}/{number}", "1", ANONYMOUS.id, packed, content, time.time())


async def metrics(url: str) -> dict[str, float]:
    """What a process's metrics are."""
    async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as response:
        lines = (await response.text()).splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}


async def test_more_known_images_than_the_container_has_room_for(container: MemoryLimit, tmp_path: Path) -> None:
    """They are loaded, as many as there is room for; the process is not killed, and says what it has done."""
    await fill(tmp_path / "images.sqlite")
    settings = (
        "cluster.mode=none", "scheduler.listen=127.0.0.1:0", "admission.listen=", "operations.listen=127.0.0.1:0",
        f"cache.url='sqlite:///{tmp_path / 'images.sqlite'}'", "shutdown.linger_seconds=0.1",
    )  # fmt: skip
    options = [option for setting in settings for option in ("--set", setting)]
    command = container.command([sys.executable, "-m", "extender", "serve", *options])
    process = await asyncio.create_subprocess_exec(*command, stderr=subprocess.PIPE)
    try:
        assert process.stderr
        said: list[dict[str, object]] = []
        while not said or said[-1]["event"] != "service.started":
            said.append(json.loads(await asyncio.wait_for(process.stderr.readline(), 30)))
        url = next(f"http://{event['address']}" for event in said if event.get("listener") == "operations")
        async with asyncio.timeout(60):
            while (found := await metrics(url))['multiarch_store_rows_total{event="loaded"}'] < ROWS:
                await asyncio.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        later = await asyncio.wait_for(process.stderr.read(), 30)
        assert await asyncio.wait_for(process.wait(), 10) == 0, later.decode()
    finally:
        container.kill_all()
    events = [*said, *map(json.loads, later.splitlines())]
    assert found['multiarch_memory_shortages_total{what="caches"}'] >= 1
    assert found['multiarch_container_memory_bytes{of="limit"}'] == LIMIT_BYTES
    assert 0.5 * LIMIT_BYTES < found['multiarch_container_memory_bytes{of="used"}'] < LIMIT_BYTES
    assert ROWS / 20 < found['multiarch_images{state="known"}'] < ROWS
    (short,) = [event for event in events if event["event"] == "memory.short"]
    assert (short["level"], short["limit_bytes"]) == ("warning", LIMIT_BYTES)
