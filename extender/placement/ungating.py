"""The decision about a stored pod that our gate holds: whether it is let go, and the one patch that lets it go.

The patch is a strategic merge patch, which names the pod's uid and resource version: a pod that changed since it was
read is not patched. It takes our gate and label off and leaves the gates of others. What the API server allows on a
pod that a gate holds is in ValidatePodUpdate of pkg/apis/core/validation. Uses no HTTP and no clock.
"""

import enum
from collections.abc import Sequence
from typing import cast

import msgspec

from extender.kubernetes.core_v1 import CreatedPod
from extender.placement.additions import (
    ADDED_PATH,
    AFFINITY_PATH,
    NOTHING,
    TOLERATIONS_PATH,
    Additions,
    add,
    write_record,
)
from extender.placement.creation import Creation, excess_with, read_creation
from extender.placement.facts import ImageFact, PodImage
from extender.placement.gate import GATE, GATED_LABEL, Treatment
from extender.placement.mutation import untouched
from extender.placement.nodes import NO_NODES, ClusterNodes
from extender.placement.patch import Json, JsonObject, look
from extender.placement.planning import AdmissionSettings, PlannedAdditions, Planner
from extender.placement.policy import ADDED, PLATFORMS, REASON, Mode, Overrides, Policy
from extender.placement.reasons import held_text, left_text, passed_text


class UngatingOutcome(enum.StrEnum):
    """What becomes of a held pod. `hold` is the only one without a patch."""

    HOLD = "hold"
    KNOWN = "known"
    ASSUMED = "assumed"
    PASSED = "passed"
    IMPOSSIBLE = "impossible"
    OBSERVED = "observed"
    EXEMPT = "exempt"


class Ungating(msgspec.Struct, frozen=True):
    """The decision about one held pod.

    `patch` is the body of the request, empty for `hold`. `reason` is what the pod's annotation says, empty where there
    is nothing to explain.
    """

    outcome: UngatingOutcome
    patch: bytes = b""
    reason: str = ""


_ENCODER = msgspec.json.Encoder()
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


class UngatingPlanner:
    """Applies the operator's settings to held pods. Its results depend on the arguments and these settings alone."""

    def __init__(self, policy: Policy, admission: AdmissionSettings) -> None:
        self._policy = policy
        self._planner = Planner(policy, admission)
        self._gate = admission.gate

    def skip(self, pod: CreatedPod, overrides: Overrides) -> Ungating | None:
        """The release of a pod whose images do not matter or that is only observed; None if they must be looked up."""
        if untouched(pod, overrides, self._policy):
            return Ungating(UngatingOutcome.EXEMPT, _patch(pod, {REASON: None}, {}))
        if overrides.mode is Mode.OBSERVE:
            return Ungating(UngatingOutcome.OBSERVED, _patch(pod, {REASON: None}, {}))
        return None

    def plan(
        self,
        pod: CreatedPod,
        images: Sequence[PodImage],
        facts: Sequence[ImageFact],
        overrides: Overrides,
        cluster: ClusterNodes = NO_NODES,
        *,
        expired: bool,
    ) -> Ungating:
        """What becomes of a held pod; `facts` are those of `images`, in order.

        `expired`: the pod was held for as long as the operator allows, so it is let go in any case. The patch narrows
        the pod's own required affinity as far as the API server allows on a stored pod: requirements are appended to
        terms, and no term is added, removed or moved. Pods of one template get the same patch, apart from uid and
        version.
        """
        skipped = self.skip(pod, overrides)
        if skipped:
            return skipped
        overrides = self._gate.overrides_for(pod, overrides)
        creation = read_creation(pod, images, facts, overrides, cluster)
        if excess := creation.excess:
            return _leave(pod, excess)
        treatment = self._planner.treat(creation, expired=expired)
        document = creation.document()
        planned = self._planner.plan_stored(creation, document, treatment)
        if treatment.held and not planned.impossible:
            return Ungating(UngatingOutcome.HOLD, reason=held_text(treatment.held))
        why = "as it was held for long enough" if expired else "as the settings say"
        passed = "" if planned.impossible else passed_text(treatment.passed, why)
        reason = "; ".join(filter(None, (passed, planned.reason)))
        added = add(document, tolerations=planned.tolerations, required=planned.required, preferred=planned.preferred)
        if excess := excess_with(added, document):
            return _leave(pod, excess)
        annotations = _annotations(creation, added, reason, self._planner.annotated_platforms(creation))
        return Ungating(_outcome_of(treatment, planned), _patch(pod, annotations, _spec(document, added)), reason)


def _leave(pod: CreatedPod, excess: str) -> Ungating:
    reason = left_text(excess)
    return Ungating(UngatingOutcome.PASSED, _patch(pod, {REASON: reason}, {}), reason)


def _outcome_of(treatment: Treatment, planned: PlannedAdditions) -> UngatingOutcome:
    if planned.impossible:
        return UngatingOutcome.IMPOSSIBLE
    if treatment.passed:
        return UngatingOutcome.PASSED
    return UngatingOutcome.ASSUMED if treatment.assumed else UngatingOutcome.KNOWN


def _annotations(creation: Creation, added: Additions, reason: str, platforms: str | None) -> JsonObject:
    """The annotations that say what was added and why; those of an earlier pass are replaced or taken off."""
    is_recorded = reason or platforms is not None or added != NOTHING
    annotations: JsonObject = {
        REASON: reason or None,
        PLATFORMS: platforms,
        ADDED: write_record(msgspec.structs.replace(added, was={})) if is_recorded else None,
    }
    present = cast("JsonObject", look(creation.document(), ADDED_PATH[:-1]) or {})
    return {key: value for key, value in annotations.items() if value is not None or key in present}


def _spec(document: JsonObject, added: Additions) -> JsonObject:
    """The lists to which something was added, whole: a strategic merge patch replaces them."""
    spec: JsonObject = {}
    affinity = cast("JsonObject", look(document, (*AFFINITY_PATH, "nodeAffinity")) or {})
    changed = {_REQUIRED: added.required, _PREFERRED: added.preferred}
    if terms := {key: affinity[key] for key, items in changed.items() if items}:
        spec["affinity"] = {"nodeAffinity": terms}
    if added.tolerations:
        spec["tolerations"] = look(document, TOLERATIONS_PATH)
    return spec


def _patch(pod: CreatedPod, annotations: JsonObject, spec: JsonObject) -> bytes:
    """The patch for one pod, which takes our gate and label off."""
    metadata: JsonObject = {
        "uid": pod.metadata.uid if pod.metadata else None,
        "resourceVersion": pod.metadata.resource_version if pod.metadata else "",
        "labels": {GATED_LABEL: None},
    }
    if annotations:
        metadata["annotations"] = annotations
    gates: list[Json] = [{"$patch": "delete", "name": GATE}]
    return _ENCODER.encode({"metadata": metadata, "spec": {**spec, "schedulingGates": gates}})
