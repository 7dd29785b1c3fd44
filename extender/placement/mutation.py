"""The decision about a pod that is being created: what is added so that it is scheduled where its images run.

The result is a JSON Patch, which keeps fields unknown here, with warnings for the pod's author and annotations for the
audit log. Uses no HTTP and no clock and has no side effects, so a dry run is handled like any other request.
"""

import enum
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from extender.images.platform import Platform
from extender.kubernetes.admission_v1 import encode_fields
from extender.kubernetes.core_v1 import CreatedPod, CreatedSpec, NodeName, Pod
from extender.placement.additions import (
    ADDED_PATH,
    NOTE_PATHS,
    NOTHING,
    Additions,
    add,
    annotate,
    read_record,
    take_back,
    write_record,
)
from extender.placement.bounds import PATCH_BYTES, TOUCHED_BYTES
from extender.placement.creation import Creation, excess_with, read_creation
from extender.placement.facts import Fit, ImageFact, PodImage, fit
from extender.placement.gate import ImpossiblePods, Unresolved, has_gate, hold, is_gated, let_go
from extender.placement.node_match import demands_of
from extender.placement.nodes import NO_NODES, ClusterNodes
from extender.placement.patch import JsonObject, Operation, diff, look
from extender.placement.pinned_nodes import may_name_nodes, shown_nodes, wrong_nodes
from extender.placement.planning import AdmissionSettings, PlannedAdditions, Planner
from extender.placement.policy import REASON, Mode, Overrides, Policy, is_exempt
from extender.placement.reasons import held_text, left_text, passed_text, shown_reference


class AdmissionOutcome(enum.StrEnum):
    """The outcome of a review of a pod."""

    PATCHED = "patched"
    UNCHANGED = "unchanged"
    GATED = "gated"
    UNRESOLVED = "unresolved"
    ASSUMED = "assumed"
    IMPOSSIBLE = "impossible"
    DENIED = "denied"
    OBSERVED = "observed"
    IGNORED = "ignored"
    EXEMPT = "left_alone"


class Mutation(msgspec.Struct, frozen=True, kw_only=True):
    """The response for one pod; `patch` is a JSON Patch document, empty for no change.

    `reason` is what the pod's annotation says. `unresolved` has the images of a pod that was let through without them.
    `would_be` is what enforcing would have made of a pod that is only observed; None for others. `excess` is what a pod
    has too much of to get anything, empty for nearly all.
    """

    outcome: AdmissionOutcome
    patch: bytes = b""
    reason: str = ""
    unresolved: tuple[Unresolved, ...] = ()
    warnings: tuple[str, ...] = ()
    audit_annotations: Mapping[str, str] = {}
    would_be: AdmissionOutcome | None = None
    excess: str = ""

    @property
    def fields(self) -> bytes:
        """The response's fields for `complete_response`."""
        denial = self.reason if self.outcome is AdmissionOutcome.DENIED else ""
        return encode_fields(self.patch, self.warnings, self.audit_annotations, denial=denial)


def untouched(pod: Pod, overrides: Overrides, policy: Policy) -> AdmissionOutcome | None:
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
    owners = (pod.metadata and pod.metadata.owner_references) or ()
    return any(owner.kind == "DaemonSet" and owner.controller for owner in owners)


_ENCODER = msgspec.json.Encoder()
_CREATED = msgspec.json.Decoder(CreatedPod)


