"""What the operator's settings mean for one pod: left alone, unresolved images, preference, multi-arch."""

import msgspec
import pytest

from extender.images.content import Cause
from extender.images.platform import Compatibility, parse_platform
from extender.kubernetes.core_v1 import Pod
from extender.placement.facts import Anywhere, ImageFact, Pending, RunsOn, RuntimeClass, Unknown
from extender.placement.policy import (
    Choice,
    Overrides,
    Policy,
    choice_for,
    is_exempt,
    is_multi_arch,
    preference_for,
)

POLICY = Policy(preference={"arm64": 7}, runtime_classes={"wasm": RuntimeClass("wasm", frozenset())})


def built_for(*platforms: str) -> RunsOn:
    return RunsOn(frozenset(map(parse_platform, platforms)))


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        (b"{}", False),
        (b'{"metadata":{"annotations":null},"spec":{"runtimeClassName":null}}', False),
        (b'{"spec":{"runtimeClassName":"gvisor","nodeName":""}}', False),
        (b'{"spec":{"runtimeClassName":"wasm"}}', True),
        (b'{"spec":{"nodeName":"n1"}}', True),
        (b'{"metadata":{"annotations":{"kubernetes.io/config.mirror":"4f2"}}}', True),
        (b'{"metadata":{"annotations":{"kubernetes.io/config.source":"file"}}}', True),
        (b'{"metadata":{"ownerReferences":[{"kind":"DaemonSet","name":"d","controller":true}]},"spec":{}}', False),
    ],
    ids=["empty", "nulls", "other-class", "ignored-class", "bound", "mirror", "static", "daemonset"],
)
def test_pods_that_are_none_of_our_business_are_left_alone(pod: bytes, expected: bool) -> None:
    """Bound, static and mirror pods and those of ignored RuntimeClasses; a DaemonSet's pod is like any other."""
    assert is_exempt(msgspec.json.decode(pod, type=Pod), POLICY) is expected


PENDING, UNKNOWN = Pending(Cause.THROTTLED, "…"), Unknown(Cause.THROTTLED, "…")
NEVER = Unknown(Cause.NEVER_PULLED, "…")


def test_assume_passes_where_the_operator_names_nothing_to_assume() -> None:
    """A pod's wish cannot make an empty list refuse every node."""
    policy = Policy(pending=Choice.ASSUME, unknown=Choice.PASS, assume=frozenset())
    assert choice_for(PENDING, policy, Overrides()) is Choice.PASS
    assert choice_for(UNKNOWN, policy, Overrides(unknown=Choice.ASSUME)) is Choice.PASS


@pytest.mark.parametrize(
    ("prefer", "preference"),
    [(None, {"arm64": 7}), ("amd64", {"amd64": 10}), ("s390x", {"s390x": 10}), ("none", {})],
    ids=["operator", "amd64", "unlisted", "none"],
)
def test_a_wish_replaces_the_preference(prefer: str | None, preference: dict[str, int]) -> None:
    """It is not merged into the operator's map."""
    assert preference_for(POLICY, Overrides(prefer=prefer)) == preference


def test_two_architectures_make_a_pod_multi_arch() -> None:
    """Two systems of one do not."""
    assert is_multi_arch((built_for("linux/amd64", "linux/arm64"), Anywhere()), Compatibility())
    assert not is_multi_arch((built_for("linux/amd64", "windows/amd64"),), Compatibility())


@pytest.mark.parametrize("fact", [PENDING, UNKNOWN, NEVER], ids=["pending", "unknown", "never-pulled"])
def test_a_pod_with_an_unresolved_image_is_not_multi_arch(fact: ImageFact) -> None:
    """However many platforms the known ones have in common."""
    assert not is_multi_arch((built_for("linux/amd64", "linux/arm64"), fact), Compatibility())
