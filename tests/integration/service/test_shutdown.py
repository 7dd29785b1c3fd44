"""How a service ends."""

import asyncio

import aiohttp

from extender.config.reading import load_config
from extender.service.cluster_view import NoCluster
from extender.service.process import open_service

SETTINGS = (
    "scheduler.listen=127.0.0.1:0",
    "admission.listen=",
    "operations.listen=127.0.0.1:0",
    "cache.url='memory:'",
)


async def test_idle_service_ends_after_the_linger_and_not_later() -> None:
    """The grace period is a limit, and no part of it is waited for by an idle service."""
    config = load_config(None, [*SETTINGS, "shutdown.grace_seconds=10000", "shutdown.linger_seconds=0"])
    async with asyncio.timeout(30), open_service(config, NoCluster()):
        pass


async def test_service_that_lingers_answers_and_is_not_ready() -> None:
    """For `shutdown.linger_seconds` after the stop readiness fails, and a new connection still gets its answer."""
    config = load_config(None, [*SETTINGS, "shutdown.grace_seconds=20", "shutdown.linger_seconds=2"])
    entered = asyncio.Event()
    leave = asyncio.Event()
    urls: list[str] = []

    async def serve() -> None:
        async with open_service(config, NoCluster()) as service:
            urls.extend((service.operations_url, service.scheduler_url))
            entered.set()
            await leave.wait()

    serving = asyncio.create_task(serve())
    await asyncio.wait_for(entered.wait(), 10)
    leave.set()
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{urls[0]}/readyz") as response:
            assert response.status == 503
        async with session.post(f"{urls[1]}/scheduler/filter", data=b"no JSON") as response:
            assert (response.status, response.headers["Connection"]) == (400, "close")
    await asyncio.wait_for(serving, 30)
