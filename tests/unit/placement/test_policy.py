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
    common_platforms,
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


@pytest.mark.parametrize("override", [None, *Choice])
@pytest.mark.parametrize("unknown", Choice)
@pytest.mark.parametrize("pending", Choice)
def test_the_wish_is_for_unknown_images_and_the_operator_keeps_pending_ones(
    pending: Choice, unknown: Choice, override: Choice | None
) -> None:
    """Every combination; an image that is never pulled passes under all of them."""
    policy, overrides = Policy(pending=pending, unknown=unknown), Overrides(unknown=override)
    assert choice_for(PENDING, policy, overrides) is pending
    assert choice_for(UNKNOWN, policy, overrides) is (override or unknown)
    assert choice_for(NEVER, policy, overrides) is Choice.PASS


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


EXACT = Compatibility()
ALL = Compatibility(run_386_on_amd64=True, run_arm_on_arm64=True)


@pytest.mark.parametrize(
    ("facts", "compatibility", "common", "multi_arch"),
    [
        ((), EXACT, (), False),
        ((Anywhere(),), EXACT, (), False),
        ((built_for("linux/amd64"),), EXACT, ("linux/amd64",), False),
        ((built_for("linux/amd64", "linux/arm64"),), EXACT, ("linux/amd64", "linux/arm64"), True),
        ((built_for("linux/amd64", "linux/arm64"), Anywhere()), EXACT, ("linux/amd64", "linux/arm64"), True),
        ((built_for("linux/amd64", "linux/arm64"), built_for("linux/amd64")), EXACT, ("linux/amd64",), False),
        ((built_for("linux/amd64"), built_for("linux/arm64")), EXACT, (), False),
        ((built_for("linux/arm/v6", "linux/arm/v7"),), EXACT, ("linux/arm/v6", "linux/arm/v7"), False),
        (
            (built_for("linux/arm/v6", "linux/amd64"), built_for("linux/arm/v7", "linux/amd64")),
            EXACT,
            ("linux/amd64", "linux/arm/v7"),
            True,
        ),
        (
            (built_for("linux/amd64/v3", "linux/arm64"), built_for("linux/amd64", "linux/arm64")),
            EXACT,
            ("linux/amd64/v3", "linux/arm64"),
            True,
        ),
        ((built_for("linux/amd64", "windows/amd64"),), EXACT, ("linux/amd64", "windows/amd64"), False),
        ((built_for("linux/386"), built_for("linux/386", "linux/amd64")), EXACT, ("linux/386",), False),
        ((built_for("linux/386"), built_for("linux/386", "linux/amd64")), ALL, ("linux/386", "linux/amd64"), True),
        ((built_for("linux/arm/v7"), built_for("linux/arm64")), ALL, ("linux/arm64",), False),
    ],
    ids=[
        "no-images", "anywhere", "one", "two", "two-and-anywhere", "sidecar-lacks-one", "disjoint", "variants",
        "v6-and-v7", "levels", "two-systems", "386-strict", "386-on-amd64", "arm-on-arm64",
    ],
)  # fmt: skip
def test_what_images_have_in_common(
    facts: tuple[ImageFact, ...], compatibility: Compatibility, common: tuple[str, ...], multi_arch: bool
) -> None:
    """Every named platform is asked as if it were a node; two architectures make a pod multi-arch."""
    assert common_platforms(facts, compatibility) == frozenset(map(parse_platform, common))
    assert is_multi_arch(facts, compatibility) is multi_arch


@pytest.mark.parametrize("fact", [PENDING, UNKNOWN, NEVER], ids=["pending", "unknown", "never-pulled"])
def test_a_pod_with_an_unresolved_image_is_not_multi_arch(fact: ImageFact) -> None:
    """However many platforms the known ones have in common."""
    assert not is_multi_arch((built_for("linux/amd64", "linux/arm64"), fact), EXACT)