class Mutator:
    """Applies the operator's settings to pods. Its results depend on the arguments and these settings alone."""

    def __init__(self, policy: Policy, admission: AdmissionSettings) -> None:
        self._policy = policy
        self._admission = admission
        self._planner = Planner(policy, admission)
        self._offered = [rule.toleration for rule in admission.tolerations]

    def skip(self, pod: CreatedPod, overrides: Overrides) -> Mutation | None:
        """The response for a pod whose images do not matter (see `untouched`); None if they must be looked up.

        Such a pod is not held either: a policy in the API server may have held it.
        """
        outcome = untouched(pod, overrides, self._policy)
        if outcome is None:
            return None
        audit = {"verdict": f"{outcome.replace('_', ' ')}, so the images were not looked up"}
        patch: list[Operation] = []
        if has_gate(pod):
            creation = read_creation(pod, (), (), overrides, NO_NODES)
            patch = _letting_go(creation)
        return Mutation(outcome=outcome, patch=_encode(patch), warnings=overrides.problems, audit_annotations=audit)

    def mutate(
        self,
        pod: CreatedPod,
        images: Sequence[PodImage],
        facts: Sequence[ImageFact],
        overrides: Overrides,
        cluster: ClusterNodes = NO_NODES,
        *,
        may_hold: bool = False,
    ) -> Mutation:
        """The response for a pod that `skip` does not skip; `facts` are those of `images`, in order.

        Takes back what an earlier pass recorded and adds what applies now; the difference is the patch. So a pass over
        its own result changes nothing, and a pass over other images narrows or undoes the earlier one.

        Required affinity comes from the known images, and from the operator's assumption about others where that is
        the setting. Tolerations and preferred affinity need all images to be known. A pod that is to wait for an image
        gets the gate and nothing else, if it `may_hold`. `cluster` has the cluster's nodes, none if
        they are not watched; it is used for warnings only. Under `observe` the audit annotations `would-be`,
        `would-add`, `would-hold` and `would-deny` replace the patch.
        """
        overrides = self._admission.gate.overrides_for(pod, overrides)
        creation = read_creation(pod, images, facts, overrides, cluster, may_hold=may_hold)
        if excess := creation.excess:
            return _leave(creation, excess, _letting_go(creation))
        before, after = creation.document(), creation.document()
        record = read_record(look(before, ADDED_PATH))
        taken = take_back(after, record, self._offered, self._admission.scheduler_name)
        verdict = self._judge(creation, after)
        added = self._add(after, verdict)
        if excess := excess_with(added, after):
            after = creation.document()
            take_back(after, record, self._offered, self._admission.scheduler_name)
            let_go(after)
            return _leave(creation, excess, diff(before, after))
        if record and record.same_as(taken) and record.same_as(added) and _is_noted(before, after):
            after = creation.document()  # otherwise our additions would move behind what others have appended since
        if verdict.outcome is AdmissionOutcome.GATED:
            hold(after)
        else:
            let_go(after)
        return self._answer(creation, diff(before, after), added, verdict)

    def _judge(self, creation: Creation, document: JsonObject) -> "_Judgement":
        """What becomes of the pod, whose touched parts are in `document` as its author wrote them.

        No image that is not known yet makes an impossible pod possible, so such a pod is not held for one.
        """
        treatment = self._planner.treat(creation)
        planned = self._planner.plan(creation, document, treatment)
        platforms = self._planner.annotated_platforms(creation)
        if planned.impossible:
            denied = self._admission.impossible is ImpossiblePods.DENY
            outcome = AdmissionOutcome.DENIED if denied else AdmissionOutcome.IMPOSSIBLE
            return _Judgement(outcome, planned, planned.reason, platforms=platforms)
        if treatment.held and (creation.may_hold or is_gated(document)):
            reason = held_text(treatment.held)
            return _Judgement(AdmissionOutcome.GATED, PlannedAdditions(), reason)
        passed, assumed = (*treatment.held, *treatment.passed), bool(treatment.assumed)
        if passed:
            why = "as nobody is there to let it go later" if treatment.held else "as the settings say"
            reason = "; ".join(filter(None, (passed_text(passed, why), planned.reason)))
            return _Judgement(AdmissionOutcome.UNRESOLVED, planned, reason, passed, assumed)
        outcome = AdmissionOutcome.ASSUMED if assumed else AdmissionOutcome.PATCHED
        return _Judgement(outcome, planned, planned.reason, assumed=assumed, platforms=platforms)

    def _add(self, document: JsonObject, verdict: "_Judgement") -> Additions:
        planned = verdict.planned
        added = add(
            document,
            tolerations=planned.tolerations,
            selector=planned.selector,
            required=planned.required,
            preferred=planned.preferred,
            spread=planned.spread,
            scheduler_name=self._admission.scheduler_name,
        )
        if not verdict.reason and verdict.platforms is None and added == NOTHING:
            return added
        return annotate(document, added, verdict.reason, verdict.platforms)

    def _answer(self, creation: Creation, patch: list[Operation], added: Additions, verdict: "_Judgement") -> Mutation:
        observed = creation.overrides.mode is Mode.OBSERVE
        outcome = verdict.outcome
        audit = {"verdict": self._verdict(creation)}
        if added != NOTHING:
            audit["would-add" if observed else "added"] = write_record(added)
        if outcome is AdmissionOutcome.DENIED:
            patch = []
        elif outcome is AdmissionOutcome.PATCHED and not patch:
            outcome = AdmissionOutcome.UNCHANGED
        would_be = outcome if observed else None
        if would_be:
            audit |= _would_annotations(would_be, verdict.reason)
            outcome, patch = AdmissionOutcome.OBSERVED, _letting_go(creation)
        encoded = _encode(patch)
        if len(encoded) > PATCH_BYTES:
            return _leave(creation, f"its patch would have more than {PATCH_BYTES // 1024} KiB", [])
        return Mutation(
            outcome=outcome,
            patch=encoded,
            reason=verdict.reason,
            unresolved=() if observed else verdict.unresolved,
            warnings=(*creation.overrides.problems, *verdict.planned.warnings, *self._nowhere(creation)),
            audit_annotations=audit,
            would_be=would_be,
        )

    def _nowhere(self, creation: Creation) -> Iterator[str]:
        if self._is_nowhere(creation.facts, creation.cluster):
            yield f"this pod can run on no node of this cluster: {creation.refusal}"
        elif wrong := self._wrong_nodes(creation):
            yield f"this pod asks for {shown_nodes(wrong)}: {creation.refusal}"

    def _wrong_nodes(self, creation: Creation) -> Mapping[NodeName, Platform]:
        if not (creation.cluster.by_name and creation.constrained and may_name_nodes(creation.touched)):
            return {}
        demands = demands_of(_CREATED.decode(creation.touched).spec or CreatedSpec())
        return wrong_nodes(demands, creation.facts, self._policy.compatibility, creation.cluster.by_name)

    def _is_nowhere(self, facts: Sequence[ImageFact], cluster: ClusterNodes) -> bool:
        platforms = cluster.platforms
        if not platforms or not platforms.isdisjoint(self._planner.intersect(facts, cluster).common):
            return False  # on a common platform no image is known not to run
        return all(fit(facts, platform, self._policy.compatibility) is Fit.NO for platform in platforms)

    def _verdict(self, creation: Creation) -> str:
        unresolved = creation.unresolved
        if unresolved:
            image, fact = unresolved[0]
            return (
                f"{len(unresolved)} of {len(creation.images)} images unresolved, "
                f"first {shown_reference(image.reference)} ({fact.cause})"
            )
        if not creation.constrained:
            return "runs anywhere"
        in_common = self._planner.intersect(creation.facts, creation.cluster)
        return f"runs on {in_common.text}" if in_common.common else "runs on no platform"


