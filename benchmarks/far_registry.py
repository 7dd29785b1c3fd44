"""A registry that is far away: it makes up any image from its name, and delays each answer.

`python -m benchmarks.far_registry CORE DELAY_SECONDS` pins itself to a core, prints its hosts as one line of JSON, and
ends when standard input is closed. Every image exists, apart from these: those under `missing/` are answered with 404,
those under `broken/` with 503. Images under `single/` are for one platform.
"""

import asyncio
import contextlib
import os
import re
import socket
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from zlib import crc32

import msgspec
import uvloop
from aiohttp import web

from extender.images.reference import digest_of
from testbed.child import child
from testbed.images import Bundle, Manifest, build_index, build_manifest

HOSTS = 16
ASK_SECONDS = 10
_TRIES = 10
_PATH = re.compile(r"/v2/(?P<repository>.+)/(?P<kind>manifests|blobs)/(?P<name>[^/]+)")
_PLATFORMS = ("linux/amd64", "linux/arm64", "linux/arm/v7", "linux/s390x", "linux/ppc64le", "linux/386")


class Counts(msgspec.Struct):
    """Requests by kind and connections since `forget`, and the most requests that each host had in flight at once."""

    requests: dict[str, int]
    connections: int
    peak_in_flight: Mapping[str, int]

    def of(self, kind: str) -> int:
        """Returns the number of requests of a kind: `HEAD manifests`, `GET manifests` or `GET blobs`."""
        return self.requests.get(kind, 0)


class FarRegistry(msgspec.Struct, frozen=True):
    """A running registry, which answers at each of `hosts`."""

    hosts: Sequence[str]

    def counts(self) -> Counts:
        """Returns the counts since the last `forget`."""
        return msgspec.json.decode(self._ask("counts"), type=Counts)

    def forget(self) -> None:
        """Sets all counts to zero."""
        self._ask("forget")

    def _ask(self, path: str) -> bytes:
        with urllib.request.urlopen(f"http://{self.hosts[0]}/{path}", timeout=ASK_SECONDS) as answer:
            return bytes(answer.read())


def is_multi_arch(repository: str) -> bool:
    """Whether the images of a repository, named without its host, are for amd64 and arm64."""
    return not repository.startswith(("missing/", "broken/")) and len(platforms_of(repository)) > 1


def platforms_of(repository: str) -> tuple[str, ...]:
    """Returns the platforms of a repository's images. Those for several are for amd64 and arm64 at least."""
    number = crc32(repository.encode())
    if repository.startswith("single/"):
        return (_PLATFORMS[number % 2],)
    return _PLATFORMS[: 1 + number % len(_PLATFORMS)]


@contextlib.contextmanager
def far_registry(*, core: int, delay_seconds: float) -> Iterator[FarRegistry]:
    """Runs a registry in a process of its own, on that core."""
    with child("benchmarks.far_registry", core, delay_seconds) as process:
        yield FarRegistry(msgspec.json.decode(process.said, type=list[str]))


class _Server(web.Server):
    """Makes answers from the names in the requests, and counts requests and connections."""

    def __init__(self, delay_seconds: float) -> None:
        super().__init__(self._answer, access_log=None)
        self._delay_seconds = delay_seconds
        self._manifests: dict[str, Manifest] = {}
        self._blobs: dict[str, bytes] = {}
        self._counts = Counts({}, 0, {})
        self._in_flight = Counter[str]()

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        """Counts the connection."""
        self._counts.connections += 1
        super().connection_made(handler, transport)

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        found = _PATH.fullmatch(request.path)
        if found is None:
            return self._answer_the_benchmark(request.path)
        kind, host, counts = f"{request.method} {found['kind']}", request.host, self._counts
        counts.requests[kind] = counts.requests.get(kind, 0) + 1
        self._in_flight[host] += 1
        counts.peak_in_flight = {
            **counts.peak_in_flight, host: max(counts.peak_in_flight.get(host, 0), self._in_flight[host])
        }  # fmt: skip
        await asyncio.sleep(self._delay_seconds)
        self._in_flight[host] -= 1
        return (
            self._answer_blob(found["name"]) if found["kind"] == "blobs" else self._answer_manifest(*found.group(1, 3))
        )

    def _answer_the_benchmark(self, path: str) -> web.Response:
        self._counts.connections -= 1  # the connection of this request
        if path == "/forget":
            self._counts = Counts({}, 0, {})
        return web.Response(body=msgspec.json.encode(self._counts), content_type="application/json")

    def _answer_manifest(self, repository: str, name: str) -> web.Response:
        if repository.startswith("missing/"):
            return web.Response(status=404)
        if repository.startswith("broken/"):
            return web.Response(status=503)
        manifest = self._manifests.get(name) or self._make(repository, name)
        headers = {"Docker-Content-Digest": manifest.digest}
        return web.Response(body=manifest.body, content_type=manifest.media_type, headers=headers)

    def _make(self, repository: str, tag: str) -> Manifest:
        """Makes and returns the manifest of a tag. From then on its digest and its blobs can be fetched."""
        bundle = _bundle_of(repository)
        outermost = bundle.manifests[-1]
        body = outermost.body[:-1] + f',"annotations":{{"tag":"{repository}:{tag}"}}}}'.encode()
        manifest = Manifest(outermost.media_type, body)
        self._manifests[manifest.digest] = manifest
        self._blobs.update((digest_of(blob), blob) for blob in bundle.blobs)
        return manifest

    def _answer_blob(self, digest: str) -> web.Response:
        blob = self._blobs.get(digest)
        return web.Response(status=404) if blob is None else web.Response(body=blob)


def _bundle_of(repository: str) -> Bundle:
    platforms = platforms_of(repository)
    return build_manifest(platforms[0]) if repository.startswith("single/") else build_index(platforms)


def _bind() -> list[socket.socket]:
    """Returns a socket for each address, all with one port. Raises OSError if it is in use at one of them."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(HOSTS)]
        port = 0
        for number, each in enumerate(sockets, 1):
            each.bind((f"127.0.0.{number}", port))
            port = each.getsockname()[1]
        stack.pop_all()
    return sockets


def _bind_where_free() -> list[socket.socket]:
    """As `_bind`, with another port where one is in use."""
    for _ in range(_TRIES - 1):
        with contextlib.suppress(OSError):
            return _bind()
    return _bind()


async def _serve(delay_seconds: float) -> None:
    """Serves the same port on several loopback addresses, which are different hosts to a client."""
    runner = web.ServerRunner(_Server(delay_seconds), shutdown_timeout=1)
    await runner.setup()
    for each in _bind_where_free():
        await web.SockSite(runner, each, backlog=1024).start()
    hosts = [f"{address}:{port}" for address, port in runner.addresses]
    print(msgspec.json.encode(hosts).decode(), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await runner.cleanup()


if __name__ == "__main__":
    os.sched_setaffinity(0, {int(sys.argv[1])})
    uvloop.run(_serve(float(sys.argv[2])))
