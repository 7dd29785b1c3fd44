"""The decision about a pod that is being created: what it is given so that it lands where its images run.

Answers with a JSON Patch on the object, so that fields unknown here survive, with warnings for the pod's author and
with annotations for the audit log. Knows no HTTP and no clock: a dry run is a run.
"""

import enum
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

import msgspec

from extender.images.platform import Platform
from extender.kubernetes.admission_v1 import encode_fields
from extender.kubernetes.core_v1 import Affinity, CreatedPod, NodeAffinity, Pod, PreferredSchedulingTerm, Toleration
from extender.placement.additions import (
    ADDED_PATH,
    AFFINITY_PATH,
    NOTE_PATHS,
    NOTHING,
    TOLERATIONS_PATH,
    Additions,
    add,
    annotate,
    read_record,
    take_back,
    write_record,
)
from extender.placement.affinity import (
    AffinityMode,
    Alternatives,
    Plan,
    node_platforms,
    plan_preferred,
    plan_required,
)
from extender.placement.annotations import Mode, Overrides
from extender.placement.creation import Creation, read_creation
from extender.placement.facts import Fit, ImageFact, PodImage, fit
from extender.placement.patch import Json, JsonObject, Operation, diff, look
from extender.placement.policy import Policy, common_platforms, is_exempt, is_multi_arch, preference_for
from extender.placement.reasons import platforms_text
from extender.placement.tolerations import TolerationRule, is_covered, parse_platforms
from extender.tables import declare_cache

# Pods of one template get one answer, and most pods are one of many. An entry holds what a pod may be patched in, its
# tolerations and affinity above all: larger than this, an answer is not worth keeping.
_MUTATIONS = declare_cache("placement.mutation.mutations", key="pod fields, images, facts, overrides", bound=1024)
_REMEMBERED_BYTES = 8192


class AdmissionOutcome(enum.StrEnum):
    """What became of a pod."""

    PATCHED = "patched"
    UNCHANGED = "unchanged"
    OBSERVED = "observed"
    IGNORED = "ignored"
    EXEMPT = "left_alone"


class AdmissionPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The operator's settings about pods that are being created; an empty `scheduler_name` changes none."""

    tolerations: tuple[TolerationRule, ...] = ()
    node_affinity: AffinityMode = AffinityMode.NONE
    scheduler_name: str = ""


