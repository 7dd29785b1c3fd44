"""Namespaces: what of their annotations is kept, and for how long."""

import json

import msgspec
import pytest

from extender.cluster.views import NamespaceView
from extender.errors import ClusterError
from extender.placement.nodes import PREFIX
from extender.placement.policy import ADDED, MODE, NAMESPACE_KEYS, PREFER


def namespace(name: str, annotations: dict[str, str] | None = None) -> msgspec.Raw:
    document = {"kind": "PartialObjectMetadata", "metadata": {"name": name, "uid": "u", "annotations": annotations}}
    return msgspec.Raw(json.dumps(document).encode())


def test_only_our_annotations_are_kept_and_of_bounded_size() -> None:
    """Whoever may annotate namespaces has 256 KiB on each, and keys under our prefix as others."""
    view = NamespaceView()
    assert not view.synced
    assert view.annotations_of("a") == {}
    others = {"example.com/notes": "x" * 1000, "multiarch-extender.io.evil/x": "y", f"{PREFIX}other": "y", ADDED: "1"}
    view.upsert(namespace("a", {MODE: "x" * 200_000, **others}))
    assert view.annotations_of("a") == {MODE: "x" * 128}
    every = dict.fromkeys(NAMESPACE_KEYS, "x")
    view.upsert(namespace("a", every))
    assert view.annotations_of("a") == every


@pytest.mark.parametrize("annotations", [None, {}, {"example.com/team": "a"}], ids=["null", "empty", "foreign"])
def test_change_replaces_the_annotations(annotations: dict[str, str] | None) -> None:
    """An annotation that was taken away no longer holds."""
    view = NamespaceView()
    view.upsert(namespace("a", {MODE: "observe", PREFER: "arm64"}))
    view.upsert(namespace("a", {PREFER: "none"}))
    assert view.annotations_of("a") == {PREFER: "none"}
    view.upsert(namespace("a", annotations))
    assert view.annotations_of("a") == {}


def test_a_namespace_that_is_gone_has_none() -> None:
    """Deleted, or not named by a list, after which the view is synced; deleting an unknown one changes nothing."""
    view = NamespaceView()
    for name in "abcd":
        view.upsert(namespace(name, {MODE: "ignore"}))
    view.delete("a")
    view.delete("unknown")
    view.keep_only({"b", "c"})
    assert view.synced
    assert [dict(view.annotations_of(name)) for name in "abcd"] == [{}, {MODE: "ignore"}, {MODE: "ignore"}, {}]


def test_namespace_of_another_shape_is_refused_whole() -> None:
    """What cannot be understood leaves the last understood state."""
    view = NamespaceView()
    view.upsert(namespace("a", {MODE: "ignore"}))
    with pytest.raises(msgspec.ValidationError):
        view.upsert(msgspec.Raw(b'{"metadata":{"name":"a","annotations":{"multiarch-extender.io/mode":7}}}'))
    with pytest.raises(ClusterError, match="without a name"):
        view.upsert(msgspec.Raw(b'{"metadata":{}}'))
    assert view.annotations_of("a") == {MODE: "ignore"}
