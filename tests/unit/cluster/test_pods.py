"""Pending pods: each one is announced, and none is kept."""

import msgspec
import pytest

from extender.cluster.pods import PENDING_PODS, PendingPods
from extender.kubernetes.core_v1 import Pod
from extender.placement.facts import images_of

POD = msgspec.Raw(
    b'{"metadata":{"name":"web","namespace":"shop","uid":"u1","managedFields":[{}]},"status":{"phase":"Pending"},'
    b'"spec":{"containers":[{"image":"web:1","resources":{}}],"volumes":[{"image":{"reference":"models:2"}},{}]}}'
)


def test_only_unbound_pods_are_selected() -> None:
    """The API server sends the pods without a node that still wait, by fields it supports."""
    assert PENDING_PODS.field_selector == "spec.nodeName=,status.phase=Pending"


def test_pod_is_announced_as_it_appears_and_as_it_changes() -> None:
    """Images may change while a pod waits, so every state of it is announced, decoded as the scheduler's pods are."""
    announced: list[Pod] = []
    pods = PendingPods(announced.append)
    pods.upsert(POD)
    pods.upsert(POD)
    assert [[image.reference for image in images_of(pod)] for pod in announced] == [["web:1", "models:2"]] * 2
    assert announced[0].metadata is not None
    assert announced[0].metadata.uid == "u1"


def test_pod_that_leaves_is_not_announced() -> None:
    """Bound or deleted: there is nothing to look up any more."""
    announced: list[Pod] = []
    PendingPods(announced.append).delete("web")
    assert announced == []


def test_pods_are_synced_after_the_first_whole_list() -> None:
    """Once every pod that waits has been announced."""
    pods = PendingPods(lambda _: None)
    pods.upsert(POD)
    assert not pods.synced
    pods.keep_only({"web"})
    assert pods.synced


def test_pod_of_another_shape_is_refused() -> None:
    """A field of the wrong type is the watch's to report."""
    announced: list[Pod] = []
    with pytest.raises(msgspec.ValidationError):
        PendingPods(announced.append).upsert(msgspec.Raw(b'{"spec":{"containers":"none"}}'))
    assert announced == []
