"""The decision about a stored pod that our gate holds: whether it is let go, and the one patch that lets it go.

The patch is a strategic merge patch, which names the pod's uid and resource version: a pod that changed since it was
read is not patched. It takes our gate and label off and leaves the gates of others. What the API server allows on a
pod that a gate holds is in ValidatePodUpdate of pkg/apis/core/validation. Uses no HTTP and no clock.
"""

import enum
from collections.abc import Sequence
from typing import cast

import msgspec

from extender.kubernetes.core_v1 import GatedPod
from extender.placement.additions import (
    ADDED_PATH,
    AFFINITY_PATH,
    NOTHING,
    TOLERATIONS_PATH,
    Additions,
    add,
    write_record,
)
from extender.placement.cluster_nodes import NO_NODES, ClusterNodes
from extender.placement.creation import Creation, read_creation
from extender.placement.facts import ImageFact, PodImage, known_platforms, may_be_kept
from extender.placement.gate import GATE, GATED_LABEL, Treatment
from extender.placement.mutation import untouched
from extender.placement.patch import Json, JsonObject, look
from extender.placement.planning import AdmissionPolicy, PlannedAdditions, Planner
from extender.placement.policy import ADDED, PLATFORMS, REASON, Mode, Overrides, Policy
from extender.placement.reasons import held_text, passed_text
from extender.tables import Table, declare_cache

# Held pods come in the hundreds of one template, when an image is pushed or a registry answers again.
_RELEASES = declare_cache("placement.release.releases", key="pod fields, images, facts, overrides", rows=256, most_mb=8)
_REMEMBERED_BYTES = 8192


class ReleaseOutcome(enum.StrEnum):
    """What becomes of a held pod. `hold` is the only one without a patch."""

    HOLD = "hold"
    KNOWN = "known"
    ASSUMED = "assumed"
    PASSED = "passed"
    IMPOSSIBLE = "impossible"
    OBSERVED = "observed"
    EXEMPT = "exempt"


class Release(msgspec.Struct, frozen=True):
    """The decision about one held pod.

    `patch` is the body of the request, empty for `hold`. `reason` is what the pod's annotation says, empty where there
    is nothing to explain. `held_for` has the images for which the pod stays held.
    """

    outcome: ReleaseOutcome
    patch: bytes = b""
    reason: str = ""
    held_for: tuple[PodImage, ...] = ()


class _PlannedRelease(msgspec.Struct, frozen=True):
    """A release of any pod of one template: `metadata` and `spec` are the members of the patch's objects, as JSON."""

    outcome: ReleaseOutcome
    reason: str = ""
    held_for: tuple[PodImage, ...] = ()
    metadata: bytes = b""
    spec: bytes = b""


_ENCODER = msgspec.json.Encoder()
_LETTING_GO = _ENCODER.encode([{"$patch": "delete", "name": GATE}])
_NO_LABEL = _ENCODER.encode({GATED_LABEL: None})


