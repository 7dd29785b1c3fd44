"""The decision about a stored pod that our gate holds: whether its gate is removed, and the one patch that does so.

The patch is a strategic merge patch, which names the pod's uid and resource version: a pod that changed since it was
read is not patched. It takes our gate and label off and leaves the gates of others. What the API server allows on a
pod that a gate holds is in ValidatePodUpdate of pkg/apis/core/validation. Uses no HTTP and no clock.
"""

from typing import cast

import msgspec

from extender.kubernetes.core_v1 import CreatedPod
from extender.kubernetes.documents import JsonObject, map_at, value_at
from extender.kubernetes.meta_v1 import ObjectMeta
from extender.placement.additions import (
    AFFINITY_PATH,
    ANNOTATIONS_PATH,
    NOTHING,
    TOLERATIONS_PATH,
    Additions,
    add,
    read_record,
)
from extender.placement.annotations import ADDED, REASON, Mode, Overrides
from extender.placement.gate import encode_ungating
from extender.placement.mutation import read_parts, scheduling_of, skipped_as, why_left_with
from extender.placement.planning import AdmissionSettings, Outcome, Planner
from extender.placement.policy import Policy
from extender.placement.reasons import left_text
from extender.placement.resolved_pod import ResolvedPod


class Ungating(msgspec.Struct, frozen=True):
    """The decision about one held pod.

    `patch` is the body of the request, empty for `hold`. `reason` is what the pod's annotation says, empty where there
    is nothing to explain.
    """

    outcome: Outcome
    patch: bytes = b""
    reason: str = ""


_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


class UngatingPlanner:
    """Applies the operator's settings to held pods. Its results depend on the arguments and these settings alone."""

    def __init__(self, policy: Policy, settings: AdmissionSettings) -> None:
        self._policy = policy
        self._planner = Planner(policy, msgspec.structs.replace(settings, scheduler_name=""))

    def skip(self, pod: CreatedPod, overrides: Overrides) -> Ungating | None:
        """The ungating of a pod whose images do not matter or that is only observed; None if they must be looked up."""
        if skipped_as(pod, overrides, self._policy):
            return Ungating(Outcome.EXEMPT, _patch(pod, {REASON: None}, {}))
        if overrides.mode is Mode.OBSERVE:
            return Ungating(Outcome.OBSERVED, _patch(pod, {REASON: None}, {}))
        return None

    def plan(self, resolved: ResolvedPod, *, expired: bool) -> Ungating:
        """What happens to a held pod.

        `expired`: the pod was held for as long as the operator allows, so its gate goes in any case. The patch narrows
        the pod's own required affinity as far as the API server allows on a stored pod: requirements are appended to
        terms, and no term is added, removed or moved. Pods of one template get the same patch, apart from uid and
        version.
        """
        pod = resolved.pod
        skipped = self.skip(pod, resolved.overrides)
        if skipped:
            return skipped
        document, why_left = read_parts(pod, resolved.images)
        if why_left:
            return _leave(pod, why_left)
        plan = self._planner.plan(resolved, scheduling_of(document), may_hold=True, expired=expired)
        if plan.outcome is Outcome.HOLD:
            return Ungating(Outcome.HOLD, reason=plan.reason)
        present = map_at(document, *ANNOTATIONS_PATH)
        at_creation = read_record(present.get(ADDED)) or NOTHING
        additions = msgspec.structs.replace(plan.additions, scheduler_name_was=at_creation.scheduler_name_was)
        after = add(document, plan.additions)
        if why_left := why_left_with(additions, after):
            return _leave(pod, why_left)
        notes = msgspec.structs.replace(plan, additions=additions).annotations
        # of those of an earlier pass that are to go, null
        annotations: JsonObject = {key: note for key, note in notes.items() if note is not None or key in present}
        return Ungating(plan.outcome, _patch(pod, annotations, _spec(after, additions)), plan.reason)


def _leave(pod: CreatedPod, why_left: str) -> Ungating:
    reason = left_text(why_left)
    return Ungating(Outcome.PASSED, _patch(pod, {REASON: reason}, {}), reason)


def _spec(document: JsonObject, added: Additions) -> JsonObject:
    """The lists to which something was added, whole: a strategic merge patch replaces them."""
    spec: JsonObject = {}
    affinity = cast("JsonObject", value_at(document, *AFFINITY_PATH, "nodeAffinity") or {})
    changed = {_REQUIRED: added.required, _PREFERRED: added.preferred}
    if terms := {key: affinity[key] for key, items in changed.items() if items}:
        spec["affinity"] = {"nodeAffinity": terms}
    if added.tolerations:
        spec["tolerations"] = value_at(document, *TOLERATIONS_PATH)
    return spec


def _patch(pod: CreatedPod, annotations: JsonObject, spec: JsonObject) -> bytes:
    """The patch for one pod, as it was read."""
    metadata = pod.metadata or ObjectMeta()
    return encode_ungating(metadata.uid, version=metadata.resource_version, annotations=annotations, spec=spec)
