"""What a pod should get so that it is scheduled where its images run: tolerations, node affinity, and the reason.

`mutation` writes it to pods that are being created and `ungating` to pods that a gate holds. What the known images have
in common is worked out once for each combination of sets of platforms: pods of different templates and images share it.
"""

import functools
from collections.abc import Sequence, Set

import msgspec

from extender.images.content import LOCAL
from extender.images.platform import Platform, runs_on
from extender.kubernetes.core_v1 import (
    NodeAffinity,
    PreferredSchedulingTerm,
    SchedulingSpec,
    Toleration,
)
from extender.placement.affinity import (
    AffinityMode,
    RequiredNodes,
    plan_preferred,
    plan_required,
    plan_system,
    right_nodes,
)
from extender.placement.annotations import Overrides
from extender.placement.facts import (
    ImageFact,
    Pending,
    PodImage,
    Unknown,
    is_unresolved,
    known_platforms,
    system_asked,
)
from extender.placement.gate import GateSettings, ImpossiblePods, UnknownImages, Unresolved
from extender.placement.node_match import (
    NodeDemands,
    PlatformRequirements,
    demands_in,
    open_terms,
)
from extender.placement.nodes import ClusterNodes
from extender.placement.policy import Policy, common_platforms, policy_for, preference_for
from extender.placement.reasons import constraints_of, platforms_text, refusal_text, shown_reference, system_text
from extender.placement.tolerations import TolerationRule, covers, parse_platforms
from extender.tables import ShareTable

_COMMON_BYTES = 1_000_000  # of each planner, and of those that share it; the service has four
# What a row takes besides its platforms, and each of these with what follows from it. An image's author chooses their
# number, up to 64, and their words.
_ROW_BYTES, _PLATFORM_BYTES = 2_000, 1_000


_Terms = Sequence[PlatformRequirements] | None
"""What the nodeSelector and each of its terms say of platforms; None for a pod whose author says nothing of nodes."""
_Key = tuple[frozenset[frozenset[Platform]], frozenset[Platform]]


class CommonPlatforms(msgspec.Struct, frozen=True):
    """What the known images of a pod have in common; all is empty where no image is known.

    `platforms` are those named by the images on which all of them run, `architectures` theirs, and `text` is their list
    for people. `nodes` are the nodes on which all run, and `required` keeps a pod to them whose author restricts none.
    `rules` are those on whose every platform all images run, with these platforms.
    """

    platforms: frozenset[Platform]
    architectures: frozenset[str]
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


