"""A part of the chart as processes on this machine: its own settings, account and rights, and a record of their use."""

import asyncio
import base64
import re
import ssl
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec
import yaml
from aiohttp import web

from testbed.api_client import ApiClient, ApiError
from testbed.binaries import chosen_kubernetes
from testbed.chart import objects_of, render
from testbed.control_plane import LocalCluster
from testbed.embedded_registry import EmbeddedRegistry
from testbed.eventually import eventually
from testbed.objects import KubernetesObject, namespace, pod
from testbed.processes import Process, free_port
from tests.e2e.policies import GATE, until_free

OURS = "multiarch-extender"
GRACE_SECONDS = 30.0
_ONE_NAME = re.compile(r"^metadata\.name=([^,]+)$")
_KEPT = ("Content-Type", "Content-Encoding")
_VERBS = {"POST": "create", "PATCH": "patch", "PUT": "update", "DELETE": "delete"}


class Right(msgspec.Struct, frozen=True):
    """A verb on a resource; on one object of it where there is a name."""

    resource: str
    verb: str
    name: str = ""


ASKED_FOR: Mapping[str, Any] = {"registry": {"pull_secrets": True}}
GATED: Mapping[str, Any] = {**ASKED_FOR, "admission": {"unknown": "gate"}}
ONCE_A_DAEMON_POD_COMES = Right("nodes", "get", "")  # whether its node runs it: test_workloads_webhook.py
ONCE_A_TAG_MOVES = Right("pods", "list", "")  # tests/integration/service/test_drift.py moves one
ONCE_A_POD_CHANGES = Right("pods", "get", "")  # a held one, as it is let go: test_gates_failures.py
MODES = {
    "webhook": {},
    "second-scheduler": {"webhook": {"enabled": False}, "secondScheduler": {"enabled": True}},
    "default-scheduler": {"webhook": {"enabled": False}, "defaultScheduler": {"enabled": True}},
    "all": {"secondScheduler": {"enabled": True}, "defaultScheduler": {"enabled": True}},
}
PULL_SECRET = {
    "apiVersion": "v1",
    "kind": "Secret",
    "metadata": {"name": "pull", "namespace": "default"},
    "type": "kubernetes.io/dockerconfigjson",
    "data": {".dockerconfigjson": base64.b64encode(b'{"auths": {}}').decode()},
}


class Recorder:
    """An API server's address that passes everything on, and keeps which rights were used."""

    def __init__(self, server: str, tls: ssl.SSLContext, session: aiohttp.ClientSession) -> None:
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
async def recording(control_plane: LocalCluster) -> AsyncIterator[tuple[Recorder, str]]:
    """A recorder in front of the API server, and its address."""
    kubeconfig: dict[str, Any] = msgspec.yaml.decode(control_plane.kubeconfig.read_bytes())
    cluster = kubeconfig["clusters"][0]["cluster"]
    tls = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None), auto_decompress=False) as session:
        recorder = Recorder(cluster["server"], tls, session)
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", recorder.handle)
        runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            yield recorder, f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()


