"""What is ANDed to a pod's node affinity: nodes of its images, terms that imply, contradict or match nothing."""

import itertools
from collections.abc import Callable, Mapping, Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extender.images.content import Cause
from extender.images.platform import Compatibility, Platform, parse_platform
from extender.kubernetes.core_v1 import (
    Affinity,
    NodeAffinity,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    PreferredSchedulingTerm,
)
from extender.placement.affinity import (
    NO_NODE,
    AffinityMode,
    Alternatives,
    Plan,
    node_platforms,
    plan_narrower,
    plan_preferred,
    plan_required,
)
from extender.placement.facts import Anywhere, ImageFact, Pending, RunsOn, Unknown

ARCH = "kubernetes.io/arch"
OS = "kubernetes.io/os"
BOTH_COMPATIBILITIES = Compatibility(run_386_on_amd64=True, run_arm_on_arm64=True)


def platforms(*texts: str) -> frozenset[Platform]:
    """The platforms so written."""
    return frozenset(map(parse_platform, texts))


def built_for(*texts: str) -> RunsOn:
    """The fact of an image built for these."""
    return RunsOn(platforms(*texts))


def where(key: str, operator: str, *values: str) -> NodeSelectorRequirement:
    """A requirement of a node selector term."""
    return NodeSelectorRequirement(key, operator, values or None)


def anded(*requirements: NodeSelectorRequirement) -> Alternatives:
    """What makes one term of one."""
    return (requirements,)


def required(*terms: NodeSelectorTerm) -> NodeAffinity:
    """Required node affinity of these terms."""
    return NodeAffinity(required=NodeSelector(terms))


def of(*requirements: NodeSelectorRequirement) -> NodeSelectorTerm:
    """A term of these match expressions."""
    return NodeSelectorTerm(requirements)


LINUX = where(OS, "In", "linux")
AMD64 = where(ARCH, "In", "amd64")
TWO = where(ARCH, "In", "amd64", "arm64")
ZONE = where("zone", "In", "a")
MULTI = platforms("linux/amd64", "linux/arm64")
MIXED = platforms("linux/amd64", "linux/arm64", "windows/amd64")


@pytest.mark.parametrize(
    ("facts", "compatibility", "expected"),
    [
        pytest.param([built_for("linux/amd64", "linux/arm64")], None, ["linux/amd64", "linux/arm64"], id="one image"),
        pytest.param(
            [built_for("linux/amd64", "linux/arm64"), built_for("linux/amd64", "linux/s390x")],
            None,
            ["linux/amd64"],
            id="what two have in common",
        ),
        pytest.param([built_for("linux/amd64"), built_for("linux/arm64")], None, [], id="nothing in common"),
        pytest.param([built_for("linux/amd64"), built_for("windows/amd64")], None, [], id="no common system"),
        pytest.param([built_for("linux/arm/v6")], None, ["linux/arm"], id="a variant is its architecture"),
        pytest.param([built_for("linux/arm/v6"), built_for("linux/arm/v7")], None, ["linux/arm"], id="v7 runs v6"),
        pytest.param([built_for("linux/amd64/v3")], None, ["linux/amd64"], id="a level is its architecture"),
        pytest.param([built_for("linux/amd64/v3"), built_for("linux/amd64")], None, ["linux/amd64"], id="v3 runs v1"),
        pytest.param([built_for("linux/386")], None, ["linux/386"], id="386 alone"),
        pytest.param([built_for("linux/386")], BOTH_COMPATIBILITIES, ["linux/386", "linux/amd64"], id="386 on amd64"),
        pytest.param(
            [built_for("linux/arm/v7")], BOTH_COMPATIBILITIES, ["linux/arm", "linux/arm64"], id="arm on arm64"
        ),
        pytest.param(
            [built_for("linux/386"), built_for("linux/amd64")],
            BOTH_COMPATIBILITIES,
            ["linux/amd64"],
            id="386 and amd64",
        ),
        pytest.param([built_for("linux/386"), built_for("linux/amd64")], None, [], id="386 and amd64, not compatible"),
        pytest.param(
            [built_for("linux/arm64"), Unknown(Cause.DENIED, "x"), Pending(Cause.LOOKING_UP, "x"), Anywhere()],
            None,
            ["linux/arm64"],
            id="the unknown and the unconstrained say nothing",
        ),
        pytest.param([Unknown(Cause.DENIED, "x")], None, [], id="nothing known"),
        pytest.param([Anywhere()], None, [], id="nothing constrains"),
        pytest.param([], None, [], id="no image"),
    ],
)
def test_nodes_of_the_images(facts: list[ImageFact], compatibility: Compatibility | None, expected: list[str]) -> None:
    """Operating system and architecture of the nodes on which all known images run."""
    expected_nodes = {Platform(*text.split("/")) for text in expected}
    assert node_platforms(facts, compatibility or Compatibility()) == expected_nodes


