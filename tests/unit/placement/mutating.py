"""Operators' settings for the tests of the mutation, and the pod that an API server would store."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from extender.images.content import Answer, Cause
from extender.placement.affinity import AffinityMode
from extender.placement.annotations import ADDED, Overrides, read_overrides
from extender.placement.facts import ImageFact, Pending, RuntimeClass, Unknown, facts_of, images_of
from extender.placement.gate import AfterGate, GateSettings, ImpossiblePods, UnknownImages
from extender.placement.mutation import Mutation, Mutator
from extender.placement.nodes import NO_NODES, ClusterNodes
from extender.placement.planning import AdmissionSettings
from extender.placement.policy import Policy
from extender.placement.resolved_pod import ResolvedPod
from extender.placement.scheduling import Decision
from extender.placement.tolerations import TolerationRule
from tests.builders import ARCH, REQUIRED, created
from tests.unit.placement.json_patch import apply

BOTH_TOLERATION = {"key": "multi", "operator": "Equal", "value": "yes", "effect": "NoSchedule"}
ARM_TOLERATION = {"key": ARCH, "operator": "Equal", "value": "arm64", "effect": "NoSchedule"}
BOTH_RULE = msgspec.convert({**BOTH_TOLERATION, "platforms": ("linux/amd64", "linux/arm64")}, TolerationRule)
ARM_RULE = msgspec.convert({**ARM_TOLERATION, "platforms": ("linux/arm64",)}, TolerationRule)
POLICY = Policy(preference={"arm64": 10}, runtime_classes={"wasm": RuntimeClass("wasm", frozenset())})
NOT_READY = {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}
COLD, DENIED = Pending(Cause.LOOKING_UP, "its lookup has not ended yet"), Unknown(Cause.DENIED, "x")
NEVER_PULLED = Unknown(Cause.NEVER_PULLED, "x")


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
    cluster: ClusterNodes = NO_NODES,
    may_hold: bool = False,
) -> Mutation:
    decoded = created(document)
    overrides = read_overrides(decoded.annotations, namespace)
    images, mutator = images_of(decoded), Mutator(policy, admission or settings())
    assert len(images) == len(facts)
    return mutator.skip(decoded, overrides) or mutator.mutate(
        ResolvedPod(decoded, images, facts, overrides, cluster), may_hold=may_hold
    )


def after(document: Any, *facts: ImageFact, **arguments: Any) -> Any:
    return apply(document, mutate(document, *facts, **arguments).patch)


def mutated(document: Any, *facts: ImageFact, **arguments: Any) -> tuple[Mutation, Any]:
    mutation = mutate(document, *facts, **arguments)
    return mutation, apply(document, mutation.patch)


class Judged(NamedTuple):
    """What filter and the webhook make of a pod."""

    decision: Decision
    mutation: Mutation


def judge(
    document: Any, answers: Sequence[Answer], policy: Policy = POLICY, admission: AdmissionSettings | None = None
) -> Judged:
    """Returns what is made of the pod by what is known of its images, with required affinity unless otherwise said."""
    pod, none = created(document), Overrides()
    images = images_of(pod, policy.runtime_classes)
    facts = facts_of(images, answers, may_be_pending=False)
    mutation = Mutator(policy, admission or settings("required")).mutate(ResolvedPod(pod, images, facts, none))
    return Judged(Decision(images, facts, policy, none), mutation)


def record_of(document: Any) -> Any:
    return msgspec.json.decode(document["metadata"]["annotations"][ADDED])


def terms_of(document: Any) -> Any:
    affinity = (document["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    return (affinity.get(REQUIRED) or {}).get("nodeSelectorTerms", [])
