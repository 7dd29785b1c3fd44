"""300 pods of every kind of owner with images of every kind, and what must be found about them.

`tests/data/audit/golden.yaml` has a row for each workload, with what must be found and why.
"""

import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from testbed.api_client import ApiClient
from testbed.debian_registry import DebianRegistry, find_docker_registry
from testbed.images import build_artifact, build_index, build_manifest
from testbed.objects import KubernetesObject, fake_node, namespace

ROWS: list[dict[str, Any]] = yaml.safe_load((Path(__file__).parents[1] / "data/audit/golden.yaml").read_text())
TARGETS = ("linux/amd64", "linux/arm64", "linux/s390x")
VERSIONS = {
    "Deployment": "apps/v1", "StatefulSet": "apps/v1", "DaemonSet": "apps/v1", "ReplicaSet": "apps/v1",
    "ReplicationController": "v1", "PodTemplate": "v1", "Pod": "v1", "Job": "batch/v1", "CronJob": "batch/v1",
}  # fmt: skip
BETWEEN = {"Deployment": "ReplicaSet", "CronJob": "Job", "Rollout": "ReplicaSet"}
ARCHITECTURES = tuple(platform.partition("/")[2] for platform in TARGETS)
POOL = ({"key": "pool", "value": "z", "effect": "NoSchedule"},)


def named(value: Any, host: str) -> Any:
    if isinstance(value, dict):
        return {
            key: f"{host}/shop/{item}:1.0"
            if key in ("image", "reference") and isinstance(item, str)
            else named(item, host)
            for key, item in value.items()
        }
    return [named(item, host) for item in value] if isinstance(value, list) else value


def pod_spec(row: dict[str, Any], host: str, images: list[str]) -> KubernetesObject:
    """The spec of the row's pods; each container requests a tenth of a core."""
    containers = [
        {"name": f"c{index}", "image": image, "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}}}
        for index, image in enumerate(images)
    ]
    spec: KubernetesObject = named({"containers": containers, **row.get("spec", {})}, host)
    return {"terminationGracePeriodSeconds": 0, **spec}


def owner_of(kind: str, name: str, version: str = "example.com/v1") -> KubernetesObject:
    reference = {"apiVersion": VERSIONS.get(kind, version), "kind": kind, "name": name, "uid": str(uuid.uuid4())}
    return {"ownerReferences": [{**reference, "controller": True}]}


def workload(
    kind: str, name: str, where: str, row: dict[str, Any], host: str, owner: KubernetesObject
) -> KubernetesObject:
    labels = {"app": name}
    spec = pod_spec(row, host, row["images"])
    template = {"metadata": {"labels": labels, "annotations": row.get("annotations", {})}, "spec": spec}
    metadata = {"name": name, "namespace": where, **owner}
    manifest: KubernetesObject = {"apiVersion": VERSIONS[kind], "kind": kind, "metadata": metadata}
    match kind:
        case "Pod":
            return {**manifest, "spec": spec}
        case "PodTemplate":
            return {**manifest, "template": template}
        case "Job":
            spec["restartPolicy"] = "Never"
            return {**manifest, "spec": {"parallelism": row["pods"], "template": template}}
        case "CronJob":
            spec["restartPolicy"] = "Never"
            job = {"spec": {"parallelism": row["pods"] or 1, "template": template}}
            return {**manifest, "spec": {"schedule": "0 3 * * *", "suspend": not row["pods"], "jobTemplate": job}}
        case "ReplicationController":
            return {**manifest, "spec": {"replicas": row["pods"], "selector": labels, "template": template}}
        case _:
            selector = {"selector": {"matchLabels": labels}, "template": template}
            extra = {} if kind == "DaemonSet" else {"replicas": row["pods"]}
            return {
                **manifest,
                "spec": {**selector, **extra, **({"serviceName": name} if kind == "StatefulSet" else {})},
            }


def objects_of(row: dict[str, Any], where: str, host: str) -> tuple[list[KubernetesObject], list[KubernetesObject]]:
    """What a person writes for the row, and what controllers would make of it."""
    kind, name = row["kind"], row["name"]
    written = [workload(kind, name, where, row, host, {})] if kind in VERSIONS else []
    if kind == "Pod":
        return written, []
    made, direct = [], (kind, name)
    if kind in BETWEEN and row["pods"]:
        direct = BETWEEN[kind], f"{name}-1"
        made.append(workload(*direct, where, row, host, owner_of(kind, name)))
    spec = pod_spec(row, host, row.get("pod_images", row["images"]))
    for index in range(row["pods"]):
        metadata = {"name": f"{name}-1-{index}", "namespace": where, **owner_of(*direct)}
        metadata["annotations"] = row.get("annotations", {})
        made.append({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    return written, made


@contextmanager
def open_registry(folder: Path) -> Iterator[DebianRegistry]:
    """Images of every kind; newer tags of `amd` have arm64 from 1.2 on, and none has s390x."""
    with DebianRegistry(find_docker_registry(), folder) as opened:
        opened.push("shop/multi", "1.0", build_index(TARGETS[:2], attested=True))
        opened.push("shop/all", "1.0", build_index(TARGETS))
        opened.push("shop/arm", "1.0", build_manifest("linux/arm64"))
        opened.push("shop/artifact", "1.0", build_artifact())
        for minor in range(12):
            platforms = TARGETS[:2] if minor >= 2 else TARGETS[:1]
            opened.push("shop/amd", f"1.{minor}", build_index(platforms))
        yield opened


class Written(NamedTuple):
    """The objects of all rows in a namespace: what a person writes, and what controllers make of it."""

    namespace: str
    written: list[KubernetesObject]
    made: list[KubernetesObject]


async def create_nodes(api: ApiClient, cpu: str) -> None:
    """Two nodes of each architecture with so much CPU each, of which those of s390x have a taint."""
    await api.create_all(
        fake_node(f"{name}-{index}", name, cpu=cpu, memory="32Gi", taints=POOL if name == "s390x" else ())
        for name in ARCHITECTURES
        for index in range(2)
    )


async def populate(api: ApiClient, host: str, of_pods: Mapping[str, Any] | None = None, *, cpu: str = "8") -> Written:
    """Creates the nodes, a namespace and the objects of all rows there. `of_pods` is added to the spec of each pod."""
    where = f"golden-{uuid.uuid4().hex[:8]}"
    await api.create(namespace(where))
    await create_nodes(api, cpu)
    written, made = list[KubernetesObject](), list[KubernetesObject]()
    for row in ROWS:
        ours, theirs = objects_of(row, where, host)
        written += ours
        made += theirs
    for each in (*written, *made):
        if each["kind"] == "Pod":
            each["spec"] = {**each["spec"], **(of_pods or {})}
    assert sum(each["kind"] == "Pod" for each in (*written, *made)) == 300
    await api.create_all(written)
    await api.create_all(made)
    return Written(where, written, made)