@pytest.mark.parametrize(
    ("affinity", "selector", "nodes", "expected"),
    [
        pytest.param(NodeAffinity(), {}, MULTI, [anded(TWO, LINUX)], id="nothing there"),
        pytest.param(NodeAffinity(required=NodeSelector()), {}, MULTI, [anded(TWO, LINUX)], id="no terms"),
        pytest.param(required(), {}, MULTI, [anded(TWO, LINUX)], id="an empty list of terms"),
        pytest.param(
            NodeAffinity(), {}, MIXED, [((TWO, LINUX), (AMD64, where(OS, "In", "windows")))], id="two products"
        ),
        pytest.param(
            NodeAffinity(),
            {},
            platforms("linux/amd64", "windows/amd64"),
            [anded(AMD64, where(OS, "In", "linux", "windows"))],
            id="one product of two systems",
        ),
        pytest.param(required(of(ZONE)), {}, MULTI, [anded(TWO, LINUX)], id="a term about something else"),
        pytest.param(
            required(of(ZONE), NodeSelectorTerm(None, (where("metadata.name", "In", "n"),))),
            {},
            MULTI,
            [anded(TWO, LINUX), anded(TWO, LINUX)],
            id="each of two terms",
        ),
        pytest.param(
            required(of(ZONE)), {}, MIXED, [((TWO, LINUX), (AMD64, where(OS, "In", "windows")))], id="one becomes two"
        ),
        pytest.param(required(of(AMD64, LINUX)), {}, MULTI, [()], id="implied"),
        pytest.param(required(of(AMD64)), {}, MULTI, [anded(LINUX)], id="the architecture is implied"),
        pytest.param(required(of(LINUX)), {}, MIXED, [anded(TWO)], id="the system leaves one product"),
        pytest.param(
            required(of(where(ARCH, "In", "amd64", "s390x"))), {}, MULTI, [anded(AMD64, LINUX)], id="overlapping"
        ),
        pytest.param(
            required(of(where(ARCH, "In", "amd64", "s390x"), where(ARCH, "NotIn", "s390x"), LINUX)),
            {},
            MULTI,
            [()],
            id="implied by two together",
        ),
        pytest.param(
            required(of(where(ARCH, "NotIn", "arm64"))), {}, MULTI, [anded(AMD64, LINUX)], id="NotIn does not imply"
        ),
        pytest.param(required(of(where(ARCH, "Exists"), LINUX)), {}, MULTI, [anded(TWO)], id="Exists does not imply"),
        pytest.param(required(of(where(ARCH, "Near", "x"))), {}, MULTI, [anded(TWO, LINUX)], id="a future operator"),
        pytest.param(
            required(
                of(where("beta.kubernetes.io/arch", "In", "amd64"), where("beta.kubernetes.io/os", "In", "linux"))
            ),
            {},
            MULTI,
            [()],
            id="implied by the beta labels",
        ),
        pytest.param(
            required(NodeSelectorTerm(), of(ZONE)), {}, MULTI, [(), anded(TWO, LINUX)], id="an empty term is left"
        ),
        pytest.param(required(NodeSelectorTerm((), ())), {}, MULTI, [()], id="a term of empty lists is left"),
        pytest.param(NodeAffinity(), {ARCH: "arm64", OS: "linux"}, MULTI, [], id="nodeSelector implies"),
        pytest.param(
            required(of(ZONE)), {ARCH: "amd64", OS: "linux"}, MULTI, [()], id="nodeSelector implies for a term"
        ),
        pytest.param(required(of(AMD64)), {OS: "linux"}, MULTI, [()], id="nodeSelector and term together"),
        pytest.param(
            NodeAffinity(), {"disk": "ssd"}, MULTI, [anded(TWO, LINUX)], id="nodeSelector about something else"
        ),
    ],
)
def test_plan_keeps_each_term_on_the_nodes(
    affinity: NodeAffinity, selector: Mapping[str, str], nodes: frozenset[Platform], expected: list[Alternatives]
) -> None:
    """Each term that would allow another node gets what it lacks, and no more."""
    plan = plan_required(affinity, selector, nodes)
    assert list(plan.additions) == expected
    assert (plan.contradicted, plan.selector_contradicts) == (0, False)


