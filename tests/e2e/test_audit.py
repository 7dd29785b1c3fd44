"""`audit` of 300 pods of every kind of owner on a real control plane, with images of every kind in a real registry.

`tests/data/audit/golden.yaml` has a row for each workload, with what must be found and why.
"""

import asyncio
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from extender.demo.images import build_artifact, build_index, build_manifest
from testbed.api_client import ApiClient
from testbed.control_plane import LocalCluster
from testbed.debian_registry import DebianRegistry, find_docker_registry
from testbed.objects import KubernetesObject, fake_node, namespace

pytestmark = pytest.mark.e2e

ROWS: list[dict[str, Any]] = yaml.safe_load((Path(__file__).parents[1] / "data/audit/golden.yaml").read_text())
TARGETS = ("linux/amd64", "linux/arm64", "linux/s390x")
VERSIONS = {
    "Deployment": "apps/v1", "StatefulSet": "apps/v1", "DaemonSet": "apps/v1", "ReplicaSet": "apps/v1",
    "ReplicationController": "v1", "PodTemplate": "v1", "Pod": "v1", "Job": "batch/v1", "CronJob": "batch/v1",
}  # fmt: skip
BETWEEN = {"Deployment": "ReplicaSet", "CronJob": "Job", "Rollout": "ReplicaSet"}
POOL = ({"key": "pool", "value": "z", "effect": "NoSchedule"},)


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DebianRegistry]:
    """Images of every kind; newer tags of `amd` have arm64 from 1.2 on, and none has s390x."""
    with DebianRegistry(find_docker_registry(), tmp_path_factory.mktemp("registry")) as opened:
        opened.push("shop/multi", "1.0", build_index(TARGETS[:2], attested=True))
        opened.push("shop/all", "1.0", build_index(TARGETS))
        opened.push("shop/arm", "1.0", build_manifest("linux/arm64"))
        opened.push("shop/artifact", "1.0", build_artifact())
        for minor in range(12):
            platforms = TARGETS[:2] if minor >= 2 else TARGETS[:1]
            opened.push("shop/amd", f"1.{minor}", build_index(platforms))
        yield opened


def named(value: Any, host: str) -> Any:
    """The value with its images named as the registry has them."""
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
    """The metadata of an object that this controller owns."""
    reference = {"apiVersion": VERSIONS.get(kind, version), "kind": kind, "name": name, "uid": str(uuid.uuid4())}
    return {"ownerReferences": [{**reference, "controller": True}]}


def workload(
    kind: str, name: str, where: str, row: dict[str, Any], host: str, owner: KubernetesObject
) -> KubernetesObject:
    """The object of one of Kubernetes' own kinds, with the row's template."""
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


async def audit(registry: DebianRegistry, *arguments: str) -> tuple[int, str, str]:
    """The exit code, standard output and standard error of the command."""
    host = registry.host
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "extender", "audit", *arguments, "--set", f"registry.plain_http=['{host}']",
        "--set", f"registry.allow=['*', '{host}']", "--set", "cache.url='memory:'",
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "NO_COLOR": "1"},
    )  # fmt: skip
    out, err = await asyncio.wait_for(process.communicate(), 120)
    return process.returncode or 0, out.decode(), err.decode()


def expected(row: dict[str, Any], *, has_nodes: bool) -> dict[str, tuple[str, list[str]]]:
    """The answer for each platform, and the rules of its blockers."""
    words = {True: "yes", False: "no", "unknown": "unknown"}
    answers = [words[each] for each in row["answers"]]
    blockers = {platform: sorted(rules) for platform, rules in row.get("blockers", {}).items()}
    if not has_nodes:
        answers = answers[:2] if "without_nodes" not in row else [words[each] for each in row["without_nodes"]]
        blockers = {} if "without_nodes" in row else blockers
    return {platform: (answer, blockers.get(platform, [])) for platform, answer in zip(TARGETS, answers, strict=False)}


def found_for(report: dict[str, Any], row: dict[str, Any]) -> tuple[dict[str, Any], dict[str, tuple[str, list[str]]]]:
    """The workload of the row as the report has it, and its answers as `expected` has them."""
    [found] = [each for each in report["workloads"] if (each["kind"], each["name"]) == (row["kind"], row["name"])]
    return found, {
        each["platform"]: (each["answer"], sorted(blocker["rule"] for blocker in each["blockers"]))
        for each in found["platforms"]
    }


