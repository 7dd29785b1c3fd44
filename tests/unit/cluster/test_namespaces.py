"""Namespaces: what of their annotations is kept, and for how long."""

import msgspec
import pytest

from extender.cluster.views import NamespaceView
from extender.errors import ClusterError
from extender.placement.annotations import ADDED, AUTHORS_KEYS, MODE, PREFER
from extender.placement.nodes import PREFIX


def namespace(name: str, annotations: dict[str, str] | None = None) -> msgspec.Raw:
    document = {"kind": "PartialObjectMetadata", "metadata": {"name": name, "uid": "u", "annotations": annotations}}
    return msgspec.Raw(msgspec.json.encode(document))


def test_only_our_annotations_are_kept_and_of_bounded_size() -> None:
    """Whoever may annotate namespaces has 256 KiB on each, and keys under our prefix as others."""
    view = NamespaceView()
    assert view.annotations_of("a") == {}
    others = {"example.com/notes": "x" * 1000, "multiarch-extender.io.evil/x": "y", f"{PREFIX}other": "y", ADDED: "1"}
    view.upsert(namespace("a", {MODE: "x" * 200_000, **others}))
    assert view.annotations_of("a") == {MODE: "x" * 128}
    every = dict.fromkeys(AUTHORS_KEYS, "x")
    view.upsert(namespace("a", every))
    assert view.annotations_of("a") == every


@pytest.mark.parametrize("annotations", [None, {}, {"example.com/team": "a"}], ids=["null", "empty", "foreign"])
def test_an_annotation_that_was_taken_away_no_longer_holds(annotations: dict[str, str] | None) -> None:
    """Nor do those of a namespace that is gone: deleted, or not named by a list, after which the view is synced."""
    view = NamespaceView()
    for name in "abcd":
        view.upsert(namespace(name, {MODE: "ignore", PREFER: "arm64"}))
    view.upsert(namespace("a", {PREFER: "none"}))
    view.upsert(namespace("b", annotations))
    view.delete("c")
    view.delete("unknown")
    assert [dict(view.annotations_of(name)) for name in "abc"] == [{PREFER: "none"}, {}, {}]
    synced = [view.synced]
    view.keep_only({"a"})
    assert [*synced, view.synced] == [False, True]
    assert [bool(view.annotations_of(name)) for name in "ad"] == [True, False]


def test_namespace_of_another_shape_is_refused_whole() -> None:
    """What cannot be understood leaves the last understood state."""
    view = NamespaceView()
    view.upsert(namespace("a", {MODE: "ignore"}))
    with pytest.raises(msgspec.ValidationError):
        view.upsert(msgspec.Raw(b'{"metadata":{"name":"a","annotations":{"multiarch-extender.io/mode":7}}}'))
    with pytest.raises(ClusterError, match="without a name"):
        view.upsert(msgspec.Raw(b'{"metadata":{}}'))
    assert view.annotations_of("a") == {MODE: "ignore"}
