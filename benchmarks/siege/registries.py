"""The registries of the siege: honest ones, and those of attackers, which do what their host's name says.

Honest registries answer after 50 ms. Repositories under `project-KIND/` there are an attacker's, and do what KIND says;
those under `made-up-…` do not exist, and are answered with 500. A mirror answers as the registry that it is asked for.
"""

import asyncio
import base64
import functools
from collections.abc import Awaitable, Callable
from zlib import crc32

from aiohttp import web

from benchmarks.siege.api_server import LOGIN
from benchmarks.siege.images import DENIED, Manifests
from benchmarks.siege.network import ATTACKING_ZONE, MIRROR, attacking_host
from extender.images.manifest import OCI_INDEX
from extender.images.reference import digest_of

DELAY_SECONDS = 0.05
RETRY_AFTER_SECONDS = 36_000
_AUTHORIZATION = f"Basic {base64.b64encode(LOGIN.encode()).decode()}"
_MOST_BYTES = 4 << 20  # that are read of a manifest
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\n" % OCI_INDEX.encode()
_BUFFERED_BYTES = 256 << 10
_FOR_EVER_SECONDS = 3600.0
_BLOBS = "/blobs/"

Answer = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class Registries:
    """Answers the pull part of the distribution-spec by what names say."""

    def __init__(self) -> None:
        self._manifests = Manifests()

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answers one request as its kind of registry or project does."""
        kind, repository, name = _read(request)
        if kind in _KINDS:
            return await _KINDS[kind](request)
        if not name:
            return web.Response(status=404)
        if kind.isdigit():
            headers = {"Retry-After": str(RETRY_AFTER_SECONDS)} if kind == "429" else {}
            return web.Response(status=int(kind), headers=headers)
        if not request.host.endswith(ATTACKING_ZONE):
            await asyncio.sleep(DELAY_SECONDS)
        if name.startswith(DENIED):
            return web.Response(status=403)
        is_closed = is_private(repository) and request.host != MIRROR  # which no login is shown to
        if is_closed and request.headers.get("Authorization") != _AUTHORIZATION:
            return web.Response(status=401, headers={"WWW-Authenticate": 'Basic realm="siege"'})
        return self._blob(name) if _BLOBS in request.path else self._manifest(kind, repository, name)

    def _blob(self, digest: str) -> web.Response:
        blob = self._manifests.find_blob(digest)
        return web.Response(status=404) if blob is None else web.Response(body=blob)

    def _manifest(self, kind: str, repository: str, name: str) -> web.Response:
        of_digest = name.startswith("sha256:")
        found = self._manifests.find(kind, name) if of_digest else self._manifests.make(kind, repository, name)
        if found is None:
            return web.Response(status=404)
        headers = {"Docker-Content-Digest": found.digest, "Content-Type": found.media_type}
        return web.Response(body=found.body, headers=headers)


def is_private(repository: str) -> bool:
    """Whether a repository's images need a login: it belongs to a namespace with an odd number."""
    namespace = repository.partition("/")[0].removeprefix("team-")
    return namespace.isdigit() and int(namespace) % 2 == 1


def _read(request: web.BaseRequest) -> tuple[str, str, str]:
    """Returns the kind, the repository, and the tag or digest; these are empty if the request is for something else."""
    what = _BLOBS if _BLOBS in request.path else "/manifests/"
    repository, _, name = request.path.removeprefix("/v2/").partition(what)
    upstream = request.query.get("ns", "") if request.host == MIRROR else ""
    host = upstream or request.host.partition(":")[0]
    if host.endswith(f".{ATTACKING_ZONE}"):
        return host.removesuffix(f".{ATTACKING_ZONE}").rpartition(".")[2], repository, name
    first = repository.partition("/")[0]
    if first.startswith("made-up-"):
        return "500", repository, name
    return (first.removeprefix("project-") if first.startswith("project-") else ""), repository, name


async def _endless(
    request: web.BaseRequest, *, head: bytes = b"", piece: bytes = b"", seconds: float = 0.001
) -> web.StreamResponse:
    """Sends `head`, and then `piece` again and again, after so many seconds each, as fast as the client reads.

    A HEAD request is answered as if there were an image, so that its body is asked for.
    """
    if request.method == "HEAD" and head.startswith(_HEAD):
        digest = digest_of(request.path.encode())
        return web.Response(headers={"Docker-Content-Digest": digest, "Content-Type": OCI_INDEX})
    transport = request.transport
    if transport and head:
        transport.write(head)
    while transport and not transport.is_closing():
        if piece and transport.get_write_buffer_size() < _BUFFERED_BYTES:
            transport.write(piece)
        await asyncio.sleep(seconds)
    return web.Response()


async def _chunked(request: web.BaseRequest) -> web.StreamResponse:
    """Sends chunks of one byte, or one chunk whose extension does not end, by what the host is called."""
    head = _HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
    if crc32(request.host.encode()) % 2:
        return await _endless(request, head=head, piece=b"1\r\n \r\n" * 10_000)
    return await _endless(request, head=head + b"1;", piece=b"x" * 60_000)


async def _redirect(request: web.BaseRequest) -> web.StreamResponse:
    """Sends the client to another host of the circle: with a redirect, or for a token, by what the host is called."""
    number = crc32(request.host.encode())
    following = f"https://{attacking_host(f'c{number % 1000}', 'circle')}"
    if number % 2 and not request.path.startswith("/token"):
        challenge = f'Bearer realm="{following}/token",service="siege",scope="{request.path}"'
        return web.Response(status=401, headers={"WWW-Authenticate": challenge})
    return web.Response(status=307, headers={"Location": f"{following}{request.path_qs}"})


async def _linger(request: web.BaseRequest) -> web.StreamResponse:
    """Answers, and from then on does not read, not even that the client ends the connection."""
    if request.transport:
        request.transport.pause_reading()
    return web.Response(status=429)


_stall = functools.partial(_endless, seconds=_FOR_EVER_SECONDS)
_LENGTH = b"Content-Length: %d\r\n\r\n" % _MOST_BYTES
_KINDS: dict[str, Answer] = {
    "hang": _stall,
    "upstream": _stall,
    "drip": functools.partial(_endless, head=_HEAD + _LENGTH, piece=b" ", seconds=1.0),
    "stop": functools.partial(_stall, head=_HEAD + _LENGTH + b" " * (_MOST_BYTES - 1)),
    "103": functools.partial(_endless, piece=b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" * 1_000),
    "chunks": _chunked,
    "circle": _redirect,
    "linger": _linger,
}
KINDS = frozenset({*_KINDS, "any", "hostile", "fat", "429", "late"})
"""Those of the attackers' hosts, whose names are in the certificate."""