@pytest.mark.parametrize(
    "contradiction",
    [
        pytest.param(where(ARCH, "In", "s390x"), id="In"),
        pytest.param(where(ARCH, "NotIn", "amd64", "arm64"), id="NotIn"),
        pytest.param(where(ARCH, "DoesNotExist"), id="DoesNotExist"),
        pytest.param(where(ARCH, "Gt", "3"), id="Gt"),
        pytest.param(where(ARCH, "In"), id="In nothing"),
        pytest.param(where(OS, "In", "windows"), id="system"),
        pytest.param(where("beta.kubernetes.io/arch", "In", "s390x"), id="beta label"),
    ],
)
def test_contradicting_term_allows_no_node_and_is_counted(contradiction: NodeSelectorRequirement) -> None:
    """It would allow nodes on which no image runs. The pod is possible by its other term."""
    plan = plan_required(required(of(contradiction, ZONE), of(ZONE)), {}, MULTI)
    assert plan.additions == (anded(NO_NODE), anded(TWO, LINUX))
    assert (plan.contradicted, plan.selector_contradicts, plan.impossible) == (1, False, False)


@pytest.mark.parametrize(
    ("terms", "expected"),
    [
        pytest.param([], [anded(NO_NODE)], id="no term"),
        pytest.param([of(ZONE), of(TWO)], [anded(NO_NODE)] * 2, id="each term"),
        pytest.param([NodeSelectorTerm(), of(ZONE)], [(), anded(NO_NODE)], id="an empty term is left"),
    ],
)
@pytest.mark.parametrize("plan_terms", [plan_required, plan_narrower])
def test_pod_that_no_node_can_run_is_kept_from_all(
    plan_terms: Callable[..., Plan], terms: list[NodeSelectorTerm], expected: list[Alternatives]
) -> None:
    """By its nodeSelector, which is ANDed to all terms, or since its images have nothing in common."""
    affinity = required(*terms) if terms else NodeAffinity()
    contradicted = plan_terms(affinity, {ARCH: "s390x"}, MULTI)
    assert list(contradicted.additions) == expected
    assert (contradicted.contradicted, contradicted.selector_contradicts, contradicted.impossible) == (0, True, True)
    nothing_in_common = plan_terms(affinity, {}, frozenset())
    assert list(nothing_in_common.additions) == expected
    assert (nothing_in_common.selector_contradicts, nothing_in_common.impossible) == (False, True)


def test_pod_is_impossible_if_every_term_contradicts() -> None:
    """Which no other term of an author's makes up for, least of all an empty one."""
    plan = plan_required(required(of(where(ARCH, "In", "s390x")), NodeSelectorTerm()), {}, MULTI)
    assert (plan.contradicted, plan.impossible) == (1, True)
    assert not plan_required(required(NodeSelectorTerm()), {}, MULTI).impossible


LINUX_ONLY = platforms("linux/amd64", "linux/arm64")
WITH_S390X = LINUX_ONLY | platforms("linux/s390x")
WITH_WINDOWS = LINUX_ONLY | platforms("windows/amd64")
UNKNOWN_NODES = frozenset[Platform]()


