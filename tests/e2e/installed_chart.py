"""The chart's objects on the API server, and replicas of its part as processes of this machine."""

import asyncio
import base64
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from testbed.api_client import ADMISSIONREGISTRATION, ApiClient, ApiError
from testbed.binaries import chosen_kubernetes
from testbed.chart import objects_of, render
from testbed.embedded_registry import EmbeddedRegistry
from testbed.eventually import eventually
from testbed.meanwhile import meanwhile
from testbed.objects import KubernetesObject, namespace, pod
from testbed.process_kubelet import ProcessPod
from tests.e2e.policies import GATE, until_free

OURS = "multiarch-extender"
WEBHOOK = "multiarch-extender-webhook"
DOCTOR = "multiarch-extender-doctor"
Values = Mapping[str, Any]
ASKED_FOR: Values = {"registry": {"pull_secrets": True}}
GATED: Values = {**ASKED_FOR, "admission": {"unknown": "gate"}}
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


class InstalledChart:
    """Objects of the chart that were applied; `admin` is a kubeconfig by which the replicas reach the API server."""

    def __init__(
        self,
        api: ApiClient,
        admin: Path,
        registry: EmbeddedRegistry,
        folder: Path,
        objects: Sequence[KubernetesObject],
    ) -> None:
        self.objects = objects
        self.running: list[ProcessPod] = []
        self._api, self._admin, self._registry, self._folder = api, admin, registry, folder

    @asynccontextmanager
    async def replicas(self, count: int, *settings: str) -> AsyncIterator[list[ProcessPod]]:
        """Ready pods of the part's workload; their files are in `replica-0` and so on."""
        host = self._registry.host
        ours = (
            f"registry.plain_http=['{host}']",
            f"registry.allow=['*', '{host}']",
            "shutdown.grace_seconds=4",  # of which a quarter is waited for kube-proxies, whatever is open
            *settings,
        )
        made = self._pod()
        self.running[:] = [
            ProcessPod(self._api, made, self._folder / f"replica-{index}", *ours) for index in range(count)
        ]
        async with AsyncExitStack() as stack:
            for each in self.running:
                each.start(self._admin)
                stack.push_async_callback(each.stop)
            for each in self.running:
                await each.wait_until_ready()
            yield self.running

    def ports(self, name: str) -> list[int]:
        """The ports on loopback of the replicas, by the name of the container's port."""
        return [port for each in self.running if (port := each.port_of(name))]

    def _pod(self) -> KubernetesObject:
        """A pod of the workload with the service alone, which is a sidecar of the second scheduler."""
        (template,) = (each["spec"]["template"] for each in self.objects if each["kind"] in ("Deployment", "DaemonSet"))
        spec, ours = template["spec"], template["spec"]["containers"]
        for sidecar in spec.get("initContainers", ()):
            on_loopback = {"name": "scheduler", "containerPort": 8880}
            ours = [{**sidecar, "ports": [*sidecar["ports"], on_loopback]}]
        metadata = {**template["metadata"], "name": "replica", "namespace": OURS}
        return {"metadata": metadata, "spec": {**spec, "initContainers": [], "containers": ours}}

    async def lead_to(self, port: int = 0) -> None:
        """Leads the Service to a port of this machine, or the first replica's; name and caBundle are the chart's."""
        (service,) = (each for each in self.objects if each["kind"] == "Service")
        outside = {"type": "ExternalName", "externalName": "127.0.0.1", "clusterIP": None, "clusterIPs": None}
        await self._api.patch("Service", service["metadata"]["name"], {"spec": outside}, OURS)
        for each in self.objects:
            if each["kind"] == "MutatingWebhookConfiguration":
                for webhook in each["webhooks"]:
                    webhook["clientConfig"]["service"]["port"] = port or self.ports("webhook")[0]
                await self._api.apply(each)


@asynccontextmanager
async def installed(
    api: ApiClient, admin: Path, registry: EmbeddedRegistry, folder: Path, values: Values
) -> AsyncIterator[InstalledChart]:
    """The objects of these values, applied, but for the account of doctor. They are gone afterwards."""
    await api.apply(namespace(OURS))
    rendered = objects_of(render(values, kubernetes=chosen_kubernetes().version))
    left_out = [each for each in rendered if each["kind"] == "ResourceQuota" or each["metadata"]["name"] == DOCTOR]
    objects = [each for each in rendered if each not in left_out]
    try:
        for each in objects:
            if each["kind"] == "Namespace":
                await finalize_namespace(api, each["metadata"]["name"])
            await api.apply(each)
        yield InstalledChart(api, admin, registry, folder, objects)
    finally:
        for each in reversed(objects):
            await _remove(api, each)
        if any(each["kind"] == "MutatingAdmissionPolicy" for each in objects):
            await until_free(api)


async def change_webhook(api: ApiClient, **changes: Any) -> None:
    """Changes fields of the registered webhook; a map is added to what the field has."""
    found = await api.get("MutatingWebhookConfiguration", WEBHOOK, "", ADMISSIONREGISTRATION)
    webhook = found["webhooks"][0]
    for field, value in changes.items():
        webhook[field] = {**webhook[field], **value} if isinstance(value, dict) else value
    await api.patch("MutatingWebhookConfiguration", WEBHOOK, {"webhooks": [webhook]}, "", ADMISSIONREGISTRATION)


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

    async with meanwhile(finalize()):
        yield


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


async def create_held(api: ApiClient, registry: EmbeddedRegistry) -> None:
    """Two pods that our gate holds: of an image that the registry has, and of one that it lacks, as an event tells."""
    for name in ("old", "late"):
        held = pod(f"held-{name}", f"{registry.host}/team/{name}:1", labels={"multiarch-extender.io/gated": "true"})
        held["spec"]["schedulingGates"] = [GATE]
        await api.create(held)