class Mutation(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The answer for one pod; `patch` is a JSON Patch document, empty for no change."""

    outcome: AdmissionOutcome
    patch: bytes = b""
    warnings: tuple[str, ...] = ()
    audit_annotations: Mapping[str, str] = {}

    @functools.cached_property
    def fields(self) -> bytes:
        """All this for `complete_response`; many pods get one mutation."""
        return encode_fields(self.patch, self.warnings, self.audit_annotations)


def untouched(pod: Pod, overrides: Overrides, policy: Policy) -> AdmissionOutcome | None:
    """Why this pod's images need not even be looked up; None if they must be.

    DaemonSet pods are left alone, besides those of `policy.is_exempt`: their controller judges taints and affinity by
    its template, and would go on making pods for nodes that what we add keeps them off.
    """
    if overrides.mode is Mode.IGNORE:
        return AdmissionOutcome.IGNORED
    owners = (pod.metadata and pod.metadata.owner_references) or ()
    of_daemon_set = any(owner.kind == "DaemonSet" and owner.controller for owner in owners)
    return AdmissionOutcome.EXEMPT if pod.spec is None or of_daemon_set or is_exempt(pod, policy) else None


class _PlannedAffinity(msgspec.Struct, frozen=True):
    """The node affinity to be written; `explained`: the pod gets the reason as an annotation, since no event will."""

    required: tuple[Alternatives, ...] = ()
    preferred: tuple[PreferredSchedulingTerm, ...] = ()
    explained: bool = False
    warnings: tuple[str, ...] = ()


_ENCODER = msgspec.json.Encoder()


class Mutator:
    """The operator's settings, ready to be applied to pods. Answers are a pure function of their arguments."""

    def __init__(self, policy: Policy, admission: AdmissionPolicy) -> None:
        self._policy = policy
        self._admission = admission
        self._remembered = functools.lru_cache(_MUTATIONS.rows)(self._decide)

    def skip(self, pod: Pod, overrides: Overrides) -> Mutation | None:
        """The answer for a pod whose images do not matter (see `untouched`); None if they must be looked up."""
        outcome = untouched(pod, overrides, self._policy)
        if outcome is None:
            return None
        audit = {"verdict": f"{outcome.replace('_', ' ')}, so the images were not looked up"}
        return Mutation(outcome=outcome, warnings=overrides.problems, audit_annotations=audit)

    def mutate(
        self,
        pod: CreatedPod,
        images: Sequence[PodImage],
        facts: Sequence[ImageFact],
        overrides: Overrides,
        cluster: frozenset[Platform] = frozenset(),
    ) -> Mutation:
        """What to answer about a pod that is not to be skipped; `facts` are those of `images`, in order.

        Tolerations and affinity come from known images only: an unresolved one earns nothing and refuses nothing here.
        `cluster` has the platforms of the nodes there are, nothing if they are not watched; it gives warnings only.
        Under `observe` the audit annotation `would-add` stands for the patch.
        """
        creation = read_creation(pod, images, facts, overrides, cluster)
        return self._remembered(creation) if len(creation.touched) <= _REMEMBERED_BYTES else self._decide(creation)

    def _decide(self, creation: Creation) -> Mutation:
        """Take back what an earlier pass recorded, add what is due now; the difference is the patch.

        So a pass over its own result changes nothing, and one over other images narrows or undoes.
        """
        before, after = creation.document(), creation.document()
        record = read_record(look(before, ADDED_PATH))
        offered = [rule.toleration for rule in self._admission.tolerations]
        taken = take_back(after, record, offered, self._admission.scheduler_name)
        affinity = self._plan_affinity(creation, after)
        added = self._add(creation, after, affinity)
        recorded = look(after, ADDED_PATH) is not None and all(look(after, it) == look(before, it) for it in NOTE_PATHS)
        if record and recorded and record.same_as(taken) and record.same_as(added):
            after = before  # else our part would move behind what others have put in since
        return self._answer(creation, list(diff(before, after)), added, affinity.warnings)

    def _add(self, creation: Creation, document: JsonObject, affinity: _PlannedAffinity) -> Additions:
        added = add(
            document,
            tolerations=self._earned_tolerations(creation, look(document, TOLERATIONS_PATH)),
            required=affinity.required,
            preferred=affinity.preferred,
            scheduler_name=self._admission.scheduler_name,
        )
        reason = creation.refusal if affinity.explained else ""
        return annotate(document, added, reason) if reason or added != NOTHING else added

    def _answer(
        self, creation: Creation, patch: list[Operation], added: Additions, warnings: Sequence[str]
    ) -> Mutation:
        observed = creation.overrides.mode is Mode.OBSERVE
        audit = {"verdict": self._verdict(creation)}
        if added != NOTHING:
            audit["would-add" if observed else "added"] = write_record(added)
        return Mutation(
            outcome=AdmissionOutcome.OBSERVED
            if observed
            else AdmissionOutcome.PATCHED
            if patch
            else AdmissionOutcome.UNCHANGED,
            patch=_ENCODER.encode(patch) if patch and not observed else b"",
            warnings=(*creation.overrides.problems, *warnings, *self._nowhere(creation)),
            audit_annotations=audit,
        )

    def _earned_tolerations(self, creation: Creation, existing: Json) -> list[Toleration]:
        """Those of the rules whose every platform all images run on, unless the pod has as much already."""
        present = msgspec.convert(existing or [], list[Toleration])
        own = len(present)
        for rule in self._admission.tolerations if creation.constrained else ():
            if self._is_earned(rule, creation.facts) and not is_covered(rule, present):
                present.append(rule.toleration)
        return present[own:]

    def _is_earned(self, rule: TolerationRule, facts: Sequence[ImageFact]) -> bool:
        platforms = parse_platforms(rule.platforms)
        return bool(platforms) and all(
            fit(facts, platform, self._policy.compatibility) is Fit.YES for platform in platforms
        )

    def _plan_affinity(self, creation: Creation, document: JsonObject) -> _PlannedAffinity:
        mode = self._admission.node_affinity
        if mode is AffinityMode.NONE:
            return _PlannedAffinity()
        try:
            existing = msgspec.convert(look(document, AFFINITY_PATH) or {}, Affinity).node_affinity or NodeAffinity()
        except msgspec.ValidationError as exc:
            why = f"no node affinity was written, since the pod's own cannot be read: {exc}"
            return _PlannedAffinity(warnings=(why,))
        selector = cast("dict[str, str]", look(document, ("spec", "nodeSelector")) or {})
        planned = self._plan_required(creation, existing, selector) if mode.required else _PlannedAffinity()
        preferred = self._plan_preferred(creation, existing) if mode.preferred else ()
        return msgspec.structs.replace(planned, preferred=preferred)

    def _plan_required(
        self, creation: Creation, existing: NodeAffinity, selector: Mapping[str, str]
    ) -> _PlannedAffinity:
        if not creation.constrained:
            return _PlannedAffinity(warnings=tuple(_nothing_known(creation)))
        nodes = node_platforms(creation.facts, self._policy.compatibility)
        if not nodes:
            why = f"no node affinity was written: no platform is common to all images; {creation.refusal}"
            return _PlannedAffinity(explained=True, warnings=(why,))
        plan = plan_required(existing, selector, nodes)
        return _PlannedAffinity(plan.additions, (), any(plan.additions), tuple(_contradictions(creation, plan)))

    def _plan_preferred(self, creation: Creation, existing: NodeAffinity) -> tuple[PreferredSchedulingTerm, ...]:
        compatibility = self._policy.compatibility
        if not is_multi_arch(creation.facts, compatibility):
            return ()
        architectures = {platform.architecture for platform in common_platforms(creation.facts, compatibility)}
        return plan_preferred(existing, preference_for(self._policy, creation.overrides), frozenset(architectures))

    def _nowhere(self, creation: Creation) -> Iterator[str]:
        compatibility = self._policy.compatibility
        if creation.cluster and all(fit(creation.facts, node, compatibility) is Fit.NO for node in creation.cluster):
            yield f"this pod can run on no node of this cluster: {creation.refusal}"

    def _verdict(self, creation: Creation) -> str:
        unresolved = creation.unresolved
        if unresolved:
            image, fact = unresolved[0]
            return (
                f"{len(unresolved)} of {len(creation.images)} images unresolved, first {image.reference} ({fact.cause})"
            )
        if not creation.constrained:
            return "runs anywhere"
        common = common_platforms(creation.facts, self._policy.compatibility)
        return f"runs on {platforms_text(common)}" if common else "runs on no platform"


def _nothing_known(creation: Creation) -> Iterator[str]:
    for image, fact in creation.unresolved[:1]:
        yield f"no node affinity was written: nothing is known of image {image.reference} ({fact.cause})"


def _contradictions(creation: Creation, plan: Plan) -> Iterator[str]:
    if plan.selector_contradicts:
        yield f"nodeSelector allows no node that the images run on: {creation.refusal}"
    if plan.contradicted:
        yield (
            f"{plan.contradicted} of {len(plan.additions)} terms of the pod's node affinity allow no node that the "
            f"images run on: {creation.refusal}"
        )
