"""Nodes that a request names and that are not in view."""

import asyncio
import itertools

import msgspec
import pytest

from extender.cluster.views import WatchedNodes
from extender.kubernetes.core_v1 import NodeName
from extender.placement.nodes import NodeLookup
from testbed.simulated_time import run_simulated
from tests.builders import node
from tests.unit.cluster.scripted_api import ScriptedApi

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
