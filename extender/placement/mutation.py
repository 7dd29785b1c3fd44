"""The decision about a pod that is being created: what is added so that it is scheduled where its images run.

The result is a JSON Patch, which keeps fields unknown here, with warnings for the pod's author and annotations for the
audit log. Uses no HTTP and no clock and has no side effects, so a dry run is handled like any other request.
"""

import enum
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from extender.kubernetes.core_v1 import CreatedPod, CreatedSpec, Pod, SchedulingSpec
from extender.kubernetes.documents import JsonObject, map_at, put, value_at, without
from extender.placement.additions import (
    ADDED_PATH,
    ANNOTATIONS_PATH,
    NOTE_PATHS,
    NOTHING,
    TERMS_PATH,
    Additions,
    add,
    read_record,
    take_back,
)
from extender.placement.annotations import REASON, Mode, Overrides
from extender.placement.bounds import PATCH_BYTES, REQUIREMENTS, TERMS, TOUCHED_BYTES
from extender.placement.facts import MANY_IMAGES, MOST_IMAGES, Fit, PodImage, fit, system_asked
from extender.placement.gate import (
    LABELS_PATH,
    PROBE_LABEL,
    ImpossiblePods,
    Unresolved,
    add_gate,
    is_gated,
    remove_gate,
)
from extender.placement.patch import Operation, diff
from extender.placement.planning import AdmissionSettings, Outcome, Plan, Planner
from extender.placement.policy import Policy, is_exempt
from extender.placement.reasons import left_text, shown_reference
from extender.placement.resolved_pod import ResolvedPod


class AdmissionOutcome(enum.StrEnum):
    """The outcome of a review of a pod."""

    PATCHED = "patched"
    UNCHANGED = "unchanged"
    GATED = "gated"
    UNRESOLVED = "unresolved"
    ASSUMED = "assumed"
    IMPOSSIBLE = "impossible"
    REFUSED = "denied"
    OBSERVED = "observed"
    IGNORED = "ignored"
    EXEMPT = "left_alone"


_OUTCOMES = {
    Outcome.KNOWN: AdmissionOutcome.PATCHED,
    Outcome.ASSUMED: AdmissionOutcome.ASSUMED,
    Outcome.PASSED: AdmissionOutcome.UNRESOLVED,
    Outcome.HOLD: AdmissionOutcome.GATED,
    Outcome.IMPOSSIBLE: AdmissionOutcome.IMPOSSIBLE,
}


class Mutation(msgspec.Struct, frozen=True, kw_only=True):
    """The response for one pod; `patch` is a JSON Patch document, empty for no change.

    `reason` is what the pod's annotation says. `unresolved` has the images of a pod that was let through without them.
    `would_be` is what enforcing would have made of a pod that is only observed; None for others. `why_left` says what a
    pod has too much of to get anything; empty for nearly all.
    """

    outcome: AdmissionOutcome
    patch: bytes = b""
    reason: str = ""
    unresolved: tuple[Unresolved, ...] = ()
    warnings: tuple[str, ...] = ()
    audit_annotations: Mapping[str, str] = {}
    would_be: AdmissionOutcome | None = None
    why_left: str = ""

    @property
    def refusal(self) -> str:
        """Why the API server is to refuse the pod; empty if it is to allow it."""
        return self.reason if self.outcome is AdmissionOutcome.REFUSED else ""


def skipped_as(pod: Pod, overrides: Overrides, policy: Policy) -> AdmissionOutcome | None:
    """Why this pod's images need not be looked up; None if they must be.

    DaemonSet pods are exempt, besides those of `policy.is_exempt`. Their controller checks taints and affinity by its
    own template, and has chosen the node.
    """
    if overrides.mode is Mode.IGNORE:
        return AdmissionOutcome.IGNORED
    is_left = pod.spec is None or is_of_daemon_set(pod) or is_exempt(pod, policy)
    return AdmissionOutcome.EXEMPT if is_left else None


