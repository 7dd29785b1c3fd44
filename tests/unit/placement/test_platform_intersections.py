"""What known images have in common is what the decisions' own functions say, and is worked out once."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extender.images.content import Cause
from extender.images.platform import Compatibility, Platform, parse_platform, runs_on
from extender.kubernetes.core_v1 import (
    NodeAffinity,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    PreferredSchedulingTerm,
)
from extender.placement.affinity import is_unrestricted, node_platforms, plan_required
from extender.placement.facts import Anywhere, ImageFact, Pending, RunsOn, Unknown
from extender.placement.node_images import NodeImages
from extender.placement.nodes import NO_NODES, ClusterNodes
from extender.placement.planning import PlatformIntersections
from extender.placement.policy import common_platforms
from extender.placement.tolerations import TolerationRule
from extender.tables import caches
from tests.unit.placement.mutating import built_for
from tests.unit.retained import retained_bytes

ARM = TolerationRule(key="arm", operator="Exists", platforms=("linux/arm64",))
BOTH = TolerationRule(key="both", operator="Exists", platforms=("linux/amd64", "linux/arm64"))
NEVER = TolerationRule(key="never", operator="Exists", platforms=())
CLUSTER = frozenset({parse_platform("linux/amd64"), parse_platform("linux/arm64"), parse_platform("windows/amd64")})
COMPATIBILITY = Compatibility(run_386_on_amd64=True)
KNOWN = st.sets(
    st.sampled_from(["linux/amd64", "linux/arm64", "windows/amd64", "linux/arm/v6", "linux/386"]), min_size=1
).map(lambda texts: built_for(*texts))
OTHERS: st.SearchStrategy[ImageFact] = st.sampled_from(
    [Anywhere(), Pending(Cause.LOOKING_UP, "x"), Unknown(Cause.DENIED, "x")]
)


@settings(deadline=None)
@given(st.lists(KNOWN | OTHERS, max_size=4))
def test_they_have_in_common_what_the_known_images_say(facts: list[ImageFact]) -> None:
    """Images that are not known, or run anywhere, change nothing."""
    in_common = PlatformIntersections(COMPATIBILITY, ()).find(facts, ClusterNodes(CLUSTER))
    known = [fact for fact in facts if isinstance(fact, RunsOn)]
    assert in_common.common == common_platforms(known, COMPATIBILITY)
    assert in_common.architectures == {platform.architecture for platform in in_common.common}
    assert in_common.nodes == node_platforms(known, COMPATIBILITY)
    assert in_common.plan == plan_required(NodeAffinity(), {}, in_common.nodes, CLUSTER)


@pytest.mark.parametrize(
    ("facts", "rules"),
    [
        pytest.param((built_for("linux/amd64", "linux/arm64"),), (ARM, BOTH), id="both"),
        pytest.param((built_for("linux/amd64", "linux/arm64"), built_for("linux/arm64")), (ARM,), id="one in common"),
        pytest.param((built_for("linux/amd64"),), (), id="none"),
        pytest.param((built_for("linux/amd64"), built_for("linux/arm64")), (), id="nothing in common"),
        pytest.param((Anywhere(),), (), id="nothing known"),
    ],
)
def test_the_rules_on_whose_every_platform_the_images_run(
    facts: tuple[ImageFact, ...], rules: tuple[TolerationRule, ...]
) -> None:
    """A rule without platforms never applies, and none does where no image is known."""
    assert PlatformIntersections(COMPATIBILITY, (ARM, BOTH, NEVER)).find(facts, NO_NODES).rules == rules


def test_images_of_equal_platforms_are_compared_once() -> None:
    """Whatever their order and number, for the same nodes, whatever images these list."""
    intersections = PlatformIntersections(COMPATIBILITY, ())
    one, other = built_for("linux/amd64"), built_for("linux/amd64", "linux/arm64")
    found = intersections.find([one, other], ClusterNodes(CLUSTER))
    assert intersections.find([other, Anywhere(), one, other], ClusterNodes(CLUSTER)) is found
    assert intersections.find([one, other], NO_NODES) is not found
    assert intersections.find([one], ClusterNodes(CLUSTER)) is not intersections.find([other], ClusterNodes(CLUSTER))
    listing = ClusterNodes(CLUSTER, images=NodeImages())
    assert intersections.find([one, other], listing) is found


@pytest.mark.parametrize("images", [1, 10])
def test_what_is_kept_takes_the_memory_that_is_declared(images: int) -> None:
    """Images' authors choose up to 64 platforms of long words for each, and pods name any number of images."""
    intersections = PlatformIntersections(COMPATIBILITY, ())
    for pod in range(60):
        numbers = range(pod * images, (pod + 1) * images)
        facts = [RunsOn(frozenset(_long_platform(number, each) for each in range(64))) for number in numbers]
        intersections.find(facts, ClusterNodes(CLUSTER))
    declared = {spec.name: spec.most_mb for spec in caches()}["placement.planning.intersections"]
    planners = 7  # pods, four of templates, pods of DaemonSets, held pods
    assert 200_000 < retained_bytes(intersections) < declared * 1_000_000 / planners


