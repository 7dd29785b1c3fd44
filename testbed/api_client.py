"""A small client of the Kubernetes API for tests and benchmarks: JSON in and out, for every kind of object.

It handles REST paths, discovery and watch streams. The service under test has its own client in `extender/cluster`;
this one shares no code with it, so that a defect of the service's client cannot hide here.
"""

import base64
import ssl
import tempfile
from asyncio import gather, sleep, timeout
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import aclosing, asynccontextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import aiohttp
import msgspec

from testbed.eventually import USUAL_SECONDS
from testbed.objects import MADE_HERE, KubernetesObject

CONNECTIONS = 32  # also the number of requests that create_all has under way at once
REQUEST_TIMEOUT = aiohttp.ClientTimeout(total=30)
PROBE_SECONDS = 30
WATCH_TIMEOUT = aiohttp.ClientTimeout(total=None)
FIELD_MANAGER = "multiarch-extender-tests"
NOW: KubernetesObject = {
    "kind": "DeleteOptions",
    "apiVersion": "v1",
    "gracePeriodSeconds": 0,
    "propagationPolicy": "Background",  # that of Jobs would wait for the garbage collector
}
WORKLOADS = {
    **dict.fromkeys(("Deployment", "ReplicaSet", "StatefulSet", "DaemonSet"), "apps/v1"),
    **dict.fromkeys(("Job", "CronJob"), "batch/v1"),
}
"""The API version of each kind whose controller makes pods."""
ADMISSIONREGISTRATION, BINDING = "admissionregistration.k8s.io/v1", "MutatingAdmissionPolicyBinding"


