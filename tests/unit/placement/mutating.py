"""Operators' settings for the tests of the mutation, and the pod that an API server would store."""

from typing import Any

import msgspec

from extender.images.platform import Platform
from extender.placement.affinity import AffinityMode
from extender.placement.facts import ImageFact, RuntimeClass, images_of
from extender.placement.gate import AfterGate, GateSettings, ImpossiblePods, UnknownImages
from extender.placement.mutation import Mutation, Mutator
from extender.placement.nodes import ClusterNodes
from extender.placement.planning import AdmissionSettings
from extender.placement.policy import ADDED, Policy, read_overrides
from extender.placement.tolerations import TolerationRule
from tests.builders import ARCH, REQUIRED, created
from tests.unit.placement.json_patch import apply

BOTH_RULE = TolerationRule(
    key="multi", operator="Equal", value="yes", effect="NoSchedule", platforms=("linux/amd64", "linux/arm64")
)
ARM_RULE = TolerationRule(key=ARCH, operator="Equal", value="arm64", effect="NoSchedule", platforms=("linux/arm64",))
BOTH_TOLERATION = {"key": "multi", "operator": "Equal", "value": "yes", "effect": "NoSchedule"}
ARM_TOLERATION = {"key": ARCH, "operator": "Equal", "value": "arm64", "effect": "NoSchedule"}

POLICY = Policy(preference={"arm64": 10}, runtime_classes={"wasm": RuntimeClass("wasm", frozenset())})


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
    images, mutator = images_of(decoded), Mutator(policy, admission or settings())
    assert len(images) == len(facts)
    return mutator.skip(decoded, overrides) or mutator.mutate(
        decoded, images, facts, overrides, ClusterNodes(cluster), may_hold=may_hold
    )


def after(document: Any, *facts: ImageFact, **arguments: Any) -> Any:
    return apply(document, mutate(document, *facts, **arguments).patch)


def record_of(document: Any) -> Any:
    return msgspec.json.decode(document["metadata"]["annotations"][ADDED])


def terms_of(document: Any) -> Any:
    return document["spec"]["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
