"""The rights that the chart's roles give, and a record of those that are used."""

import base64
import re
import ssl
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec
from aiohttp import web

from testbed.certificates import Authority
from testbed.control_plane import LocalCluster
from testbed.objects import KubernetesObject

_ONE_NAME = re.compile(r"^metadata\.name=([^,]+)$")
_KEPT = ("Content-Type", "Content-Encoding")
_VERBS = {"POST": "create", "PATCH": "patch", "PUT": "update", "DELETE": "delete"}


class Right(msgspec.Struct, frozen=True):
    """A verb on a resource; on one object of it where there is a name."""

    resource: str
    verb: str
    name: str = ""


ONCE_A_POD_CHANGES = Right("pods", "get", "")  # a held one, as it is let go: worlds play it


class Recorder:
    """Passes everything on to the API server, and keeps which rights were used.

    `kubeconfig` is the administrator's, but leads here.
    """

    def __init__(self, server: str, tls: ssl.SSLContext, session: aiohttp.ClientSession, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig
        self.used: set[Right] = set()
        self.refused: set[str] = set()
        self._server, self._tls, self._session = server, tls, session

    async def handle(self, request: web.Request) -> web.StreamResponse:
        headers = {name: value for name, value in request.headers.items() if name.lower() != "host"}
        body = await request.read()
        async with self._session.request(
            request.method, f"{self._server}{request.raw_path}", data=body or None, headers=headers, ssl=self._tls
        ) as answer:
            if used := _right(request):
                self.used.add(used)
            if answer.status == 403:
                self.refused.add(request.raw_path)
            kept = {name: answer.headers[name] for name in _KEPT if name in answer.headers}
            passed = web.StreamResponse(status=answer.status, headers=kept)
            await passed.prepare(request)
            async for chunk in answer.content.iter_any():
                await passed.write(chunk)
        return passed


def _right(request: web.Request) -> Right | None:
    """What a request takes; None for discovery and for one's own rights, which every account may ask for."""
    parts = urlsplit(request.raw_path).path.strip("/").split("/")
    parts = parts[2:] if parts[0] == "api" else parts[3:]  # api/v1/…, apis/GROUP/VERSION/…
    if not parts:
        return None
    if parts[0] == "namespaces" and len(parts) > 2:
        parts = parts[2:]
    resource, name = "/".join((parts[0], *parts[2:3])), "".join(parts[1:2])  # pods, pods/binding
    if resource == "selfsubjectaccessreviews":
        return None
    chosen = name or "".join(_ONE_NAME.findall(request.query.get("fieldSelector", "")))  # as the API server takes it
    if request.method != "GET":
        return Right(resource, _VERBS[request.method], chosen)
    if request.query.get("watch") in ("1", "true"):
        return Right(resource, "watch", chosen)
    return Right(resource, "get" if name else "list", chosen)


@asynccontextmanager
async def recording(control_plane: LocalCluster, folder: Path) -> AsyncIterator[Recorder]:
    """A recorder in front of the API server, with TLS: client-go sends tokens over nothing else."""
    own = Path(tempfile.mkdtemp(prefix="recorder-", dir=folder))
    kubeconfig: dict[str, Any] = msgspec.yaml.decode(control_plane.kubeconfig.read_bytes())
    [cluster] = [each["cluster"] for each in kubeconfig["clusters"]]
    tls = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
    authority = Authority(own)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*authority.issue("recorder"))
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None), auto_decompress=False) as session:
        recorder = Recorder(cluster["server"], tls, session, own / "admin.kubeconfig")
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", recorder.handle)
        runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
        cluster["server"] = f"https://127.0.0.1:{runner.addresses[0][1]}"
        cluster["certificate-authority-data"] = base64.b64encode(authority.certificate.read_bytes()).decode()
        recorder.kubeconfig.write_bytes(msgspec.yaml.encode(kubeconfig))
        try:
            yield recorder
        finally:
            await runner.cleanup()


def rights_of(objects: Sequence[KubernetesObject]) -> set[Right]:
    """What the roles among the objects give, one by one."""
    return {
        Right(resource, verb, name)
        for each in objects
        if each["kind"] in ("Role", "ClusterRole")
        for rule in each["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames", [""])
    }


def used_rights(recorder: Recorder, objects: Sequence[KubernetesObject]) -> set[Right]:
    """What was used, where a request for an object that no role names takes the right to all of the resource."""
    given = rights_of(objects)
    return {right if right in given else msgspec.structs.replace(right, name="") for right in recorder.used}
