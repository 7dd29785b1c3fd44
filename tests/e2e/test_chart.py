"""The chart on a real control plane: every preset in every mode is accepted, and what it installs does its work.

What a test changes is what a test must: addresses on loopback, and a kubeconfig where a pod would find its own.
"""

import asyncio
import base64
import json
import re
import ssl
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec
import pytest
import yaml
from aiohttp import web

from extender.demo.registry import EmbeddedRegistry
from testbed.api_client import ApiClient, ApiError
from testbed.chart import CHART, HelmMissing, find_helm, objects_of, render
from testbed.control_plane import LocalCluster
from testbed.objects import KubernetesObject, fake_node, kept_to, namespace, pod
from testbed.processes import Process, free_port
from tests.e2e.running import skip

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("helm")]

OURS = "multiarch-extender"
READY_SECONDS = 60.0
GRACE_SECONDS = 30.0
PRESETS = sorted(CHART.glob("values-*.yaml"))
MODES = {
    "webhook": {},
    "second-scheduler": {"webhook": {"enabled": False}, "secondScheduler": {"enabled": True}},
    "default-scheduler": {"webhook": {"enabled": False}, "defaultScheduler": {"enabled": True}},
    "all": {"secondScheduler": {"enabled": True}, "defaultScheduler": {"enabled": True}},
}
EVERYTHING = {
    "monitoring": {name: {"enabled": True} for name in ("serviceMonitor", "podMonitor", "prometheusRule")},
    "certificates": {"source": "cert-manager"},
    "namespace": {"create": True},
    "store": {"kind": "redis", "redis": {"address": "redis", "passwordSecret": "p", "caSecret": "c"}, "keySecret": "k"},
    "registries": {"caConfigMap": "m", "hosts": {"docker.io:443": ""}, "dockerConfigSecret": "d"},
}
POLICIES = {
    "networkPolicy": {
        "ingress": {"enabled": True, "apiServer": ["10.0.0.0/28"], "operations": [{"namespaceSelector": {}}]},
        "egress": {"enabled": True, "apiServer": ["10.0.0.1/32"], "more": [{"ports": [{"port": 3128}]}]},
    }
}
FOREIGN = {
    "monitoring.coreos.com": ("servicemonitors", "podmonitors", "prometheusrules"),
    "cert-manager.io": ("issuers", "certificates"),
}
KINDS = {
    "servicemonitors": "ServiceMonitor",
    "podmonitors": "PodMonitor",
    "prometheusrules": "PrometheusRule",
    "issuers": "Issuer",
}


@pytest.fixture(scope="session")
def helm() -> None:
    """Skips, or fails where everything must run, without the program."""
    try:
        find_helm()
    except HelmMissing as exc:
        skip(str(exc))


# --- what the API server says of the objects


@pytest.fixture
async def foreign_kinds(api: ApiClient) -> None:
    """Minimal CustomResourceDefinitions of the Prometheus operator and of cert-manager, which stay."""
    for group, plurals in FOREIGN.items():
        for plural in plurals:
            await api.apply(_definition(group, plural))
    async with asyncio.timeout(READY_SECONDS):
        for group, plurals in FOREIGN.items():
            while not set(plurals) <= await _served(api, f"{group}/v1"):
                await asyncio.sleep(0.1)


async def _served(api: ApiClient, version: str) -> set[str]:
    """The names of the resources that the API server serves in that version."""
    try:
        return {each["name"] for each in (await api.request("GET", f"/apis/{version}"))["resources"]}
    except ApiError:
        return set()


def _definition(group: str, plural: str) -> KubernetesObject:
    kind = KINDS.get(plural, "Certificate")
    schema = {
        "type": "object",
        "properties": {"spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
    }
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"plural": plural, "singular": kind.lower(), "kind": kind, "listKind": f"{kind}List"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": [version]},
    }


@pytest.mark.usefixtures("foreign_kinds")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("preset", [None, *PRESETS], ids=lambda file: file.stem if file else "defaults")
async def test_every_object_of_a_preset_in_a_mode_is_accepted(api: ApiClient, preset: Path | None, mode: str) -> None:
    """By server-side dry run, as the preset is, and with everything else switched on as well."""
    await api.apply(namespace(OURS))
    files = [preset] if preset else []
    policies = {} if mode == "default-scheduler" else POLICIES
    for values in ({"modes": MODES[mode]}, {"modes": MODES[mode], **EVERYTHING, **policies}):
        found = objects_of(render(values, files))
        assert found
        for each in found:
            await api.apply(each, dry_run=True)


