"""The registries of the siege, over TLS: honest ones, and those of attackers, which do what their host's name says.

`python -m benchmarks.siege.registries ROLE CORE CERTIFICATE KEY FILE` prints a line when it listens, and ends when
standard input is closed; ROLE is `honest` or `attacking`. Honest registries answer after 50 ms, and their process also
runs the name server. On an honest registry the repositories under `project-KIND/` are an attacker's, and do what KIND
says. How late the timers of the process are goes to FILE.
"""

import asyncio
import contextlib
import logging
import os
import ssl
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from zlib import crc32

import uvloop
from aiohttp import web

from benchmarks.siege.images import DENIED, Manifests
from benchmarks.siege.name_server import NameServer
from benchmarks.siege.network import (
    ATTACKING_REGISTRY,
    ATTACKING_ZONE,
    HONEST_REGISTRIES,
    NAME_SERVER,
    attacking_host,
)
from benchmarks.siege.records import REGISTRIES, encode_record
from benchmarks.siege.timers import go_first, note_delays
from extender.demo.images import Manifest

DELAY_SECONDS = 0.05
PROJECT = "project-"
HANG_SECONDS = 3600.0
RETRY_AFTER_SECONDS = 36_000
DRIP_BYTES, DRIP_SECONDS = 100_000, 1.0
HTTPS = 443
_NICE = 5


class Registries:
    """Answers the pull part of the distribution-spec by what names say; nothing is stored."""

    def __init__(self, delay_seconds: float = DELAY_SECONDS) -> None:
        self._delay_seconds = delay_seconds
        self._manifests = Manifests()
        self._kinds: Mapping[str, Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]] = {
            "hang": self._hang,
            "drip": self._drip,
            "circle": self._redirect,
            "412": self._refuse,
            "429": self._refuse,
            "503": self._refuse,
        }

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answers one request as its kind of registry or project does."""
        kind, repository, name = _read(request)
        if not name:
            return web.Response(status=404)
        if kind in self._kinds:
            return await self._kinds[kind](request)
        if not request.host.endswith(ATTACKING_ZONE):
            await asyncio.sleep(self._delay_seconds)
        if name.startswith(DENIED):
            return web.Response(status=403)
        return _served(self._manifest(kind, repository, name))

    def _manifest(self, kind: str, repository: str, name: str) -> Manifest | None:
        if name.startswith("sha256:"):
            return self._manifests.find(name)
        return self._manifests.make(repository, name, hostile=kind == "hostile")

    async def _hang(self, _request: web.BaseRequest) -> web.StreamResponse:
        await asyncio.sleep(HANG_SECONDS)
        return web.Response(status=404)

    async def _drip(self, request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": str(DRIP_BYTES)})
        with contextlib.suppress(ConnectionError):  # the service has hung up
            await response.prepare(request)
            for _ in range(DRIP_BYTES):
                await response.write(b" ")
                await asyncio.sleep(DRIP_SECONDS)
        return response

    async def _redirect(self, request: web.BaseRequest) -> web.StreamResponse:
        """Sends the client to another host of the circle, with the same path."""
        label = f"c{crc32(request.host.encode()) % 1000}"
        return web.Response(
            status=307, headers={"Location": f"https://{attacking_host(label, 'circle')}{request.path_qs}"}
        )

    async def _refuse(self, request: web.BaseRequest) -> web.StreamResponse:
        status = int(_read(request)[0])
        headers = {"Retry-After": str(RETRY_AFTER_SECONDS)} if status == 429 else {}
        return web.Response(status=status, headers=headers)


def _read(request: web.BaseRequest) -> tuple[str, str, str]:
    """Returns the kind, the repository, and the tag or digest; empty if the request is for something else."""
    repository, separator, name = request.path.removeprefix("/v2/").rpartition("/manifests/")
    if not separator:
        return "", "", ""
    host = request.host.partition(":")[0]
    if host.endswith(f".{ATTACKING_ZONE}"):
        return host.removesuffix(f".{ATTACKING_ZONE}").rpartition(".")[2], repository, name
    first = repository.partition("/")[0]
    return (first.removeprefix(PROJECT) if first.startswith(PROJECT) else ""), repository, name


def _served(manifest: Manifest | None) -> web.Response:
    if manifest is None:
        return web.Response(status=404)
    headers = {"Docker-Content-Digest": manifest.digest, "Content-Type": manifest.media_type}
    return web.Response(body=manifest.body, headers=headers)


async def serve_registries(
    addresses: Sequence[str], port: int, tls: ssl.SSLContext | None, delay_seconds: float = DELAY_SECONDS
) -> web.ServerRunner:
    """Serves at these addresses; the caller cleans the runner up."""
    server = web.Server(Registries(delay_seconds).answer, access_log=None, handler_cancellation=True)
    runner = web.ServerRunner(server, shutdown_timeout=0.1)
    await runner.setup()
    for address in addresses:
        await web.TCPSite(runner, address, port, ssl_context=tls, backlog=1024).start()
    return runner


async def _serve(role: str, certificate: str, key: str, path: str) -> None:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate, key)
    addresses = HONEST_REGISTRIES if role == "honest" else (ATTACKING_REGISTRY,)
    runner = await serve_registries(addresses, HTTPS, tls)
    if role == "honest":
        await asyncio.get_running_loop().create_datagram_endpoint(NameServer, local_addr=(NAME_SERVER, 53))
    print("true", flush=True)
    with Path(path).open("ab", buffering=0) as log:
        noting = asyncio.create_task(note_delays(REGISTRIES, lambda record: log.write(encode_record(record))))
        await asyncio.to_thread(sys.stdin.read)
        noting.cancel()
    await runner.cleanup()


def main() -> None:
    """Runs the registries of one role."""
    role, core, certificate, key, path = sys.argv[1:]
    os.sched_setaffinity(0, {int(core)})
    logging.getLogger("asyncio").disabled = True  # uvloop reports each TLS connection that is cut off
    if role == "honest":
        go_first()
    else:
        os.setpriority(os.PRIO_PROCESS, 0, _NICE)
    uvloop.run(_serve(role, certificate, key, path))


if __name__ == "__main__":
    main()
