"""What a pod gets so that it is scheduled where its images run: tolerations, node affinity, and the reason in words.

`mutation` plans for pods that are being created and `release` for pods that a gate holds. Changes no document. What the
known images have in common is worked out once for each combination of sets of platforms: pods of different templates
and images share it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import cast

import msgspec

from extender.images.platform import Compatibility, Platform
from extender.kubernetes.core_v1 import (
    Affinity,
    NodeAffinity,
    NodeSelectorRequirement,
    PreferredSchedulingTerm,
    Toleration,
    TopologySpreadConstraint,
)
from extender.placement.additions import AFFINITY_PATH, SPREAD_PATH, TOLERATIONS_PATH
from extender.placement.affinity import (
    AffinityMode,
    Alternatives,
    Plan,
    is_unrestricted,
    node_platforms,
    plan_narrower,
    plan_preferred,
    plan_required,
)
from extender.placement.creation import Creation
from extender.placement.facts import Fit, ImageFact, RunsOn, fit, is_unresolved
from extender.placement.gate import GateSettings, ImpossiblePods, Treatment, treat
from extender.placement.level_words import LevelWords, level_words
from extender.placement.nodes import ARCHITECTURE, OPERATING_SYSTEM, ClusterNodes
from extender.placement.patch import Json, JsonObject, look
from extender.placement.policy import Policy, common_platforms, policy_for, preference_for
from extender.placement.reasons import Constraint, platforms_text, refusal_text, shown_reference
from extender.placement.spread import plan_spread
from extender.placement.tolerations import TolerationRule, is_covered, parse_platforms
from extender.tables import ShareTable, declare_cache

_INTERSECTIONS = declare_cache("placement.planning.intersections", key="sets of platforms, nodes", most_mb=8)
_INTERSECTION_BYTES = 1_000_000  # of each planner; the service has seven
# What a row takes besides its platforms, and each of these with what follows from it. An image's author chooses their
# number, up to 64, and their words.
_ROW_BYTES, _PLATFORM_BYTES = 2_000, 1_000


class PlatformIntersection(msgspec.Struct, frozen=True):
    """What follows from the platforms of the known images; all is empty where no image is known.

    `common` are the platforms named by the images on which all of them run, `architectures` theirs, and `text` is their
    list for people. `nodes` are as in `affinity.node_platforms`, and `levels` what these must state of their level.
    `plan` is what keeps a pod to them that is being created and whose author restricts no platform. `rules` are those
    on whose every platform all images run.
    """

    common: frozenset[Platform]
    architectures: frozenset[str]
    text: str
    nodes: frozenset[Platform]
    levels: LevelWords
    plan: Plan
    rules: tuple[TolerationRule, ...]


_Key = tuple[frozenset[frozenset[Platform]], frozenset[Platform]]


class PlatformIntersections:
    """Gives what the images of a pod have in common under the operator's settings."""

    def __init__(self, compatibility: Compatibility, rules: Sequence[TolerationRule]) -> None:
        self._compatibility = compatibility
        self._rules = [(rule, parse_platforms(rule.platforms)) for rule in rules]
        self._remembered: ShareTable[_Key, PlatformIntersection] = ShareTable(
            _INTERSECTIONS.bound(_INTERSECTION_BYTES), owner_of=lambda *_: "", cost_of=lambda key, _: _row_bytes(key[0])
        )

    def find(self, facts: Sequence[ImageFact], cluster: ClusterNodes) -> PlatformIntersection:
        """What the known images have in common, among those with these facts, in a cluster with such nodes."""
        known = frozenset([fact.platforms for fact in facts if isinstance(fact, RunsOn)])
        key = (known, cluster.platforms)
        found = self._remembered.get(key)
        if found is None:
            found = self._intersect([RunsOn(platforms) for platforms in known], cluster)
            self._remembered.put(key, found)
        return found

    def _intersect(self, known: Sequence[RunsOn], cluster: ClusterNodes) -> PlatformIntersection:
        common = common_platforms(known, self._compatibility)
        nodes = node_platforms(known, self._compatibility)
        levels = level_words([fact.platforms for fact in known], nodes, cluster, self._compatibility)
        nodes = frozenset(node for node in nodes if node not in levels or levels[node].values)
        return PlatformIntersection(
            common,
            frozenset(platform.architecture for platform in common),
            platforms_text(common),
            nodes,
            levels,
            plan_required(NodeAffinity(), {}, nodes, cluster.platforms, levels),
            tuple(rule for rule, platforms in self._rules if known and platforms and self._all_run(known, platforms)),
        )

    def _all_run(self, known: Sequence[RunsOn], platforms: frozenset[Platform]) -> bool:
        return all(fit(known, platform, self._compatibility) is Fit.YES for platform in platforms)