async def test_the_live_cluster_and_its_manifests_give_the_golden_findings(
    control_plane: LocalCluster, api: ApiClient, registry: DebianRegistry, tmp_path: Path
) -> None:
    """Every row of the golden file, and no workload besides; the same of manifests, but for what only a cluster has."""
    where = f"audit-{uuid.uuid4().hex[:8]}"
    await api.create(namespace(where))
    architectures = [platform.partition("/")[2] for platform in TARGETS]
    await api.create_all(
        fake_node(f"{name}-{index}", name, cpu="8", memory="32Gi", taints=POOL if name == "s390x" else ())
        for name in architectures
        for index in range(2)
    )
    everything = [objects_of(row, where, registry.host) for row in ROWS]
    assert sum(each["kind"] == "Pod" for written, made in everything for each in (*written, *made)) == 300
    for written, made in everything:
        await api.create_all(written)
        await api.create_all(made)
    for row in ROWS:
        if row["kind"] == "DaemonSet":  # which its controller would write
            path = f"/apis/apps/v1/namespaces/{where}/daemonsets/{row['name']}/status"
            counts = ("currentNumberScheduled", "desiredNumberScheduled", "numberMisscheduled", "numberReady")
            body = {"status": dict.fromkeys(counts, row["pods"])}
            await api.request("PATCH", path, body, content_type="application/merge-patch+json")

    code, out, err = await audit(registry, "-n", where, "--kubeconfig", str(control_plane.kubeconfig), "-o", "json")
    assert (code, err) == (0, "")
    report = json.loads(out)
    assert report["targets"] == list(TARGETS)
    assert report["problems"] == []
    assert {(each["kind"], each["name"]) for each in report["workloads"]} == {
        (row["kind"], row["name"]) for row in ROWS
    }
    for row in ROWS:
        found, answers = found_for(report, row)
        assert answers == expected(row, has_nodes=True), row["why"]
        assert found["weight"]["pods"] == row["pods"], row["why"]
    _check_findings(report, where)
    _check_images(report, registry.host)
    pools = {pool["platform"]: (pool["nodes"], pool["cpu_cores"]) for pool in report["nodes"]}
    assert pools == dict.fromkeys(TARGETS, (2, 16.0))

    file = tmp_path / "all.yaml"
    file.write_text(yaml.safe_dump_all(manifest for written, _ in everything for manifest in written))
    code, out, err = await audit(registry, "-f", str(file), "-o", "json")
    assert (code, err) == (0, "")
    report = json.loads(out)
    assert report["targets"] == list(TARGETS[:2])
    for row in ROWS:
        if row["kind"] in VERSIONS:
            assert found_for(report, row)[1] == expected(row, has_nodes=False), row["why"]


def _check_findings(report: dict[str, Any], where: str) -> None:
    """The findings about DaemonSets are those of the rows, and no others."""
    stated = {
        (f"{where}/DaemonSet/{row['name']}", *f"{finding} ".split(" ")[:2])
        for row in ROWS
        for finding in row.get("findings", ())
    }
    told = {
        (each["workloads"][0], each["rule"], each["platform"])
        for each in report["findings"]
        if each["rule"].startswith("daemonset")
    }
    assert told == stated
    torn = [each["subject"] for each in report["findings"] if each["rule"] == "no-common-platform"]
    assert torn == [f"{where}/Deployment/torn"]


def _check_images(report: dict[str, Any], host: str) -> None:
    """Digests, causes, weights and the first newer tag."""
    images = {each["reference"]: each for each in report["images"]}
    amd = images[f"{host}/shop/amd:1.0"]
    assert amd["digest"].startswith("sha256:")
    assert amd["lacks"] == ["linux/arm64", "linux/s390x"]
    newer = {each["platform"]: (each["tag"], each["why"]) for each in amd["newer"]}
    assert newer["linux/arm64"] == ("1.2", "")
    assert newer["linux/s390x"][0] is None
    assert "1.11, does not run there either" in newer["linux/s390x"][1]
    uses = {each["workload"].rpartition("/")[2]: each for each in amd["used_by"]}
    assert uses["injected"]["is_injected"]
    assert uses["starting"]["used_as"] == "init container"
    # every row but `ignored` that names it, each weighed once
    rows = [
        row
        for row in ROWS
        if "amd" in str(row.get("pod_images", row["images"])) + str(row.get("spec", {}).get("initContainers", ""))
    ]
    assert amd["blocks"]["pods"] == sum(row["pods"] for row in rows if row["name"] != "ignored")
    assert images[f"{host}/shop/missing:1.0"]["cause"] == "missing"
    assert images[f"{host}/shop/artifact:1.0"]["cause"] == "artifact"
