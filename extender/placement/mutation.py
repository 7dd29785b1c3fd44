"""The decision about a pod that is being created: what it is given so that it lands where its images run.

Answers with a JSON Patch on the raw object, so that fields unknown here survive, with warnings for the pod's author and
with annotations for the audit log. Knows no HTTP and no clock: a dry run is a run.
"""

import enum
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import TypedDict, cast

import msgspec

from extender.images.platform import Platform
from extender.kubernetes.core_v1 import Pod, Toleration
from extender.placement.additions import (
    ADDED_PATH,
    AFFINITY_PATH,
    NOTHING,
    REASON_PATH,
    TOLERATIONS_PATH,
    add,
    annotate,
    read_record,
    take_back,
    write_record,
)
from extender.placement.affinity import (
    Affinity,
    AffinityMode,
    Alternatives,
    NodeAffinity,
    Plan,
    PreferredTerm,
    node_platforms,
    plan_preferred,
    plan_required,
)
from extender.placement.annotations import Mode, Wishes
from extender.placement.facts import Fit, ImageFact, Pending, PodImage, RunsOn, Unknown, fit
from extender.placement.patch import Json, JsonObject, diff, look
from extender.placement.policy import Policy, common_platforms, is_multi_arch, left_alone, preference_for
from extender.placement.reasons import Constraint, platforms_text, refusal_text
from extender.placement.tolerations import TolerationRule, is_covered, parse_platforms

# Pods of one template get one answer, and most pods are one of many. An entry holds what a pod may be patched in, its
# annotations above all (256 KiB at most): larger than this, an answer is not worth keeping.
_REMEMBERED = 1024
_REMEMBERED_BYTES = 8192


class Outcome(enum.StrEnum):
    """What became of a pod."""

    PATCHED = "patched"
    UNCHANGED = "unchanged"
    OBSERVED = "observed"
    IGNORED = "ignored"
    LEFT_ALONE = "left_alone"


class AdmissionPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The operator's settings about pods that are being created; an empty `scheduler_name` changes none."""

    tolerations: tuple[TolerationRule, ...] = ()
    node_affinity: AffinityMode = AffinityMode.NONE
    scheduler_name: str = ""


class Mutation(msgspec.Struct, frozen=True, kw_only=True):
    """The answer for one pod; `patch` is a JSON Patch document, empty for no change."""

    outcome: Outcome
    patch: bytes = b""
    warnings: tuple[str, ...] = ()
    audit_annotations: Mapping[str, str] = {}


def untouched(pod: Pod, wishes: Wishes, policy: Policy) -> Outcome | None:
    """Why this pod's images need not even be looked up; None if they must be.

    DaemonSet pods are left alone, besides those of `policy.left_alone`: their controller judges taints and affinity by
    its template, and would go on making pods for nodes that what we add keeps them off.
    """
    if wishes.mode is Mode.IGNORE:
        return Outcome.IGNORED
    owners = (pod.metadata and pod.metadata.owner_references) or ()
    of_daemon_set = any(owner.kind == "DaemonSet" and owner.controller for owner in owners)
    return Outcome.LEFT_ALONE if pod.spec is None or of_daemon_set or left_alone(pod, policy) else None


class _Metadata(TypedDict, total=False):
    annotations: msgspec.Raw


class _Spec(TypedDict, total=False):
    tolerations: msgspec.Raw
    affinity: msgspec.Raw
    schedulerName: msgspec.Raw
    nodeSelector: msgspec.Raw


class _Touched(TypedDict, total=False):
    """The parts of a pod that a patch depends on; all else is skipped, not read."""

    metadata: _Metadata | None
    spec: _Spec


