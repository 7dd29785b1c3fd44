"""The view of nodes: those that a request names and that are not in it, and what it says of labels."""

import asyncio
import itertools

import msgspec
import pytest

from extender.cluster.client import ClusterRefused
from extender.cluster.views import WatchedNodes
from extender.errors import ClusterError
from extender.kubernetes.core_v1 import NodeName
from extender.placement.nodes import NodeLookup
from testbed.clock import Clock
from testbed.simulated_time import run_simulated
from tests.builders import node
from tests.unit.cluster.scripted_api import LOST, ScriptedApi

NEW = (NodeName("y"), NodeName("z"))


def test_a_missing_node_costs_at_most_its_wait() -> None:
    """The lookups of a request together, and nothing for the requests of the next second."""

    async def run() -> None:
        loop, api = asyncio.get_running_loop(), ScriptedApi(itertools.repeat(None))
        await asyncio.sleep(60)
        nodes = WatchedNodes(api, clock=loop.time)
        nodes.upsert(msgspec.json.encode(node("a")))
        nodes.keep_only({"a"})
        for _ in range(3):
            assert await nodes.find([NodeName("a"), *NEW], 0.05) == NodeLookup(unreachable=NEW)
        assert loop.time() == pytest.approx(60.05)
        assert sorted(api.paths) == ["/api/v1/nodes/y", "/api/v1/nodes/z"]

    run_simulated(run())


@pytest.mark.parametrize(
    ("answer", "lookup", "seconds"),
    [
        (ClusterRefused("", 404), NodeLookup(absent=NEW[:1]), 10.0),
        (b'{"metadata":{}}', NodeLookup(absent=NEW[:1]), 10.0),
        (b"[]", NodeLookup(absent=NEW[:1]), 10.0),
        (ClusterRefused("", 500), NodeLookup(unreachable=NEW[:1]), 1.0),
        (LOST, NodeLookup(unreachable=NEW[:1]), 1.0),
    ],
)
async def test_a_node_that_was_not_found_is_not_asked_for_again_at_once(
    answer: bytes | ClusterError, lookup: NodeLookup, seconds: float
) -> None:
    """An answer of another shape can never be in view, so nobody waits for it."""
    api, clock = ScriptedApi([answer] * 2), Clock()
    nodes = WatchedNodes(api, clock=clock)
    nodes.keep_only(set())
    for passed, asked in ((0.0, 1), (seconds - 0.1, 1), (0.2, 2)):
        clock.advance(passed)
        assert await nodes.find(NEW[:1], 5.0) == lookup
        assert len(api.paths) == asked


async def test_after_a_failure_one_call_at_a_time_looks_up_until_one_succeeds() -> None:
    api, clock = ScriptedApi([LOST, *[ClusterRefused("", 404)] * 2]), Clock()
    nodes = WatchedNodes(api, clock=clock)
    nodes.keep_only(set())
    await nodes.find(NEW[:1], 5.0)
    clock.advance(1.0)
    found = [*await asyncio.gather(nodes.find(NEW[:1], 5.0), nodes.find(NEW[1:], 5.0))]
    assert found == [NodeLookup(absent=NEW[:1]), NodeLookup(unreachable=NEW[1:])]
    assert await nodes.find(NEW[1:], 5.0) == NodeLookup(absent=NEW[1:])
    assert [path[-1] for path in api.paths] == ["y", "y", "z"]
