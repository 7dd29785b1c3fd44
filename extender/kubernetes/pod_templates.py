"""Where an object of any kind has its pod: itself, or the template by which its controller makes pods.

Objects are plain JSON here, so that fields unknown to this package survive. `pod_of` takes any kind that has containers
at `spec.template`, for reports. `pod_templates` takes the kinds that Kubernetes itself has, for changes.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

KubernetesObject = dict[str, Any]
"""An object of the Kubernetes API as JSON."""

Path: TypeAlias = tuple[str | int, ...]
"""The keys and indices that lead from a document to a value in it."""

_TEMPLATE: Path = ("spec", "template")
_TEMPLATES: Mapping[tuple[str, str], Path] = {
    ("", "Pod"): (),
    ("", "PodTemplate"): ("template",),
    ("", "ReplicationController"): _TEMPLATE,
    **{("apps", kind): _TEMPLATE for kind in ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet")},
    ("batch", "Job"): _TEMPLATE,
    ("batch", "CronJob"): ("spec", "jobTemplate", "spec", "template"),
}
KINDS = frozenset(kind for _, kind in _TEMPLATES)
"""The kinds of Kubernetes itself that have a pod template, Pod among them."""
_PATHS = {kind: path for (_, kind), path in _TEMPLATES.items()}
# What owns the pods of an object that a person writes, by the object's kind; other kinds own their pods themselves.
_OWNERS = {"Deployment": "ReplicaSet", "CronJob": "Job"}


class PodTemplate(msgspec.Struct, frozen=True):
    """A pod template in a document: the object it belongs to, and the path to it from the document's root.

    `item` leads to the object, which is the document itself or an item of a list. A Pod is its own template.
    """

    api_version: str
    kind: str
    name: str
    namespace: str
    item: Path
    path: Path
    template: Mapping[str, object]

    def __str__(self) -> str:
        """The object as people name it, such as `Deployment shop/web`."""
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"


def pod_templates(document: object) -> Iterator[PodTemplate]:
    """The pod templates of a decoded document, in order: its own, or those of the objects in a list."""
    yield from _templates(document, (), may_be_list=True)


def pod_of(manifest: Mapping[str, Any]) -> KubernetesObject | None:
    """The pod that the object is or makes, without status and node; None if the object has no pod.

    A pod made by a controller has no name, and is owned as its controller would own it. Any kind with containers at
    `spec.template` counts, as many custom resources have.
    """
    kind = str(manifest.get("kind") or "")
    metadata = _object(manifest.get("metadata"))
    if kind == "Pod":
        own = {key: value for key, value in _object(manifest.get("spec")).items() if key != "nodeName"}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": dict(metadata), "spec": own}
    template = _object(_at(manifest, _PATHS.get(kind, _TEMPLATE)))
    spec = _object(template.get("spec"))
    if not isinstance(spec.get("containers"), list):
        return None
    made = dict(_object(template.get("metadata")))
    if metadata.get("namespace"):
        made["namespace"] = metadata["namespace"]
    owner = {"kind": _OWNERS.get(kind, kind), "controller": True}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {**made, "ownerReferences": [owner]}, "spec": dict(spec)}


def unread_containers(manifest: Mapping[str, Any]) -> str:
    """Where an object of a custom resource names containers that `pod_of` does not find; empty if it names none.

    Such are JobSets, RayClusters and Workflows: a map there has `containers`, or an `image` beside what else a
    container has.
    """
    group = str(manifest.get("apiVersion") or "").rpartition("/")[0]
    if "." not in group or group.endswith(".k8s.io") or pod_of(manifest) is not None:
        return ""
    waiting: list[tuple[str, object]] = [("spec", manifest.get("spec"))]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, Mapping):
            is_container = path.endswith(".container") or not _OF_CONTAINERS.isdisjoint(value)
            if (isinstance(value.get("image"), str) and is_container) or _are_objects(value.get("containers")):
                return path
            waiting += [(f"{path}.{key}", inner) for key, inner in value.items()][::-1]
        elif isinstance(value, list):
            waiting += [(f"{path}[{index}]", inner) for index, inner in enumerate(value)][::-1]
    return ""


def _are_objects(value: object) -> bool:
    return isinstance(value, list) and any(isinstance(each, Mapping) for each in value)


_OF_CONTAINERS = frozenset(("args", "command", "env", "imagePullPolicy", "ports", "replicas", "resources", "script"))


def node_of(manifest: Mapping[str, Any]) -> str:
    """The node to which the object is bound; empty for anything but a bound pod."""
    return str(_object(manifest.get("spec")).get("nodeName") or "") if manifest.get("kind") == "Pod" else ""


def namespace_annotations(documents: Iterable[object]) -> dict[str, dict[str, str]]:
    """The annotations of each Namespace among the documents, by its name."""
    found = {}
    for document in documents:
        if isinstance(document, Mapping) and document.get("kind") == "Namespace":
            metadata = _object(document.get("metadata"))
            annotations = _object(metadata.get("annotations"))
            found[str(metadata.get("name"))] = {key: str(value) for key, value in annotations.items()}
    return found


def _templates(document: object, item: Path, *, may_be_list: bool) -> Iterator[PodTemplate]:
    if not isinstance(document, Mapping):
        return
    kind, items = document.get("kind"), document.get("items")
    if may_be_list and isinstance(kind, str) and kind.endswith("List") and isinstance(items, Sequence):
        for index, inner in enumerate(items):
            yield from _templates(inner, (*item, "items", index), may_be_list=False)
        return
    api_version = document.get("apiVersion")
    if not isinstance(kind, str) or not isinstance(api_version, str):
        return
    group = api_version.rpartition("/")[0]
    path = _TEMPLATES.get((group, kind))
    template = None if path is None else _at(document, path)
    if path is None or not isinstance(template, Mapping) or not isinstance(template.get("spec"), Mapping):
        return
    metadata = _object(document.get("metadata"))
    name = metadata.get("name") or metadata.get("generateName") or "without a name"
    namespace = metadata.get("namespace") or ""
    yield PodTemplate(api_version, kind, str(name), str(namespace), item, (*item, *path), template)


def _at(document: object, path: Path) -> object:
    for step in path:
        if not isinstance(document, Mapping):
            return None
        document = document.get(step)
    return document


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
