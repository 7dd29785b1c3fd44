"""What is ANDed to a pod's node affinity: nodes of its images, terms that imply, contradict or match nothing."""

from collections.abc import Mapping

import pytest

from extender.images.platform import Compatibility, Platform
from extender.kubernetes.core_v1 import NodeSelectorRequirement, NodeSelectorTerm, PreferredSchedulingTerm
from extender.placement.affinity import NO_NODE, Alternatives, RequiredNodes, plan_preferred, plan_required, right_nodes
from extender.placement.node_match import NodeDemands
from extender.placement.nodes import LEVEL_LABEL
from tests.builders import ARCH, OS, platforms

MULTI = platforms("linux/amd64", "linux/arm64")
MIXED = platforms("linux/amd64", "linux/arm64", "windows/amd64")
TWO_SYSTEMS = platforms("linux/amd64", "windows/amd64")
LINUX_ONLY = platforms("linux/amd64", "linux/arm64")
UNKNOWN_NODES = frozenset[Platform]()


def where(key: str, operator: str, *values: str) -> NodeSelectorRequirement:
    return NodeSelectorRequirement(key, operator, values or None)


def anded(*requirements: NodeSelectorRequirement) -> Alternatives:
    return (requirements,)


def plan(
    terms: tuple[NodeSelectorTerm, ...] | None,
    selector: Mapping[str, str],
    nodes: frozenset[Platform],
    cluster: frozenset[Platform] = frozenset(),
    *,
    stored: bool = False,
) -> RequiredNodes:
    return plan_required(NodeDemands(selector, terms), dict.fromkeys(sorted(nodes)), cluster, stored=stored)


def of(*requirements: NodeSelectorRequirement) -> NodeSelectorTerm:
    return NodeSelectorTerm(requirements)


LINUX = where(OS, "In", "linux")
AMD64 = where(ARCH, "In", "amd64")
TWO = where(ARCH, "In", "amd64", "arm64")
ZONE = where("zone", "In", "a")
AND_TWO = anded(TWO, LINUX)
PAIR = ((TWO, LINUX), (AMD64, where(OS, "In", "windows")))
BETA_AMD64, BETA_LINUX = where(f"beta.{ARCH}", "In", "amd64"), where(f"beta.{OS}", "In", "linux")
WITH_S390X = where(ARCH, "In", "amd64", "s390x")
FIELD = NodeSelectorTerm(None, (where("metadata.name", "In", "n"),))


@pytest.mark.parametrize(
    ("affinity", "selector", "nodes", "expected"),
    [
        pytest.param(None, {}, MULTI, [AND_TWO], id="nothing there"),
        pytest.param((), {}, MULTI, [AND_TWO], id="no terms"),
        pytest.param(None, {}, MIXED, [PAIR], id="two products"),
        pytest.param(None, {}, TWO_SYSTEMS, [anded(AMD64, where(OS, "In", "linux", "windows"))], id="one product"),
        pytest.param((of(ZONE), FIELD), {}, MULTI, [AND_TWO, AND_TWO], id="each of two terms"),
        pytest.param((of(ZONE),), {}, MIXED, [PAIR], id="one becomes two"),
        pytest.param((of(AMD64, LINUX),), {}, MULTI, [()], id="implied"),
        pytest.param((of(AMD64),), {}, MULTI, [anded(LINUX)], id="the architecture is implied"),
        pytest.param((of(LINUX),), {}, MIXED, [anded(TWO)], id="the system leaves one product"),
        pytest.param((of(WITH_S390X),), {}, MULTI, [anded(AMD64, LINUX)], id="overlapping"),
        pytest.param((of(WITH_S390X, where(ARCH, "NotIn", "s390x"), LINUX),), {}, MULTI, [()], id="implied by two"),
        pytest.param((of(where(ARCH, "NotIn", "arm64")),), {}, MULTI, [anded(AMD64, LINUX)], id="NotIn implies none"),
        pytest.param((of(where(ARCH, "Exists"), LINUX),), {}, MULTI, [anded(TWO)], id="Exists implies none"),
        pytest.param((of(where(ARCH, "Near", "x")),), {}, MULTI, [AND_TWO], id="a future operator"),
        pytest.param((of(BETA_AMD64, BETA_LINUX),), {}, MULTI, [()], id="implied by the beta labels"),
        pytest.param((NodeSelectorTerm(), of(ZONE)), {}, MULTI, [(), AND_TWO], id="an empty term is left"),
        pytest.param((NodeSelectorTerm((), ()),), {}, MULTI, [()], id="a term of empty lists is left"),
        pytest.param(None, {ARCH: "arm64", OS: "linux"}, MULTI, [], id="nodeSelector implies"),
        pytest.param((of(ZONE),), {ARCH: "amd64", OS: "linux"}, MULTI, [()], id="nodeSelector implies for a term"),
        pytest.param((of(AMD64),), {OS: "linux"}, MULTI, [()], id="nodeSelector and term together"),
        pytest.param(None, {"disk": "ssd"}, MULTI, [AND_TWO], id="nodeSelector about something else"),
    ],
)
def test_plan_keeps_each_term_on_the_nodes(
    affinity: tuple[NodeSelectorTerm, ...] | None,
    selector: Mapping[str, str],
    nodes: frozenset[Platform],
    expected: list[Alternatives],
) -> None:
    """Each term that would allow another node gets what it lacks, and no more."""
    found = plan(affinity, selector, nodes)
    assert list(found.additions) == expected
    assert not found.contradiction


