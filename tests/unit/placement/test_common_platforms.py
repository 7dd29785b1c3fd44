"""What known images have in common is worked out once, and takes a bounded part of the memory."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.images.platform import Compatibility, Platform, parse_platform, runs_on
from extender.placement.affinity import right_nodes
from extender.placement.nodes import ClusterNodes
from extender.placement.planning import AdmissionSettings, Planner
from extender.placement.policy import Policy, common_platforms
from extender.tables import caches
from tests.unit.retained import retained_bytes

CLUSTER = frozenset({parse_platform("linux/amd64"), parse_platform("linux/arm64"), parse_platform("windows/amd64")})
_LENIENT = Compatibility(run_386_on_amd64=True, run_arm_on_arm64=True)


@pytest.mark.parametrize("images", [1, 10])
def test_what_is_kept_takes_the_memory_that_is_declared(images: int) -> None:
    """Images' authors choose up to 64 platforms of long words for each, and pods name any number of images."""
    planner = Planner(Policy(), AdmissionSettings())
    for pod in range(60):
        numbers = range(pod * images, (pod + 1) * images)
        known = frozenset(frozenset(_long_platform(number, each) for each in range(64)) for number in numbers)
        planner.common(known, ClusterNodes(CLUSTER))
    declared = {spec.name: spec.most_mb for spec in caches()}["placement.planning.common"]
    planners = 4  # pods, templates, pods of DaemonSets, held pods
    assert 200_000 < retained_bytes(planner) < declared * 1_000_000 / planners


def _long_platform(image: int, number: int) -> Platform:
    return Platform(f"{image:016d}{number % 8:016d}", f"{image:016d}{number:016d}", f"v{number:031d}")


_ANY = st.sets(
    st.sampled_from(
        ["linux/amd64", "linux/arm64", "windows/amd64", "linux/arm/v6", "linux/arm/v7", "linux/386", "linux/amd64/v3"]
    ),
    min_size=1,
)


@given(st.lists(_ANY, min_size=1, max_size=4), st.sampled_from([Compatibility(), _LENIENT]))
def test_what_is_ruled_out_at_first_glance_is_in_common_to_none(
    texts: list[set[str]], compatibility: Compatibility
) -> None:
    """Hundreds of images may name 64 platforms each, all of which would be held against all."""
    known = [frozenset(map(parse_platform, each)) for each in texts]
    named = frozenset[Platform]().union(*known)
    nodes = named | {Platform(each.os, other) for each in named for other in ("amd64", "arm64")}
    in_common = {each for each in nodes if all(runs_on(platforms, each, compatibility) for platforms in known)}
    assert common_platforms(known, compatibility) == in_common & named
    found = right_nodes(known, frozenset(), compatibility)
    assert found.keys() == {Platform(each.os, each.architecture) for each in in_common}
