"""The demonstration's pods and nodes, the expected answers, and the calls to the service.

The calls are JSON over HTTP, as from kube-scheduler and kube-apiserver. `__main__` prints the answers.
"""

import base64
import time
from collections.abc import Iterator
from typing import Any, TypeVar

import aiohttp
import msgspec

from extender.cluster.views import WatchedNodes
from extender.errors import ExtenderError
from extender.machine import THIS_MACHINE
from testbed.embedded_registry import EmbeddedRegistry

AMD64, ARM64 = "linux/amd64", "linux/arm64"
NODES = {"amd-1": "amd64", "amd-2": "amd64", "arm-1": "arm64", "arm-2": "arm64"}
_AMD_NODES, _ARM_NODES = ("amd-1", "amd-2"), ("arm-1", "arm-2")
_NODE_BOOST = 10
_ARCHITECTURE = "kubernetes.io/arch"
_Answer = TypeVar("_Answer", dict[str, Any], list[dict[str, Any]])


class UnexpectedAnswer(ExtenderError):
    """The service answered with another status than 200."""


class Scene(msgspec.Struct, frozen=True, kw_only=True):
    """A pod with one image, and the expected answers about it."""

    title: str
    repository: str
    tolerations: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    refusal: str = ""
    scores: dict[str, int] = {}
    error: str = ""


SCENES = (
    Scene(
        title="multi-arch image",
        repository="shop/web",
        tolerations=("kubernetes.io/arch", "arch"),
        kept=tuple(NODES),
        scores=dict.fromkeys(_ARM_NODES, _NODE_BOOST),
    ),
    Scene(
        title="amd64-only image",
        repository="shop/legacy",
        required=("amd64",),
        kept=_AMD_NODES,
        refusal="is built only for linux/amd64",
    ),
    Scene(
        title="arm64-only image",
        repository="shop/edge",
        tolerations=("kubernetes.io/arch", "arch"),
        required=("arm64",),
        kept=_ARM_NODES,
        refusal="is built only for linux/arm64",
    ),
    Scene(
        title="amd64-only image with an attestation beside it",
        repository="shop/attested",
        required=("amd64",),
        kept=_AMD_NODES,
        refusal="is built only for linux/amd64",
    ),
    Scene(title="image that is not in its registry", repository="shop/missing", error="shop/missing"),
)


class Seen(msgspec.Struct, kw_only=True):
    """The service's answers about one scene, and how long each took in milliseconds."""

    scene: Scene
    tolerations: list[str]
    required: list[str]
    kept: list[str]
    refused: dict[str, str]
    error: str
    scores: dict[str, int]
    milliseconds: dict[str, float]

    def surprises(self) -> list[str]:
        """The differences from the expected answers, one sentence each; empty if there is none."""
        scene = self.scene
        kept = () if scene.error else scene.kept
        refused = () if scene.error else tuple(name for name in NODES if name not in kept)
        expected: list[tuple[str, object, object]] = [
            ("tolerations", list(scene.tolerations), self.tolerations),
            ("required architectures", list(scene.required), self.required),
            ("nodes kept", list(kept), self.kept),
            ("nodes refused", list(refused), list(self.refused)),
            ("scores", scene.scores, self.scores),
        ]
        found = [f"{what} should be {right} and are {said}" for what, right, said in expected if right != said]
        if bool(scene.error) != bool(self.error) or scene.error not in self.error:
            found.append(f"the error should name {scene.error!r} and is {self.error!r}")
        found += [f"{node} is refused: {why!r}" for node, why in self.refused.items() if scene.refusal not in why]
        return [f"{scene.title}: {surprise}" for surprise in found]


def fill_registry(registry: EmbeddedRegistry) -> None:
    """Adds the scenes' images to the registry, except the one that must be missing."""
    registry.add_index("shop/web", "1.0", [AMD64, ARM64])
    registry.add_manifest("shop/legacy", "1.0", AMD64)
    registry.add_index("shop/edge", "1.0", [ARM64])
    registry.add_index("shop/attested", "1.0", [AMD64], attested=True)