def test_contradicting_term_allows_no_node_and_is_counted() -> None:
    """It would allow nodes on which no image runs. The pod is possible by its other term, and by an empty one not."""
    for wrong in (
        where(ARCH, "In", "s390x"),
        where(ARCH, "NotIn", "amd64", "arm64"),
        where(ARCH, "DoesNotExist"),
        where(ARCH, "Gt", "3"),
        where(OS, "In", "windows"),
        where(f"beta.{ARCH}", "In", "s390x"),
    ):
        found = plan((of(wrong, ZONE), of(ZONE)), {}, MULTI)
        assert found.additions == (anded(NO_NODE), AND_TWO), wrong
        assert found.contradiction == "1 of 2 terms of the pod's node affinity allow no node that the images run on"
        assert not found.impossible
        assert plan((of(wrong), NodeSelectorTerm()), {}, MULTI).impossible
    assert not plan((NodeSelectorTerm(),), {}, MULTI).impossible


def test_pod_that_no_node_can_run_is_kept_from_all() -> None:
    """By its nodeSelector, which is ANDed to all terms, or since its images have nothing in common."""
    selector, terms = {f"beta.{ARCH}": "s390x"}, (NodeSelectorTerm(), of(ZONE))
    for stored in (False, True):
        contradicted, apart = (plan(terms, *each, stored=stored) for each in ((selector, MULTI), ({}, frozenset())))
        assert contradicted.additions == apart.additions == ((), anded(NO_NODE))
        assert contradicted.contradiction == "nodeSelector allows no node that the images run on"
        assert not apart.contradiction
        assert contradicted.impossible is apart.impossible is True
    assert plan(None, selector, MULTI).additions == (anded(NO_NODE),)


VOID: list[tuple[list[NodeSelectorRequirement], Mapping[str, str]]] = [
    ([AMD64, NO_NODE], {}),
    ([where(ARCH, "In", "arm64")], {ARCH: "amd64", OS: "linux"}),
    ([AMD64, where(f"beta.{ARCH}", "In", "arm64")], {}),
    ([ZONE, where("zone", "NotIn", "a")], {}),
    ([ZONE, where("zone", "DoesNotExist")], {}),
    ([where("cores", "In", "2", "4"), where("cores", "Gt", "4")], {}),
    ([where(ARCH, "In")], {}),
]


