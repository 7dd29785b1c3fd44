"""The decision about a pod that is being created: what is added so that it is scheduled where its images run.

The result is a JSON Patch, which keeps fields unknown here, with warnings for the pod's author and annotations for the
audit log. Uses no HTTP and no clock and has no side effects, so a dry run is handled like any other request.
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
from extender.placement.facts import Fit, ImageFact, PodImage, fit, known_platforms, may_be_kept
from extender.placement.patch import Json, JsonObject, Operation, diff, look
from extender.placement.policy import Policy, common_platforms, is_exempt, is_multi_arch, preference_for
from extender.placement.reasons import platforms_text, shown_reference
from extender.placement.tolerations import TolerationRule, is_covered, parse_platforms
from extender.tables import Table, declare_cache

# Pods of one template get the same mutation, and most pods are one of many. An entry holds the parts of a pod that a
# patch may change, mainly tolerations and affinity. Beyond this size it is not worth caching.
_MUTATIONS = declare_cache(
    "placement.mutation.mutations", key="pod fields, images, facts, overrides", bound=1024, at_most="30 MB"
)
_REMEMBERED_BYTES = 8192


class AdmissionOutcome(enum.StrEnum):
    """The outcome of a review of a pod."""

    PATCHED = "patched"
    UNCHANGED = "unchanged"
    OBSERVED = "observed"
    IGNORED = "ignored"
    EXEMPT = "left_alone"


class AdmissionPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The operator's settings for pods that are being created; an empty `scheduler_name` changes no pod's."""

    tolerations: tuple[TolerationRule, ...] = ()
    node_affinity: AffinityMode = AffinityMode.NONE
    scheduler_name: str = ""


class Mutation(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The response for one pod; `patch` is a JSON Patch document, empty for no change."""

    outcome: AdmissionOutcome
    patch: bytes = b""
    warnings: tuple[str, ...] = ()
    audit_annotations: Mapping[str, str] = {}

    @functools.cached_property
    def fields(self) -> bytes:
        """The response's fields for `complete_response`, encoded once, as many pods get one mutation."""
        return encode_fields(self.patch, self.warnings, self.audit_annotations)


def untouched(pod: Pod, overrides: Overrides, policy: Policy) -> AdmissionOutcome | None:
    """Why this pod's images need not be looked up; None if they must be.

    DaemonSet pods are exempt, besides those of `policy.is_exempt`. Their controller checks taints and affinity by its
    own template, and would keep creating pods for nodes that our additions exclude.
    """
    if overrides.mode is Mode.IGNORE:
        return AdmissionOutcome.IGNORED
    owners = (pod.metadata and pod.metadata.owner_references) or ()
    of_daemon_set = any(owner.kind == "DaemonSet" and owner.controller for owner in owners)
    return AdmissionOutcome.EXEMPT if pod.spec is None or of_daemon_set or is_exempt(pod, policy) else None


class _PlannedAffinity(msgspec.Struct, frozen=True):
    """The node affinity to write.

    `explained`: whether the pod gets the reason as an annotation, since no event of the scheduler will give it.
    """

    required: tuple[Alternatives, ...] = ()
    preferred: tuple[PreferredSchedulingTerm, ...] = ()
    explained: bool = False
    warnings: tuple[str, ...] = ()


_ENCODER = msgspec.json.Encoder()


class Mutator:
    """Applies the operator's settings to pods. Its results depend on the arguments and these settings alone."""

    def __init__(self, policy: Policy, admission: AdmissionPolicy) -> None:
        self._policy = policy
        self._admission = admission
        self._remembered: Table[Creation, Mutation] = _MUTATIONS.table()

    def skip(self, pod: Pod, overrides: Overrides) -> Mutation | None:
        """The response for a pod whose images do not matter (see `untouched`); None if they must be looked up."""
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
        """The response for a pod that `skip` does not skip; `facts` are those of `images`, in order.

        Required affinity comes from the known images only; an unresolved image refuses nothing here. Tolerations and
        preferred affinity need all images to be known. `cluster` holds the platforms of the cluster's nodes, or is
        empty if they are not watched; it is used for warnings only. Under `observe` the audit annotation `would-add`
        replaces the patch.
        """
        creation = read_creation(pod, images, facts, overrides, cluster)
        if len(creation.touched) > _REMEMBERED_BYTES:
            return self._decide(creation)
        mutation = self._remembered.peek(creation)
        if mutation is None:
            mutation = self._decide(creation)
            if may_be_kept(images, known_platforms(facts)):
                self._remembered.put(creation, mutation)
        return mutation

    def _decide(self, creation: Creation) -> Mutation:
        """Takes back what an earlier pass recorded and adds what applies now; the difference is the patch.

        So a pass over its own result changes nothing, and a pass over other images narrows or undoes the earlier one.
        """
        before, after = creation.document(), creation.document()
        record = read_record(look(before, ADDED_PATH))
        offered = [rule.toleration for rule in self._admission.tolerations]
        taken = take_back(after, record, offered, self._admission.scheduler_name)
        affinity = self._plan_affinity(creation, after)
        added = self._add(creation, after, affinity)
        recorded = look(after, ADDED_PATH) is not None and all(look(after, it) == look(before, it) for it in NOTE_PATHS)
        if record and recorded and record.same_as(taken) and record.same_as(added):
            after = before  # otherwise our additions would move behind what others have appended since
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
        """The tolerations of rules on whose every platform all images run, except those that the pod covers already."""
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
                f"{len(unresolved)} of {len(creation.images)} images unresolved, "
                f"first {shown_reference(image.reference)} ({fact.cause})"
            )
        if not creation.constrained:
            return "runs anywhere"
        common = common_platforms(creation.facts, self._policy.compatibility)
        return f"runs on {platforms_text(common)}" if common else "runs on no platform"


def _nothing_known(creation: Creation) -> Iterator[str]:
    for image, fact in creation.unresolved[:1]:
        reference = shown_reference(image.reference)
        yield f"no node affinity was written: nothing is known of image {reference} ({fact.cause})"


def _contradictions(creation: Creation, plan: Plan) -> Iterator[str]:
    if plan.selector_contradicts:
        yield f"nodeSelector allows no node that the images run on: {creation.refusal}"
    if plan.contradicted:
        yield (
            f"{plan.contradicted} of {len(plan.additions)} terms of the pod's node affinity allow no node that the "
            f"images run on: {creation.refusal}"
        )
