"""How a service ends."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import aiohttp
import msgspec
import pytest
import structlog

from extender.cluster.views import NODES
from extender.config.reading import load_config
from extender.fetcher.sources import open_local_sources
from extender.service.cluster_view import ClusterView
from extender.service.compose import Service, open_service
from extender.service.process import run_service
from testbed.eventually import eventually
from testbed.faulty_registry import HoldingRegistry
from testbed.machines import running_machine
from tests.integration.cluster.api_server import node, serve_api, write_kubeconfig
from tests.integration.service.caller import pod, with_names

LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
SETTINGS = (
    "scheduler.listen=127.0.0.1:0",
    "admission.listen=",
    "operations.listen=127.0.0.1:0",
    "cache.url='memory:'",
)


@pytest.mark.usefixtures("simulated_time")
async def test_service_that_lingers_answers_and_is_not_ready() -> None:
    """For a quarter of the grace after the stop a new connection still gets its answer; an idle service ends then."""
    config = load_config(None, [*SETTINGS, "shutdown.grace_seconds=8"])
    leave = asyncio.Event()
    services: list[Service] = []

    async def serve() -> None:
        machine = running_machine()
        sources = partial(open_local_sources, machine=machine)
        async with open_service(config, ClusterView(), sources, machine) as service:
            services.append(service)
            await leave.wait()

    serving = asyncio.create_task(serve())
    await eventually(lambda: services)
    left_at = asyncio.get_running_loop().time()
    leave.set()
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{services[0].operations_url}/readyz") as response:
            assert response.status == 503
        async with session.post(f"{services[0].scheduler_url}/scheduler/filter", data=b"no JSON") as response:
            assert (response.status, response.headers["Connection"]) == (400, "close")
    await serving
    assert asyncio.get_running_loop().time() - left_at == pytest.approx(2, abs=0.5)


async def test_a_signal_before_all_is_open_ends_the_process_well(tmp_path: Path) -> None:
    """It waits for a certificate here, as no API server answers: it stops in order, with exit code 0."""
    async with serve_api() as api:
        api.is_open.clear()
        settings = (
            *SETTINGS, "admission.listen=127.0.0.1:0", "admission.tls.self_managed=[webhook]",
            f"cluster={write_kubeconfig(api, tmp_path)}",
        )  # fmt: skip
        options = [option for setting in settings for option in ("--set", setting)]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "extender", "serve", *options), stderr=subprocess.PIPE
        )
        try:
            await eventually(lambda: api.requests)
            async with asyncio.timeout(60):
                process.send_signal(signal.SIGTERM)
                _, said = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    assert process.returncode == 0, said.decode()
    assert [json.loads(line)["event"] for line in said.splitlines()][-1] == "service.stopped"


async def test_the_process_ends_within_its_grace_whatever_is_under_way(tmp_path: Path) -> None:
    """A call that waits for a lookup takes its whole time, and the API server no longer takes the Lease back."""
    grace_seconds = 3
    async with HoldingRegistry() as held, serve_api() as api, aiohttp.ClientSession() as session:
        api.put(NODES.path, node("a"))
        held.add_manifest("app", "1", "linux/amd64")
        settings = (
            *SETTINGS, "admission.unknown=gate", f"shutdown.grace_seconds={grace_seconds}", "scheduler.wait_seconds=30",
            f"registry.plain_http=['{held.host}']", f"registry.allow=['{held.host}']",
            f"cluster={write_kubeconfig(api, tmp_path)}",
        )  # fmt: skip
        options = [option for setting in settings for option in ("--set", setting)]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "extender", "serve", *options), stderr=subprocess.PIPE
        )
        try:
            at = await addresses_of(process, "operations")
            await eventually(lambda: api.objects(LEASES))
            await eventually(lambda: is_ready(session, at["operations"]))
            body = msgspec.json.encode(with_names(pod(f"{held.host}/app:1"), ["a"]))
            call = asyncio.create_task(session.post(f"http://{at['scheduler']}/scheduler/filter", data=body))
            await held.reached.wait()
            api.change_seconds = 60
            process.send_signal(signal.SIGTERM)
            began = time.monotonic()
            await asyncio.wait_for(process.communicate(), 60)
            took = time.monotonic() - began
            await asyncio.gather(call, return_exceptions=True)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
            held.released.set()
    assert process.returncode == 0
    assert took < grace_seconds + 1


async def addresses_of(process: asyncio.subprocess.Process, last: str) -> dict[str, str]:
    """The addresses of its listeners by their names, once the last one has been opened."""
    assert process.stderr
    addresses: dict[str, str] = {}
    async with asyncio.timeout(60):
        while last not in addresses:
            event = json.loads(await process.stderr.readline())
            if event["event"] == "listener.opened":
                addresses[event["listener"]] = event["address"]
    return addresses


async def is_ready(session: aiohttp.ClientSession, address: str) -> bool:
    async with session.get(f"http://{address}/readyz") as response:
        return response.status == 200


async def test_a_signal_at_the_first_moment_is_not_lost() -> None:
    """Before anything is open, and whatever opens first; a second signal does not disturb the end."""
    config = load_config(None, [*SETTINGS, "cluster=none"])
    with structlog.testing.capture_logs() as logs:
        serving = asyncio.create_task(run_service(config))
        await asyncio.sleep(0)
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        await serving
    assert "service.stopped" in [each["event"] for each in logs]