# --- two replicas on the chart's own configuration, account and rights


class Recorder:
    """An API server's address that passes everything on, and keeps which verbs of which resources were used."""

    def __init__(self, server: str, tls: ssl.SSLContext, session: aiohttp.ClientSession) -> None:
        self.used: set[tuple[str, str]] = set()
        self.refused: set[str] = set()
        self._server, self._tls, self._session = server, tls, session

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Passes the request on and its answer back, as it comes."""
        headers = {name: value for name, value in request.headers.items() if name.lower() != "host"}
        body = await request.read()
        async with self._session.request(
            request.method, f"{self._server}{request.raw_path}", data=body, headers=headers, ssl=self._tls
        ) as answer:
            if used := _right(request):
                self.used.add(used)
            if answer.status == 403:
                self.refused.add(request.raw_path)
            passed = web.StreamResponse(status=answer.status, headers={"Content-Type": answer.content_type})
            await passed.prepare(request)
            async for chunk in answer.content.iter_any():
                await passed.write(chunk)
        return passed


def _right(request: web.Request) -> tuple[str, str] | None:
    """(resource, verb) of a request; None for discovery, which every account may ask for."""
    parts = urlsplit(request.raw_path).path.strip("/").split("/")
    parts = parts[2:] if parts[0] == "api" else parts[3:]  # api/v1/…, apis/GROUP/VERSION/…
    if not parts:
        return None
    if parts[0] == "namespaces" and len(parts) > 2:
        parts = parts[2:]
    if request.method != "GET":
        return parts[0], request.method
    if request.query.get("watch") in ("1", "true"):
        return parts[0], "watch"
    return parts[0], "get" if len(parts) > 1 else "list"


@asynccontextmanager
async def recording(control_plane: LocalCluster) -> AsyncIterator[tuple[Recorder, str]]:
    """A recorder in front of the API server, and its address."""
    kubeconfig: dict[str, Any] = msgspec.yaml.decode(control_plane.kubeconfig.read_bytes())
    cluster = kubeconfig["clusters"][0]["cluster"]
    tls = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
    port = free_port()
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None), auto_decompress=False) as session:
        recorder = Recorder(cluster["server"], tls, session)
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", recorder.handle)
        runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        try:
            yield recorder, f"http://127.0.0.1:{port}"
        finally:
            await runner.cleanup()


class Installed:
    """A part of the chart as processes: replicas with its ConfigMap, Secret, ServiceAccount and role."""

    def __init__(
        self, folder: Path, objects: list[KubernetesObject], account: Path, registry: EmbeddedRegistry
    ) -> None:
        self.folder, self.objects = folder, objects
        self._account, self._registry = account, registry
        self.ports: list[tuple[int, int, int]] = []

    @asynccontextmanager
    async def replicas(self, count: int) -> AsyncIterator[list[Process]]:
        """So many replicas, all ready, inside the block."""
        async with AsyncExitStack() as running:
            processes = [self._start(index) for index in range(count)]
            for process in processes:
                running.callback(process.stop, GRACE_SECONDS)
            for process, (_, _, operations) in zip(processes, self.ports, strict=True):
                await _until_ready(process, f"http://127.0.0.1:{operations}/readyz")
            yield processes

    def _start(self, index: int) -> Process:
        scheduler, admission, operations = free_port(), free_port(), free_port()
        self.ports.append((scheduler, admission, operations))
        config = self.folder / "config.yaml"
        (text,) = (each["data"]["config.yaml"] for each in self.objects if each["kind"] == "ConfigMap")
        config.write_text(text)
        settings: dict[str, object] = {
            "cluster.kubeconfig": self._account,
            "operations.listen": f"127.0.0.1:{operations}",
            "registry.plain_http": f"['{self._registry.host}']",
            "registry.allow": f"['*', '{self._registry.host}']",
            "cache.url": "'memory:'",
        }
        if yaml.safe_load(text)["admission"]["listen"]:
            settings["admission.listen"] = f"127.0.0.1:{admission}"
            settings["admission.tls.certificate"] = self.folder / "tls.crt"
            settings["admission.tls.key"] = self.folder / "tls.key"
        if yaml.safe_load(text)["scheduler"].get("listen", "default"):
            settings["scheduler.listen"] = f"127.0.0.1:{scheduler}"
        command = [sys.executable, "-m", "extender", "serve", "--config", str(config)]
        command += [f"--set={path}={value}" for path, value in settings.items()]
        return Process(f"replica-{index}", command, self.folder / f"replica-{index}.log")


async def _until_ready(process: Process, url: str) -> None:
    async with asyncio.timeout(READY_SECONDS), aiohttp.ClientSession() as session:
        while True:
            with suppress(aiohttp.ClientError):
                async with session.get(url) as answer:
                    if answer.status == 200:
                        return
            assert process.is_running, process.tail()
            await asyncio.sleep(0.05)


@asynccontextmanager
async def installed(
    api: ApiClient, control_plane: LocalCluster, server: str, registry: EmbeddedRegistry, folder: Path, values: object
) -> AsyncIterator[Installed]:
    """The objects of these values, applied; the account's kubeconfig leads to `server`. They are gone afterwards."""
    await api.apply(namespace(OURS))
    objects = [each for each in objects_of(render(_map(values))) if each["kind"] != "ResourceQuota"]
    for each in objects:
        await api.apply(each)
    try:
        account = await _account(api, control_plane, server, objects, folder)
        for each in objects:
            if each["kind"] == "Secret":
                for name, value in each["data"].items():
                    (folder / name).write_bytes(base64.b64decode(value))
        yield Installed(folder, objects, account, registry)
    finally:
        for each in reversed(objects):
            metadata = each["metadata"]
            await api.delete(each["kind"], metadata["name"], metadata.get("namespace", ""), each["apiVersion"])


