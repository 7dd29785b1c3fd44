"""Kueue as a process beside a control plane on loopback, with its definitions and webhooks as its users have them.

Its webhooks are reached by a Service of type ExternalName in place of kube-proxy. It makes its certificate itself, in a
Secret, which is copied into its folder in place of a kubelet.
"""

import asyncio
import base64
import shutil
import subprocess
from collections.abc import AsyncIterator, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec
import yaml

from testbed.api_client import ApiClient, ApiError
from testbed.objects import KubernetesObject
from testbed.processes import Process, answers, free_port

READY_SECONDS = 60.0  # for a busy machine; usually it takes five
KUEUE = "kueue.x-k8s.io/v1beta2"
NAMESPACE = "kueue-system"
QUEUE = "team"
QUEUED = {"kueue.x-k8s.io/queue-name": QUEUE}
"""The label of objects that wait in the queue that `create_queue` makes."""
GATE = "kueue.x-k8s.io/admission"
"""Kueue's own scheduling gate."""
_SERVICE, _SECRET, _CONVERTED = (
    "kueue-webhook-service",
    "kueue-webhook-server-cert",
    ("localqueues", "clusterqueues", "workloads", "cohorts", "multikueueclusters"),
)
_WEBHOOKS = "manifests.yaml"
_BUILT_IN = ("", "apps", "batch")
_FRAMEWORKS = (
    "batch/job", "pod", "deployment", "statefulset", "jobset.x-k8s.io/jobset", "kubeflow.org/pytorchjob",
    "ray.io/raycluster", "leaderworkerset.x-k8s.io/leaderworkerset",
)  # fmt: skip


class Flavor(NamedTuple):
    """Nodes of one kind that a queue plans with: their labels, and the taints that pods must tolerate."""

    name: str
    labels: Mapping[str, str]
    taints: Sequence[Mapping[str, str]] = ()


async def create_queue(api: ApiClient, namespace: str, flavors: Sequence[Flavor]) -> None:
    """Creates the queue `team` of the namespace, which tries the flavors in order; each has 100 CPUs."""
    for flavor in flavors:
        spec = {"nodeLabels": dict(flavor.labels), "nodeTaints": list(flavor.taints)}
        await api.apply(_made("ResourceFlavor", f"{namespace}-{flavor.name}", spec))
    quotas = [
        {"name": f"{namespace}-{flavor.name}", "resources": [{"name": "cpu", "nominalQuota": 100}]}
        for flavor in flavors
    ]
    group = {"coveredResources": ["cpu"], "flavors": quotas}
    await api.apply(_made("ClusterQueue", namespace, {"namespaceSelector": {}, "resourceGroups": [group]}))
    queue = _made("LocalQueue", QUEUE, {"clusterQueue": namespace})
    await api.apply({**queue, "metadata": {**queue["metadata"], "namespace": namespace}})


class PodSetsQuestion(msgspec.Struct, frozen=True):
    """The templates of a plan, and those of its job as it is now."""

    plan: Sequence[KubernetesObject]
    job: Sequence[KubernetesObject]


class PodSetsAnswer(msgspec.Struct, frozen=True):
    """Whether Kueue takes the plan for one of the job, before and after it is admitted; the roles of its pods."""

    same: bool
    same_admitted: bool
    roles: list[str]


def compare(folder: Path, questions: Iterable[PodSetsQuestion]) -> list[PodSetsAnswer]:
    """Kueue's own answers, by the functions that it calls; `folder` has its programs."""
    asked = b"\n".join(map(msgspec.json.encode, questions))
    done = subprocess.run([folder / "podsets"], input=asked, capture_output=True, check=True, timeout=60)
    return [msgspec.json.decode(line, type=PodSetsAnswer) for line in done.stdout.splitlines()]


@asynccontextmanager
async def running_kueue(
    folders: Sequence[Path], api: ApiClient, kubeconfig: Path, scratch: Path
) -> AsyncIterator[None]:
    """Runs Kueue inside the block, which plans Jobs, pods, Deployments, StatefulSets and the custom kinds of `folders`.

    `find_kueue` finds the folders. At the end its webhooks are deleted, and its objects stay. Raises ProcessFailed.
    """
    port, health = free_port(), free_port()
    await _create_objects(folders, api, port)
    certificates = scratch / "kueue-certificates"
    certificates.mkdir()
    configuration = scratch / "kueue.yaml"
    configuration.write_bytes(msgspec.yaml.encode(_configuration(port, health, certificates)))
    command = [
        shutil.which("env") or "env",
        f"KUBECONFIG={kubeconfig}",
        str(folders[0] / "kueue"),
        f"--config={configuration}",
    ]
    process = Process("kueue", command, scratch / "kueue.log")
    try:
        await _mount(api, certificates)
        await asyncio.to_thread(process.wait_until, partial(answers, health, "/readyz"), READY_SECONDS)
        yield
    except BaseException as exc:
        exc.add_note(process.tail())
        raise
    finally:
        for webhooks in _webhooks(folders, port, ()):
            await api.delete(webhooks["kind"], webhooks["metadata"]["name"], "", webhooks["apiVersion"])
        process.stop(grace_seconds=0)  # it has nothing to save


