"""The pods that a gate holds, as a watch shows them."""

import math
from typing import Any

import msgspec

from extender.gates.held_pods import HeldPod, HeldPods
from extender.placement.gate import GATE


def document(uid: str, version: str, *gates: str) -> msgspec.Raw:
    """A pod in this version, held by these gates."""
    metadata = {"name": "p", "namespace": "n", "uid": uid, "resourceVersion": version}
    pod: Any = {"metadata": metadata, "spec": {"schedulingGates": [{"name": gate} for gate in gates]}}
    return msgspec.Raw(msgspec.json.encode(pod))


def held_pods(changed: list[HeldPod], gone: list[HeldPod], *, now: float = 100.0) -> HeldPods:
    pods = HeldPods(changed.append, gone.append, limit_seconds=60.0, clock=lambda: now, wall_clock=lambda: now)
    pods.keep_only(frozenset())
    return pods


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


def test_a_pod_is_handed_out_once_for_each_of_its_versions() -> None:
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
