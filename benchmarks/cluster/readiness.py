"""How soon is the service ready in a cluster of 5,000 nodes, and what does it cost to keep it there?

It runs on a real kube-apiserver with nodes of 11 KB. It measures the time from the start of the process to the first
200 of /readyz, then processor time and memory while nothing happens, then memory with three times as many nodes.
`python -m benchmarks.cluster.readiness` prints the report.
"""

import asyncio
import itertools
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median

import msgspec
import typer
from rich.console import Console

from benchmarks.process_costs import cpu_seconds, memory
from benchmarks.report import Cell, Claim, Report, Table, print_report, this_machine
from testbed.api_client import ApiClient, connect
from testbed.binaries import chosen_kubernetes, find_binaries
from testbed.control_plane import LocalCluster
from testbed.extender_process import ExtenderProcess, make_extender_process, write_account
from testbed.objects import KubernetesObject, used_node
from testbed.shipped_files import Mode

NAME = "readiness"
QUESTION = "How soon is the service ready in a cluster of 5,000 nodes, and what does it cost to keep it there?"
NODES, MORE_NODES, FEW_NODES = 5_000, 15_000, 10
IDLE_SECONDS = 60.0
STARTS = 5
COLUMNS = ("nodes", "ready s", "fastest", "slowest", "starts", "resident MB", "most MB", "idle % of a core", "living %")
READY_SECONDS, IDLE_PERCENT, GROWTH_MEGABYTES = 1.5, 0.5, 15.0
"""The bounds of the claims."""
_PAUSE_SECONDS = 0.005
_REPORT_SECONDS = 300.0  # a kubelet's nodeStatusReportFrequency
_GIVEN_UP_SECONDS = 60.0
_SETTLED_SECONDS = 2.0
_NODES_AT_ONCE = 1000
_ASKED = b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


class Footprint(msgspec.Struct, frozen=True, kw_only=True):
    """The service with so many nodes: seconds until ready, for each start; resident megabytes, now and at the peak.

    `idle_percent` is its share of a core while nothing happens, `living_percent` while kubelets report their nodes;
    None if not measured.
    """

    nodes: int
    ready_seconds: Sequence[float]
    resident_megabytes: float
    most_megabytes: float
    idle_percent: float | None = None
    living_percent: float | None = None


