"""The kubelet's probes of a replica that is played by its answers."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

from testbed.memory_http import Request, Response, serve_http
from testbed.memory_network import Network, run_in_memory
from tests.worlds.probes import Probes
from tests.worlds.replicas import OPERATIONS_PORT, Replica
from tests.worlds.trace import Trace

ADDRESS = "10.0.1.1"


class Answering:
    """A replica as far as probes see one, and what it is asked."""

    address = ADDRESS

    def __init__(self, network: Network) -> None:
        self.network = network
        self.is_running = True
        self.statuses = {"/livez": 200, "/readyz": 200}
        self.asked: list[tuple[float, str]] = []
        self.restarts: list[float] = []
        self.probes = Probes(network, Trace(network.loop.time), lambda: [cast("Replica", self)], self._restart)
        serve_http(network, ADDRESS, OPERATIONS_PORT, self._answer)

    async def _answer(self, request: Request) -> Response:
        self.asked.append((self.network.loop.time(), request.path))
        return Response(self.statuses[request.path])

    async def _restart(self, number: int) -> None:
        self.restarts.append(self.network.loop.time())
        self.statuses["/livez"] = 200


def play(test: Callable[[Answering], Awaitable[None]], **statuses: int) -> None:
    async def main(network: Network) -> None:
        replica = Answering(network)
        replica.statuses |= {f"/{path}": status for path, status in statuses.items()}
        probing = asyncio.ensure_future(replica.probes.run(0))
        await test(replica)
        probing.cancel()
        await asyncio.gather(probing, return_exceptions=True)

    run_in_memory(main)


def test_a_replica_is_asked_as_the_manifests_say() -> None:
    async def test(replica: Answering) -> None:
        await asyncio.sleep(21)
        assert [at for at, path in replica.asked if path == "/livez"] == [0.0, 10.0, 20.0]
        assert [at for at, path in replica.asked if path == "/readyz"] == [0.0, 5.0, 10.0, 15.0, 20.0]

    play(test)


def test_nothing_else_is_probed_before_it_has_started() -> None:
    async def test(replica: Answering) -> None:
        await asyncio.sleep(100)
        assert {path for _, path in replica.asked} == {"/livez"}
        assert not replica.restarts
        await asyncio.sleep(20)
        assert replica.restarts == [118.0]

    play(test, livez=503)


def test_one_success_and_three_failures_make_it_ready_and_unready() -> None:
    async def test(replica: Answering) -> None:
        await asyncio.sleep(6)
        assert replica.probes.ready_hosts() == []
        replica.statuses["/readyz"] = 200
        await asyncio.sleep(6)
        assert replica.probes.ready_hosts() == [ADDRESS]
        replica.statuses["/readyz"] = 503
        await asyncio.sleep(12)
        assert replica.probes.ready_hosts() == [ADDRESS]
        await asyncio.sleep(3)
        assert replica.probes.ready_hosts() == []
        assert not replica.restarts

    play(test, readyz=503)


def test_three_failures_of_liveness_start_it_again() -> None:
    async def test(replica: Answering) -> None:
        await asyncio.sleep(5)
        replica.network.silence(ADDRESS, True)
        await asyncio.sleep(29)
        assert replica.restarts == [32.0]
        assert replica.probes.ready_hosts() == []

    play(test)


def test_a_replica_that_has_ended_gets_no_requests_a_second_later() -> None:
    async def test(replica: Answering) -> None:
        await asyncio.sleep(7)
        replica.is_running = False
        await asyncio.sleep(1.6)
        assert replica.probes.ready_hosts() == []
        asked = len(replica.asked)
        await asyncio.sleep(20)
        assert len(replica.asked) == asked
        replica.is_running = True
        await asyncio.sleep(2)
        assert replica.probes.ready_hosts() == [ADDRESS]

    play(test)