class ReleasePlanner:
    """Applies the operator's settings to held pods. Its results depend on the arguments and these settings alone."""

    def __init__(self, policy: Policy, admission: AdmissionPolicy) -> None:
        self._policy = policy
        self._planner = Planner(policy, admission)
        self._gate = admission.gate
        self._remembered: Table[tuple[Creation, bool], _PlannedRelease] = _RELEASES.table()

    def skip(self, pod: GatedPod, overrides: Overrides) -> Release | None:
        """The release of a pod whose images do not matter or that is only observed; None if they must be looked up."""
        if untouched(pod, overrides, self._policy):
            return Release(ReleaseOutcome.EXEMPT, _let_go_alone(pod))
        if overrides.mode is Mode.OBSERVE:
            return Release(ReleaseOutcome.OBSERVED, _let_go_alone(pod))
        return None

    def plan_release(
        self,
        pod: GatedPod,
        images: Sequence[PodImage],
        facts: Sequence[ImageFact],
        overrides: Overrides,
        cluster: ClusterNodes = NO_NODES,
        *,
        expired: bool,
    ) -> Release:
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
        key = (read_creation(pod, images, facts, overrides, cluster), expired)
        plan = self._remembered.get(key)
        if plan is None:
            plan = self._plan(*key)
            if len(key[0].touched) <= _REMEMBERED_BYTES and may_be_kept(images, known_platforms(facts)):
                self._remembered.put(key, plan)
        patch = b"" if plan.outcome is ReleaseOutcome.HOLD else _complete(pod, plan)
        return Release(plan.outcome, patch, plan.reason, plan.held_for)

    def _plan(self, creation: Creation, expired: bool) -> _PlannedRelease:
        treatment = self._planner.treat(creation, expired=expired)
        document = creation.document()
        planned = self._planner.plan_stored(creation, document, treatment)
        if treatment.held and not planned.impossible:
            held_for = tuple(image for image, _ in treatment.held)
            return _PlannedRelease(ReleaseOutcome.HOLD, held_text(treatment.held), held_for)
        why = "as it was held for long enough" if expired else "as the settings say"
        passed = "" if planned.impossible else passed_text(treatment.passed, why)
        reason = "; ".join(filter(None, (passed, planned.reason)))
        outcome = _outcome_of(treatment, planned)
        added = add(document, tolerations=planned.tolerations, required=planned.required, preferred=planned.preferred)
        metadata = _metadata(creation, added, reason, self._planner.annotated_platforms(creation))
        return _PlannedRelease(outcome, reason, (), metadata, _spec(document, added))


def _let_go_alone(pod: GatedPod) -> bytes:
    return _complete(pod, _PlannedRelease(ReleaseOutcome.EXEMPT, metadata=_members({"annotations": {REASON: None}})))


def _outcome_of(treatment: Treatment, planned: PlannedAdditions) -> ReleaseOutcome:
    if planned.impossible:
        return ReleaseOutcome.IMPOSSIBLE
    if treatment.passed:
        return ReleaseOutcome.PASSED
    return ReleaseOutcome.ASSUMED if treatment.assumed else ReleaseOutcome.KNOWN


def _metadata(creation: Creation, added: Additions, reason: str, platforms: str | None) -> bytes:
    """The annotations that say what was added and why; those of an earlier pass are replaced or taken off."""
    before = creation.document()
    is_recorded = reason or platforms is not None or added != NOTHING
    annotations: JsonObject = {
        REASON: reason or None,
        PLATFORMS: platforms,
        ADDED: write_record(msgspec.structs.replace(added, was={})) if is_recorded else None,
    }
    present = cast("JsonObject", look(before, ADDED_PATH[:-1]) or {})
    annotations = {key: value for key, value in annotations.items() if value is not None or key in present}
    return _members({"annotations": annotations} if annotations else {})


def _spec(document: JsonObject, added: Additions) -> bytes:
    """The lists to which something was added, whole: a strategic merge patch replaces them."""
    spec: JsonObject = {}
    affinity = cast("JsonObject", look(document, (*AFFINITY_PATH, "nodeAffinity")) or {})
    required, preferred = (
        "requiredDuringSchedulingIgnoredDuringExecution",
        "preferredDuringSchedulingIgnoredDuringExecution",
    )
    changed: dict[str, Json] = {}
    if added.required:
        changed[required] = affinity[required]
    if added.preferred:
        changed[preferred] = affinity[preferred]
    if changed:
        spec["affinity"] = {"nodeAffinity": changed}
    if added.tolerations:
        spec["tolerations"] = look(document, TOLERATIONS_PATH)
    return _members(spec)


def _members(value: JsonObject) -> bytes:
    """The members of a JSON object, each followed by a comma."""
    return _ENCODER.encode(value)[1:-1] + b"," if value else b""


def _complete(pod: GatedPod, plan: _PlannedRelease) -> bytes:
    """The whole patch for one pod: uid and version, the plan's members, and neither gate nor label of ours."""
    metadata = pod.metadata
    return b'{"metadata":{"uid":%b,"resourceVersion":%b,%b"labels":%b},"spec":{%b"schedulingGates":%b}}' % (
        _ENCODER.encode(metadata.uid if metadata else None),
        _ENCODER.encode(metadata.resource_version if metadata else ""),
        plan.metadata,
        _NO_LABEL,
        plan.spec,
        _LETTING_GO,
    )