def _is_noted(before: JsonObject, after: JsonObject) -> bool:
    """Whether `after` has a record, and both have the same annotations for people."""
    return look(after, ADDED_PATH) is not None and all(look(after, path) == look(before, path) for path in NOTE_PATHS)


class _Judgement(msgspec.Struct, frozen=True):
    """What becomes of a pod, what is added to it, and what its annotations say."""

    outcome: AdmissionOutcome
    planned: PlannedAdditions
    reason: str = ""
    unresolved: tuple[Unresolved, ...] = ()
    assumed: bool = False
    platforms: str | None = None


_WOULD = {AdmissionOutcome.GATED: "would-hold", AdmissionOutcome.DENIED: "would-deny"}


def _would_annotations(outcome: AdmissionOutcome, reason: str) -> dict[str, str]:
    """The audit annotations of a pod that is only observed; none if nothing would have become of it."""
    if outcome is AdmissionOutcome.UNCHANGED:
        return {}
    said = {_WOULD.get(outcome, "would-annotate"): reason} if reason else {}
    return {"would-be": outcome.value, **said}


def _letting_go(creation: Creation) -> list[Operation]:
    """The operations that take our gate off the pod, and what a policy has written of it; none if it has no gate.

    A pod of large parts keeps it, until the gate controller takes it off.
    """
    if creation.spec_bytes > TOUCHED_BYTES:
        return []
    before, after = creation.document(), creation.document()
    if is_gated(after):
        let_go(after)
        annotations = look(after, ADDED_PATH[:-1])
        if isinstance(annotations, dict):
            annotations.pop(REASON, None)
    return diff(before, after)


def _leave(creation: Creation, excess: str, patch: list[Operation]) -> Mutation:
    """The response for a pod that has too much of something to get anything."""
    encoded = _encode(patch)
    return Mutation(
        outcome=AdmissionOutcome.EXEMPT,
        patch=encoded if len(encoded) <= PATCH_BYTES else b"",
        excess=excess,
        warnings=(*creation.overrides.problems, left_text(excess)),
        audit_annotations={"verdict": f"left alone: {excess}"},
    )


def _encode(patch: list[Operation]) -> bytes:
    return _ENCODER.encode(patch) if patch else b""