@pytest.mark.parametrize("cluster", [frozenset(), MULTI], ids=["unknown", "known"])
def test_a_term_that_matches_no_node_gets_nothing(cluster: frozenset[Platform]) -> None:
    """However often a file is fixed: that leaves no record. Its author is told that it allows no node."""
    one = platforms("linux/amd64")
    for requirements, selector in VOID:
        alone = plan((of(*requirements),), selector, one, cluster)
        assert (alone.additions, alone.impossible) == (((),), True), requirements
        beside = plan((of(*requirements), of(where("a", "Exists"))), selector, one, cluster)
        assert (beside.additions[0], beside.impossible) == ((), False)
        assert beside.contradiction.startswith("1 of 2 terms")


def test_a_stored_pod_gets_requirements_and_no_node_selector() -> None:
    """The policy for the service's account allows nothing else; one is enough there too, and none where none helps."""
    for terms in ((), (of(ZONE),)):
        found = plan(terms, {}, platforms("linux/amd64"), LINUX_ONLY, stored=True)
        assert (found.selector, found.additions) == ({}, (anded(AMD64),))
        assert not any(plan(terms, {}, MULTI, LINUX_ONLY, stored=True).additions)


def test_a_stored_pod_is_kept_to_a_product_of_its_nodes() -> None:
    """To one that the cluster has: a term may get requirements, and none may come beside it."""
    for cluster, expected in ((UNKNOWN_NODES, (TWO, LINUX)), (platforms("windows/amd64", "windows/arm64"), (AMD64,))):
        assert plan((of(ZONE),), {}, MIXED, cluster, stored=True).additions == (anded(*expected),)


def prefers(architecture: str, weight: int) -> PreferredSchedulingTerm:
    return PreferredSchedulingTerm(weight, of(where(ARCH, "In", architecture)))


@pytest.mark.parametrize(
    ("own", "preference", "expected"),
    [
        pytest.param((), {"arm64": 10}, [prefers("arm64", 100)], id="one"),
        pytest.param((), {"arm64": 1, "amd64": 5}, [prefers("amd64", 50), prefers("arm64", 10)], id="one for each"),
        pytest.param((), {"arm64": 0}, [], id="no point, no term, since a weight is 1 at least"),
        pytest.param((), {"arm64": 11}, [prefers("arm64", 100)], id="100 at most"),
        pytest.param((), {"s390x": 10}, [], id="not an architecture of this pod"),
        pytest.param((prefers("amd64", 1),), {"arm64": 10}, [], id="the author prefers one already"),
    ],
)
def test_preferred_terms(
    own: tuple[PreferredSchedulingTerm, ...], preference: dict[str, int], expected: list[PreferredSchedulingTerm]
) -> None:
    """One per preferred architecture, ten for each point."""
    assert list(plan_preferred(own, preference, frozenset({"amd64", "arm64"}), {})) == expected


@pytest.mark.parametrize(
    ("images", "cluster", "level"),
    [
        pytest.param(
            ["linux/amd64/v3"], [], where(LEVEL_LABEL, "In", "v3", "amd64-v3", "v4", "amd64-v4"), id="at least"
        ),
        pytest.param(["linux/amd64/v5"], [], where(LEVEL_LABEL, "In", "v5", "amd64-v5"), id="one to come"),
        pytest.param(["linux/amd64/v3", "linux/amd64"], [], None, id="of two platforms"),
        pytest.param(["linux/arm/v7"], [], None, id="the baseline"),
        pytest.param(["linux/arm/v7"], ["linux/arm/v6"], where(LEVEL_LABEL, "NotIn", "v6", "arm-v6"), id="below it"),
    ],
)
def test_level_of_the_nodes(images: list[str], cluster: list[str], level: NodeSelectorRequirement | None) -> None:
    """By the label, in both documented ways; what runs on the baseline is kept off lower levels that are there."""
    found = right_nodes([platforms(*images)], platforms(*cluster), Compatibility())
    assert list(found.values()) == [level]


def test_a_level_that_no_label_can_state_is_that_of_no_node() -> None:
    assert right_nodes([platforms("linux/riscv64/rva22")], frozenset(), Compatibility()) == {}