class PodInput(msgspec.Struct, frozen=True, dict=True):
    """What decides about a pod besides its own JSON and the settings.

    `facts` are those of `images`, in order. `cluster` has the cluster's nodes, none if they are not watched.
    `never_held`: it is of a class whose pods are not held.
    """

    images: Sequence[PodImage]
    facts: Sequence[ImageFact]
    overrides: Overrides
    cluster: ClusterNodes
    never_held: bool = False

    @functools.cached_property
    def known(self) -> frozenset[frozenset[Platform]]:
        """The sets of platforms of the images that run on some platforms only; empty if none is known to."""
        return frozenset(known_platforms(self.facts))

    @property
    def unresolved(self) -> list[Unresolved]:
        """The pending and unknown images with their facts, which say why."""
        pairs = zip(self.images, self.facts, strict=True)
        return [(image, fact) for image, fact in pairs if isinstance(fact, Pending | Unknown)]


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What a pod should get, and why.

    `reason` explains `required`, for which no event of the scheduler names an image. `impossible`: no node is right for
    the pod. `held`, `assumed` and `passed` are the images that are not known, by what is done about them. `platforms`
    is the value of the annotation; None for none. `is_preferring` is as in `Overrides`, where preferences are written.
    """

    tolerations: tuple[Toleration, ...] = ()
    required: RequiredNodes = RequiredNodes()
    preferred: tuple[PreferredSchedulingTerm, ...] = ()
    reason: str = ""
    warnings: tuple[str, ...] = ()
    impossible: bool = False
    held: tuple[Unresolved, ...] = ()
    assumed: tuple[Unresolved, ...] = ()
    passed: tuple[Unresolved, ...] = ()
    platforms: str | None = None
    is_preferring: bool | None = None


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

    def plan(self, pod: PodInput, own: SchedulingSpec, *, expired: bool = False) -> Wanted:
        """What the pod should get, whose author's own spec is `own`. `expired`: it was held for long enough."""
        wanted = self._plan(pod, own, expired=expired)
        if pod.overrides.is_preferring is None or not self._prefers_for(pod.overrides):  # as nearly always
            return wanted
        return msgspec.structs.replace(wanted, is_preferring=pod.overrides.is_preferring)

    def _plan(self, pod: PodInput, own: SchedulingSpec, *, expired: bool) -> Wanted:
        demands = demands_in(own)
        if any(map(is_unresolved, pod.facts)):
            held, assumed, passed = self._divide(pod, expired=expired, can_assume=bool(self._assumed_platforms(pod)))
            wanted = self._plan_required(pod, demands, assumed)
            if wanted.impossible and assumed:  # node affinity is for ever, and what is assumed may be wrong
                held, assumed, passed = self._divide(pod, expired=expired, can_assume=False)
                wanted = self._plan_required(pod, demands, ())
            return msgspec.structs.replace(wanted, held=held, assumed=assumed, passed=passed)
        wanted = self._plan_required(pod, demands, ())
        if not pod.known:
            return wanted
        common = self.common(pod.known, pod.cluster)
        terms = open_terms(demands) if demands.name_platforms else None
        architectures = _choice(terms, common)
        return msgspec.structs.replace(
            wanted,
            tolerations=self._earned_tolerations(demands, terms, common),
            preferred=self._plan_preferred(pod, own, architectures),
            platforms=self._annotation(common),
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
        platforms = common_platforms(known, self._policy.compatibility)
        nodes = right_nodes(known, self._policy.compatibility)
        return CommonPlatforms(
            platforms,
            frozenset(platform.architecture for platform in platforms),
            platforms_text(platforms),
            nodes,
            plan_required(NodeDemands(), nodes, cluster.platforms),
            tuple(
                (rule, rule_platforms)
                for rule, rule_platforms in self._rules
                if known and all(self._may_run(known, each) for each in rule_platforms)
            ),
        )

    def _divide(self, pod: PodInput, *, expired: bool, can_assume: bool) -> Sequence[tuple[Unresolved, ...]]:
        """The images that are not known, by what is done about them: held, assumed, passed.

        An image that is never pulled is not among them: only the node's own copy could say its platforms.
        """
        gate = self._settings.gate
        found: dict[UnknownImages, list[Unresolved]] = {choice: [] for choice in UnknownImages}
        for image, fact in pod.unresolved:
            if fact.cause not in LOCAL:
                choice = gate.choose(fact, pod.overrides, expired=expired or pod.never_held, can_assume=can_assume)
                found[choice].append((image, fact))
        return [tuple(found[each]) for each in (UnknownImages.GATE, UnknownImages.ASSUME, UnknownImages.PASS)]

    def _assumed_platforms(self, pod: PodInput) -> frozenset[Platform]:
        """The platforms on which an image that is not known is assumed to run; none where that is not written."""
        return policy_for(self._policy, pod.images).assume if self._requires else frozenset()

    def _plan_required(self, pod: PodInput, demands: NodeDemands, unknown: Sequence[Unresolved]) -> Wanted:
        """Under settings by which no required affinity is written, only whether the pod is impossible.

        An impossible pod gets it all the same: one that is refused never sees it, and one that exists is to wait.
        """
        written = self._requires
        if not written and self._settings.impossible is not ImpossiblePods.DENY:
            return Wanted()
        assume = self._assumed_platforms(pod) if unknown else frozenset[Platform]()
        assumed = {image for image, _ in unknown}
        known = pod.known | {assume} if assumed else pod.known
        os = "" if known else system_asked(pod.facts)
        if not known and not os:
            return Wanted(warnings=_nothing_known(pod) if written else ())
        cluster = pod.cluster
        required = plan_system(demands, os, cluster.platforms) if os else self._keep_to(known, demands, cluster)
        if not (required.additions or required.contradiction):
            return Wanted()
        constraints = constraints_of(pod.images, pod.facts, assumed, assume)
        refusal = refusal_text(constraints) or system_text(pod.images, pod.facts)
        contradiction = f"{required.contradiction}: {refusal}" if required.contradiction else ""
        warnings = (contradiction,) if contradiction else ()
        if required.impossible:
            return Wanted(required=required, reason=contradiction, warnings=warnings, impossible=True)
        if not written:
            return Wanted()
        return Wanted(required=required, reason=refusal if required.additions else "", warnings=warnings)

    def _keep_to(
        self, known: frozenset[frozenset[Platform]], demands: NodeDemands, cluster: ClusterNodes
    ) -> RequiredNodes:
        common = self.common(known, cluster)
        if not demands.name_platforms:
            return common.required
        return plan_required(demands, common.nodes, cluster.platforms)

    def _may_run(self, known: Set[frozenset[Platform]], node: Platform) -> bool:
        return all(runs_on(platforms, node, self._policy.compatibility) for platforms in known)

    def _annotation(self, common: CommonPlatforms) -> str | None:
        """The value of the annotation `platforms`, empty if the images have no platform in common."""
        return ",".join(map(str, sorted(common.platforms))) if self._settings.platforms_annotation else None

    def _earned_tolerations(
        self, demands: NodeDemands, terms: _Terms, common: CommonPlatforms
    ) -> tuple[Toleration, ...]:
        """The tolerations of rules on whose every platform all images run.

        Not those that the pod covers already, nor those of rules for platforms that its author allows none of.
        """
        if not self._settings.tolerations:
            return ()
        # only these can cover one of a rule
        present = [each for each in demands.tolerations if not each.key or each.key in self._keys]
        added = []
        for rule, platforms in common.rules:
            if any(_may_run(terms, platform) for platform in platforms) and not any(
                covers(each, rule.toleration) for each in present
            ):
                present.append(rule.toleration)
                added.append(rule.toleration)
        return tuple(added)

    def _prefers_for(self, overrides: Overrides) -> bool:
        """Whether the preference is written: by the setting, or beside required affinity as the author asks for it."""
        return self._prefers or (self._requires and overrides.names_architecture)

    def _plan_preferred(
        self, pod: PodInput, own: SchedulingSpec, architectures: Set[str]
    ) -> tuple[PreferredSchedulingTerm, ...]:
        preference = preference_for(self._policy, pod.overrides)
        if not preference or not self._prefers_for(pod.overrides):
            return ()
        node_affinity = (own.affinity and own.affinity.node_affinity) or NodeAffinity()
        return plan_preferred(node_affinity.preferred or (), preference, architectures)


def _may_run(terms: _Terms, platform: Platform) -> bool:
    return terms is None or any(each.allow(platform) for each in terms)


def _choice(terms: _Terms, common: CommonPlatforms) -> Set[str]:
    """The architectures on which the pod runs and that its author allows; none if it has no choice of them."""
    found = common.architectures
    if len(found) > 1 and terms is not None:
        found = frozenset(each.architecture for each in common.platforms if _may_run(terms, each))
    return found if len(found) > 1 else frozenset()


def _nothing_known(pod: PodInput) -> tuple[str, ...]:
    return tuple(
        f"no node affinity was written: nothing is known of image {shown_reference(image.reference)} ({fact.cause})"
        for image, fact in pod.unresolved[:1]
    )


def _row_bytes(known: Set[Set[Platform]]) -> int:
    return _ROW_BYTES + _PLATFORM_BYTES * sum(map(len, known))