def is_of_daemon_set(pod: Pod) -> bool:
    """Whether a DaemonSet's controller made the pod."""
    owner = pod.controller
    return owner is not None and owner.kind == "DaemonSet"


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder()


def touched_parts(pod: CreatedPod) -> JsonObject:
    """The parts of a pod that a patch may change or depends on, as plain JSON."""
    document: JsonObject = {"spec": {name: _DECODER.decode(raw) for name, raw in _raw_parts(pod) if raw}}
    if pod.metadata:
        metadata: JsonObject = {}
        if pod.metadata.annotations is not msgspec.UNSET:
            metadata["annotations"] = None if pod.metadata.annotations is None else dict(pod.metadata.annotations)
        if pod.metadata.labels is not msgspec.UNSET:
            metadata["labels"] = None if pod.metadata.labels is None else dict(pod.metadata.labels)
        document["metadata"] = metadata
    return document


def scheduling_of(document: JsonObject) -> SchedulingSpec:
    """What touched parts say of scheduling. Raises msgspec.ValidationError for what no API server accepts."""
    return msgspec.convert(document["spec"], SchedulingSpec)


def touched_bytes(pod: CreatedPod) -> int:
    """The size of the spec's parts among those, as JSON."""
    return 1 + sum(len(f'"{name}":,') + len(raw) for name, raw in _raw_parts(pod) if raw)


def _raw_parts(pod: CreatedPod) -> Sequence[tuple[str, msgspec.Raw | msgspec.UnsetType]]:
    spec = pod.spec or CreatedSpec()
    return (
        ("tolerations", spec.tolerations),
        ("affinity", spec.affinity),
        ("schedulerName", spec.scheduler_name),
        ("nodeSelector", spec.node_selector),
        ("schedulingGates", spec.scheduling_gates),
    )


_SIZE = f"its tolerations, affinity, selectors and gates take more than {TOUCHED_BYTES // 1024} KiB"


def read_parts(pod: CreatedPod, images: Sequence[PodImage]) -> tuple[JsonObject, str]:
    """The touched parts of the pod, and what it has too much of to be decided about, in words for its author.

    The second is empty for almost every pod.
    """
    if any(image.reference == MANY_IMAGES for image in images):
        return {}, f"it names more than {MOST_IMAGES} images"
    if touched_bytes(pod) > TOUCHED_BYTES:
        return {}, _SIZE
    parts = touched_parts(pod)
    return parts, _why_left_for_terms(parts)


def why_left_with(added: Additions, document: JsonObject) -> str:
    """What a pod has too much of with what was `added` to its touched parts in `document`; empty for nearly all.

    Such a pod gets nothing: a later pass could not take it back.
    """
    if added == NOTHING:
        return ""
    if not added.is_recordable:
        return "the record of what it would get would be too long"
    found = _SIZE if len(_ENCODER.encode(document["spec"])) > TOUCHED_BYTES else _why_left_for_terms(document)
    return found and f"with what it would get, {found}"


def _why_left_for_terms(document: JsonObject) -> str:
    terms = value_at(document, *TERMS_PATH)
    if not isinstance(terms, list):
        return ""
    if len(terms) > TERMS:
        return f"its required node affinity has more than {TERMS} terms"
    parts = [value_at(term, name) for term in terms for name in ("matchExpressions", "matchFields")]
    is_beyond = sum(len(part) for part in parts if isinstance(part, list)) > REQUIREMENTS
    return f"its required node affinity has more than {REQUIREMENTS} requirements" if is_beyond else ""