def _row_bytes(known: Set[frozenset[Platform]]) -> int:
    return _ROW_BYTES + _PLATFORM_BYTES * sum(map(len, known))


class AdmissionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The operator's settings for pods that are being created; an empty `scheduler_name` changes no pod's.

    `platforms_annotation`: whether pods are told the platforms that their images have in common. `spares_selector`:
    what would go into a nodeSelector goes into required affinity where the author uses the one and not the other, as an
    author's next apply replaces the whole of what it names.
    """

    tolerations: tuple[TolerationRule, ...] = ()
    node_affinity: AffinityMode = AffinityMode.REQUIRED
    scheduler_name: str = ""
    gate: GateSettings = GateSettings()
    impossible: ImpossiblePods = ImpossiblePods.PEND
    platforms_annotation: bool = False
    spares_selector: bool = False

    @property
    def reads_affinity(self) -> bool:
        """Whether a plan depends on the nodeSelector and the affinity of a pod's author."""
        return self.node_affinity is not AffinityMode.NONE or self.impossible is ImpossiblePods.DENY


class PlannedAdditions(msgspec.Struct, frozen=True):
    """What to add to a pod.

    `selector` and `required` are as in `affinity.Plan`. `reason` explains them, for which no event of the scheduler
    names an image. `impossible`: no node is right for the pod.
    """

    tolerations: tuple[Toleration, ...] = ()
    selector: Mapping[str, str] = {}
    required: tuple[Alternatives, ...] = ()
    preferred: tuple[PreferredSchedulingTerm, ...] = ()
    spread: tuple[TopologySpreadConstraint, ...] = ()
    reason: str = ""
    warnings: tuple[str, ...] = ()
    impossible: bool = False