@pytest.mark.parametrize(
    ("nodes", "cluster", "selector", "written"),
    [
        pytest.param("linux/amd64", LINUX_ONLY, {}, {ARCH: "amd64"}, id="one platform"),
        pytest.param("linux/amd64", WITH_S390X, {}, {ARCH: "amd64"}, id="one of three"),
        pytest.param("linux/amd64", platforms("linux/amd64"), {}, {ARCH: "amd64"}, id="arm64 may come"),
        pytest.param("linux/s390x", platforms("linux/s390x"), {}, {ARCH: "s390x"}, id="amd64 may come"),
        pytest.param("linux/amd64", WITH_WINDOWS, {}, {ARCH: "amd64", OS: "linux"}, id="both words are needed"),
        pytest.param("windows/amd64", WITH_WINDOWS, {}, {OS: "windows"}, id="the system alone"),
        pytest.param("linux/arm64", WITH_WINDOWS, {}, {ARCH: "arm64"}, id="the architecture alone"),
        pytest.param("linux/amd64", UNKNOWN_NODES, {}, {ARCH: "amd64", OS: "linux"}, id="no node is known"),
        pytest.param("linux/amd64", LINUX_ONLY, {OS: "linux"}, {ARCH: "amd64"}, id="beside the author's system"),
        pytest.param("linux/amd64", LINUX_ONLY, {ARCH: "amd64"}, {}, id="the author says it"),
        pytest.param("linux/amd64", WITH_WINDOWS, {ARCH: "amd64"}, {OS: "linux"}, id="the author says half"),
        pytest.param("linux/amd64", WITH_WINDOWS, {"beta.kubernetes.io/os": "linux"}, {ARCH: "amd64"}, id="beta"),
        pytest.param("linux/amd64 linux/arm64", LINUX_ONLY, {}, {}, id="everywhere"),
        pytest.param("linux/amd64 linux/arm64", platforms("linux/arm64"), {}, {}, id="everywhere, amd64 may come"),
        pytest.param("linux/amd64 linux/arm64 linux/s390x", WITH_S390X, {}, {}, id="everywhere of three"),
        pytest.param("linux/amd64 linux/arm64", WITH_WINDOWS, {OS: "linux"}, {}, id="everywhere the author allows"),
        pytest.param("linux/amd64 linux/arm64", UNKNOWN_NODES, {ARCH: "arm64"}, {OS: "linux"}, id="half is implied"),
        pytest.param("linux/amd64 windows/amd64", WITH_WINDOWS, {}, {ARCH: "amd64"}, id="any system"),
    ],
)
def test_words_that_keep_the_pod_off_no_node_are_not_written(
    nodes: str, cluster: frozenset[Platform], selector: Mapping[str, str], written: Mapping[str, str]
) -> None:
    """A single value is an entry of the nodeSelector, whatever terms the author has; two only where one does not do."""
    zone, field = of(ZONE), NodeSelectorTerm(None, (where("metadata.name", "In", "n"),))
    for affinity in (NodeAffinity(), required(), required(zone), required(zone, field)):
        plan = plan_required(affinity, selector, platforms(*nodes.split()), cluster)
        assert dict(plan.selector) == written
        assert not any(plan.additions)
        assert (plan.contradicted, plan.selector_contradicts, plan.impossible) == (0, False, False)


@pytest.mark.parametrize(
    ("nodes", "cluster", "expected"),
    [
        pytest.param("linux/amd64 linux/arm64", WITH_S390X, anded(TWO), id="architectures"),
        pytest.param("linux/amd64 linux/arm64", WITH_WINDOWS, {OS: "linux"}, id="the system alone"),
        pytest.param(
            "linux/amd64 linux/s390x", WITH_S390X, anded(where(ARCH, "In", "amd64", "s390x")), id="two of three"
        ),
        pytest.param(
            "linux/amd64 windows/arm64",
            LINUX_ONLY | platforms("windows/arm64"),
            ((AMD64,), (where(OS, "In", "windows"),)),
            id="no product",
        ),
    ],
)
def test_several_values_are_one_requirement_where_one_does(
    nodes: str, cluster: frozenset[Platform], expected: Alternatives | Mapping[str, str]
) -> None:
    """Of the two labels the one that keeps the pod off the wrong nodes by itself."""
    plan = plan_required(NodeAffinity(), {}, platforms(*nodes.split()), cluster)
    assert (plan.selector or plan.additions) == (expected if isinstance(expected, dict) else (expected,))