class InstalledChart:
    """A part of the chart as processes: replicas with its ConfigMap, Secret, ServiceAccount and role."""

    def __init__(
        self, folder: Path, objects: list[KubernetesObject], account: Path, registry: EmbeddedRegistry
    ) -> None:
        self.folder, self.objects = folder, objects
        self._account, self._registry = account, registry
        self.ports: list[tuple[int, int, int]] = []

    @asynccontextmanager
    async def replicas(self, count: int) -> AsyncIterator[list[Process]]:
        async with AsyncExitStack() as running:
            processes = [self._start(index) for index in range(count)]
            for process in processes:
                running.push_async_callback(asyncio.to_thread, process.stop, GRACE_SECONDS)
            for process, (_, _, operations) in zip(processes, self.ports, strict=True):
                await _until_ready(process, f"http://127.0.0.1:{operations}/readyz")
            yield processes

    def _start(self, index: int) -> Process:
        scheduler, admission, operations = (free_port() for _ in range(3))
        self.ports.append((scheduler, admission, operations))
        config = self.folder / "config.yaml"
        (text,) = (each["data"]["config.yaml"] for each in self.objects if each["kind"] == "ConfigMap")
        config.write_text(text)
        settings: dict[str, object] = {
            "cluster": self._account,
            "operations.listen": f"127.0.0.1:{operations}",
            "registry.plain_http": f"['{self._registry.host}']",
            "registry.allow": f"['*', '{self._registry.host}']",
            "cache.url": "'memory:'",
            "shutdown.grace_seconds": 4.0,  # of which a quarter is waited for kube-proxies, whatever is open
        }
        own = yaml.safe_load(text)["admission"]
        if own["listen"]:
            settings["admission.listen"] = f"127.0.0.1:{admission}"
        if "certificate" in own.get("tls", {}):
            settings["admission.tls.certificate"] = self.folder / "tls.crt"
            settings["admission.tls.key"] = self.folder / "tls.key"
        if yaml.safe_load(text)["scheduler"].get("listen", "default"):
            settings["scheduler.listen"] = f"127.0.0.1:{scheduler}"
        command = [sys.executable, "-m", "extender", "serve", "--config", str(config)]
        command += [f"--set={path}={value}" for path, value in settings.items()]
        return Process(f"replica-{index}", command, self.folder / f"replica-{index}.log")


async def _until_ready(process: Process, url: str) -> None:
    async with aiohttp.ClientSession() as session:

        async def is_ready() -> bool:
            assert process.is_running, process.tail()
            async with session.get(url) as answer:
                return answer.status == 200

        await eventually(is_ready, despite=aiohttp.ClientError)


@asynccontextmanager
async def installed(
    api: ApiClient, control_plane: LocalCluster, server: str, registry: EmbeddedRegistry, folder: Path, values: object
) -> AsyncIterator[InstalledChart]:
    """The objects of these values, applied; the account's kubeconfig leads to `server`. They are gone afterwards."""
    await api.apply(namespace(OURS))
    rendered = objects_of(render(_map(values), kubernetes=chosen_kubernetes().version))
    objects = [each for each in rendered if each["kind"] != "ResourceQuota"]
    try:
        for each in objects:
            if each["kind"] == "Namespace":
                await finalize_namespace(api, each["metadata"]["name"])
            await api.apply(each)
        account = await write_account(api, control_plane, server, objects, folder)
        for each in objects:
            if each["kind"] == "Secret":
                for name, value in each.get("data", {}).items():
                    (folder / name).write_bytes(base64.b64decode(value))
        yield InstalledChart(folder, objects, account, registry)
    finally:
        for each in reversed(objects):
            await _remove(api, each)
        if any(each["kind"] == "MutatingAdmissionPolicy" for each in objects):
            await until_free(api)


async def _remove(api: ApiClient, each: KubernetesObject) -> None:
    metadata = each["metadata"]
    try:
        await api.delete(each["kind"], metadata["name"], metadata.get("namespace", ""), each["apiVersion"])
    except ApiError as exc:
        if exc.status != 404:  # policies of the same names may have taken these along
            raise
    if each["kind"] == "Namespace":
        await finalize_namespace(api, metadata["name"])


async def finalize_namespace(api: ApiClient, name: str) -> None:
    """Lets go of a namespace if it is being deleted, as a controller does where one runs; then it is gone."""

    async def is_done() -> bool:
        try:
            found = await api.get("Namespace", name, "")
            if "deletionTimestamp" not in found["metadata"]:
                return True
            await api.request("PUT", f"/api/v1/namespaces/{name}/finalize", {**found, "spec": {"finalizers": []}})
        except ApiError as exc:
            if exc.status not in (404, 409):  # 409: changed meanwhile
                raise
            return exc.status == 404
        return False

    await eventually(is_done)


