"""Platforms by node name: what a dictionary would say, and codes for many names at once."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extender.images.platform import Platform, parse_platform
from extender.kubernetes.core_v1 import NodeName
from extender.kubernetes.extender_v1 import quote
from extender.placement.nodes import UNSEEN, NodePlatforms, TooManyPlatforms

AMD64, ARM64, S390X = (parse_platform(f"linux/{name}") for name in ("amd64", "arm64", "s390x"))
names = st.integers(0, 9).map(lambda number: NodeName(f"n{number}"))
platforms = st.none() | st.sampled_from([AMD64, ARM64, S390X, parse_platform("windows/amd64")])
clusters = st.dictionaries(names, platforms)
changes = st.one_of(
    st.tuples(st.just("put"), names, platforms),
    st.tuples(st.just("drop"), names),
    st.tuples(st.just("merge"), clusters),
    st.tuples(st.just("drop first"), st.integers(-1, 4)),
)


def change(nodes: NodePlatforms, model: dict[NodeName, Platform | None], how: tuple[object, ...]) -> None:
    """The same change of both."""
    match how:
        case ("put", str(name), Platform() | None as platform):
            nodes.put(NodeName(name), platform)
            model.pop(NodeName(name), None)
            model[NodeName(name)] = platform
        case ("drop", str(name)):
            nodes.drop(NodeName(name))
            model.pop(NodeName(name), None)
        case ("merge", dict(others)):
            nodes.merge(NodePlatforms(others))
            for name in others:
                model.pop(name, None)
            model |= others
        case ("drop first", int(number)):
            nodes.drop_first(number)
            for name in list(model)[: max(number, 0)]:
                del model[name]


@given(clusters, st.lists(changes, max_size=12))
@settings(max_examples=200, deadline=None)
def test_after_any_changes_it_says_what_a_dictionary_would(
    first: dict[NodeName, Platform | None], several: list[tuple[object, ...]]
) -> None:
    """By name, in order, in codes, and counted."""
    nodes, model = NodePlatforms(first), dict(first)
    for each in several:
        change(nodes, model, each)
    assert list(nodes.items()) == list(model.items())
    assert nodes.distinct == {platform for platform in model.values() if platform}
    codes = nodes.codes_of(map(quote, model))
    assert [nodes.by_code[code] for code in codes] == list(model.values())
    for platform in (None, AMD64, ARM64, S390X):
        assert nodes.count(platform) == list(model.values()).count(platform)


def test_node_not_in_view_has_a_code_of_its_own() -> None:
    """It is none that a platform has, and looking it up does not take it in."""
    nodes = NodePlatforms({NodeName("a"): AMD64, NodeName("b"): None})
    codes = nodes.codes_of([b'"b"', b'"c"', b'"a"', b"a", b"7"])
    assert codes[1] == codes[3] == codes[4] == UNSEEN
    assert [nodes.by_code[codes[0]], nodes.by_code[codes[2]]] == [None, AMD64]
    assert len(nodes) == 2
    assert NodeName("c") not in nodes
    assert nodes.get(NodeName("c"), ARM64) is ARM64
    with pytest.raises(KeyError):
        nodes[NodeName("c")]


def test_codes_of_platforms_that_have_left_are_given_anew() -> None:
    """A cluster may see any number of platforms, if not at once; one too many changes nothing."""
    nodes = NodePlatforms({NodeName("old"): AMD64})
    for number in range(1000):
        nodes.put(NodeName("changing"), Platform("linux", f"kind{number}"))
    assert nodes[NodeName("changing")] == Platform("linux", "kind999")
    for number in range(252):
        nodes.put(NodeName(f"n{number}"), Platform("linux", f"kind{number}"))
    with pytest.raises(TooManyPlatforms):
        nodes.put(NodeName("old"), S390X)
    assert nodes[NodeName("old")] == AMD64
