"""A RuntimeClass that runs programs of other platforms than its nodes have, in filter, webhook and gate."""

from typing import Any

import msgspec
import pytest

from extender.images.content import Answer, Cause, Content, Failure
from extender.images.manifest import Kind
from extender.images.platform import parse_platform
from extender.images.platform_states import DeniedPlatform, PlatformState
from extender.kubernetes.core_v1 import CreatedPod
from extender.placement.facts import PodImage, Role, RuntimeClass, fact_of, facts_of, images_of
from extender.placement.mutation import AdmissionOutcome, Mutation, Mutator
from extender.placement.policy import Choice, Overrides, Policy
from extender.placement.scheduling import Decision, Verdict
from tests.builders import pod
from tests.unit.placement.json_patch import apply
from tests.unit.placement.mutating import settings

AMD, ARM = parse_platform("linux/amd64"), parse_platform("linux/arm64")
ROSETTA = RuntimeClass("rosetta", frozenset({AMD}))
POLICY = Policy(
    runtime_classes={"rosetta": ROSETTA, "wasm": RuntimeClass("wasm", frozenset())},
    preference={"arm64": 10},
    unknown=Choice.ASSUME,
    assume=frozenset({AMD}),
)


def image(platforms: tuple[str, ...], denied: PlatformState | None = None, on: str = "linux/arm64") -> Content:
    lies = (DeniedPlatform(parse_platform(on), denied, "/app", "x86-64"),) if denied else ()
    return Content(Kind.INDEX, frozenset(map(parse_platform, platforms)), states_platforms=True, denied=lies)


def created(**spec: Any) -> CreatedPod:
    return msgspec.json.decode(msgspec.json.encode(pod(**spec)), type=CreatedPod)


def decided(answer: Answer, **spec: Any) -> Decision:
    images = images_of(created(**spec), POLICY.runtime_classes)
    return Decision(images, facts_of(images, [answer], may_be_pending=False), POLICY, Overrides())


def mutated(answer: Answer, **spec: Any) -> Mutation:
    images = images_of(created(**spec), POLICY.runtime_classes)
    facts = facts_of(images, [answer], may_be_pending=False)
    return Mutator(POLICY, settings("required")).mutate(created(**spec), images, facts, Overrides())


@pytest.mark.parametrize(
    ("answer", "runs"),
    [
        (image(("linux/amd64",)), True),
        (image(("linux/amd64", "linux/arm64")), True),
        (image(("linux/arm64",)), False),
        (image(("linux/arm64",), PlatformState.REFUTED, on="linux/amd64"), True),
        (image(("linux/arm64",), PlatformState.MISSING, on="linux/amd64"), False),
        (image(("linux/arm64",), PlatformState.CONTRADICTORY, on="linux/amd64"), False),
        (image((), PlatformState.REFUTED), False),
    ],
)
def test_its_platforms_decide_on_every_node(answer: Content, runs: bool) -> None:
    """A program for another machine than claimed may be what the class is for; what cannot be pulled is not."""
    decision = decided(answer, runtimeClassName="rosetta")
    assert {decision.verdict(node) for node in (AMD, ARM)} == {Verdict.YES if runs else Verdict.NO}
    mutation = mutated(answer, runtimeClassName="rosetta")
    assert mutation.outcome is (AdmissionOutcome.UNCHANGED if runs else AdmissionOutcome.IMPOSSIBLE)


def test_a_refusal_names_the_class_and_what_it_runs() -> None:
    """One text, of the pod's images and class alone."""
    refusal = decided(image(("linux/arm64",)), runtimeClassName="rosetta").refusal
    assert refusal == "image app-0:1 is not built for linux/amd64 (RuntimeClass rosetta)"
    lost = decided(image(("linux/arm64",), PlatformState.MISSING, on="linux/amd64"), runtimeClassName="rosetta").refusal
    assert lost == "image app-0:1 claims linux/amd64, but its registry has no manifest for that"


def test_what_runs_gets_neither_affinity_nor_toleration_nor_preference() -> None:
    """Which nodes have the runtime, and what they are tainted with, the RuntimeClass itself says."""
    multi = image(("linux/amd64", "linux/arm64"))
    assert apply(pod(runtimeClassName="rosetta"), mutated(multi, runtimeClassName="rosetta").patch) == pod(
        runtimeClassName="rosetta"
    )
    assert decided(multi, runtimeClassName="rosetta").score(ARM) == 0
    assert decided(multi).score(ARM) == 10


def test_nothing_is_assumed_of_its_images() -> None:
    """An assumption is about nodes of that platform, and these pods may be on any."""
    unknown = Failure(Cause.DENIED, "no")
    assert decided(unknown).verdict(ARM) is Verdict.ASSUMED_NO
    assert decided(unknown, runtimeClassName="rosetta").verdict(ARM) is Verdict.PASSED


@pytest.mark.parametrize("name", [None, "gvisor"])
def test_a_class_without_a_meaning_changes_nothing(name: str | None) -> None:
    """gVisor and Kata run what the node runs."""
    spec = {"runtimeClassName": name} if name else {}
    assert decided(image(("linux/amd64",)), **spec).verdict(ARM) is Verdict.NO


def test_an_image_volume_follows_the_same_platforms() -> None:
    """A runtime that pulls by RuntimeClass does so for volumes; one that states no platform still goes anywhere."""
    volume = PodImage("data:1", Role.VOLUME, runtime=ROSETTA)
    assert fact_of(volume, image(("linux/amd64",)), may_be_pending=False) == fact_of(
        volume, Content(Kind.ARTIFACT, frozenset(), states_platforms=False), may_be_pending=False
    )
