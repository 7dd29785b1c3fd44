"""What happens to a pod, and what it is given so that it is scheduled where its images run.

`mutation` writes it to pods that are being created and `ungating` to pods that a gate holds. What the known images have
in common is worked out once for each combination of sets of platforms: pods of different templates and images share it.
"""

import enum
from collections.abc import Set

import msgspec

from extender.images.content import LOCAL
from extender.images.platform import Platform, runs_on
from extender.kubernetes.core_v1 import (
    NodeAffinity,
    PreferredSchedulingTerm,
    SchedulingSpec,
    Toleration,
)
from extender.placement.additions import NOTHING, Additions, replaced_scheduler
from extender.placement.affinity import (
    AffinityMode,
    RequiredNodes,
    plan_preferred,
    plan_required,
    plan_system,
    right_nodes,
)
from extender.placement.annotations import ADDED, PLATFORMS, REASON, Overrides
from extender.placement.facts import (
    PodImage,
    system_asked,
)
from extender.placement.gate import GateSettings, ImpossiblePods, UnknownImages, Unresolved
from extender.placement.node_match import (
    NodeDemands,
    demands_in,
    may_allow,
)
from extender.placement.nodes import ClusterNodes
from extender.placement.policy import Policy, common_platforms, policy_for, preference_for
from extender.placement.reasons import held_text, passed_text, platforms_text, shown_reference
from extender.placement.resolved_pod import ResolvedPod
from extender.placement.tolerations import TolerationRule, covers, parse_platforms
from extender.tables import ShareTable

_NOBODY, _LONG_ENOUGH, _SETTINGS = (
    "as nobody is there to remove its gate later",
    "as it was held for long enough",
    "as the settings say",
)
_COMMON_BYTES = 1_000_000  # of each planner, and of those that share it; the service has four
# What a row takes besides its platforms, and each of these with what follows from it. An image's author chooses their
# number, up to 64, and their words.
_ROW_BYTES, _PLATFORM_BYTES = 2_000, 1_000


_Key = tuple[frozenset[frozenset[Platform]], frozenset[Platform]]


class CommonPlatforms(msgspec.Struct, frozen=True, kw_only=True):
    """What the known images of a pod have in common; all is empty where no image is known.

    `platforms` are those named by the images on which all of them run, and `text` is their list for people. `nodes` are
    the nodes on which all run, and `required` keeps a pod to them whose author restricts none. `rules` are those on
    whose every platform all images run, with these platforms.
    """

    platforms: frozenset[Platform]
    text: str
    nodes: frozenset[Platform]
    required: RequiredNodes
    rules: tuple[tuple[TolerationRule, frozenset[Platform]], ...]


class AdmissionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The operator's settings for pods that are being created; an empty `scheduler_name` changes no pod's.

    `platforms_annotation`: whether pods are given the platforms that their images have in common as an annotation.
    """

    tolerations: tuple[TolerationRule, ...] = ()
    node_affinity: AffinityMode = AffinityMode.REQUIRED
    scheduler_name: str = ""
    gate: GateSettings = GateSettings()
    impossible: ImpossiblePods = ImpossiblePods.PEND
    platforms_annotation: bool = False


class Outcome(enum.StrEnum):
    """What happens to a pod that is being created, or that our gate holds.

    All its images are known, or what is not known is assumed or left out; it is to wait for what is not known; or no
    node is right for it. Nothing is planned for a pod that is only observed or exempt.
    """

    KNOWN = "known"
    ASSUMED = "assumed"
    PASSED = "passed"
    HOLD = "hold"
    IMPOSSIBLE = "impossible"
    OBSERVED = "observed"
    EXEMPT = "exempt"


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What happens to a pod, what it is given, and why.

    `reason` is what its annotation says, empty where there is nothing to explain. `unresolved` are the images without
    which it passes. `platforms` is the value of the annotation; None for none.
    """

    outcome: Outcome
    additions: Additions = NOTHING
    reason: str = ""
    warnings: tuple[str, ...] = ()
    unresolved: tuple[Unresolved, ...] = ()
    platforms: str | None = None

    @property
    def annotations(self) -> dict[str, str | None]:
        """What the annotations of the service say of it; None for those that the pod does not get."""
        is_recorded = self.reason or self.platforms is not None or self.additions != NOTHING
        return {
            REASON: self.reason or None,
            PLATFORMS: self.platforms,
            ADDED: self.additions.record if is_recorded else None,
        }