class Planner:
    """Plans by the operator's settings. Its results depend on the arguments and these settings alone."""

    def __init__(self, policy: Policy, admission: AdmissionSettings) -> None:
        mode = admission.node_affinity
        gate = admission.gate
        self._policy = policy
        self._admission = admission
        self._intersections = PlatformIntersections(policy.compatibility, admission.tolerations)
        self._keys = frozenset(rule.key for rule in admission.tolerations)
        self._gate = msgspec.structs.replace(gate, may_assume=gate.may_assume and mode.required)

    def treat(self, creation: Creation, *, expired: bool = False) -> Treatment:
        """What is done about the pod's images that are not known; `expired`: it was held long enough."""
        may_assume = self._gate.may_assume and bool(policy_for(self._policy, creation.images).assume)
        gate = self._gate if may_assume else msgspec.structs.replace(self._gate, may_assume=False)
        return treat(creation.images, creation.facts, creation.overrides, gate, expired=expired)

    def plan(self, creation: Creation, document: JsonObject, treatment: Treatment) -> PlannedAdditions:
        """What a pod that is being created gets; `document` has its touched parts as its author wrote them."""
        planned = self._plan(creation, document, treatment, _plan_created)
        if not creation.overrides.spread or planned.impossible:
            return planned
        return msgspec.structs.replace(planned, spread=self._plan_spread(creation, document))

    def plan_stored(self, creation: Creation, document: JsonObject, treatment: Treatment) -> PlannedAdditions:
        """What a pod that a gate holds gets, which the API server allows: no term more than the pod has."""
        return self._plan(creation, document, treatment, _plan_stored)

    def annotated_platforms(self, creation: Creation) -> str | None:
        """The value of the annotation `platforms`; None where the pod gets none.

        It gets none while an image is not known, or if none is known to need a platform. It is empty if the images have
        no platform in common.
        """
        is_told = self._admission.platforms_annotation and creation.constrained and not creation.unresolved
        if not is_told:
            return None
        return ",".join(map(str, sorted(self.intersect(creation.facts, creation.cluster).common)))

    def intersect(self, facts: Sequence[ImageFact], cluster: ClusterNodes) -> PlatformIntersection:
        """What the images with these facts have in common, in a cluster with these nodes."""
        return self._intersections.find(facts, cluster)

    def _plan(
        self, creation: Creation, document: JsonObject, treatment: Treatment, plan_terms: "_PlanTerms"
    ) -> PlannedAdditions:
        in_common = self.intersect(creation.facts, creation.cluster)
        tolerations = self._earned_tolerations(creation, in_common, look(document, TOLERATIONS_PATH))
        if not self._admission.reads_affinity:
            return PlannedAdditions(tolerations)
        mode = self._admission.node_affinity
        try:
            existing = msgspec.convert(look(document, AFFINITY_PATH) or {}, Affinity).node_affinity or NodeAffinity()
        except msgspec.ValidationError as exc:
            why = f"no node affinity was written, since the pod's own cannot be read: {exc}"
            return PlannedAdditions(tolerations, warnings=(why,))
        selector = cast("dict[str, str]", look(document, ("spec", "nodeSelector")) or {})
        required = self._plan_required(
            creation, treatment, lambda in_common: plan_terms(existing, selector, in_common, creation.cluster)
        )
        if self._admission.spares_selector and selector and not existing.required:
            required = _in_terms(required)
        return PlannedAdditions(
            tolerations=tolerations,
            selector=required.selector,
            required=required.additions,
            preferred=self._plan_preferred(creation, in_common, existing) if mode.preferred else (),
            reason=required.reason,
            warnings=required.warnings,
            impossible=required.impossible,
        )

    def _earned_tolerations(
        self, creation: Creation, in_common: PlatformIntersection, existing: Json
    ) -> tuple[Toleration, ...]:
        """The tolerations of rules on whose every platform all images run, except those that the pod covers already."""
        own = msgspec.convert(existing or [], list[Toleration])
        if not in_common.rules or any(map(is_unresolved, creation.facts)):
            return ()
        # only these can cover one of a rule
        present = [toleration for toleration in own if not toleration.key or toleration.key in self._keys]
        added = []
        for rule in in_common.rules:
            if not is_covered(rule, present):
                present.append(rule.toleration)
                added.append(rule.toleration)
        return tuple(added)

    def _plan_required(
        self, creation: Creation, treatment: Treatment, plan_nodes: Callable[[PlatformIntersection], Plan]
    ) -> "_PlannedRequired":
        """Under settings by which no required affinity is written, only whether the pod is impossible."""
        written, impossible = self._admission.node_affinity.required, self._admission.impossible
        if not written and impossible is not ImpossiblePods.DENY:
            return _NOTHING_REQUIRED
        assume = policy_for(self._policy, creation.images).assume
        assumed = [Constraint(image.reference, assume, assumed=True) for image, _ in treatment.assumed]
        if not creation.constrained and not assumed:
            return _PlannedRequired(warnings=tuple(_nothing_known(creation)) if written else ())
        facts = (*creation.facts, *(RunsOn(constraint.platforms) for constraint in assumed))
        in_common = self.intersect(facts, creation.cluster)
        plan = plan_nodes(in_common)
        refusal = refusal_text([*creation.constraints, *assumed])
        warnings = tuple(_contradictions(plan, refusal)) if in_common.nodes else (_NOTHING_IN_COMMON.format(refusal),)
        if plan.impossible:
            pends = written and impossible is not ImpossiblePods.PASS
            return _PlannedRequired({}, plan.additions if pends else (), warnings[0], warnings, impossible=True)
        if not written:
            return _NOTHING_REQUIRED
        restricts = bool(plan.selector) or any(plan.additions)
        if restricts and any(node is None or self._may_run(facts, node) for node in creation.cluster.unlabelled):
            warnings = (*warnings, UNLABELLED)
        return _PlannedRequired(plan.selector, plan.additions, refusal if restricts else "", warnings)

    def _may_run(self, facts: Sequence[ImageFact], node: Platform) -> bool:
        return fit(facts, node, self._policy.compatibility) is not Fit.NO

    def _plan_spread(self, creation: Creation, document: JsonObject) -> tuple[TopologySpreadConstraint, ...]:
        """Constraints for a multi-arch pod of a workload; none if the pod's own cannot be read."""
        in_common = self.intersect(creation.facts, creation.cluster)
        if len(in_common.architectures) < 2 or any(map(is_unresolved, creation.facts)):
            return ()
        try:
            existing = msgspec.convert(look(document, SPREAD_PATH) or (), tuple[TopologySpreadConstraint, ...])
        except msgspec.ValidationError:
            return ()
        return plan_spread(dict(creation.replica_labels), existing)

    def _plan_preferred(
        self, creation: Creation, in_common: PlatformIntersection, existing: NodeAffinity
    ) -> tuple[PreferredSchedulingTerm, ...]:
        """Preferences for a multi-arch pod, as `is_multi_arch` has it."""
        if len(in_common.architectures) < 2 or any(map(is_unresolved, creation.facts)):
            return ()
        preference = preference_for(self._policy, creation.overrides)
        return plan_preferred(existing, preference, in_common.architectures, self._policy.preferred_nodes.labels)


