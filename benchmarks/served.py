"""The process that is measured: the real service with its images cached, or aiohttp answering nothing in particular.

Run as `python -m benchmarks.served service|floor CORE`: pins itself to a core, prints its addresses as one line of
JSON, and ends when standard input does.
"""

import asyncio
import gc
import os
import sys
from collections.abc import Mapping, Sequence

import msgspec
import uvloop
from aiohttp import web

from benchmarks.payloads import architecture, node_name
from extender.config.reading import load_config
from extender.demo.registry import EmbeddedRegistry
from extender.images.platform import Platform
from extender.kubernetes.core_v1 import NodeName
from extender.logs import configure_logs
from extender.server.listener import open_listener
from extender.server.service import open_service
from extender.server.surroundings import NoCluster

NODES = 5_000
BODY_BYTES = 256 * 1024 * 1024


class StaticNodes:
    """A node view of NODES nodes that never changes."""

    synced = True

    def __init__(self) -> None:
        self.platforms: Mapping[NodeName, Platform | None] = {
            NodeName(node_name(index)): Platform("linux", architecture(index)) for index in range(NODES)
        }
        self.distinct = frozenset(platform for platform in self.platforms.values() if platform)

    async def find(self, names: Sequence[NodeName], wait_seconds: float) -> Sequence[NodeName]:
        """None of them: every node there is, is known."""
        del wait_seconds
        return names


async def serve_service() -> None:
    """The service beside a registry of one multi-arch and one amd64-only image."""
    async with EmbeddedRegistry() as registry:
        registry.add_index("bench/multi", "1", ["linux/amd64", "linux/arm64"])
        registry.add_index("bench/sidecar", "1", ["linux/amd64", "linux/arm64"])
        registry.add_index("bench/single", "1", ["linux/amd64"])
        settings = {
            "scheduler.listen": "127.0.0.1:0",
            "scheduler.wait_seconds": "5",
            "admission.listen": "127.0.0.1:0",
            "admission.tls": "null",
            "operations.listen": "",
            "cluster.mode": "none",
            "cache.url": "'memory:'",
            "registry.plain_http": f"['{registry.host}']",
            "registry.allow": f"['{registry.host}']",
            "shutdown.grace_seconds": "1",
        }
        config = load_config(None, [f"{path}={value}" for path, value in settings.items()])
        async with open_service(config, NoCluster(StaticNodes())) as service:
            gc.freeze()
            print(
                msgspec.json.encode(
                    {"scheduler": service.scheduler_url, "admission": service.admission_url, "registry": registry.host}
                ).decode(),
                flush=True,
            )
            await asyncio.to_thread(sys.stdin.read)


async def serve_floor() -> None:
    """The framework's own floor: aiohttp's low-level server reads the body and answers two bytes."""

    async def handle(request: web.BaseRequest) -> web.Response:
        await request.read()
        return web.Response(body=b"{}", content_type="application/json")

    loop = asyncio.get_running_loop()
    server = web.Server(
        handle,
        request_factory=lambda message, payload, protocol, writer, task: web.BaseRequest(
            message, payload, protocol, writer, task, loop, client_max_size=BODY_BYTES
        ),
        access_log=None,
    )
    listener = await open_listener("floor", web.ServerRunner(server, shutdown_timeout=1), "127.0.0.1", 0)
    print(msgspec.json.encode({"floor": f"http://{listener.address}"}).decode(), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await listener.close()


if __name__ == "__main__":
    os.sched_setaffinity(0, {int(sys.argv[2])})
    configure_logs("error", "json")
    uvloop.run(serve_service() if sys.argv[1] == "service" else serve_floor())