def _long_platform(image: int, number: int) -> Platform:
    return Platform(f"{image:016d}{number % 8:016d}", f"{image:016d}{number:016d}", f"v{number:031d}")


ZONE = NodeSelectorTerm((NodeSelectorRequirement("zone", "In", ("a",)),))


@pytest.mark.parametrize(
    ("affinity", "selector", "expected"),
    [
        pytest.param(NodeAffinity(), {}, True, id="nothing"),
        pytest.param(NodeAffinity(), {"disk": "ssd"}, True, id="another label"),
        pytest.param(NodeAffinity(NodeSelector()), {}, True, id="no terms"),
        pytest.param(NodeAffinity(preferred=(PreferredSchedulingTerm(1, ZONE),)), {}, True, id="a preference"),
        pytest.param(NodeAffinity(NodeSelector((ZONE,))), {}, False, id="a term"),
        pytest.param(NodeAffinity(), {"kubernetes.io/arch": "arm64"}, False, id="an architecture"),
        pytest.param(NodeAffinity(), {"beta.kubernetes.io/os": "linux"}, False, id="an operating system"),
    ],
)
def test_a_plan_for_an_unrestricted_pod_depends_on_the_nodes_alone(
    affinity: NodeAffinity, selector: dict[str, str], expected: bool
) -> None:
    """It is the plan of a pod that says nothing about nodes."""
    assert is_unrestricted(affinity, selector) is expected
    nodes = frozenset({parse_platform("linux/amd64"), parse_platform("windows/arm64")})
    for cluster in (frozenset(), CLUSTER):
        alone = plan_required(NodeAffinity(), {}, nodes, cluster)
        assert not expected or plan_required(affinity, selector, nodes, cluster) == alone


_ANY = st.sets(
    st.sampled_from(
        ["linux/amd64", "linux/arm64", "windows/amd64", "linux/arm/v6", "linux/arm/v7", "linux/386", "linux/amd64/v3"]
    ),
    min_size=1,
)
_LENIENT = Compatibility(run_386_on_amd64=True, run_arm_on_arm64=True)


@settings(deadline=None)
@given(st.lists(_ANY, min_size=1, max_size=4), st.sampled_from([Compatibility(), _LENIENT]))
def test_what_is_ruled_out_at_first_glance_is_in_common_to_none(
    texts: list[set[str]], compatibility: Compatibility
) -> None:
    """Hundreds of images may name 64 platforms each, all of which would be held against all."""
    known = [frozenset(map(parse_platform, each)) for each in texts]
    facts = [RunsOn(platforms) for platforms in known]
    named = frozenset[Platform]().union(*known)
    nodes = named | {Platform(each.os, other) for each in named for other in ("amd64", "arm64")}
    in_common = {each for each in nodes if all(runs_on(platforms, each, compatibility) for platforms in known)}
    assert common_platforms(facts, compatibility) == in_common & named
    assert node_platforms(facts, compatibility) == {Platform(each.os, each.architecture) for each in in_common}
