"""A cluster in which nothing changes: an API server with so many nodes, whose watches send only bookmarks.

`python -m benchmarks.quiet_cluster CORE NODES` pins itself to a core, prints its address as one line of JSON, and ends
when standard input is closed. It lists whole nodes of about 11 KB in pages of one version, as a real API server does.
"""

import asyncio
import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec
import uvloop
from aiohttp import web

from benchmarks.payloads import node
from testbed.child import child

KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: quiet
contexts: [{{name: quiet, context: {{cluster: quiet, user: nobody}}}}]
clusters: [{{name: quiet, cluster: {{server: "{url}"}}}}]
users: [{{name: nobody, user: {{token: none}}}}]
"""


BOOKMARK_SECONDS = 60.0
_WAITING = 2_000  # events for one watch
_BOOKMARK = b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"1"}}}\n'


class QuietCluster(msgspec.Struct, frozen=True):
    """A running API server at `url`, and a kubeconfig file for it."""

    url: str
    kubeconfig: Path


@contextlib.contextmanager
def quiet_cluster(
    *, core: int, nodes: int, program: str = "benchmarks.quiet_cluster", more: Iterable[object] = ()
) -> Iterator[QuietCluster]:
    """Runs a cluster of so many nodes, in a process of its own on that core.

    `program` is the module that it runs, and `more` are its further arguments.
    """
    with child(program, core, nodes, *more) as process, tempfile.TemporaryDirectory() as scratch:
        url = msgspec.json.decode(process.said, type=str)
        kubeconfig = Path(scratch) / "kubeconfig"
        kubeconfig.write_text(KUBECONFIG.format(url=url))
        yield QuietCluster(url, kubeconfig)


class Collections:
    """Answers lists and watches: of each collection that was added all there is, of everything else nothing.

    Watches send bookmarks, and those that `hears` says send what is announced too.
    """

    def __init__(self, nodes: int) -> None:
        self._objects: dict[str, list[msgspec.Raw]] = {}
        self._watches: dict[asyncio.Queue[bytes], bool] = {}
        self.add("/api/v1/nodes", map(node, range(nodes)))

    def add(self, path: str, objects: Iterable[object]) -> None:
        """Adds a collection, which is listed at that path."""
        self._objects[path] = [msgspec.Raw(msgspec.json.encode(each)) for each in objects]

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answers with a page of the list, or with a watch without changes."""
        if request.query.get("watch") == "true":
            return await self._watch(request)
        is_labelled = "labelSelector" in request.query  # which no object is
        items = [] if is_labelled else self._objects.get(request.path, [])
        first, limit = int(request.query.get("continue") or 0), int(request.query.get("limit") or len(items) or 1)
        following = first + limit
        metadata = {"resourceVersion": "1", "continue": str(following) if following < len(items) else ""}
        body = msgspec.json.encode({"kind": "List", "metadata": metadata, "items": items[first:following]})
        return web.Response(body=body, content_type="application/json")

    def hears(self, request: web.BaseRequest) -> bool:
        """Whether this watch sends what is announced."""
        del request
        return False

    def announce(self, kind: str, raw: bytes) -> None:
        """Sends an object to watches; a slow one loses it, as it would be cut off."""
        for events, hears in self._watches.items():
            if hears and not events.full():
                events.put_nowait(b'{"type":"%b","object":%b}\n' % (kind.encode(), raw))

    def end(self) -> None:
        """Ends all watches."""
        for events in self._watches:
            events.put_nowait(b"")

    async def _watch(self, request: web.BaseRequest) -> web.StreamResponse:
        """Sends events, or a bookmark if there is none for a while; ends after the client's `timeoutSeconds`."""
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        events: asyncio.Queue[bytes] = asyncio.Queue(_WAITING)
        self._watches[events] = self.hears(request)
        event = _BOOKMARK
        try:
            async with asyncio.timeout(float(request.query.get("timeoutSeconds") or BOOKMARK_SECONDS)):
                while event:
                    await response.write(event)
                    try:
                        event = await asyncio.wait_for(events.get(), BOOKMARK_SECONDS)
                    except TimeoutError:
                        event = _BOOKMARK
        except TimeoutError:
            pass
        finally:
            del self._watches[events]
        return response


def main(make: Callable[..., Collections]) -> None:
    """Runs a cluster as a program: on the core of the first argument, made from those after it."""
    os.sched_setaffinity(0, {int(sys.argv[1])})
    uvloop.run(_serve(make(*sys.argv[2:])))


async def _serve(collections: Collections) -> None:
    """Answers on a free port, whose URL it prints as JSON, until standard input is closed."""
    runner = web.ServerRunner(web.Server(collections.answer, access_log=None), shutdown_timeout=1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(msgspec.json.encode(f"http://127.0.0.1:{runner.addresses[0][1]}").decode(), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    collections.end()
    await runner.cleanup()


if __name__ == "__main__":
    main(lambda nodes: Collections(int(nodes)))
