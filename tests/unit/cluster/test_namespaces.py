"""Namespaces: what of their annotations is kept, and for how long."""

import json

import msgspec
import pytest

from extender.cluster.views import NamespaceView
from extender.errors import ClusterError
from extender.placement.nodes import PREFIX
from extender.placement.policy import ADDED, MODE, NAMESPACE_KEYS, PREFER


def namespace(name: str, annotations: dict[str, str] | None = None) -> msgspec.Raw:
    """A namespace's metadata as the API server writes it."""
    document = {"kind": "PartialObjectMetadata", "metadata": {"name": name, "uid": "u", "annotations": annotations}}
    return msgspec.Raw(json.dumps(document).encode())


def test_only_our_annotations_are_kept() -> None:
    """Whatever else a namespace is annotated with does not take up memory."""
    view = NamespaceView()
    view.upsert(namespace("a", {MODE: "observe", "example.com/notes": "x" * 1000, "multiarch-extender.io.evil/x": "y"}))
    assert view.annotations_of("a") == {MODE: "observe"}


def test_what_is_kept_of_a_namespace_is_bounded() -> None:
    """Whoever may annotate namespaces has 256 KiB on each, and keys under our prefix as others."""
    view = NamespaceView()
    view.upsert(namespace("a", {MODE: "x" * 200_000, f"{PREFIX}other": "y" * 50_000, ADDED: "1"}))
    assert view.annotations_of("a") == {MODE: "x" * 128}


@pytest.mark.parametrize("key", sorted(NAMESPACE_KEYS))
def test_every_annotation_that_namespaces_have_for_us_is_kept(key: str) -> None:
    """Each declared one arrives."""
    view = NamespaceView()
    view.upsert(namespace("a", {key: "x"}))
    assert view.annotations_of("a") == {key: "x"}


def test_namespace_without_a_name_is_refused() -> None:
    """It could not be found again."""
    with pytest.raises(ClusterError, match="without a name"):
        NamespaceView().upsert(msgspec.Raw(b'{"metadata":{}}'))


@pytest.mark.parametrize("annotations", [None, {}, {"example.com/team": "a"}], ids=["null", "empty", "foreign"])
def test_namespace_without_our_annotations_has_none(annotations: dict[str, str] | None) -> None:
    """No wish is an empty mapping, whatever the reason."""
    view = NamespaceView()
    view.upsert(namespace("a", annotations))
    assert view.annotations_of("a") == {}


def test_namespace_before_the_sync_has_none() -> None:
    """Nobody waits for wishes."""
    view = NamespaceView()
    assert not view.synced
    assert view.annotations_of("a") == {}


def test_change_replaces_the_annotations() -> None:
    """An annotation that was taken away no longer holds."""
    view = NamespaceView()
    view.upsert(namespace("a", {MODE: "observe", PREFER: "arm64"}))
    view.upsert(namespace("a", {PREFER: "none"}))
    assert view.annotations_of("a") == {PREFER: "none"}
    view.upsert(namespace("a"))
    assert view.annotations_of("a") == {}


def test_deleted_namespace_has_none() -> None:
    """A new namespace of the same name starts afresh; deleting an unknown one changes nothing."""
    view = NamespaceView()
    view.upsert(namespace("a", {MODE: "ignore"}))
    view.delete("a")
    view.delete("b")
    assert view.annotations_of("a") == {}


def test_list_removes_what_it_does_not_name() -> None:
    """Namespaces that went away unseen are gone after the next list, and the view is synced."""
    view = NamespaceView()
    view.upsert(namespace("a", {MODE: "ignore"}))
    view.upsert(namespace("b", {MODE: "observe"}))
    view.keep_only({"b", "c"})
    assert view.synced
    assert [dict(view.annotations_of(name)) for name in "abc"] == [{}, {MODE: "observe"}, {}]


def test_namespace_of_another_shape_is_refused_whole() -> None:
    """What cannot be understood leaves the last understood state."""
    view = NamespaceView()
    view.upsert(namespace("a", {MODE: "ignore"}))
    with pytest.raises(msgspec.ValidationError):
        view.upsert(msgspec.Raw(b'{"metadata":{"name":"a","annotations":{"multiarch-extender.io/mode":7}}}'))
    assert view.annotations_of("a") == {MODE: "ignore"}
