"""An installation of the chart to examine: on a real control plane, with a replica, and `doctor` beside it."""

import asyncio
import base64
import json
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import trustme

from testbed.api_client import ApiClient
from testbed.control_plane import LocalCluster
from testbed.embedded_registry import EmbeddedRegistry
from testbed.objects import KubernetesObject, fake_node, namespace
from tests.e2e.installed_chart import OURS, WEBHOOK, InstalledChart, balanced, installed

MERGE_PATCH = "application/merge-patch+json"
SECONDS = 60.0


class Said(NamedTuple):
    """What `doctor` printed, and how it ended."""

    code: int
    output: str

    def states(self) -> set[str]:
        """The states that were printed: `ok`, `wrong`, and `not` for what was not seen."""
        return {line.split()[0] for line in self.output.splitlines() if not line.startswith("  ")}

    def wrong(self) -> dict[str, str]:
        """The checks that found something wrong, and all that they said."""
        found: dict[str, str] = {}
        for each in json.loads(self.output):
            if each["state"] == "wrong":
                found[each["check"]] = found.get(each["check"], "") + f"{each['subject']}: {each['seen']}\n"
        return found


async def run_doctor(*arguments: str) -> Said:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "extender", *arguments, stdout=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(SECONDS):
        output, _ = await process.communicate()
    assert process.returncode is not None
    return Said(process.returncode, output.decode())


class Installation(NamedTuple):
    """The chart's webhook on a real control plane, with one replica behind `ports`, and what a test needs to break it.

    `issuer` has signed the certificate that the API server trusts. `values` are the chart's.
    """

    api: ApiClient
    control_plane: LocalCluster
    registry: EmbeddedRegistry
    issuer: trustme.CA
    ports: list[int]
    folder: Path
    values: Mapping[str, Any] = {}
    objects: Sequence[KubernetesObject] = ()

    async def mend(self, ports: Sequence[int]) -> None:
        """Puts back what a test has broken: the objects, what is said of their pods, and who listens."""
        for each in self.objects:
            await self.api.apply(each)
            if each["kind"] in ("Deployment", "DaemonSet"):
                await report_ready(self.api, each)
        self.ports[:] = ports

    async def doctor(self, *arguments: str) -> Said:
        return await run_doctor("doctor", *arguments, f"--kubeconfig={self.control_plane.kubeconfig}")


@asynccontextmanager
async def open_installation(
    api: ApiClient, control_plane: LocalCluster, folder: Path, values: Mapping[str, Any]
) -> AsyncIterator[Installation]:
    """The chart with these values besides."""
    issuer = trustme.CA()
    issued = issuer.issue_cert("127.0.0.1")
    files = {"tls.crt": issued.cert_chain_pems[0].bytes(), "tls.key": issued.private_key_pem.bytes()}
    await api.apply(namespace(OURS))
    secret = {
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
        "metadata": {"name": f"{WEBHOOK}-tls", "namespace": OURS},
        "data": {name: base64.b64encode(content).decode() for name, content in files.items()},
    }  # fmt: skip
    await api.apply(secret)
    await api.create_all([fake_node("amd64", "amd64"), fake_node("arm64", "arm64")])
    ports: list[int] = []
    try:
        async with AsyncExitStack() as stack:
            registry = await stack.enter_async_context(EmbeddedRegistry())
            port = await stack.enter_async_context(balanced(ports))
            bundle = issuer.cert_pem.bytes().decode()
            all_values = {
                "webhook": {"url": f"https://127.0.0.1:{port}"},
                "certificates": {"source": "existingSecret", "caBundle": bundle},
                **values,
            }
            chart = await stack.enter_async_context(
                installed(api, control_plane.kubeconfig, registry, folder, all_values)
            )
            for each in chart.objects:
                if each["kind"] in ("Deployment", "DaemonSet"):
                    await report_ready(api, each)
            await stack.enter_async_context(_replica(chart, ports))
            yield Installation(api, control_plane, registry, issuer, ports, folder, all_values, chart.objects)
    finally:
        await api.delete("Secret", f"{WEBHOOK}-tls", OURS)


@asynccontextmanager
async def _replica(chart: InstalledChart, ports: list[int]) -> AsyncIterator[None]:
    """One replica of the webhook, where the chart has one part."""
    if len([each for each in chart.objects if each["kind"] == "ConfigMap"]) != 1:
        yield
        return
    async with chart.replicas(1):
        ports.extend(chart.ports("webhook"))
        yield


async def report_ready(api: ApiClient, workload: KubernetesObject) -> None:
    """Says of a Deployment what its controller would once its pods are ready."""
    wanted = workload["spec"]["replicas"]
    path = f"/apis/apps/v1/namespaces/{OURS}/deployments/{workload['metadata']['name']}/status"
    status = {"replicas": wanted, "readyReplicas": wanted, "availableReplicas": wanted, "updatedReplicas": wanted}
    await api.request("PATCH", path, {"status": status}, content_type=MERGE_PATCH)