def test_a_stored_pod_gets_requirements_and_no_node_selector() -> None:
    """The policy for the service's account allows nothing else; one is enough there too, and none where none helps."""
    for terms in ((), (of(ZONE),)):
        affinity = required(*terms) if terms else NodeAffinity()
        plan = plan_narrower(affinity, {}, platforms("linux/amd64"), LINUX_ONLY)
        assert (plan.selector, plan.additions) == ({}, (anded(AMD64),))
        assert not any(plan_narrower(affinity, {}, MULTI, LINUX_ONLY).additions)


def test_a_term_that_the_node_selector_leaves_without_a_node_needs_no_word() -> None:
    """Its author is still told that it allows none."""
    plan = plan_required(required(of(where(ARCH, "In", "arm64")), of(ZONE)), {}, platforms("linux/amd64"), LINUX_ONLY)
    assert (plan.selector, plan.additions, plan.contradicted) == ({ARCH: "amd64"}, ((), ()), 1)


WORDS = {ARCH: ["amd64", "arm64", "s390x"], OS: ["linux", "windows"]}
NODES = [Platform(os, architecture) for os, architecture in itertools.product(WORDS[OS], WORDS[ARCH])]
REQUIREMENTS = st.sampled_from([ARCH, OS]).flatmap(
    lambda key: st.builds(
        lambda operator, values: NodeSelectorRequirement(key, operator, tuple(values)),
        st.sampled_from(["In", "NotIn", "Exists"]),
        st.lists(st.sampled_from(WORDS[key]), unique=True),
    )
)
TERMS = st.lists(st.lists(REQUIREMENTS, min_size=1, max_size=3), max_size=3)


def admits(requirements: Sequence[NodeSelectorRequirement], node: Platform) -> bool:
    """Whether a node of this platform satisfies them all, as kube-scheduler has it."""
    labels = {ARCH: node.architecture, OS: node.os}
    return all(
        (item.operator == "Exists" and item != NO_NODE)
        or (item.key in labels and (labels[item.key] in (item.values or ())) is (item.operator == "In"))
        for item in requirements
    )


def written_by(plan: Plan, terms: Sequence[Sequence[NodeSelectorRequirement]]) -> list[list[NodeSelectorRequirement]]:
    """The terms that the pod has then, each with the entries of its nodeSelector."""
    entries = [where(key, "In", value) for key, value in plan.selector.items()]
    pairs = zip(terms or [[]], plan.additions or [()] * len(terms or [[]]), strict=True)
    return [[*entries, *term, *more] for term, alternatives in pairs for more in alternatives or ((),)]


@settings(deadline=None)
@given(TERMS, st.frozensets(st.sampled_from(NODES), min_size=1), st.frozensets(st.sampled_from(NODES)))
def test_planned_words_allow_what_the_author_and_the_images_allow(
    terms: list[list[NodeSelectorRequirement]], nodes: frozenset[Platform], cluster: frozenset[Platform]
) -> None:
    """Node by node: neither one too many nor one too few, of those that the cluster has or may have soon."""
    plan = plan_required(required(*(NodeSelectorTerm(tuple(term)) for term in terms)), {}, nodes, cluster)
    written = written_by(plan, terms)
    usual = {Platform("linux", "amd64"), Platform("linux", "arm64")}
    for node in cluster | usual | nodes if cluster else NODES:
        allowed = any(admits(term, node) for term in terms) or not terms
        assert any(admits(term, node) for term in written) is (allowed and node in nodes)
    assert not (plan.selector and any(plan.additions))
    added = [item for alternatives in plan.additions for more in alternatives for item in more]
    assert all((item.operator == "In" and item.values) or item == NO_NODE for item in added)


