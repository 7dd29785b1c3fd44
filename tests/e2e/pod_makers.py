"""Objects with pod templates, of Kubernetes' own kinds and of others', and the programs that apply them."""

import asyncio
import copy
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from testbed.objects import KubernetesObject
from tests.e2e.golden import VERSIONS


class CustomKind(NamedTuple):
    """A kind of somebody else's, and where it has its templates."""

    version: str
    kind: str
    paths: tuple[str, ...]
    scope: str = "Namespaced"

    @property
    def plural(self) -> str:
        """The resource's name."""
        return f"{self.kind.lower()}s"

    def definition(self) -> KubernetesObject:
        """A definition that takes any spec, as those of the real kinds take what matters here."""
        group, _, version = self.version.partition("/")
        schema = {
            "type": "object",
            "properties": {"spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
        }
        served = {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
        names = {"plural": self.plural, "singular": self.kind.lower(), "kind": self.kind}
        return {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{self.plural}.{group}", "annotations": {"api-approved.kubernetes.io": "unapproved"}},
            "spec": {"group": group, "names": names, "scope": self.scope, "versions": [served]},
        }


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
    """A template of pods of these containers."""
    containers = [{"name": "main", "image": image}]
    ended = {"terminationGracePeriodSeconds": 0}  # no kubelet would confirm the end of a pod
    return {"metadata": {"labels": {"app": "it"}}, "spec": {"containers": containers, **ended, **spec}}


def two(first: str, second: str) -> KubernetesObject:
    """A template of two images."""
    made = template(first)
    made["spec"]["containers"].append({"name": "second", "image": second})
    return made


def custom(
    kind: CustomKind, name: str, where: str, made: KubernetesObject, labels: Mapping[str, str]
) -> KubernetesObject:
    """An object of the kind with the template in each of its places."""
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
    """What is at such a path."""
    for step in path.replace("[0]", ".0").split("."):
        document = document[0] if step == "0" else document[step]
    return document


def built_in(
    kind: str, name: str, where: str, made: KubernetesObject, labels: Mapping[str, str] | None = None, **spec: object
) -> KubernetesObject:
    """An object of one of Kubernetes' own kinds."""
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
    """The exit code, standard output and standard error of a program."""
    process = await asyncio.create_subprocess_exec(
        *map(str, command),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await asyncio.wait_for(process.communicate(stdin.encode()), 120)
    return process.returncode or 0, out.decode(), err.decode()


def deployment(name: str, where: str, spec: KubernetesObject) -> KubernetesObject:
    """A Deployment whose pods have this spec."""
    labels = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": where},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }
