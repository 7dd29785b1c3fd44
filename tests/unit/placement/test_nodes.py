"""Platforms by node name: what a dictionary would say."""

from hypothesis import given
from hypothesis import strategies as st

from extender.images.platform import Platform, parse_platform
from extender.kubernetes.core_v1 import NodeName
from extender.placement.nodes import NodePlatforms

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
def test_after_any_changes_it_says_what_a_dictionary_would(
    first: dict[NodeName, Platform | None], several: list[tuple[object, ...]]
) -> None:
    """By name, in order, counted, and selected."""
    nodes, model = NodePlatforms(first), dict(first)
    for each in several:
        change(nodes, model, each)
    assert list(nodes.items()) == list(model.items())
    assert nodes.distinct == {platform for platform in model.values() if platform}
    for chosen in ({AMD64}, {AMD64, None}, {S390X, ARM64}, frozenset[Platform | None]()):
        expected = [name for name in sorted(model) if model[name] in chosen]
        assert nodes.select([*sorted(model), NodeName("new")], chosen) == expected
    assert nodes.missing([*model, NodeName("new")]) == ["new"]
    for platform in (None, AMD64, ARM64, S390X):
        assert nodes.count(platform) == list(model.values()).count(platform)


def test_platforms_that_have_left_are_forgotten() -> None:
    """A cluster may see any number of platforms, and have any number at once."""
    nodes = NodePlatforms({NodeName("old"): AMD64})
    for number in range(1000):
        nodes.put(NodeName("changing"), Platform("linux", f"kind{number}"))
    assert nodes.distinct == {AMD64, Platform("linux", "kind999")}
    for number in range(1000):
        nodes.put(NodeName(f"n{number}"), Platform("linux", f"kind{number}"))
    assert len(nodes.distinct) == 1001
