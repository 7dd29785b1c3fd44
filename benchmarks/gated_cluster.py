"""A quiet cluster in which pods are held: `POST /held` with a pod is answered once the pod has lost its gate.

`python -m benchmarks.gated_cluster CORE NODES` runs it, as `benchmarks.quiet_cluster` does.
"""

import asyncio

import msgspec
from aiohttp import web

from benchmarks.quiet_cluster import Collections, main

HELD = "/held"
_SETTLE_SECONDS = 0.05  # for the service to take in the answer to its patch


class GatedCluster(Collections):
    """Has one Lease, allows everything, and tells the controller's watch about each pod that is posted."""

    def __init__(self, nodes: int) -> None:
        super().__init__(nodes)
        self._events: asyncio.Queue[bytes] = asyncio.Queue()
        self._let_go: asyncio.Queue[str] = asyncio.Queue()

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answers one request."""
        body, path = await request.read(), request.path
        if path == HELD:
            self._send("ADDED", body)
            patched = await self._let_go.get()
            self._send("DELETED", body)  # from among the labelled ones
            await asyncio.sleep(_SETTLE_SECONDS)
            return web.Response(text=patched)
        if request.method != "GET":
            return self._change(path, body)
        if "labelSelector" in request.query and "watch" in request.query and "fieldSelector" not in request.query:
            return await self._watch_held(request)
        return web.Response(status=404) if "/leases/" in path else await super().answer(request)

    def _change(self, path: str, body: bytes) -> web.Response:
        """Answers as if the Lease were written, a right asked for, or a pod patched, which loses its gate so."""
        if "/pods/" in path:
            self._let_go.put_nowait(path)
        answer = {"metadata": {"resourceVersion": "1"}, "status": {"allowed": True}}
        return web.Response(
            body=msgspec.json.encode(msgspec.json.decode(body) | answer), content_type="application/json"
        )

    def _send(self, kind: str, pod: bytes) -> None:
        self._events.put_nowait(b'{"type":"%b","object":%b}\n' % (kind.encode(), pod))

    async def _watch_held(self, request: web.BaseRequest) -> web.StreamResponse:
        """Sends the pods that come, until the client goes."""
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        while True:
            await response.write(await self._events.get())


if __name__ == "__main__":
    main(lambda nodes: GatedCluster(int(nodes)))