class Planner:
    """Plans by the operator's settings. Its results depend on the arguments and these settings alone."""

    def __init__(self, policy: Policy, settings: AdmissionSettings) -> None:
        self._policy = policy
        self._settings = settings
        self._requires, self._prefers = settings.node_affinity.required, settings.node_affinity.preferred
        self._rules = [(rule, parse_platforms(rule.platforms)) for rule in settings.tolerations]
        self._keys = frozenset(rule.key for rule in settings.tolerations)
        self._remembered: ShareTable[_Key, CommonPlatforms] = ShareTable(
            _COMMON_BYTES, owner_of=lambda *_: "", cost_of=lambda key, _: _row_bytes(key[0])
        )

    def varied(self, settings: AdmissionSettings) -> "Planner":
        """One by other settings, with the tolerations of this one or none, which shares what this has worked out."""
        found = Planner(self._policy, settings)
        found._rules, found._remembered = self._rules, self._remembered
        return found

    def plan(self, pod: ResolvedPod, own: SchedulingSpec, *, may_hold: bool = False, expired: bool = False) -> Plan:
        """What happens to the pod, whose author's own spec is `own`.

        `may_hold`: it may wait for images that are not known. `expired`: it was held for long enough. An impossible pod
        is not held, as no image that is not known yet makes it possible.
        """
        demands = demands_in(own)
        assume = self._assumed_platforms(pod) if pod.unresolved else frozenset[Platform]()
        held, assumed, passed = self._divide(pod, expired=expired, can_assume=bool(assume))
        required = self._plan_required(pod, demands, pod.known | {assume} if assumed else pod.known)
        if required.impossible and assumed:  # node affinity is for ever, and what is assumed may be wrong
            held, assumed, passed = self._divide(pod, expired=expired, can_assume=False)
            required = self._plan_required(pod, demands, pod.known)
        additions = self._additions(pod, own, demands, required)
        if held and may_hold and not required.impossible:
            additions = Additions(scheduler_name_was=additions.scheduler_name_was)
            return Plan(outcome=Outcome.HOLD, additions=additions, reason=held_text(held))
        reason, warnings = self._explain(pod, required, {image for image, _ in assumed}, assume)
        outcome, left_out = Outcome.ASSUMED if assumed else Outcome.KNOWN, (*held, *passed)
        if required.impossible:
            outcome, left_out = Outcome.IMPOSSIBLE, ()
        elif left_out:
            outcome, why = Outcome.PASSED, _NOBODY if held else _LONG_ENOUGH if expired else _SETTINGS
            reason = "; ".join(filter(None, (passed_text(left_out, why), reason)))
        return Plan(
            outcome=outcome,
            additions=additions,
            reason=reason,
            warnings=warnings,
            unresolved=left_out,
            platforms=self._annotation(pod),
        )

    def common(self, known: frozenset[frozenset[Platform]], cluster: ClusterNodes) -> CommonPlatforms:
        """What images of these sets of platforms have in common, in a cluster with these nodes."""
        key = (known, cluster.platforms)
        found = self._remembered.get(key)
        if found is None:
            found = self._find_common(known, cluster)
            self._remembered.put(key, found)
        return found

    def _find_common(self, known: Set[frozenset[Platform]], cluster: ClusterNodes) -> CommonPlatforms:
        compatibility = self._policy.compatibility
        platforms, nodes = common_platforms(known, compatibility), right_nodes(known, compatibility)
        return CommonPlatforms(
            platforms=platforms,
            text=platforms_text(platforms),
            nodes=nodes,
            required=plan_required(NodeDemands(), nodes, cluster.platforms),
            rules=tuple(
                (rule, named)
                for rule, named in self._rules
                if known and all(runs_on(each, node, compatibility) for node in named for each in known)
            ),
        )

    def _divide(self, pod: ResolvedPod, *, expired: bool, can_assume: bool) -> list[tuple[Unresolved, ...]]:
        """The images that are not known, by what is done about them: held, assumed, passed.

        An image that is never pulled is not among them: only the node's own copy could say its platforms. A pod of an
        exempt class is never held.
        """
        if not pod.unresolved:  # as of nearly all
            return [(), (), ()]
        gate, spec = self._settings.gate, pod.pod.spec
        expired = expired or (spec is not None and spec.priority_class_name in gate.exempt_classes)
        chosen = [
            (gate.choose(each[1], pod.overrides, expired=expired, can_assume=can_assume), each)
            for each in pod.unresolved
            if each[1].cause not in LOCAL
        ]
        choices = (UnknownImages.GATE, UnknownImages.ASSUME, UnknownImages.PASS)
        return [tuple(each for choice, each in chosen if choice is wanted) for wanted in choices]

    def _assumed_platforms(self, pod: ResolvedPod) -> frozenset[Platform]:
        """The platforms on which an image that is not known is assumed to run; none where that is not written."""
        return policy_for(self._policy, pod.images).assume if self._requires else frozenset()

    def _plan_required(
        self, pod: ResolvedPod, demands: NodeDemands, known: frozenset[frozenset[Platform]]
    ) -> RequiredNodes:
        """What keeps the pod to nodes on which images of the `known` sets of platforms run.

        Under settings by which none is written, only what an impossible pod gets: one that is refused never sees it,
        and one that exists is to wait.
        """
        if not self._requires and self._settings.impossible is not ImpossiblePods.DENY:
            return RequiredNodes()
        if known and demands.name_platforms:
            required = plan_required(demands, self.common(known, pod.cluster).nodes, pod.cluster.platforms)
        elif known:
            required = self.common(known, pod.cluster).required
        elif os := system_asked(pod.facts):
            required = plan_system(demands, os, pod.cluster.platforms)
        else:
            return RequiredNodes()
        return required if self._requires or required.impossible else RequiredNodes()

    def _explain(
        self, pod: ResolvedPod, required: RequiredNodes, assumed: Set[PodImage], assume: frozenset[Platform]
    ) -> tuple[str, tuple[str, ...]]:
        """The reason for what is required, for which no event of the scheduler names an image, and the warnings."""
        if not (required.terms or required.contradiction):
            return "", self._nothing_known(pod) if pod.unresolved and not assumed else ()
        refusal = pod.refusal(assumed, assume)
        if not required.contradiction:
            return refusal, ()
        contradiction = f"{required.contradiction}: {refusal}"
        return contradiction if required.impossible else refusal if required.terms else "", (contradiction,)

    def _nothing_known(self, pod: ResolvedPod) -> tuple[str, ...]:
        if pod.known or not self._requires or system_asked(pod.facts):
            return ()
        image, fact = pod.unresolved[0]
        name = shown_reference(image.reference)
        return (f"no node affinity was written: nothing is known of image {name} ({fact.cause})",)

    def _annotation(self, pod: ResolvedPod) -> str | None:
        """The value of the annotation `platforms`, empty if the images have no platform in common."""
        if not self._settings.platforms_annotation or pod.unresolved or not pod.known:
            return None
        return ",".join(map(str, sorted(self.common(pod.known, pod.cluster).platforms)))

    def _additions(
        self, pod: ResolvedPod, own: SchedulingSpec, demands: NodeDemands, required: RequiredNodes
    ) -> Additions:
        """What the pod is given. Tolerations and a preference it gets only if all its images are known."""
        tolerations, preferred = tuple[Toleration, ...](), tuple[PreferredSchedulingTerm, ...]()
        if pod.known and not pod.unresolved:
            common = self.common(pod.known, pod.cluster)
            tolerations = self._earned_tolerations(demands, common)
            preferred = self._plan_preferred(pod, own, demands, common)
        return Additions(
            tolerations=tolerations,
            required=required.terms,
            preferred=preferred,
            scheduler_name_was=replaced_scheduler(own.scheduler_name, self._settings.scheduler_name),
            is_preferring=pod.overrides.is_preferring if self._prefers_for(pod.overrides) else None,
        )

    def _earned_tolerations(self, demands: NodeDemands, common: CommonPlatforms) -> tuple[Toleration, ...]:
        """The tolerations of rules on whose every platform all images run.

        Not those that the pod covers already, nor those of rules for platforms that its author allows none of.
        """
        if not self._settings.tolerations:
            return ()
        # only these can cover one of a rule
        present = [each for each in demands.tolerations if not each.key or each.key in self._keys]
        added = []
        for rule, platforms in common.rules:
            is_allowed = any(may_allow(demands, platform) for platform in platforms)
            if is_allowed and not any(covers(each, rule.toleration) for each in present):
                present.append(rule.toleration)
                added.append(rule.toleration)
        return tuple(added)

    def _prefers_for(self, overrides: Overrides) -> bool:
        """Whether the preference is written: by the setting, or beside required affinity as the author asks for it."""
        return self._prefers or (self._requires and overrides.names_architecture)

    def _plan_preferred(
        self, pod: ResolvedPod, own: SchedulingSpec, demands: NodeDemands, common: CommonPlatforms
    ) -> tuple[PreferredSchedulingTerm, ...]:
        """The terms for a pod that its author leaves a choice of architectures."""
        preference = preference_for(self._policy, pod.overrides)
        if not preference or not self._prefers_for(pod.overrides):
            return ()
        architectures = {each.architecture for each in common.platforms if may_allow(demands, each)}
        node_affinity = (own.affinity and own.affinity.node_affinity) or NodeAffinity()
        own_terms = node_affinity.preferred or ()
        return plan_preferred(own_terms, preference, architectures) if len(architectures) > 1 else ()


def _row_bytes(known: Set[Set[Platform]]) -> int:
    return _ROW_BYTES + _PLATFORM_BYTES * sum(map(len, known))
