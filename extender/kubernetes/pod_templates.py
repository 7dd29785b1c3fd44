"""Where an object of any kind has its pods: itself, or the templates by which controllers make pods.

A mapping whose `containers` is a list of mappings with images is a PodSpec, wherever it stands outside `metadata` and
`status`. So the kinds of Kubernetes and custom ones are read alike. Objects are plain JSON here, so that fields unknown
to this package survive.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

import msgspec

KubernetesObject = dict[str, Any]
"""An object of the Kubernetes API as JSON."""

Path: TypeAlias = tuple[str | int, ...]
"""The keys and indices that lead from a document to a value in it."""

_WITHOUT_PODS = ("metadata", "status")
# Objects have some hundred maps and lists, and PodSpecs at a depth of ten or less.
_MOST_VISITED, _DEEPEST = 10_000, 32
_KNATIVE = "serving.knative.dev"
# What owns the pods of an object that a person writes, by the object's kind; other kinds own their pods themselves.
_OWNERS = {"Deployment": "ReplicaSet", "CronJob": "Job"}


class PodTemplate(msgspec.Struct, frozen=True):
    """A pod template in a document: the object it belongs to, and the path to it from the document's root.

    `item` leads to the object, which is the document itself or an item of a list. `template` has the PodSpec at `spec`.
    A Pod is its own template. `is_bare`: there is only a PodSpec, to which `path` leads, and no metadata beside it.
    """

    api_version: str
    kind: str
    name: str
    namespace: str
    item: Path
    path: Path
    template: Mapping[str, Any]
    is_bare: bool = False

    def __str__(self) -> str:
        """The object as people name it, such as `Deployment shop/web`."""
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"

    @property
    def place(self) -> str:
        """Where the template stands in its object, as people write it: `spec.jobs[0].template`; `spec` for a Pod's."""
        return _shown(self.path[len(self.item) :]) or "spec"

    @property
    def takes_words(self) -> bool:
        """Whether nodeSelector, affinity and tolerations may be written, and recorded in the template's annotations.

        Knative refuses them unless its operator allows them.
        """
        return not self.is_bare and self.api_version.rpartition("/")[0] != _KNATIVE


class MadePod(NamedTuple):
    """A pod that an object is or makes; `place` tells the templates of an object apart, and is empty for a single."""

    place: str
    pod: KubernetesObject


def pod_templates(document: object) -> Iterator[PodTemplate]:
    """The pod templates of a decoded document, in order: its own, or those of the objects in a list."""
    if not isinstance(document, Mapping):
        return
    kind, items = document.get("kind"), document.get("items")
    if isinstance(kind, str) and kind.endswith("List") and isinstance(items, Sequence):
        for index, inner in enumerate(items):
            if isinstance(inner, Mapping):
                yield from _templates_of(inner, ("items", index))
    else:
        yield from _templates_of(document, ())


def pods_of(manifest: Mapping[str, Any]) -> list[MadePod]:
    """The pods that the object is or makes, one for each template, without status and node.

    A pod made by a controller has no name, and is owned as its controller would own it.
    """
    templates = list(_templates_of({"apiVersion": "", **manifest}, ()))
    return [MadePod(each.place if len(templates) > 1 else "", _pod_of(each)) for each in templates]


def unread_containers(manifest: Mapping[str, Any]) -> str:
    """Where an object of a custom resource without pod templates names containers; empty if it names none.

    Such are Workflows and what operators read: a map there has an `image` beside what else a container has.
    """
    group = str(manifest.get("apiVersion") or "").rpartition("/")[0]
    if "." not in group or group.endswith(".k8s.io"):
        return ""
    for path, value in _mappings(manifest.get("spec"), ("spec",)):
        is_container = path[-1] == "container" or not _OF_CONTAINERS.isdisjoint(value)
        if isinstance(value.get("image"), str) and is_container:
            return _shown(path)
    return ""


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


def _templates_of(document: Mapping[str, Any], item: Path) -> Iterator[PodTemplate]:
    kind, api_version = document.get("kind"), document.get("apiVersion")
    if not isinstance(kind, str) or not isinstance(api_version, str):
        return
    metadata = _object(document.get("metadata"))
    name = str(metadata.get("name") or metadata.get("generateName") or "without a name")
    namespace = str(metadata.get("namespace") or "")
    for path, spec in _mappings(document, ()):
        if _is_pod_spec(spec):
            is_bare = path[-1:] != ("spec",)
            template = {"spec": spec} if is_bare else _at(document, path[:-1])
            whole = (*item, *(path if is_bare else path[:-1]))
            yield PodTemplate(api_version, kind, name, namespace, item, whole, template, is_bare)


def _mappings(value: object, path: Path) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """The mappings of an object, in order and with their paths, but those in its metadata, status and PodSpecs.

    Of an object with too many, or where they are too deep, those found first.
    """
    waiting: list[tuple[Path, object]] = [(path, value)]
    for _ in range(_MOST_VISITED):
        if not waiting:
            return
        path, value = waiting.pop()
        if len(path) > _DEEPEST:
            continue
        if isinstance(value, Mapping):
            yield path, value
            if _is_pod_spec(value):
                continue
            inner: Iterable[tuple[str | int, object]] = value.items()
        elif isinstance(value, list):
            inner = enumerate(value)
        else:
            continue
        waiting += [
            ((*path, step), each)
            for step, each in islice(inner, _MOST_VISITED)
            if isinstance(each, Mapping | list) and step not in _WITHOUT_PODS
        ][::-1]


def _is_pod_spec(value: Mapping[str, Any]) -> bool:
    containers = value.get("containers")
    return isinstance(containers, list) and any(
        isinstance(each, Mapping) and isinstance(each.get("image"), str) for each in containers[:_MOST_VISITED]
    )


def _pod_of(template: PodTemplate) -> KubernetesObject:
    metadata, spec = dict(_object(template.template.get("metadata"))), dict(template.template["spec"])
    if template.kind == "Pod":
        spec.pop("nodeName", None)
    else:
        if template.namespace:
            metadata["namespace"] = template.namespace
        owner = {"kind": _OWNERS.get(template.kind, template.kind), "controller": True}
        metadata["ownerReferences"] = [owner]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _at(document: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
    found: Any = document
    for step in path:
        found = found[step]
    return _object(found)


def _shown(path: Path) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)[1:]


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
