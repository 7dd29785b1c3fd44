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
    """Has one Lease, allows everything, and sends each pod that is posted to the controller's watch."""

    def __init__(self, nodes: int) -> None:
        super().__init__(nodes)
        self._ungated: asyncio.Queue[str] = asyncio.Queue()

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answers one request."""
        body, path = await request.read(), request.path
        if path == HELD:
            self.announce("ADDED", body)
            patched = await self._ungated.get()
            self.announce("DELETED", body)  # from among the labelled ones
            await asyncio.sleep(_SETTLE_SECONDS)
            return web.Response(text=patched)
        if request.method != "GET":
            return self._change(path, body)
        return web.Response(status=404) if "/leases/" in path else await super().answer(request)

    def _change(self, path: str, body: bytes) -> web.Response:
        """Answers as if the Lease were written, a right asked for, or a pod patched, which loses its gate so."""
        if "/pods/" in path:
            self._ungated.put_nowait(path)
        answer = {"metadata": {"resourceVersion": "1"}, "status": {"allowed": True}}
        return web.Response(
            body=msgspec.json.encode(msgspec.json.decode(body) | answer), content_type="application/json"
        )

    def hears(self, request: web.BaseRequest) -> bool:
        """The controller's watch of held pods, which it finds by their label."""
        return "labelSelector" in request.query


if __name__ == "__main__":
    main(lambda nodes: GatedCluster(int(nodes)))