class _PlannedRequired(msgspec.Struct, frozen=True):
    """The nodeSelector and required affinity of `PlannedAdditions`."""

    selector: Mapping[str, str] = {}
    additions: tuple[Alternatives, ...] = ()
    reason: str = ""
    warnings: tuple[str, ...] = ()
    impossible: bool = False


def _in_terms(required: _PlannedRequired) -> _PlannedRequired:
    """The same with its nodeSelector as a term of affinity."""
    if not required.selector:
        return required
    words = tuple(NodeSelectorRequirement(key, "In", (value,)) for key, value in required.selector.items())
    return msgspec.structs.replace(required, selector={}, additions=((words,),))


_NOTHING_REQUIRED = _PlannedRequired()
_PlanTerms = Callable[[NodeAffinity, Mapping[str, str], PlatformIntersection, ClusterNodes], Plan]
UNLABELLED = (
    f"the labels {ARCHITECTURE} and {OPERATING_SYSTEM} of some nodes do not state their platform, and kube-scheduler "
    "goes by them: this pod's node affinity keeps it off nodes that run its images"
)
"""The warning about a pod that is kept off nodes without labels."""
_NOTHING_IN_COMMON = "no platform is common to all images: {}"


def _plan_created(
    existing: NodeAffinity, selector: Mapping[str, str], in_common: PlatformIntersection, cluster: ClusterNodes
) -> Plan:
    if is_unrestricted(existing, selector):
        return in_common.plan
    return plan_required(existing, selector, in_common.nodes, cluster.platforms, in_common.levels)


def _plan_stored(
    existing: NodeAffinity, selector: Mapping[str, str], in_common: PlatformIntersection, cluster: ClusterNodes
) -> Plan:
    return plan_narrower(existing, selector, in_common.nodes, cluster.platforms, in_common.levels)


def _nothing_known(creation: Creation) -> Iterator[str]:
    for image, fact in creation.unresolved[:1]:
        reference = shown_reference(image.reference)
        yield f"no node affinity was written: nothing is known of image {reference} ({fact.cause})"


def _contradictions(plan: Plan, refusal: str) -> Iterator[str]:
    if plan.selector_contradicts:
        yield f"nodeSelector allows no node that the images run on: {refusal}"
    if plan.contradicted:
        yield (
            f"{plan.contradicted} of {len(plan.additions)} terms of the pod's node affinity allow no node that the "
            f"images run on: {refusal}"
        )