class _Case(msgspec.Struct, frozen=True):
    """All that an answer depends on, besides the operator's settings."""

    touched: bytes
    images: tuple[PodImage, ...]
    facts: tuple[ImageFact, ...]
    wishes: Wishes
    cluster: frozenset[Platform]

    def document(self) -> JsonObject:
        """The touched parts as plain JSON, the caller's to change."""
        return cast("JsonObject", msgspec.json.decode(self.touched))

    @property
    def constrained(self) -> bool:
        """Whether an image is known to run on some platforms only."""
        return any(isinstance(fact, RunsOn) for fact in self.facts)

    @property
    def refusal(self) -> str:
        """Why some nodes are none for this pod, in the words of the scheduler verbs, by what is known alone."""
        pairs = zip(self.images, self.facts, strict=True)
        return refusal_text(
            [Constraint(image.reference, fact.platforms) for image, fact in pairs if isinstance(fact, RunsOn)]
        )

    @property
    def unresolved(self) -> list[tuple[PodImage, Pending | Unknown]]:
        """The images of which nothing is known, and why."""
        pairs = zip(self.images, self.facts, strict=True)
        return [(image, fact) for image, fact in pairs if isinstance(fact, Pending | Unknown)]


class _PlannedAffinity(msgspec.Struct, frozen=True):
    """The node affinity to be written; `explained`: the pod gets the reason as an annotation, since no event will."""

    required: tuple[Alternatives, ...] = ()
    preferred: tuple[PreferredTerm, ...] = ()
    explained: bool = False
    warnings: tuple[str, ...] = ()


_TOUCHED = msgspec.json.Decoder(_Touched)
_ENCODER = msgspec.json.Encoder()