@asynccontextmanager
async def finalizing_namespaces(api: ApiClient) -> AsyncIterator[None]:
    """Lets go of namespaces that are being deleted, as a controller does where one runs."""

    async def finalize() -> None:
        while True:
            for each in await api.list("Namespace", ""):
                if "deletionTimestamp" in each["metadata"]:
                    await finalize_namespace(api, each["metadata"]["name"])
            await asyncio.sleep(0.2)

    finalizing = asyncio.create_task(finalize())
    try:
        yield
    finally:
        finalizing.cancel()
        await asyncio.gather(finalizing, return_exceptions=True)


async def lead_to(api: ApiClient, objects: Sequence[KubernetesObject], port: int) -> None:
    """The Service leads to a port of this machine; name and caBundle are still the chart's."""
    (service,) = (each for each in objects if each["kind"] == "Service")
    configurations = [each for each in objects if each["kind"] == "MutatingWebhookConfiguration"]
    outside = {"type": "ExternalName", "externalName": "127.0.0.1", "clusterIP": None, "clusterIPs": None}
    await api.patch("Service", service["metadata"]["name"], {"spec": outside}, OURS)
    for each in configurations:
        for webhook in each["webhooks"]:
            webhook["clientConfig"]["service"]["port"] = port
        await api.apply(each)


def _map(values: object) -> Mapping[str, Any]:
    return msgspec.convert(values, dict[str, Any])


async def write_account(
    api: ApiClient, control_plane: LocalCluster, server: str, objects: list[KubernetesObject], folder: Path
) -> Path:
    """A kubeconfig with a token of the chart's ServiceAccount."""
    (account,) = (each["metadata"] for each in objects if each["kind"] == "ServiceAccount")
    path = f"/api/v1/namespaces/{OURS}/serviceaccounts/{account['name']}/token"
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 7200}}
    token = (await api.request("POST", path, request))["status"]["token"]
    kubeconfig: dict[str, Any] = msgspec.yaml.decode(control_plane.kubeconfig.read_bytes())
    kubeconfig["users"] = [{"name": each["name"], "user": {"token": token}} for each in kubeconfig["users"]]
    for each in kubeconfig["clusters"]:
        each["cluster"] = {"server": server}
    for each in kubeconfig["contexts"]:
        each["context"]["namespace"] = OURS  # as a pod finds its own
    file = folder / "account.kubeconfig"
    file.touch(mode=0o600)
    file.write_bytes(msgspec.yaml.encode(kubeconfig))
    return file


@asynccontextmanager
async def balanced(ports: list[int]) -> AsyncIterator[int]:
    """A port whose connections go to these in turn, as a Service's do; one taken from the list gets no new ones.

    With none in the list connections are closed, those of before as soon as something is sent.
    """
    turn, ends = 0, set[asyncio.StreamWriter]()

    async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while (chunk := await source.read(1 << 16)) and ports:
                sink.write(chunk)
                await sink.drain()
        sink.close()

    async def carry(client_in: asyncio.StreamReader, client_out: asyncio.StreamWriter) -> None:
        nonlocal turn
        if not ports:
            client_out.close()
            return
        turn += 1
        server_in, server_out = await asyncio.open_connection("127.0.0.1", ports[turn % len(ports)])
        ends.update((client_out, server_out))
        await asyncio.gather(pump(client_in, server_out), pump(server_in, client_out))

    server = await asyncio.start_server(carry, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for end in ends:
            end.transport.abort()


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


async def create_held(api: ApiClient, registry: EmbeddedRegistry) -> None:
    """Two pods that our gate holds: of an image that the registry has, and of one that it lacks, as an event tells."""
    for name in ("old", "late"):
        held = pod(f"held-{name}", f"{registry.host}/team/{name}:1", labels={"multiarch-extender.io/gated": "true"})
        held["spec"]["schedulingGates"] = [GATE]
        await api.create(held)
