"""The Python servers that measured_servers.py starts: the service with cached images, and two minimal ones of aiohttp.

`python -m benchmarks.python_servers service|floor|application CORE [--nodes N] [--images N] [--certificate FILE --key
FILE]` pins itself to a core, prints its addresses as one line of JSON, and ends when standard input is closed. All code
is the service's own: its nodes are in the view that a watch fills in a cluster, and its images, besides those of the
registry, come from a store as after a restart.
"""

import argparse
import asyncio
import gc
import logging
import os
import ssl
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Never

import msgspec
import uvloop
from aiohttp import web

from benchmarks.payloads import architecture, node_name, resident_image
from extender.cluster.client import ClusterRefused
from extender.cluster.views import WatchedNodes
from extender.config.reading import load_config
from extender.credentials.keyring import ANONYMOUS
from extender.fetcher.sources import open_local_sources
from extender.images.content import Content
from extender.images.manifest import Kind
from extender.images.platform import Platform
from extender.images.reference import digest_of, pack_digest, parse_reference
from extender.logs import configure_logs
from extender.metrics import REGISTRY
from extender.service.cluster_view import ClusterView
from extender.service.compose import open_service
from extender.store.rows import Batch, NameRow
from extender.store.sqlite import SqliteStore
from testbed.embedded_registry import EmbeddedRegistry

BODY_BYTES = 256 * 1024 * 1024
LOAD_SECONDS = 60
_BATCH_ROWS = 1_000
_MULTI_ARCH = Content(Kind.INDEX, frozenset({Platform("linux", "amd64"), Platform("linux", "arm64")}), True)


class Nowhere:
    """The API server of a cluster whose nodes are all in the view already."""

    async def get(self, path: str, query: Mapping[str, str] | None = None, *, accept: str = "") -> Never:
        """Refuses every request.

        Raises:
            ClusterRefused: always.
        """
        del query, accept
        raise ClusterRefused(f"{path}: not found", status=404)

    def stream(self, path: str, *_args: object, **_more: object) -> AsyncGenerator[bytes, None]:
        """Nothing is watched."""
        raise AssertionError(path)


class CurrentNodes(WatchedNodes):
    """A view as a watch keeps it that is not cut off."""

    @property
    def is_current(self) -> bool:
        """Always true: nothing else changes this cluster."""
        return True


def node_view(count: int) -> WatchedNodes:
    """Returns the view of a cluster of `count` nodes, synced and current."""
    view = CurrentNodes(Nowhere(), clock=time.monotonic)
    names = [node_name(index) for index in range(count)]
    for index, name in enumerate(names):
        info = {"architecture": architecture(index), "operatingSystem": "linux"}
        view.upsert(msgspec.json.encode({"metadata": {"name": name}, "status": {"nodeInfo": info}}))
    view.keep_only(set(names))
    return view


async def fill_store(path: Path, images: int) -> None:
    """Writes a store of so many multi-arch images, as if a service had just looked them up."""
    store = SqliteStore(path, size=images)
    for start in range(0, images, _BATCH_ROWS):
        await store.put(Batch([_row(index) for index in range(start, min(start + _BATCH_ROWS, images))], {}))
    await store.close()


def _row(index: int) -> NameRow:
    reference = parse_reference(resident_image(index))
    packed = pack_digest(digest_of(b"%d" % index))
    repository = f"{reference.domain}/{reference.path}"
    return NameRow(repository, reference.tag or "", ANONYMOUS.id, packed, _MULTI_ARCH, time.time())


async def all_loaded(images: int) -> None:
    """Returns when so many images are cached.

    Raises:
        TimeoutError: there are fewer after a minute.
    """
    async with asyncio.timeout(LOAD_SECONDS):
        while (REGISTRY.get_sample_value("multiarch_images", {"state": "known"}) or 0) < images:
            await asyncio.sleep(0.05)


async def serve_service(options: argparse.Namespace) -> None:
    """Serves the service beside a registry of two multi-arch images and one amd64-only image."""
    with tempfile.TemporaryDirectory() as scratch:
        store = Path(scratch) / "images.sqlite"
        if options.images:
            await fill_store(store, options.images)
        async with EmbeddedRegistry() as registry:
            registry.add_index("bench/multi", "1", ["linux/amd64", "linux/arm64"])
            registry.add_index("bench/sidecar", "1", ["linux/amd64", "linux/arm64"])
            registry.add_index("bench/single", "1", ["linux/amd64"])
            settings = _settings(options, registry.host, f"sqlite:///{store}" if options.images else "memory:")
            config = load_config(None, [f"{path}={value}" for path, value in settings.items()])
            cluster_view = ClusterView(node_view(options.nodes))
            async with open_service(config, cluster_view, open_local_sources) as service:
                await all_loaded(options.images)
                gc.collect()
                _say(scheduler=service.scheduler_url, admission=service.admission_url, registry=registry.host)
                await asyncio.to_thread(sys.stdin.read)


def _settings(options: argparse.Namespace, registry: str, store: str) -> Mapping[str, object]:
    """The settings that differ from the defaults: listeners and registry."""
    certificate, key = options.certificate, options.key
    return {
        "scheduler.listen": "127.0.0.1:0",
        "scheduler.wait_seconds": "5",
        "admission.listen": "127.0.0.1:0",
        "admission.tls": f"{{certificate: {certificate}, key: {key}}}" if certificate else "null",
        "operations.listen": "",
        "cluster": "none",
        "cache.url": f"'{store}'",
        "cache.size": options.images + 10_000,
        "registry.plain_http": f"['{registry}']",
        "registry.allow": f"['{registry}']",
        "shutdown.grace_seconds": "1",
    }


async def serve_floor(options: argparse.Namespace) -> None:
    """Serves the minimum of the framework: aiohttp's low-level server reads the body and answers two bytes."""

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
    await _listen(web.ServerRunner(server, shutdown_timeout=1), options)


async def serve_application(options: argparse.Namespace) -> None:
    """Serves the handler of aiohttp's tutorial: an Application with a router, which answers two bytes too."""

    async def handle(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(body=b"{}", content_type="application/json")

    application = web.Application(client_max_size=BODY_BYTES)
    application.router.add_post("/admission/pods", handle)
    await _listen(web.AppRunner(application, access_log=None, shutdown_timeout=1), options)


async def _listen(runner: web.BaseRunner, options: argparse.Namespace) -> None:
    """Serves with aiohttp's own listener, over TLS if the options name a certificate."""
    tls = None
    if options.certificate:
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(options.certificate, options.key)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    host, port = runner.addresses[0][:2]
    gc.collect()
    gc.freeze()
    _say(url=f"{'https' if tls else 'http'}://{host}:{port}")
    await asyncio.to_thread(sys.stdin.read)
    await runner.cleanup()


def _say(**addresses: str) -> None:
    print(msgspec.json.encode(addresses).decode(), flush=True)


SERVED = {"service": serve_service, "floor": serve_floor, "application": serve_application}


def main() -> None:
    """Serves what the arguments name."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=SERVED)
    parser.add_argument("core", type=int)
    parser.add_argument("--nodes", type=int, default=5_000)
    parser.add_argument("--images", type=int, default=0)
    parser.add_argument("--certificate", default="")
    parser.add_argument("--key", default="")
    options = parser.parse_args()
    os.sched_setaffinity(0, {options.core})
    configure_logs("error", "json")
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)  # a load ends during its last requests
    uvloop.run(SERVED[options.kind](options))


if __name__ == "__main__":
    main()
