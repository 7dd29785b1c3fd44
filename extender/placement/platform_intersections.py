"""What the known images of a pod have in common, by their platforms alone.

Pods of different templates and images share it: images are built for few sets of platforms. So it is worked out once
for each combination of these sets.
"""

from collections.abc import Sequence

import msgspec

from extender.images.platform import Compatibility, Platform
from extender.kubernetes.core_v1 import NodeAffinity
from extender.placement.affinity import Plan, ToldByLabels, node_platforms, plan_required
from extender.placement.cluster_nodes import ClusterNodes, OddNodes
from extender.placement.facts import Fit, ImageFact, RunsOn, fit, may_be_kept
from extender.placement.level_words import level_words
from extender.placement.policy import common_platforms
from extender.placement.reasons import platforms_text
from extender.placement.tolerations import TolerationRule, parse_platforms
from extender.tables import Table, declare_cache

_INTERSECTIONS = declare_cache(
    "placement.platform_intersections.intersections", key="sets of platforms, platforms of nodes", rows=256, most_mb=6
)


class PlatformIntersection(msgspec.Struct, frozen=True):
    """What follows from the platforms of the known images; all is empty where no image is known.

    `common` are the platforms named by the images on which all of them run, `architectures` theirs, and `text` is their
    list for people. `nodes` are as in `affinity.node_platforms`, `told` what labels tell besides, and `plan` is
    what keeps a pod to them that is being created and whose author restricts no platform. `rules` are those on whose
    every platform all images run.
    """

    common: frozenset[Platform]
    architectures: frozenset[str]
    text: str
    nodes: frozenset[Platform]
    told: ToldByLabels
    plan: Plan
    rules: tuple[TolerationRule, ...]


_Key = tuple[frozenset[frozenset[Platform]], ClusterNodes]


class PlatformIntersections:
    """Gives what the images of a pod have in common under the operator's settings."""

    def __init__(self, compatibility: Compatibility, rules: Sequence[TolerationRule], level_label: str = "") -> None:
        self._compatibility = compatibility
        self._level_label = level_label
        self._rules = [(rule, parse_platforms(rule.platforms)) for rule in rules]
        self._remembered: Table[_Key, PlatformIntersection] = _INTERSECTIONS.table()

    def find(self, facts: Sequence[ImageFact], cluster: ClusterNodes) -> PlatformIntersection:
        """What the known images have in common, among those with these facts, in a cluster with such nodes."""
        known = frozenset([fact.platforms for fact in facts if isinstance(fact, RunsOn)])
        found = self._remembered.peek((known, cluster))
        if found is None:
            found = self._intersect([RunsOn(platforms) for platforms in known], cluster)
            if may_be_kept((), known):
                self._remembered.put((known, cluster), found)
        return found

    def _intersect(self, known: Sequence[RunsOn], cluster: ClusterNodes) -> PlatformIntersection:
        common = common_platforms(known, self._compatibility)
        nodes = node_platforms(known, self._compatibility)
        levels = level_words([fact.platforms for fact in known], nodes, cluster, self._compatibility, self._level_label)
        told = ToldByLabels(levels, *self._divide(known, cluster, are_torn=not nodes))
        nodes = frozenset(node for node in nodes if node not in levels or levels[node].values)
        return PlatformIntersection(
            common,
            frozenset(platform.architecture for platform in common),
            platforms_text(common),
            nodes,
            told,
            plan_required(NodeAffinity(), {}, nodes, cluster.platforms, told),
            tuple(rule for rule, platforms in self._rules if known and platforms and self._all_run(known, platforms)),
        )

    def _divide(
        self, known: Sequence[RunsOn], cluster: ClusterNodes, *, are_torn: bool
    ) -> tuple[tuple[OddNodes, ...], ...]:
        """The odd nodes on which all images run, and the others. Filter keeps those that state nothing.

        `are_torn`: no node runs all images.
        """
        right, wrong = list[OddNodes](), list[OddNodes]()
        for odd in sorted(cluster.odd, key=str):
            is_wrong = are_torn or (odd.platform and fit(known, odd.platform, self._compatibility) is Fit.NO)
            (wrong if is_wrong else right).append(odd)
        return tuple(right), tuple(wrong)

    def _all_run(self, known: Sequence[RunsOn], platforms: frozenset[Platform]) -> bool:
        return all(fit(known, platform, self._compatibility) is Fit.YES for platform in platforms)
