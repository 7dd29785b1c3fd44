"""The pods that a gate holds, as a watch shows them."""

import math
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from extender.cluster.gated_pods import decode_stored_pod
from extender.gates.held_pods import NEW_SECONDS, HeldPod, HeldPods
from extender.placement.gate import GATE, GATED_LABEL


def document(uid: str, version: str, *gates: str, created: str = "", label: str = GATED_LABEL) -> msgspec.Raw:
    """A pod in this version, held by these gates."""
    metadata: Any = {"name": "p", "namespace": "n", "uid": uid, "resourceVersion": version}
    metadata |= {"creationTimestamp": created, "labels": {label: "true"}}
    pod: Any = {"metadata": metadata, "spec": {"schedulingGates": [{"name": gate} for gate in gates]}}
    return msgspec.Raw(msgspec.json.encode(pod))


def held_pods(
    changed: list[HeldPod], gone: list[HeldPod], *, now: float = 100.0, is_live: Callable[[], bool] = lambda: True
) -> HeldPods:
    return HeldPods(
        changed.append, gone.append, is_live=is_live, limit_seconds=60.0, clock=lambda: now, wall_clock=lambda: now
    )


def test_a_pod_that_was_made_anew_is_another_pod() -> None:
    """A watch that was cut off does not show that the first one went; its time and its events are over."""
    changed, gone = list[HeldPod](), list[HeldPod]()
    pods = held_pods(changed, gone)
    pods.upsert(document("first", "1", GATE))
    pods.upsert(document("second", "2", GATE))
    first, second = changed
    assert (first.reference.uid, second.reference.uid) == ("first", "second")
    assert gone == [first]
    assert (first in pods, second in pods, len(pods)) == (False, True, 1)


def test_a_change_is_told_once_for_each_version_of_a_pod() -> None:
    """A list after a cut shows all of them again."""
    changed, gone = list[HeldPod](), list[HeldPod]()
    pods = held_pods(changed, gone)
    for version in ("1", "1", "2", "2"):
        pods.upsert(document("uid", version, GATE))
    assert len(changed) == 2
    pods.upsert(document("uid", "3"))
    assert gone == [changed[0]]


def test_the_limit_counts_from_when_other_gates_are_gone() -> None:
    changed = list[HeldPod]()
    pods = held_pods(changed, [])
    pods.upsert(document("uid", "1", "example.com/quota", GATE))
    assert changed[0].expires_at == math.inf
    pods.upsert(document("uid", "2", GATE))
    assert changed[0].expires_at == 160.0


@pytest.mark.parametrize(
    ("is_live", "created", "is_first", "since", "is_late"),
    [
        (True, "1970-01-01T00:00:01Z", False, 100.0, False),
        (False, "1970-01-01T00:01:20Z", False, 80.0, False),
        (False, "1970-01-01T00:00:10Z", False, 10.0, True),
        (False, "1970-01-01T00:00:10Z", True, 10.0, False),
        (False, "1970-01-01T01:00:00Z", False, 100.0, False),
    ],
    ids=["a watch", "after a watch", "long after a watch that was deaf", "the first list", "a clock ahead"],
)
def test_time_counts_from_the_creation_where_a_watch_may_have_missed_it(
    created: str, since: float, *, is_live: bool, is_first: bool, is_late: bool
) -> None:
    changed = list[HeldPod]()
    pods = held_pods(changed, [], is_live=lambda: is_live)
    if not is_first:
        pods.keep_only(frozenset())
    pods.upsert(document("uid", "1", GATE, created=created))
    assert (changed[0].since, pods.were_late) == (since, is_late)
    assert changed[0].expires_at == max(since + 60.0, 100.0 + NEW_SECONDS)


def test_a_search_alone_says_that_pods_are_gone_which_only_a_search_has_found() -> None:
    gone = list[HeldPod]()
    pods = held_pods([], gone)
    found = document("uid", "1", GATE, "example.com/quota", label="app")
    key = decode_stored_pod(found).key
    pods.add_unlabelled(decode_stored_pod(found), found)
    pods.keep_only(frozenset())
    pods.keep_unlabelled({key})
    assert len(pods) == 1
    pods.keep_unlabelled(frozenset())
    assert [each.key for each in gone] == [key]


def test_a_pod_that_the_watch_shows_is_left_to_the_watch() -> None:
    changed = list[HeldPod]()
    pods = held_pods(changed, [])
    older, newer = document("uid", "1", GATE, label="app"), document("uid", "2", GATE)
    pods.add_unlabelled(decode_stored_pod(older), older)
    pods.upsert(newer)  # its label is back
    pods.add_unlabelled(decode_stored_pod(older), older)
    pods.keep_unlabelled(frozenset())
    assert [(pod.version, pod in pods) for pod in changed] == [("2", True)] * 2
