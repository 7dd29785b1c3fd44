"""Nodes, pods and images as API servers and registries have them: what tests of every room start from."""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from extender.images.content import Content
from extender.images.manifest import Kind
from extender.images.platform import Platform, parse_platform
from extender.kubernetes.core_v1 import CreatedPod
from extender.placement.facts import RunsOn

T = TypeVar("T")
Json = dict[str, Any]

ARCH, OS = "kubernetes.io/arch", "kubernetes.io/os"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def platforms(*texts: str) -> frozenset[Platform]:
    return frozenset(map(parse_platform, texts))


def built_for(*texts: str) -> RunsOn:
    return RunsOn(platforms(*texts))


MULTI, AMD64, ARM64 = built_for("linux/amd64", "linux/arm64"), built_for("linux/amd64"), built_for("linux/arm64")


def index(*texts: str) -> Content:
    return Content(Kind.INDEX, platforms(*texts), states_platforms=True)


def node(
    name: str = "n", platform: str | None = "linux/amd64", labels: Mapping[str, str] | None = None, **parts: Any
) -> Json:
    """Returns a node that its kubelet calls so, with the usual labels beside these; without a platform it says nothing.

    `parts` are those of its spec, and `allocatable`.
    """
    status: Json = {"allocatable": parts.pop("allocatable", {"cpu": "8", "memory": "32Gi"})}
    usual: dict[str, str] = {}
    if platform:
        of = parse_platform(platform)
        status["nodeInfo"] = {"operatingSystem": of.os, "architecture": of.architecture}
        usual = {OS: of.os, ARCH: of.architecture}
    return {"metadata": {"name": name, "labels": {**usual, **(labels or {})}}, "spec": parts, "status": status}


def pod(images: int = 1, metadata: Json | None = None, **spec: Any) -> Json:
    """Returns a pod as the API server sends it, with this many images, `app-0:1` and so on."""
    containers = [{"name": f"c{index}", "image": f"app-{index}:1", "resources": {}} for index in range(images)]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "creationTimestamp": None, "annotations": {"team": "a/b~c"}, **(metadata or {})},
        "spec": {"containers": containers, "schedulerName": "default-scheduler", **spec},
        "status": {},
    }


def expression(key: str, *values: str, operator: str = "In") -> Json:
    return {"key": key, "operator": operator, "values": list(values)}


def with_terms(*terms: Any) -> Json:
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(terms)}}}


def decoded(document: Any, kind: type[T]) -> T:
    """Returns the document as it is read from a request."""
    return msgspec.json.decode(msgspec.json.encode(document), type=kind)


def created(document: Any) -> CreatedPod:
    return decoded(document, CreatedPod)