def _configuration(port: int, health: int, certificates: Path) -> KubernetesObject:
    """Listens on loopback alone; the rest is as shipped."""
    return {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": "127.0.0.1", "port": port, "certDir": str(certificates)},
        "leaderElection": {"leaderElect": False},
        "featureGates": {"VisibilityOnDemand": False},
        "integrations": {"frameworks": list(_FRAMEWORKS)},
    }


async def create_definitions(folders: Sequence[Path], api: ApiClient) -> list[KubernetesObject]:
    """Creates Kueue's definitions and those of the kinds that it plans, as they are shipped; returns them, served."""
    files = [file for folder in folders for file in sorted(folder.glob("*.yaml")) if file.name != _WEBHOOKS]
    definitions = [yaml.safe_load(file.read_text()) for file in files]
    for definition in definitions:
        try:
            await api.create(definition)
        except ApiError as exc:
            if exc.status != 409:  # a Kueue that ran before has changed it, and taken its fields
                raise
    for definition in definitions:
        await _wait_until_served(api, definition)
    return definitions


async def _create_objects(folders: Sequence[Path], api: ApiClient, port: int) -> None:
    await api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    await api.apply({**_named("Secret", _SECRET), "type": "Opaque"})
    service = {"type": "ExternalName", "externalName": "localhost"}
    await api.apply({**_named("Service", _SERVICE), "spec": service})
    definitions = await create_definitions(folders, api)
    for definition in definitions:
        if definition["spec"]["names"]["plural"] in _CONVERTED:
            await api.apply(_converted(definition, port))
    served = {(each["spec"]["group"], each["spec"]["names"]["plural"]) for each in definitions}
    for webhooks in _webhooks(folders, port, served):
        await api.apply(webhooks)


def _converted(definition: KubernetesObject, port: int) -> KubernetesObject:
    """The definition with the conversion that Kueue's installation gives it, without which it does not start."""
    client = {"service": {"namespace": NAMESPACE, "name": _SERVICE, "path": "/convert", "port": port}}
    conversion = {"strategy": "Webhook", "webhook": {"clientConfig": client, "conversionReviewVersions": ["v1"]}}
    return {**definition, "spec": {**definition["spec"], "conversion": conversion}}


def _webhooks(folders: Sequence[Path], port: int, served: Container[tuple[str, str]]) -> Iterator[KubernetesObject]:
    """The webhooks with the names that an installation gives them, but for those of kinds that are not served."""
    for found in yaml.safe_load_all((folders[0] / _WEBHOOKS).read_text()):
        made = [each for each in found["webhooks"] if _is_served(each["rules"], served)]
        for each in made:
            each["clientConfig"]["service"] |= {"name": _SERVICE, "namespace": NAMESPACE, "port": port}
        yield {**found, "metadata": {"name": f"kueue-{found['metadata']['name']}"}, "webhooks": made}


def _is_served(rules: Sequence[KubernetesObject], served: Container[tuple[str, str]]) -> bool:
    return all(
        group in _BUILT_IN or any((group, plural.partition("/")[0]) in served for plural in rule["resources"])
        for rule in rules
        for group in rule["apiGroups"]
    )


async def _wait_until_served(api: ApiClient, definition: KubernetesObject) -> None:
    spec = definition["spec"]
    version = next(each["name"] for each in spec["versions"] if each["storage"])
    async with asyncio.timeout(READY_SECONDS):
        while True:
            try:
                await api.request("GET", f"/apis/{spec['group']}/{version}/{spec['names']['plural']}")
            except ApiError as exc:
                if exc.status not in (404, 429):  # 429: its storage is being made
                    raise
                await asyncio.sleep(0.05)
            else:
                return


async def _mount(api: ApiClient, folder: Path) -> None:
    """Writes the certificate once Kueue has made it."""
    async with asyncio.timeout(READY_SECONDS):
        while "tls.crt" not in (found := (await api.get("Secret", _SECRET, NAMESPACE)).get("data") or {}):
            await asyncio.sleep(0.05)
    for name in ("tls.key", "tls.crt"):
        (folder / name).write_bytes(base64.b64decode(found[name]))


def _named(kind: str, name: str) -> KubernetesObject:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": NAMESPACE}}


def _made(kind: str, name: str, spec: Mapping[str, object]) -> KubernetesObject:
    return {"apiVersion": KUEUE, "kind": kind, "metadata": {"name": name}, "spec": dict(spec)}