def run(
    *,
    fewer: int = 1,
    nodes: int = NODES,
    more_nodes: int = MORE_NODES,
    starts: int = STARTS,
    idle_seconds: float = IDLE_SECONDS,
) -> Report:
    """Returns the report. Call it from the main thread (see parent_death.py).

    Raises BinariesMissing, ProcessFailed, TimeoutError.
    """
    few, some, many = (max(2, count // fewer) for count in (FEW_NODES, nodes, more_nodes))
    with LocalCluster(find_binaries()) as cluster:
        found = asyncio.run(_measure(cluster, (few, some, many), max(1, starts // fewer), idle_seconds / fewer))
    return report_of(found, idle_seconds / fewer)


def report_of(found: Sequence[Footprint], idle_seconds: float) -> Report:
    """Returns the report of the footprints with few, some and many nodes."""
    return Report(
        name=NAME,
        question=QUESTION,
        tables=[Table("the second scheduler's service, its cache in memory", COLUMNS, [_row(each) for each in found])],
        claims=claims_of(*found),
        notes=[
            "ready: from the start of the process (through a launcher, some 20 ms) to the first 200 of /readyz, asked",
            f"  every {_PAUSE_SECONDS * 1000:g} ms; median. The first start in a cluster warms the disk's cache",
            f"idle: {idle_seconds:g} s with two watches open and no request; living: as long, each node's status",
            f"  changed every {_REPORT_SECONDS:g} s, as kubelets do",
            f"resident: {_SETTLED_SECONDS:g} s after it was ready, idling included; most: the peak since its start",
            "nodes: some 11 KB each, half amd64 and half arm64; etcd and kube-apiserver share the cores",
        ],
        machine=this_machine(**{"kube-apiserver": chosen_kubernetes().version}),
    )


def claims_of(few: Footprint, some: Footprint, many: Footprint) -> list[Claim]:
    """Returns claims about readiness and idle cost with some nodes, and about memory with many nodes."""
    ready, growth = median(some.ready_seconds), many.resident_megabytes - few.resident_megabytes
    among, over = f"among {some.nodes:,} nodes", f"{many.nodes:,} nodes over {few.nodes:,}"
    claims = [Claim(what=f"ready {among}", value=ready, unit="s", at_most=READY_SECONDS)]
    if some.idle_percent is not None:
        idle = Claim(what=f"idle {among}", value=some.idle_percent, unit="% of a core", at_most=IDLE_PERCENT)
        claims.append(idle)
    return [*claims, Claim(what=f"memory, {over}", value=growth, unit="MB", at_most=GROWTH_MEGABYTES)]


def _row(found: Footprint) -> list[Cell]:
    seconds = found.ready_seconds
    times: list[Cell] = [median(seconds), min(seconds), max(seconds), len(seconds)]
    memories: list[Cell] = [found.resident_megabytes, found.most_megabytes]
    return [f"{found.nodes:,}", *times, *memories, found.idle_percent, found.living_percent]


async def _measure(
    cluster: LocalCluster, sizes: tuple[int, int, int], starts: int, idle_seconds: float
) -> list[Footprint]:
    """Returns the footprints with few, some and many nodes.

    Repeated starts and the cost of idling are measured only with some nodes.
    """
    few, some, many = sizes
    with tempfile.TemporaryDirectory(prefix="multiarch-readiness-") as folder:
        async with connect(cluster.kubeconfig) as api:
            kubeconfig = Path(folder) / "service.kubeconfig"
            await write_account(api, cluster.kubeconfig, kubeconfig, Mode.SECOND)
            bench = _Bench(api, Path(folder), kubeconfig)
            await bench.grow_to(few)
            found = [await bench.footprint(1, 0.0)]
            await bench.grow_to(some)
            found.append(await bench.footprint(starts, idle_seconds))
            await bench.grow_to(many)
            return [*found, await bench.footprint(1, 0.0)]


class _Bench:
    """A cluster that grows, and services that are started in it."""

    def __init__(self, api: ApiClient, folder: Path, kubeconfig: Path) -> None:
        self._api, self._folder, self._kubeconfig = api, folder, kubeconfig
        self._nodes = 0
        self._runs = itertools.count()

    async def grow_to(self, nodes: int) -> None:
        """Creates nodes until there are so many."""
        while self._nodes < nodes:
            end = min(nodes, self._nodes + _NODES_AT_ONCE)
            await self._api.create_all(_node(index) for index in range(self._nodes, end))
            self._nodes = end

    async def footprint(self, starts: int, idle_seconds: float) -> Footprint:
        """Returns the times of so many starts, and the last one's memory and cost while idle and while watching."""
        times = [await self._start_once() for _ in range(starts - 1)]
        async with self._service() as (service, seconds):
            await asyncio.sleep(_SETTLED_SECONDS)
            idle_percent = await _share(service.pid, asyncio.sleep(idle_seconds)) if idle_seconds else None
            used = memory(service.pid)
            living_percent = await _share(service.pid, self._report_nodes(idle_seconds)) if idle_seconds else None
        return Footprint(
            nodes=self._nodes,
            ready_seconds=[*times, seconds],
            resident_megabytes=used.now_megabytes,
            most_megabytes=used.most_megabytes,
            idle_percent=idle_percent,
            living_percent=living_percent,
        )

    async def _start_once(self) -> float:
        async with self._service() as (_, seconds):
            return seconds

    async def _report_nodes(self, seconds: float) -> None:
        """Changes every node's status as often as its kubelet does, for so many seconds."""
        pause, began = _REPORT_SECONDS / self._nodes, time.perf_counter()
        for index in range(int(seconds / pause)):
            name = _name(index % self._nodes)
            condition = {"type": "Ready", "status": "True", "reason": f"Fake{index}"}
            path = f"/api/v1/nodes/{name}/status"
            changes = {"status": {"conditions": [condition]}}
            await self._api.request("PATCH", path, changes, content_type="application/strategic-merge-patch+json")
            await asyncio.sleep(began + (index + 1) * pause - time.perf_counter())

    @asynccontextmanager
    async def _service(self) -> AsyncIterator[tuple[ExtenderProcess, float]]:
        """Runs the service; yields it and the seconds that it took to be ready."""
        settings = ("cache.url='memory:'", "shutdown.grace_seconds=1")
        name = f"service-{next(self._runs)}"
        service = make_extender_process(name, self._folder, self._kubeconfig, *settings, admission=False)
        began = time.perf_counter()
        service.launch()
        try:
            yield service, _wait_until_ready(service) - began
        finally:
            service.terminate()


def _wait_until_ready(service: ExtenderProcess) -> float:
    """Returns the moment of the first 200 of /readyz, by time.perf_counter. Blocks, so nothing else runs meanwhile."""
    host, _, port = service.operations_url.removeprefix("http://").rpartition(":")
    deadline = time.perf_counter() + _GIVEN_UP_SECONDS
    while time.perf_counter() < deadline and service.is_running:
        if _is_ready(host, int(port)):
            return time.perf_counter()
        time.sleep(_PAUSE_SECONDS)
    raise TimeoutError(f"the service was not ready in {_GIVEN_UP_SECONDS:g} s\n{service.tail()}")


def _is_ready(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=5) as connection:
            connection.sendall(_ASKED)
            return connection.recv(64).startswith(b"HTTP/1.1 200 ")
    except OSError:
        return False


async def _share(pid: int, meanwhile: Awaitable[None]) -> float:
    """Returns the share of a core that the process uses until `meanwhile` is done, in per cent."""
    before, began = cpu_seconds(pid), time.perf_counter()
    await meanwhile
    return (cpu_seconds(pid) - before) / (time.perf_counter() - began) * 100


def _node(index: int) -> KubernetesObject:
    return used_node(_name(index), ("amd64", "arm64")[index % 2])


def _name(index: int) -> str:
    return f"production-pool-4f3a2b1c-{index:05}"


def main() -> None:
    """Prints the report."""
    print_report(Console(width=160), run())


if __name__ == "__main__":
    typer.run(main)
