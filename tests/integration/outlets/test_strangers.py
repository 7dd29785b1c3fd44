"""How many reviews strangers get answered where a token tells the API server: at every path, and whose turn it is."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextvars import Context
from pathlib import Path

import msgspec
import pytest

from extender.config.reading import load_config
from extender.server import routes
from extender.server.routes import Reply, Route
from extender.service.cluster_view import NoCluster
from extender.service.outlets import JOBS, REVIEWS, SCHEDULER_NAMES, admission_routes, open_observed_pods
from extender.service.resolving import open_pod_resolver
from tests.integration.service.caller import pod, review_of

AT_ONCE = 200
BODY = msgspec.json.encode(review_of(pod()))
MORE = 400
"""So many wait for two seconds, as one begins every 5 ms."""


@pytest.fixture
async def open_to_strangers(tmp_path: Path) -> AsyncIterator[Mapping[str, Route]]:
    """The routes without a token of a listener where the API server has one."""
    (tmp_path / "tokens").write_text("a" * 40)
    settings = [
        f"admission.path_token_file={tmp_path / 'tokens'}",
        "admission.scheduler_name=ours",
        "admission.listen=127.0.0.1:0",
        "admission.tls=null",
        "cluster.mode=none",
        "cache.url='memory:'",
    ]
    config = load_config(None, settings)
    async with open_pod_resolver(config, NoCluster()) as pod_resolver:
        yield admission_routes(config, pod_resolver, NoCluster(), open_observed_pods(config))


def ask(route: Route, address: str, count: int = 1) -> list[asyncio.Task[Reply]]:
    """Reviews from this address, each as a request of its own."""
    tasks = []
    for _ in range(count):
        context = Context()
        context.run(routes._CALLER.set, address)  # noqa: SLF001  # what a request from there does
        tasks.append(asyncio.create_task(answered(route), context=context))
    return tasks


async def answered(route: Route) -> Reply:
    """The answer; no path has one without a turn."""
    assert route.answer_nowait(BODY) is None
    return await route.answer(BODY)


async def end(*tasks: asyncio.Task[Reply]) -> None:
    """Cancels those that still wait."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("path", [REVIEWS, SCHEDULER_NAMES])
async def test_strangers_wait_for_their_turn_at_every_path(open_to_strangers: Mapping[str, Route], path: str) -> None:
    """So a flood takes a part of the processor's time and no more. Jobs are not reviewed for strangers."""
    assert JOBS not in open_to_strangers
    flood = ask(open_to_strangers[path], "192.0.2.1", AT_ONCE + MORE)
    await asyncio.sleep(0.01)
    done = [task for task in flood if task.done()]
    assert AT_ONCE <= len(done) < len(flood)
    assert all(b'"allowed":true' in task.result().body for task in done)
    await end(*flood)


async def test_a_flood_at_one_path_takes_turns_with_the_others(open_to_strangers: Mapping[str, Route]) -> None:
    """All paths of the listener share the turns, and each has its own."""
    flood = ask(open_to_strangers[REVIEWS], "192.0.2.1", AT_ONCE + MORE)
    await asyncio.sleep(0)
    [naming] = ask(open_to_strangers[SCHEDULER_NAMES], "192.0.2.1")
    reply = await asyncio.wait_for(naming, 10)
    assert b'"patch"' in reply.body
    assert sum(task.done() for task in flood) < len(flood)
    await end(*flood)


async def test_a_flood_from_one_address_takes_turns_with_the_api_server(
    open_to_strangers: Mapping[str, Route],
) -> None:
    """The API server shows no token where it has a scheduler named, and waits behind nobody else's reviews."""
    flood = ask(open_to_strangers[SCHEDULER_NAMES], "192.0.2.1", AT_ONCE + MORE)
    await asyncio.sleep(0)
    [ours] = ask(open_to_strangers[SCHEDULER_NAMES], "192.0.2.2")
    await asyncio.wait_for(ours, 10)
    assert sum(task.done() for task in flood) < AT_ONCE + MORE / 2
    await end(*flood)