class ApiError(RuntimeError):
    """The API server refused a request: `status` is the HTTP status code, the message is the server's."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class ApiClient:
    """One user's client of one cluster. `connect` makes it."""

    def __init__(self, session: aiohttp.ClientSession, server: str) -> None:
        self.server = server
        self._session = session
        self._resources: dict[str, dict[str, KubernetesObject]] = {}  # apiVersion -> kind -> APIResource

    async def request(
        self,
        method: str,
        path: str,
        body: KubernetesObject | None = None,
        *,
        content_type: str = "application/json",
    ) -> KubernetesObject:
        """Sends one request and returns the response, for what the methods below do not cover. Raises ApiError."""
        data = None if body is None else msgspec.json.encode(body)
        raw = await self._send(method, path, data, {"Content-Type": content_type})
        return msgspec.json.decode(raw, type=dict[str, Any])

    async def log(self, pod: str, namespace: str = "default", **parameters: str) -> str:
        """Returns what the pod's container has written, as `kubectl logs` does. Raises ApiError."""
        path = f"{await self._path('v1', 'Pod', namespace, pod)}/log"
        return (await self._send("GET", f"{path}?{urlencode(parameters)}")).decode(errors="replace")

    async def metrics(self) -> str:
        """Returns the API server's own /metrics. Raises ApiError."""
        return (await self._send("GET", "/metrics")).decode()

    async def create(self, manifest: KubernetesObject) -> KubernetesObject:
        """Creates the object and returns it as stored. A namespaced one without a namespace goes to `default`."""
        return await self.request("POST", await self._collection(manifest), manifest)

    async def create_all(self, manifests: Iterable[KubernetesObject]) -> list[KubernetesObject]:
        """Creates the objects, several requests at a time, and returns them as stored."""
        return await gather(*(self.create(manifest) for manifest in manifests))

    async def apply(self, manifest: KubernetesObject, *, dry_run: bool = False) -> KubernetesObject:
        """Applies the object on the server, taking over every field, and returns it as stored.

        With `dry_run` the server does all but store it.
        """
        path = f"{await self._collection(manifest)}/{manifest['metadata']['name']}"
        query = urlencode({"fieldManager": FIELD_MANAGER, "force": "true", **({"dryRun": "All"} if dry_run else {})})
        return await self.request("PATCH", f"{path}?{query}", manifest, content_type="application/apply-patch+yaml")

    async def get(self, kind: str, name: str, namespace: str = "default", api_version: str = "v1") -> KubernetesObject:
        """Returns the object. Raises ApiError with status 404 if it does not exist."""
        return await self.request("GET", await self._path(api_version, kind, namespace, name))

    async def patch(
        self, kind: str, name: str, changes: KubernetesObject, namespace: str = "default", api_version: str = "v1"
    ) -> KubernetesObject:
        """Applies a JSON merge patch and returns the object."""
        path = await self._path(api_version, kind, namespace, name)
        return await self.request("PATCH", path, changes, content_type="application/merge-patch+json")

    async def delete(self, kind: str, name: str, namespace: str = "default", api_version: str = "v1") -> None:
        """Deletes the object without a grace period."""
        await self.request("DELETE", await self._path(api_version, kind, namespace, name), NOW)

    async def delete_all(
        self, kind: str, namespace: str = "default", api_version: str = "v1", **selectors: str
    ) -> None:
        """Deletes all objects of the kind without a grace period; of a namespaced kind, those of the namespace."""
        path = await self._path(api_version, kind, namespace)
        await self.request("DELETE", f"{path}?{urlencode(selectors)}", NOW)

    async def list(
        self, kind: str, namespace: str = "", api_version: str = "v1", **selectors: str
    ) -> list[KubernetesObject]:
        """Returns all objects of the kind, in every namespace unless one is named; `selectors` are query parameters."""
        path = await self._path(api_version, kind, namespace)
        answer = await self.request("GET", f"{path}?{urlencode(selectors)}")
        return list(answer["items"])

    async def watch(
        self, kind: str, namespace: str = "", api_version: str = "v1", **selectors: str
    ) -> AsyncGenerator[tuple[str, KubernetesObject], None]:
        """Yields (ADDED, MODIFIED or DELETED, object) for each existing object, then for each change, until closed.

        The server may end the watch at any time, by an ERROR too, and a busy server does.
        """
        query = urlencode({**selectors, "watch": "1"})
        path = await self._path(api_version, kind, namespace)
        async with self._session.get(f"{path}?{query}", timeout=WATCH_TIMEOUT) as response:
            if not response.ok:
                raise _api_error(response.status, await response.read())
            async for line in _lines(response.content):
                event = msgspec.json.decode(line, type=dict[str, Any])
                if event["type"] == "ERROR":  # its object is a Status
                    return
                yield event["type"], event["object"]

    async def wait_for(
        self,
        kind: str,
        is_awaited: Callable[[KubernetesObject], bool],
        namespace: str = "default",
        api_version: str = "v1",
        timeout_seconds: float = USUAL_SECONDS,
        **selectors: str,
    ) -> KubernetesObject:
        """Waits for the first object, existing or new, for which the predicate is true, and returns it.

        Raises TimeoutError.
        """
        async with timeout(timeout_seconds):
            while True:
                async with aclosing(self.watch(kind, namespace, api_version, **selectors)) as events:
                    async for change, found in events:
                        if change != "DELETED" and is_awaited(found):
                            return found

    async def wait_until_bound(
        self, pod: str, namespace: str = "default", timeout_seconds: float = USUAL_SECONDS
    ) -> str:
        """Waits until the pod is bound and returns the node's name. Raises TimeoutError."""
        bound = await self.wait_for(
            "Pod",
            lambda found: bool(found["spec"].get("nodeName")),
            namespace,
            timeout_seconds=timeout_seconds,
            fieldSelector=f"metadata.name={pod}",
        )
        return str(bound["spec"]["nodeName"])

    async def wait_for_event(
        self,
        pod: str,
        reason: str = "FailedScheduling",
        namespace: str = "default",
        timeout_seconds: float = USUAL_SECONDS,
        containing: str = "",
    ) -> str:
        """Waits for the pod's first event with that reason and that in its text, as `kubectl describe pod` shows it.

        Returns the text.
        """
        uid = (await self.get("Pod", pod, namespace))["metadata"]["uid"]
        selector = f"involvedObject.uid={uid},reason={reason}"
        event = await self.wait_for(
            "Event",
            lambda event: containing in event["message"],
            namespace,
            timeout_seconds=timeout_seconds,
            fieldSelector=selector,
        )
        return str(event["message"])

    async def _send(
        self, method: str, path: str, data: bytes | None = None, headers: dict[str, str] | None = None
    ) -> bytes:
        """Returns the body of a response that is no error."""
        async with self._session.request(method, path, data=data, headers=headers) as response:
            raw = await response.read()
            if not response.ok:
                raise _api_error(response.status, raw)
            return raw

    async def _collection(self, manifest: KubernetesObject) -> str:
        namespace = manifest["metadata"].get("namespace", "default")
        return await self._path(manifest["apiVersion"], manifest["kind"], namespace)

    async def _path(self, api_version: str, kind: str, namespace: str, name: str = "") -> str:
        """Returns the REST path of a collection or an object, without the namespace for kinds that have none."""
        group = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
        if kind not in self._resources.get(api_version, {}):
            found = (await self.request("GET", group))["resources"]
            self._resources[api_version] = {each["kind"]: each for each in found if "/" not in each["name"]}
        resource = self._resources[api_version][kind]
        within = f"/namespaces/{namespace}" if resource["namespaced"] and namespace else ""
        return f"{group}{within}/{resource['name']}" + (f"/{name}" if name else "")


