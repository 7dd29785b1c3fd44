"""Pods and operators' settings for the tests of the mutation, and the pod that an API server would store."""

from collections.abc import Sequence
from typing import Any

import msgspec

from extender.images.platform import Platform, parse_platform
from extender.kubernetes.core_v1 import CreatedPod
from extender.placement.affinity import AffinityMode
from extender.placement.facts import ImageFact, PodImage, RunsOn, RuntimeClass, images_of
from extender.placement.gate import AfterGate, GateSettings, ImpossiblePods, UnknownImages
from extender.placement.mutation import Mutation, Mutator
from extender.placement.nodes import ClusterNodes
from extender.placement.planning import AdmissionSettings
from extender.placement.policy import ADDED, Policy, read_overrides
from extender.placement.tolerations import TolerationRule
from tests.unit.placement.json_patch import apply

ARCH = "kubernetes.io/arch"
OS = "kubernetes.io/os"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"

BOTH_RULE = TolerationRule(
    key="multi", operator="Equal", value="yes", effect="NoSchedule", platforms=("linux/amd64", "linux/arm64")
)
ARM_RULE = TolerationRule(key=ARCH, operator="Equal", value="arm64", effect="NoSchedule", platforms=("linux/arm64",))
BOTH_TOLERATION = {"key": "multi", "operator": "Equal", "value": "yes", "effect": "NoSchedule"}
ARM_TOLERATION = {"key": ARCH, "operator": "Equal", "value": "arm64", "effect": "NoSchedule"}

POLICY = Policy(preference={"arm64": 10}, runtime_classes={"wasm": RuntimeClass("wasm", frozenset())})


def unzip(images: Sequence[tuple[PodImage, ImageFact]]) -> tuple[list[PodImage], list[ImageFact]]:
    return [image for image, _ in images], [fact for _, fact in images]


def built_for(*texts: str) -> RunsOn:
    return RunsOn(frozenset(map(parse_platform, texts)))


MULTI = built_for("linux/amd64", "linux/arm64")
AMD64 = built_for("linux/amd64")
ARM64 = built_for("linux/arm64")


def settings(
    node_affinity: str = "none",
    scheduler_name: str = "",
    rules: tuple[TolerationRule, ...] = (BOTH_RULE, ARM_RULE),
    *,
    unknown: str = "pass",
    impossible: str = "pend",
    after_gate: str = "pass",
    platforms_annotation: bool = False,
) -> AdmissionSettings:
    """Returns the operator's settings, by default two toleration rules and nothing else."""
    return AdmissionSettings(
        tolerations=rules,
        node_affinity=AffinityMode(node_affinity),
        scheduler_name=scheduler_name,
        gate=GateSettings(unknown=UnknownImages(unknown), after=AfterGate(after_gate)),
        impossible=ImpossiblePods(impossible),
        platforms_annotation=platforms_annotation,
    )


def pod(images: int = 1, metadata: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    """Returns a pod as the API server sends it, with this many images, `app-0:1` and so on."""
    containers = [{"name": f"c{index}", "image": f"app-{index}:1", "resources": {}} for index in range(images)]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "creationTimestamp": None, "annotations": {"team": "a/b~c"}, **(metadata or {})},
        "spec": {"containers": containers, "schedulerName": "default-scheduler", **spec},
        "status": {},
    }


def created(document: Any) -> CreatedPod:
    return msgspec.json.decode(msgspec.json.encode(document), type=CreatedPod)


def mutate(
    document: Any,
    *facts: ImageFact,
    admission: AdmissionSettings | None = None,
    policy: Policy = POLICY,
    namespace: dict[str, str] | None = None,
    cluster: frozenset[Platform] = frozenset(),
    may_hold: bool = False,
) -> Mutation:
    """Returns the mutation of the pod, with one fact for each of its images in order."""
    decoded = created(document)
    overrides = read_overrides(decoded.metadata.annotations if decoded.metadata else None, namespace)
    images = tuple(zip(images_of(decoded), facts, strict=True))
    mutator = Mutator(policy, admission or settings())
    return mutator.skip(decoded, overrides) or mutator.mutate(
        decoded, *unzip(images), overrides, ClusterNodes(cluster), may_hold=may_hold
    )


def after(document: Any, *facts: ImageFact, **arguments: Any) -> Any:
    return apply(document, mutate(document, *facts, **arguments).patch)


def record_of(document: Any) -> Any:
    return msgspec.json.decode(document["metadata"]["annotations"][ADDED])


def terms_of(document: Any) -> Any:
    return document["spec"]["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]


def with_terms(*terms: Any) -> dict[str, Any]:
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(terms)}}}


def expression(key: str, *values: str, operator: str = "In") -> dict[str, Any]:
    return {"key": key, "operator": operator, "values": list(values)}