class Mutator:
    """Applies the operator's settings to pods. Its results depend on the arguments and these settings alone."""

    def __init__(self, policy: Policy, settings: AdmissionSettings) -> None:
        self._policy = policy
        self._settings = settings
        self._planner = Planner(policy, settings)
        self._offered = [rule.toleration for rule in settings.tolerations]

    def varied(self, **settings: object) -> "Mutator":
        """One by other settings in these, which shares what this has worked out."""
        found = Mutator(self._policy, msgspec.structs.replace(self._settings, **settings))
        found._planner = self._planner.varied(found._settings)
        return found

    def skip(self, pod: CreatedPod, overrides: Overrides) -> Mutation | None:
        """The response for a pod whose images do not matter (see `skipped_as`); None if they must be looked up.

        Such a pod is not held either: a policy in the API server may have held it.
        """
        outcome = skipped_as(pod, overrides, self._policy)
        if outcome is None:
            return None
        audit = {"verdict": f"{outcome.replace('_', ' ')}, so the images were not looked up"}
        patch = _encode(_ungating(pod))
        return Mutation(outcome=outcome, patch=patch, warnings=overrides.problems, audit_annotations=audit)

    def mutate(self, resolved: ResolvedPod, *, may_hold: bool = False) -> Mutation:
        """The response for a pod that `skip` does not skip.

        Takes back what an earlier pass recorded and adds what applies now; the difference is the patch. So a pass over
        its own result changes nothing, and a pass over other images narrows or undoes the earlier one.

        Required affinity comes from the known images, and from the operator's assumption about others where that is
        the setting. Tolerations and preferred affinity need all images to be known. A pod that is to wait for an image
        gets the gate and nothing else, if it `may_hold`. Under `observe` the audit annotations `would-be`,
        `would-add`, `would-hold` and `would-deny` replace the patch.
        """
        pod, overrides = resolved.pod, resolved.overrides
        observed = overrides.mode is Mode.OBSERVE
        before, why_left = read_parts(pod, resolved.images)
        if why_left:
            return _leave(overrides, why_left, _ungating(pod))
        record = read_record(value_at(before, *ADDED_PATH))
        own, taken = take_back(before, record, self._offered, self._settings.scheduler_name)
        is_held = bool(pod.spec and pod.spec.scheduling_gates) and is_gated(own)
        plan = self._planner.plan(resolved, scheduling_of(own), may_hold=may_hold or is_held)
        after = _written(own, plan, self._settings.scheduler_name)
        if why_left := why_left_with(plan.additions, after):
            left = _ungated(before) if observed else remove_gate(own)
            return _leave(overrides, why_left, diff(before, left))
        if record == taken == plan.additions and _is_noted(before, after):
            after = before  # ours would move behind what others have appended since
        if plan.outcome is Outcome.HOLD:
            after = add_gate(after)
        elif is_held and value_at(before, *LABELS_PATH, PROBE_LABEL) is None:
            after = remove_gate(after)
        mutation = self._response(resolved, plan, diff(before, after))
        if observed:
            return _as_observed(mutation, diff(before, _ungated(before)))
        if len(mutation.patch) > PATCH_BYTES:
            return _leave(overrides, f"its patch would have more than {PATCH_BYTES // 1024} KiB", [])
        return mutation

    def _response(self, resolved: ResolvedPod, plan: Plan, operations: list[Operation]) -> Mutation:
        """The response by which the pod is as planned after these operations."""
        is_refused = plan.outcome is Outcome.IMPOSSIBLE and self._settings.impossible is ImpossiblePods.DENY
        outcome = AdmissionOutcome.REFUSED if is_refused else _OUTCOMES[plan.outcome]
        if outcome is AdmissionOutcome.PATCHED and not operations:
            outcome = AdmissionOutcome.UNCHANGED
        audit = {"verdict": self._summary(resolved)}
        if plan.additions != NOTHING:
            audit["added"] = plan.additions.record
        return Mutation(
            outcome=outcome,
            patch=b"" if is_refused else _encode(operations),
            reason=plan.reason,
            unresolved=plan.unresolved,
            warnings=(*resolved.overrides.problems, *plan.warnings, *self._nowhere(resolved)),
            audit_annotations=audit,
        )

    def plan(self, resolved: ResolvedPod) -> Plan:
        """What happens to a pod within the bounds, as its author wrote it."""
        parts = touched_parts(resolved.pod)
        record = read_record(value_at(parts, *ADDED_PATH))
        own, _ = take_back(parts, record, self._offered, self._settings.scheduler_name)
        return self._planner.plan(resolved, scheduling_of(own))

    def _nowhere(self, pod: ResolvedPod) -> Iterator[str]:
        """That the pod can run on no node of the cluster."""
        if self._is_nowhere(pod):
            yield f"this pod can run on no node of this cluster: {pod.refusal()}"

    def _is_nowhere(self, pod: ResolvedPod) -> bool:
        platforms = pod.cluster.platforms
        if not platforms or not platforms.isdisjoint(self._planner.common(pod.known, pod.cluster).platforms):
            return False  # on a common platform no image is known not to run
        return all(fit(pod.facts, platform, self._policy.compatibility) is Fit.NO for platform in platforms)

    def _summary(self, pod: ResolvedPod) -> str:
        if unresolved := pod.unresolved:
            image, fact = unresolved[0]
            return (
                f"{len(unresolved)} of {len(pod.images)} images unresolved, "
                f"first {shown_reference(image.reference)} ({fact.cause})"
            )
        if not pod.known:
            return f"runs anywhere on {os}" if (os := system_asked(pod.facts)) else "runs anywhere"
        return f"runs on {self._planner.common(pod.known, pod.cluster).text or 'no platform'}"


