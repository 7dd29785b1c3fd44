"""Connections to registries begin at a pace, in turns of the tenants whose images are there."""

import asyncio
import time
from contextvars import Context

from aiohttp import web
from yarl import URL

from extender.registry.session import open_session
from extender.registry.transport import send
from extender.turns import Interest, set_interest
from tests.integration.registry.conftest import ON_LOOPBACK

AT_ONCE, PER_SECOND = 16, 100.0


async def test_connections_begin_at_a_pace_in_turns_of_tenants() -> None:
    """Each takes milliseconds for TLS. Redirects in circles over a thousand hosts took all of the service's time."""

    async def answer(_request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(headers={"Connection": "close"})

    runner = web.ServerRunner(web.Server(answer, access_log=None))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = URL(f"http://127.0.0.1:{runner.addresses[0][1]}/")
    answered: list[str] = []
    async with open_session(guard=ON_LOOPBACK) as session:

        async def ask(tenant: str) -> None:
            await send(session, "GET", url, headers={}, limit_bytes=100)
            answered.append(tenant)

        def start(tenant: str) -> asyncio.Task[None]:
            context = Context()
            context.run(set_interest, Interest(tenant, time.monotonic()))
            return asyncio.get_running_loop().create_task(ask(tenant), context=context)

        started = time.monotonic()
        tasks = [start("mallory") for _ in range(60)]
        await asyncio.sleep(0)
        tasks.append(start("shop"))
        await asyncio.gather(*tasks)
        assert time.monotonic() - started >= (61 - AT_ONCE) / PER_SECOND - 0.02
        assert answered.index("shop") < AT_ONCE + 10
    await runner.cleanup()
