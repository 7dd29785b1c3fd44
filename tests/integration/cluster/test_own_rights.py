"""What the API server says of our own rights, and for how long that counts."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from extender.cluster.client import open_cluster
from extender.cluster.own_rights import CHECK_SECONDS, PROVEN_SECONDS, RETRY_SECONDS, OwnRights
from extender.kubernetes.api_groups import ResourceAttributes
from testbed.clock import Clock
from tests.integration.cluster.api_server import ApiServer, Refusal, serve_api, write_kubeconfig

WANTED = [ResourceAttributes("watch", "pods"), ResourceAttributes("patch", "pods")]


class Checks:
    """The checks of one OwnRights: each begins when `next` is called, which returns the pause after it."""

    def __init__(self, api: ApiServer, clock: Clock) -> None:
        self.api = api
        self.clock = clock
        self._pauses: asyncio.Queue[float] = asyncio.Queue()
        self._go = asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        self._pauses.put_nowait(seconds)
        await self._go.wait()
        self._go.clear()

    async def first(self) -> float:
        return await asyncio.wait_for(self._pauses.get(), 5)

    async def next(self) -> float:
        self._go.set()
        return await self.first()


@asynccontextmanager
async def checked(folder: Path) -> AsyncIterator[tuple[Checks, OwnRights]]:
    clock = Clock()
    async with serve_api() as api:
        client = await open_cluster("kubeconfig", str(write_kubeconfig(api, folder)))
        checks = Checks(api, clock)
        rights = OwnRights(client, WANTED, clock=clock, sleep=checks.sleep)
        running = asyncio.create_task(rights.run())
        try:
            yield checks, rights
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await client.close()


async def test_rights_count_once_all_are_allowed(tmp_path: Path) -> None:
    """And for a while without another check."""
    async with checked(tmp_path) as (checks, rights):
        assert not rights.are_proven()
        assert await checks.first() == CHECK_SECONDS
        assert rights.are_proven()
        checks.clock.advance(PROVEN_SECONDS)
        assert not rights.are_proven()
        await checks.next()
        assert rights.are_proven()


async def test_one_right_that_is_missing_is_enough(tmp_path: Path) -> None:
    """It is looked for again soon, and what was proven before counts no more."""
    async with checked(tmp_path) as (checks, rights):
        await checks.first()
        checks.api.forbidden = {("patch", "pods")}
        assert [await checks.next() for _ in range(7)] == [RETRY_SECONDS * n for n in (1, 2, 4, 8, 16)] + [
            CHECK_SECONDS
        ] * 2
        assert not rights.are_proven()
        checks.api.forbidden = set()
        assert await checks.next() == CHECK_SECONDS
        assert rights.are_proven()


async def test_api_server_that_cannot_be_asked_disproves_nothing(tmp_path: Path) -> None:
    """What was proven lasts for its time."""
    async with checked(tmp_path) as (checks, rights):
        await checks.first()
        checks.api.refusals += [("send", Refusal(500))] * 2
        assert await checks.next() == RETRY_SECONDS
        assert rights.are_proven()
        checks.clock.advance(PROVEN_SECONDS)
        assert await checks.next() == RETRY_SECONDS
        assert not rights.are_proven()