class Mutator:
    """The operator's settings, ready to be applied to pods. Answers are a pure function of their arguments."""

    def __init__(self, policy: Policy, admission: AdmissionPolicy) -> None:
        self._policy = policy
        self._admission = admission
        self._remembered = functools.lru_cache(_REMEMBERED)(self._decide)

    def mutate(
        self,
        raw: bytes | msgspec.Raw,
        pod: Pod,
        images: Sequence[tuple[PodImage, ImageFact]],
        wishes: Wishes,
        cluster: frozenset[Platform] = frozenset(),
    ) -> Mutation:
        """What to answer about `pod`, whose JSON is `raw`, given what is known of its images.

        Tolerations and affinity come from known images only: an unresolved one earns nothing and refuses nothing here.
        `cluster` has the platforms of the nodes there are, nothing if they are not watched; it gives warnings only.
        Under `observe` the audit annotation `would-add` stands for the patch.
        """
        left = untouched(pod, wishes, self._policy)
        if left:
            audit = {"verdict": f"{left.replace('_', ' ')}, so the images were not looked up"}
            return Mutation(outcome=left, warnings=wishes.problems, audit_annotations=audit)
        touched = _ENCODER.encode(_TOUCHED.decode(raw))
        facts = tuple(fact for _, fact in images)
        case = _Case(touched, tuple(image for image, _ in images), facts, wishes, cluster)
        return self._remembered(case) if len(touched) <= _REMEMBERED_BYTES else self._decide(case)

    def _decide(self, case: _Case) -> Mutation:
        """Take back what an earlier pass recorded, add what is due now; the difference is the patch.

        So a pass over its own result changes nothing, and one over other images narrows or undoes.
        """
        before, after = case.document(), case.document()
        record = read_record(look(before, ADDED_PATH))
        rules = [rule.toleration for rule in self._admission.tolerations]
        taken = take_back(after, record, rules, self._admission.scheduler_name)
        affinity = self._plan_affinity(case, after)
        added = add(
            after,
            tolerations=self._earned_tolerations(case, look(after, TOLERATIONS_PATH)),
            required=affinity.required,
            preferred=affinity.preferred,
            scheduler_name=self._admission.scheduler_name,
        )
        reason = case.refusal if affinity.explained else ""
        if reason or added != NOTHING:
            added = annotate(after, added, reason)
            said = look(before, REASON_PATH) or ""
            if record and record.same_as(taken) and record.same_as(added) and reason == said:
                after = before  # else our part would move behind what others have put in since
        observed = case.wishes.mode is Mode.OBSERVE
        patch = [] if observed else list(diff(before, after))
        audit = {"verdict": self._verdict(case)}
        if added != NOTHING:
            audit["would-add" if observed else "added"] = write_record(added)
        return Mutation(
            outcome=Outcome.OBSERVED if observed else Outcome.PATCHED if patch else Outcome.UNCHANGED,
            patch=_ENCODER.encode(patch) if patch else b"",
            warnings=(*case.wishes.problems, *affinity.warnings, *self._nowhere(case)),
            audit_annotations=audit,
        )

    def _earned_tolerations(self, case: _Case, existing: Json) -> list[Toleration]:
        """Those of the rules whose every platform all images run on, unless the pod has as much already."""
        present = msgspec.convert(existing or [], list[Toleration])
        own = len(present)
        for rule in self._admission.tolerations if case.constrained else ():
            if self._is_earned(rule, case.facts) and not is_covered(rule, present):
                present.append(rule.toleration)
        return present[own:]

    def _is_earned(self, rule: TolerationRule, facts: Sequence[ImageFact]) -> bool:
        platforms = parse_platforms(rule.platforms)
        return bool(platforms) and all(
            fit(facts, platform, self._policy.compatibility) is Fit.YES for platform in platforms
        )

    def _plan_affinity(self, case: _Case, document: JsonObject) -> _PlannedAffinity:
        mode = self._admission.node_affinity
        if mode is AffinityMode.NONE:
            return _PlannedAffinity()
        try:
            existing = msgspec.convert(look(document, AFFINITY_PATH) or {}, Affinity).node_affinity or NodeAffinity()
        except msgspec.ValidationError as exc:
            why = f"no node affinity was written, since the pod's own cannot be read: {exc}"
            return _PlannedAffinity(warnings=(why,))
        selector = cast("dict[str, str]", look(document, ("spec", "nodeSelector")) or {})
        planned = self._plan_required(case, existing, selector) if mode.required else _PlannedAffinity()
        preferred = self._plan_preferred(case, existing) if mode.preferred else ()
        return msgspec.structs.replace(planned, preferred=preferred)

    def _plan_required(self, case: _Case, existing: NodeAffinity, selector: Mapping[str, str]) -> _PlannedAffinity:
        if not case.constrained:
            return _PlannedAffinity(warnings=tuple(_nothing_known(case)))
        nodes = node_platforms(case.facts, self._policy.compatibility)
        if not nodes:
            why = f"no node affinity was written: no platform is common to all images; {case.refusal}"
            return _PlannedAffinity(explained=True, warnings=(why,))
        plan = plan_required(existing, selector, nodes)
        return _PlannedAffinity(plan.additions, (), any(plan.additions), tuple(_contradictions(case, plan)))

    def _plan_preferred(self, case: _Case, existing: NodeAffinity) -> tuple[PreferredTerm, ...]:
        compatibility = self._policy.compatibility
        if not is_multi_arch(case.facts, compatibility):
            return ()
        architectures = {platform.architecture for platform in common_platforms(case.facts, compatibility)}
        return plan_preferred(existing, preference_for(self._policy, case.wishes), frozenset(architectures))

    def _nowhere(self, case: _Case) -> Iterator[str]:
        compatibility = self._policy.compatibility
        if case.cluster and all(fit(case.facts, node, compatibility) is Fit.NO for node in case.cluster):
            yield f"this pod can run on no node of this cluster: {case.refusal}"

    def _verdict(self, case: _Case) -> str:
        unresolved = case.unresolved
        if unresolved:
            image, fact = unresolved[0]
            return f"{len(unresolved)} of {len(case.images)} images unresolved, first {image.reference} ({fact.cause})"
        if not case.constrained:
            return "runs anywhere"
        common = common_platforms(case.facts, self._policy.compatibility)
        return f"runs on {platforms_text(common)}" if common else "runs on no platform"


def _nothing_known(case: _Case) -> Iterator[str]:
    for image, fact in case.unresolved[:1]:
        yield f"no node affinity was written: nothing is known of image {image.reference} ({fact.cause})"


def _contradictions(case: _Case, plan: Plan) -> Iterator[str]:
    if plan.selector_contradicts:
        yield f"nodeSelector allows no node that the images run on: {case.refusal}"
    if plan.contradicted:
        yield (
            f"{plan.contradicted} of {len(plan.additions)} terms of the pod's node affinity allow no node that the "
            f"images run on: {case.refusal}"
        )