def _written(document: JsonObject, plan: Plan, scheduler_name: str) -> JsonObject:
    """The document with what the plan gives the pod."""
    document = add(document, plan.additions, scheduler_name)
    notes = {key: value for key, value in plan.annotations.items() if value is not None}
    if not notes:
        return document
    return put(document, ANNOTATIONS_PATH, {**map_at(document, *ANNOTATIONS_PATH), **notes})


def _is_noted(before: JsonObject, after: JsonObject) -> bool:
    """Whether `after` has a record, and both have the same annotations for people."""
    return value_at(after, *ADDED_PATH) is not None and all(
        value_at(after, *path) == value_at(before, *path) for path in NOTE_PATHS
    )


_WOULD = {AdmissionOutcome.GATED: "would-hold", AdmissionOutcome.REFUSED: "would-deny"}


def _as_observed(mutation: Mutation, ungating: list[Operation]) -> Mutation:
    """The mutation of a pod that is only observed: the audit annotations say what would have become of it."""
    audit, would_be = dict(mutation.audit_annotations), mutation.outcome
    if "added" in audit:
        audit["would-add"] = audit.pop("added")
    if would_be is not AdmissionOutcome.UNCHANGED:
        audit["would-be"] = would_be.value
        if mutation.reason:
            audit[_WOULD.get(would_be, "would-annotate")] = mutation.reason
    return msgspec.structs.replace(
        mutation,
        outcome=AdmissionOutcome.OBSERVED,
        patch=_encode(ungating),
        unresolved=(),
        audit_annotations=audit,
        would_be=would_be,
    )


def _ungating(pod: CreatedPod) -> list[Operation]:
    """The operations that take our gate off the pod, and what a policy has written of it; none if it has no gate.

    A pod of large parts keeps it, until the gate controller takes it off.
    """
    if not (pod.spec and pod.spec.scheduling_gates) or touched_bytes(pod) > TOUCHED_BYTES:
        return []
    before = touched_parts(pod)
    return diff(before, _ungated(before))


def _ungated(document: JsonObject) -> JsonObject:
    return without(remove_gate(document), *ANNOTATIONS_PATH, REASON) if is_gated(document) else document


def _leave(overrides: Overrides, why_left: str, patch: list[Operation]) -> Mutation:
    """The response for a pod that has too much of something to get anything."""
    encoded = _encode(patch)
    return Mutation(
        outcome=AdmissionOutcome.EXEMPT,
        patch=encoded if len(encoded) <= PATCH_BYTES else b"",
        why_left=why_left,
        warnings=(*overrides.problems, left_text(why_left)),
        audit_annotations={"verdict": f"left alone: {why_left}"},
    )


def _encode(patch: list[Operation]) -> bytes:
    return _ENCODER.encode(patch) if patch else b""