@asynccontextmanager
async def connect(kubeconfig: Path) -> AsyncIterator[ApiClient]:
    """Opens a client for the current context of a kubeconfig, which must embed its certificates and keys."""
    config = msgspec.yaml.decode(kubeconfig.read_bytes())
    context = _named(config["contexts"], config["current-context"])["context"]
    cluster = _named(config["clusters"], context["cluster"])["cluster"]
    user = _named(config["users"], context["user"])["user"]
    connector = aiohttp.TCPConnector(limit=CONNECTIONS, ssl=_tls(cluster, user))
    headers = {"Authorization": f"Bearer {user['token']}"} if "token" in user else {}
    async with aiohttp.ClientSession(
        cluster["server"], connector=connector, headers=headers, timeout=REQUEST_TIMEOUT
    ) as session:
        yield ApiClient(session, cluster["server"])


async def empty(api: ApiClient) -> None:
    """Deletes the fake nodes, all workloads and pods in `default` and in the namespaces made here, and bindings.

    A controller that the next test runs would make pods for workloads that are left.
    """
    for kind, version in WORKLOADS.items():
        for where in {each["metadata"]["namespace"] for each in await api.list(kind, api_version=version)}:
            await api.delete_all(kind, where, version)
    ours = ",".join(f"{label}={value}" for label, value in MADE_HERE.items())
    namespaces = await api.list("Namespace", labelSelector=ours)
    for name in ("default", *(namespace["metadata"]["name"] for namespace in namespaces)):
        await api.delete_all("Pod", name)
        for left in await api.list("Pod", name):
            if left["metadata"].get("finalizers"):  # the Job controller's, which has ended with its test
                await api.patch("Pod", left["metadata"]["name"], {"metadata": {"finalizers": None}}, name)
    await api.delete_all("Node", labelSelector=ours)
    await _collect_bindings(api)
    await _no_webhook_is_left(api)


async def _collect_bindings(api: ApiClient) -> None:
    """Deletes bindings that the service made, whose policies are their owners, as no garbage collector runs here."""
    with suppress(KeyError):  # Kubernetes before 1.36 has none
        for each in await api.list(BINDING, api_version=ADMISSIONREGISTRATION):
            if each["metadata"].get("ownerReferences"):
                await api.delete(BINDING, each["metadata"]["name"], "", ADMISSIONREGISTRATION)


async def _no_webhook_is_left(api: ApiClient) -> None:
    """Returns when a pod can be created: kube-apiserver calls a deleted webhook for a moment, whose server is gone."""
    probe = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "probe-", "namespace": "default"},
        "spec": {"containers": [{"name": "a", "image": "multiarch-extender.invalid/a:1"}]},
    }
    async with timeout(PROBE_SECONDS):
        while True:
            try:
                await api.request("POST", "/api/v1/namespaces/default/pods?dryRun=All", probe)
            except ApiError as exc:
                if exc.status == HTTPStatus.INTERNAL_SERVER_ERROR:
                    await sleep(0.1)
                    continue
            return


def _named(entries: list[KubernetesObject], name: str) -> KubernetesObject:
    return next(entry for entry in entries if entry["name"] == name)


def _tls(cluster: KubernetesObject, user: KubernetesObject) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
    if "client-certificate-data" in user:
        with tempfile.NamedTemporaryFile(suffix=".pem") as pair:  # ssl reads key pairs only from files
            for part in ("client-certificate-data", "client-key-data"):
                pair.write(base64.b64decode(user[part]) + b"\n")
            pair.flush()
            context.load_cert_chain(pair.name)
    return context


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Yields the lines of a stream.

    StreamReader's own iteration limits the length of a line, which a large object exceeds.
    """
    remainder = b""
    async for chunk in content.iter_any():
        *lines, remainder = (remainder + chunk).split(b"\n")
        for line in lines:
            yield line


def _api_error(status: int, raw: bytes) -> ApiError:
    try:
        message = str(msgspec.json.decode(raw, type=dict[str, Any])["message"])
    except (msgspec.DecodeError, msgspec.ValidationError, KeyError):
        message = raw[:500].decode(errors="replace")
    return ApiError(status, message)