@settings(deadline=None)
@given(TERMS.filter(bool), st.frozensets(st.sampled_from(NODES)))
def test_narrower_plan_adds_no_term_and_allows_a_part_of_what_is_right(
    terms: list[list[NodeSelectorRequirement]], nodes: frozenset[Platform]
) -> None:
    """At least one node wherever there is a right one, and no wrong one."""
    plan = plan_narrower(required(*(NodeSelectorTerm(tuple(term)) for term in terms)), {}, nodes)
    assert len(plan.additions) == len(terms)
    for term, alternatives in zip(terms, plan.additions, strict=True):
        assert len(alternatives) <= 1
        written = [*term, *(item for more in alternatives for item in more)]
        right = {node for node in NODES if admits(term, node) and node in nodes}
        allowed = {node for node in NODES if admits(written, node)}
        assert allowed <= right
        assert bool(allowed) is bool(right)
    assert plan.impossible is not any(node in nodes and admits(term, node) for term in terms for node in NODES)


def prefers(architecture: str, weight: int) -> PreferredSchedulingTerm:
    """The preferred term for one architecture."""
    return PreferredSchedulingTerm(weight, of(where(ARCH, "In", architecture)))


@pytest.mark.parametrize(
    ("affinity", "preference", "expected"),
    [
        pytest.param(NodeAffinity(), {"arm64": 10}, [prefers("arm64", 100)], id="one"),
        pytest.param(
            NodeAffinity(), {"arm64": 1, "amd64": 5}, [prefers("amd64", 50), prefers("arm64", 10)], id="one for each"
        ),
        pytest.param(NodeAffinity(), {"arm64": 0}, [], id="no point, no term, since a weight is 1 at least"),
        pytest.param(NodeAffinity(), {"arm64": 11}, [prefers("arm64", 100)], id="100 at most"),
        pytest.param(NodeAffinity(), {"s390x": 10}, [], id="not an architecture of this pod"),
        pytest.param(NodeAffinity(), {}, [], id="no preference"),
        pytest.param(
            NodeAffinity(preferred=(prefers("amd64", 1),)), {"arm64": 10}, [], id="the author prefers one already"
        ),
        pytest.param(
            NodeAffinity(preferred=(PreferredSchedulingTerm(1, of(ZONE)),)),
            {"arm64": 10},
            [prefers("arm64", 100)],
            id="about a zone",
        ),
    ],
)
def test_preferred_terms(
    affinity: NodeAffinity, preference: dict[str, int], expected: list[PreferredSchedulingTerm]
) -> None:
    """One per preferred architecture, ten for each point."""
    assert list(plan_preferred(affinity, preference, frozenset({"amd64", "arm64"}), {})) == expected


def test_affinity_is_read_from_core_v1() -> None:
    """The two long field names are understood, null lists are empty, other kinds of affinity are ignored."""
    affinity = msgspec.json.decode(
        b'{"podAffinity":{"x":1},"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":'
        b'[{"matchExpressions":[{"key":"zone","operator":"In","values":["a"]}],"matchFields":null,"future":1}]},'
        b'"preferredDuringSchedulingIgnoredDuringExecution":[{"weight":3,"preference":{}}]}}',
        type=Affinity,
    )
    assert affinity.node_affinity == NodeAffinity(
        NodeSelector((of(ZONE),)), (PreferredSchedulingTerm(3, NodeSelectorTerm()),)
    )


@pytest.mark.parametrize(
    ("mode", "expected"),
    [("none", (False, False)), ("required", (True, False)), ("preferred", (False, True)), ("both", (True, True))],
)
def test_mode_says_what_is_written(mode: str, expected: tuple[bool, bool]) -> None:
    """The four words of the setting."""
    assert (AffinityMode(mode).required, AffinityMode(mode).preferred) == expected


def test_a_term_that_says_already_that_it_allows_no_node_gets_nothing() -> None:
    """As after an earlier pass over a file, which leaves no record of it."""
    term = NodeSelectorTerm((NodeSelectorRequirement("kubernetes.io/arch", "In", ("arm64",)), NO_NODE))
    plan = plan_required(NodeAffinity(NodeSelector((term,))), {}, frozenset({Platform("linux", "amd64")}))
    assert (plan.additions, plan.impossible) == (((),), True)