def _map(values: object) -> Mapping[str, Any]:
    return msgspec.convert(values, dict[str, Any])


async def _account(
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
    file = folder / "account.kubeconfig"
    file.touch(mode=0o600)
    file.write_bytes(msgspec.yaml.encode(kubeconfig))
    return file


@asynccontextmanager
async def balanced(ports: list[int]) -> AsyncIterator[int]:
    """A port whose connections go to these in turn, as a Service's do; one taken from the list gets no new ones."""
    turn, ends = 0, set[asyncio.StreamWriter]()

    async def carry(client_in: asyncio.StreamReader, client_out: asyncio.StreamWriter) -> None:
        nonlocal turn
        turn += 1
        server_in, server_out = await asyncio.open_connection("127.0.0.1", ports[turn % len(ports)])
        ends.update((client_out, server_out))
        await asyncio.gather(_pump(client_in, server_out), _pump(server_in, client_out))

    server = await asyncio.start_server(carry, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for end in ends:
            end.transport.abort()


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while chunk := await source.read(1 << 16):
            sink.write(chunk)
            await sink.drain()
    sink.close()


@pytest.fixture
async def registry() -> AsyncIterator[EmbeddedRegistry]:
    """A registry with an image for amd64 alone, and one for both architectures."""
    async with EmbeddedRegistry() as running:
        running.add_manifest("team/old", "1", "linux/amd64")
        running.add_index("team/new", "1", ["linux/amd64", "linux/arm64"])
        yield running


def rights_of(objects: list[KubernetesObject]) -> set[tuple[str, str]]:
    """(resource, verb) of the service's ClusterRole."""
    (role,) = (each for each in objects if each["kind"] == "ClusterRole")
    return {(name, verb) for rule in role["rules"] for name in rule["resources"] for verb in rule["verbs"]}


PULL_SECRET = {
    "apiVersion": "v1",
    "kind": "Secret",
    "metadata": {"name": "pull", "namespace": "default"},
    "type": "kubernetes.io/dockerconfigjson",
    "data": {".dockerconfigjson": base64.b64encode(b'{"auths": {}}').decode()},
}


async def test_two_replicas_of_the_webhook_use_every_right_they_have_and_no_other(
    api: ApiClient, control_plane: LocalCluster, registry: EmbeddedRegistry, tmp_path: Path
) -> None:
    """Defaults and a network policy: certificate, authority, ports, settings and rights are the chart's own."""
    await api.create_all([fake_node("amd64", "amd64"), fake_node("arm64", "arm64")])
    await api.apply(PULL_SECRET)
    policy = {"networkPolicy": {"ingress": {"enabled": True, "apiServer": ["127.0.0.1/32"]}}}
    async with (
        recording(control_plane) as (recorder, server),
        installed(api, control_plane, server, registry, tmp_path, policy) as chart,
        chart.replicas(2) as replicas,
        balanced(ports := [admission for _, admission, _ in chart.ports]) as port,
    ):
        await _lead_to(api, chart.objects, port)
        with_secret = pod("p", f"{registry.host}/team/old:1", spec={"imagePullSecrets": [{"name": "pull"}]})
        async with asyncio.timeout(READY_SECONDS):
            while "affinity" not in (spec := await _dry_run(api, with_secret)):
                await asyncio.sleep(0.05)
        assert _architectures(spec) == ["amd64"]
        assert await _answered(chart, 20, api, registry) == [True, True]
        del ports[0]
        ending = asyncio.create_task(asyncio.to_thread(replicas[0].stop, GRACE_SECONDS))
        reviews = 0
        while not ending.done() or reviews < 100:
            assert "affinity" in await _dry_run(api, pod("p", f"{registry.host}/team/new:1")), reviews
            reviews += 1
        assert recorder.refused == set()
        assert recorder.used == rights_of(chart.objects)


async def _answered(chart: Installed, count: int, api: ApiClient, registry: EmbeddedRegistry) -> list[bool]:
    """Whether each replica has answered reviews, after so many pods at once."""
    pods = [pod(f"p{index}", f"{registry.host}/team/new:1") for index in range(count)]
    specs = await asyncio.gather(*(_dry_run(api, each) for each in pods))
    assert all(_architectures(spec) == ["amd64", "arm64"] for spec in specs)
    found = []
    async with aiohttp.ClientSession() as session:
        for _, _, operations in chart.ports:
            async with session.get(f"http://127.0.0.1:{operations}/metrics") as answer:
                text = await answer.text()
            counted = re.findall(r'^multiarch_requests_total\{endpoint="admission",[^}]*\} (\S+)', text, re.MULTILINE)
            found.append(sum(map(float, counted)) > 0)
    return found


async def test_the_default_schedulers_part_uses_every_right_it_has_and_no_other(
    api: ApiClient, control_plane: LocalCluster, registry: EmbeddedRegistry, tmp_path: Path
) -> None:
    """Nodes, pods that wait, namespaces, a node that its watch has not seen, and a pull secret."""
    await api.create_all([fake_node("amd64", "amd64"), fake_node("arm64", "arm64")])
    await api.apply(PULL_SECRET)
    values = {"modes": MODES["default-scheduler"]}
    async with (
        recording(control_plane) as (recorder, server),
        installed(api, control_plane, server, registry, tmp_path, values) as chart,
        chart.replicas(1),
    ):
        waiting = pod("p", f"{registry.host}/team/old:1", spec={"imagePullSecrets": [{"name": "pull"}]})
        created = await api.create(waiting)
        scheduler = chart.ports[0][0]
        arguments = {"Pod": created, "NodeNames": ["amd64", "arm64", "new"]}
        async with asyncio.timeout(READY_SECONDS), aiohttp.ClientSession() as session:
            while True:
                url = f"http://127.0.0.1:{scheduler}/scheduler/filter"
                async with session.post(url, data=json.dumps(arguments)) as answer:
                    result = await answer.json(content_type=None)
                missing = rights_of(chart.objects) - recorder.used
                if not missing and result.get("NodeNames") == ["amd64", "new"]:
                    break
                await asyncio.sleep(0.1)
        assert recorder.refused == set()
        assert recorder.used == rights_of(chart.objects)


async def _lead_to(api: ApiClient, objects: list[KubernetesObject], port: int) -> None:
    """The Service leads to a port of this machine; name and authority are still the chart's."""
    (service,) = (each for each in objects if each["kind"] == "Service")
    (configuration,) = (each for each in objects if each["kind"] == "MutatingWebhookConfiguration")
    outside = {"type": "ExternalName", "externalName": "127.0.0.1", "clusterIP": None, "clusterIPs": None}
    await api.patch("Service", service["metadata"]["name"], {"spec": outside}, OURS)
    configuration["webhooks"][0]["clientConfig"]["service"]["port"] = port
    await api.apply(configuration)


async def _dry_run(api: ApiClient, made: KubernetesObject) -> KubernetesObject:
    """The spec of the pod as it would be created."""
    created = await api.request("POST", "/api/v1/namespaces/default/pods?dryRun=All", made)
    spec: KubernetesObject = created["spec"]
    return spec


def _architectures(spec: KubernetesObject) -> list[str]:
    """The architectures that nodeSelector or required node affinity allows."""
    return kept_to(spec, "kubernetes.io/arch")


async def test_an_object_that_the_api_server_does_not_take_is_refused(api: ApiClient) -> None:
    """So that the dry runs above say something."""
    await api.apply(namespace(OURS))
    (found,) = (each for each in objects_of(render()) if each["kind"] == "Deployment")
    found["spec"]["template"]["spec"]["containers"][0]["volumeMounts"][0]["name"] = "none"
    with pytest.raises(ApiError, match="422"):
        await api.apply(found, dry_run=True)
