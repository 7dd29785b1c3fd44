"""An API server with what the service reads: nodes, namespaces, pending pods, pull secrets.

Why not kube-apiserver: with its etcd it would need more of the two cores than all that is here, and has limits of its
own on what attackers can do. Pods come by `POST /siege/pods`; watchers of pods are told of them.
"""

import base64
from collections.abc import Mapping
from typing import Any

import msgspec
from aiohttp import web

from benchmarks.quiet_cluster import Collections
from benchmarks.siege.network import HONEST_REGISTRIES, MIRRORED, honest_host

LOGIN = "honest:tenant"
"""The user and password for private images."""
LOGIN_SECRET = "login"
"""The pull secret with that login, which every namespace has. Each other one has 10,000 entries."""
ENTRIES = 10_000


class ApiServer(Collections):
    """Answers lists, watches and reads of secrets. All versions are 1, since nothing but pending pods changes."""

    def __init__(self, nodes: int) -> None:
        super().__init__(nodes)
        login = {"auth": base64.b64encode(LOGIN.encode()).decode()}
        hosts = [honest_host(number) for number in range(len(HONEST_REGISTRIES))]
        self._login = _secret(dict.fromkeys([*hosts, MIRRORED], login))
        self._large = _secret({f"{number:x}.io": {"auth": "YTpi"} for number in range(ENTRIES)})

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answers one request; the service has every right."""
        if request.path == "/siege/pods":
            self.announce("ADDED", await request.read())
            return web.Response()
        if request.path.endswith("accessreviews"):
            review = msgspec.json.decode(await request.read()) | {"status": {"allowed": True}}
            return web.Response(status=201, body=msgspec.json.encode(review), content_type="application/json")
        if "/secrets/" in request.path:
            body = self._login if request.path.endswith(f"/{LOGIN_SECRET}") else self._large
            return web.Response(body=body, content_type="application/json")
        return await super().answer(request)

    def hears(self, request: web.BaseRequest) -> bool:
        """The watch of pending pods."""
        return request.path == "/api/v1/pods"


def _secret(logins: Mapping[str, Any]) -> bytes:
    document = base64.b64encode(msgspec.json.encode({"auths": logins})).decode()
    return msgspec.json.encode(
        {"metadata": {"name": "s"}, "type": "kubernetes.io/dockerconfigjson", "data": {".dockerconfigjson": document}}
    )