class Caller:
    """Sends requests to the service at two base URLs, as kube-apiserver and kube-scheduler do."""

    def __init__(
        self, session: aiohttp.ClientSession, admission_url: str, scheduler_url: str, registry_host: str
    ) -> None:
        self._session = session
        self._admission_url = admission_url
        self._scheduler_url = scheduler_url
        self._registry_host = registry_host

    async def play(self, scene: Scene) -> Seen:
        """Sends the scene's pod to the webhook, filter and prioritize. Returns the answers."""
        milliseconds: dict[str, float] = {}
        pod = pod_of(scene, self._registry_host)
        arguments = arguments_of(pod)

        async def ask(name: str, url: str, document: object, kind: type[_Answer]) -> _Answer:
            started = time.perf_counter()
            answer = await self._post(url, document, kind)
            milliseconds[name] = (time.perf_counter() - started) * 1000
            return answer

        review = await ask("webhook", f"{self._admission_url}/admission/pods", review_of(pod), dict)
        filtered = await ask("filter", f"{self._scheduler_url}/scheduler/filter", arguments, dict)
        scores = await ask("prioritize", f"{self._scheduler_url}/scheduler/prioritize", arguments, list)
        kept = (filtered["Nodes"] or {"items": []})["items"]
        return Seen(
            scene=scene,
            tolerations=_tolerations_in(review),
            required=_architectures_in(review),
            kept=[node["metadata"]["name"] for node in kept],
            refused=filtered["FailedAndUnresolvableNodes"],
            error=filtered["Error"],
            scores={score["Host"]: score["Score"] for score in scores},
            milliseconds=milliseconds,
        )

    async def _post(self, url: str, document: object, kind: type[_Answer]) -> _Answer:
        async with self._session.post(url, data=msgspec.json.encode(document)) as response:
            body = await response.read()
        if response.status != 200:
            raise UnexpectedAnswer(f"{url} answered {response.status}: {body[:200]!r}")
        answer: _Answer = msgspec.json.decode(body, type=kind)
        return answer


def _patch_in(review: dict[str, Any]) -> list[dict[str, Any]]:
    patch: list[dict[str, Any]] = msgspec.json.decode(base64.b64decode(review["response"].get("patch", "")) or b"[]")
    return patch


def _architectures_in(review: dict[str, Any]) -> list[str]:
    """The architectures that the patch asks of nodes."""
    asked = {operation["path"]: operation["value"] for operation in _patch_in(review)}
    if affinity := asked.get("/spec/affinity"):
        required = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        (term,) = required["nodeSelectorTerms"]
        return [value for each in term["matchExpressions"] if each["key"] == _ARCHITECTURE for value in each["values"]]
    return []


def _tolerations_in(review: dict[str, Any]) -> list[str]:
    added = []
    for operation in _patch_in(review):
        if operation["path"].startswith("/spec/tolerations"):
            value = operation["value"]
            added += [item["key"] for item in (value if isinstance(value, list) else [value])]
    return added


def pod_of(scene: Scene, registry_host: str) -> dict[str, Any]:
    """The scene's pod as core/v1 JSON."""
    name = scene.repository.replace("/", "-")
    image = f"{registry_host}/{scene.repository}:1.0"
    return {
        "metadata": {"name": name, "namespace": "demo", "uid": name},
        "spec": {"containers": [{"name": "app", "image": image, "imagePullPolicy": "IfNotPresent"}]},
    }


def review_of(pod: dict[str, Any]) -> dict[str, Any]:
    """The AdmissionReview that kube-apiserver sends when the pod is created."""
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "00000000-0000-0000-0000-000000000001",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "operation": "CREATE",
            "namespace": pod["metadata"]["namespace"],
            "object": {"apiVersion": "v1", "kind": "Pod", **pod},
        },
    }


def arguments_of(pod: dict[str, Any]) -> dict[str, Any]:
    """The ExtenderArgs that kube-scheduler sends with whole nodes (`nodeCacheCapable: false`)."""
    return {"Pod": pod, "Nodes": {"metadata": {}, "items": list(_nodes())}, "NodeNames": None}


def view_of_nodes() -> WatchedNodes:
    """The service's view of a cluster of these nodes, as if they had been listed."""
    nobody: Any = None  # is asked, as nothing watches the nodes
    view = WatchedNodes(nobody, clock=THIS_MACHINE.clock, random=THIS_MACHINE.random)
    for node in _nodes():
        view.upsert(msgspec.json.encode(node))
    view.keep_only(NODES.keys())
    return view


def _nodes() -> Iterator[dict[str, Any]]:
    for name, architecture in NODES.items():
        yield {
            "metadata": {"name": name, "labels": {_ARCHITECTURE: architecture, "kubernetes.io/os": "linux"}},
            "status": {"nodeInfo": {"architecture": architecture, "operatingSystem": "linux"}},
        }
