"""The words about the level label, by which nodes say what they run beyond their architecture's baseline."""

import re
from collections.abc import Iterator, Mapping, Sequence, Set

from extender.images.platform import Compatibility, Platform, normalize_platform, runs_on, variants_of
from extender.kubernetes.core_v1 import NodeSelectorRequirement
from extender.placement.nodes import LEVEL_LABEL, ClusterNodes

LevelWords = Mapping[Platform, NodeSelectorRequirement]
"""What a node must state besides its operating system and architecture, by these; most are not in it."""

NO_LEVELS: LevelWords = {}


_STATED = re.compile(r"v\d+(?:\.\d+)?", re.ASCII)  # as `nodes.platform_of_node` reads it


def level_words(
    known: Sequence[frozenset[Platform]],
    nodes: Set[Platform],
    cluster: ClusterNodes,
    compatibility: Compatibility,
) -> LevelWords:
    """What `nodes`, which are without variant, must state so that all images run on them; `known` has their platforms.

    Nothing where each of them runs the images. No value where none would do. That a level is too low is said only if
    the cluster has such a node, as it is of arm alone, whose baseline is not the lowest.
    """
    found = {}
    for node in sorted(nodes):
        baseline = normalize_platform(node.os, node.architecture)
        stated = [*cluster.platforms, *frozenset[Platform]().union(*known)]
        levels = dict.fromkeys(
            (*_levels(node, variants_of(node.architecture)), *_levels(node, sorted(_variants(node, stated))))
        )
        levels.pop(baseline, None)
        good = [level for level in levels if all(runs_on(platforms, level, compatibility) for platforms in known)]
        if not all(runs_on(platforms, baseline, compatibility) for platforms in known):
            found[node] = NodeSelectorRequirement(LEVEL_LABEL, "In", tuple(_values(good)))
        elif bad := [level for level in levels if level in cluster.platforms and level not in good]:
            found[node] = NodeSelectorRequirement(LEVEL_LABEL, "NotIn", tuple(_values(bad)))
    return found


def _variants(node: Platform, stated: Sequence[Platform]) -> set[str]:
    return {each.variant for each in stated if (each.os, each.architecture) == (node.os, node.architecture)}


def _levels(node: Platform, variants: Sequence[str]) -> Iterator[Platform]:
    for variant in variants:
        yield normalize_platform(node.os, node.architecture, variant)


def _values(levels: Sequence[Platform]) -> Iterator[str]:
    """The values that state one of the levels, in both documented ways."""
    for level in levels:
        if _STATED.fullmatch(level.variant):
            yield level.variant
            yield f"{level.architecture}-{level.variant}"
