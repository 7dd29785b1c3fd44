"""Objects with pod templates, of Kubernetes' own kinds and of others', and the programs that apply them."""

import asyncio
import copy
import itertools
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from testbed.api_client import ApiClient, ApiError
from testbed.eventually import eventually
from testbed.objects import KubernetesObject
from tests.e2e.golden import VERSIONS


def plural_of(kind: str) -> str:
    name = kind.lower()
    return f"{name[:-1]}ies" if name.endswith("y") else f"{name}s"


def definition(version: str, kind: str, scope: str = "Namespaced") -> KubernetesObject:
    """A CustomResourceDefinition that takes any spec, as those of the real kinds take what matters here."""
    group, _, served = version.partition("/")
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": anything}}}
    names = {"plural": plural_of(kind), "singular": kind.lower(), "kind": kind, "listKind": f"{kind}List"}
    annotations = {"api-approved.kubernetes.io": "unapproved"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural_of(kind)}.{group}", "annotations": annotations},
        "spec": {
            "group": group,
            "names": names,
            "scope": scope,
            "versions": [{"name": served, "served": True, "storage": True, "schema": schema}],
        },
    }


async def serve(api: ApiClient, *definitions: KubernetesObject) -> None:
    """Creates the definitions; returns once their kinds are served."""
    for each in definitions:
        await api.apply(each)
    for spec in (each["spec"] for each in definitions):
        path = f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}"
        await eventually(lambda path=path: api.request("GET", path), despite=ApiError)  # type: ignore[misc]


@asynccontextmanager
async def served(api: ApiClient, *definitions: KubernetesObject) -> AsyncIterator[None]:
    await serve(api, *definitions)
    yield
    for each in definitions:
        await api.delete(each["kind"], each["metadata"]["name"], "", each["apiVersion"])
    names = {each["metadata"]["name"] for each in definitions}
    await eventually(lambda: _names(api), names.isdisjoint)  # one that is ending takes no objects of the next test


async def _names(api: ApiClient) -> set[str]:
    found = await api.list("CustomResourceDefinition", api_version="apiextensions.k8s.io/v1")
    return {each["metadata"]["name"] for each in found}


class CustomKind(NamedTuple):
    """A kind of somebody else's, and where it has its templates."""

    version: str
    kind: str
    paths: tuple[str, ...]
    scope: str = "Namespaced"

    def definition(self) -> KubernetesObject:
        return definition(self.version, self.kind, self.scope)


CUSTOM = (
    CustomKind("jobset.x-k8s.io/v1alpha2", "JobSet", ("spec.replicatedJobs[0].template.spec.template",)),
    CustomKind("ray.io/v1", "RayCluster", ("spec.headGroupSpec.template", "spec.workerGroupSpecs[0].template")),
    CustomKind("kubeflow.org/v1", "PyTorchJob", ("spec.pytorchReplicaSpecs.Master.template",)),
    CustomKind(
        "leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet",
        ("spec.leaderWorkerTemplate.leaderTemplate", "spec.leaderWorkerTemplate.workerTemplate"),
    ),
    CustomKind("argoproj.io/v1alpha1", "Rollout", ("spec.template",)),
    CustomKind("batch.volcano.sh/v1alpha1", "VolcanoJob", ("spec.tasks[0].template",)),
)  # fmt: skip
RUNTIME = CustomKind(
    "trainer.kubeflow.org/v1alpha1", "ClusterTrainingRuntime",
    ("spec.template.spec.replicatedJobs[0].template.spec.template",), "Cluster",
)  # fmt: skip
"""A kind whose objects are in no namespace."""
BUILT_IN = {
    "Deployment": "spec.template", "StatefulSet": "spec.template", "DaemonSet": "spec.template",
    "ReplicaSet": "spec.template", "ReplicationController": "spec.template", "PodTemplate": "template",
    "Job": "spec.template", "CronJob": "spec.jobTemplate.spec.template",
}  # fmt: skip


def template(image: str, **spec: object) -> KubernetesObject:
    containers = [{"name": "main", "image": image}]
    ended = {"terminationGracePeriodSeconds": 0}  # no kubelet would confirm the end of a pod
    return {"metadata": {"labels": {"app": "it"}}, "spec": {"containers": containers, **ended, **spec}}


def two(first: str, second: str) -> KubernetesObject:
    made = template(first)
    made["spec"]["containers"].append({"name": "second", "image": second})
    return made


def custom(
    kind: CustomKind, name: str, where: str, made: KubernetesObject, labels: Mapping[str, str]
) -> KubernetesObject:
    document: KubernetesObject = {
        "apiVersion": kind.version, "kind": kind.kind,
        "metadata": {"name": name, "namespace": where, "labels": dict(labels)}, "spec": {},
    }  # fmt: skip
    for path in kind.paths:
        put(document, path, copy.deepcopy(made))
    return document


def put(document: Any, path: str, value: object) -> None:
    """Puts the value at a path such as `spec.tasks[0].template`."""
    steps = path.replace("[0]", ".0").split(".")
    for step, following in itertools.pairwise(steps):
        if step == "0":
            if not document:
                document.append({})
            document = document[0]
        else:
            document = document.setdefault(step, [] if following == "0" else {})
    document[steps[-1]] = value


def at(document: Any, path: str) -> Any:
    for step in path.replace("[0]", ".0").split("."):
        document = document[0] if step == "0" else document[step]
    return document


def built_in(
    kind: str, name: str, where: str, made: KubernetesObject, labels: Mapping[str, str] | None = None, **spec: object
) -> KubernetesObject:
    document: KubernetesObject = {
        "apiVersion": VERSIONS[kind], "kind": kind,
        "metadata": {"name": name, "namespace": where, "labels": dict(labels or {})},
    }  # fmt: skip
    made = copy.deepcopy(made)
    if kind in ("Job", "CronJob"):
        made["spec"]["restartPolicy"] = "Never"
    put(document, BUILT_IN[kind], made)
    if kind in ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet"):
        document["spec"]["selector"] = {"matchLabels": made["metadata"]["labels"]}
    if kind == "Job":
        document["spec"]["suspend"] = True
    if kind == "CronJob":
        document["spec"]["schedule"] = "0 3 * * *"
    document.get("spec", {}).update(spec)
    return document


REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
OWN: dict[str, KubernetesObject] = {
    "nothing": {},
    "tolerations": {"tolerations": [{"key": "own", "operator": "Exists"}]},
    "selector": {"nodeSelector": {"disk": "ssd"}},
    "terms": {
        "affinity": {
            "nodeAffinity": {
                REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [{"key": "disk", "operator": "Exists"}]}]}
            }
        }
    },
}


async def run(*command: str | Path, stdin: str = "") -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        *map(str, command),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await asyncio.wait_for(process.communicate(stdin.encode()), 120)
    return process.returncode or 0, out.decode(), err.decode()
