"""A RuntimeClass that runs programs of other platforms than its nodes have, in filter, webhook and gate."""

from typing import Any

import pytest

from extender.images.content import Answer, Cause, Content, Failure
from extender.images.platform import parse_platform
from extender.images.platform_states import FalselyClaimed, PlatformState
from extender.placement.facts import Anywhere, PodImage, Role, RunsOn, RuntimeClass, fact_of, facts_of, images_of
from extender.placement.mutation import AdmissionOutcome, Mutation, Mutator
from extender.placement.policy import Choice, Overrides, Policy
from extender.placement.scheduling import Decision, Verdict
from tests.builders import created, index, pod
from tests.unit.placement.mutating import settings

AMD, ARM = parse_platform("linux/amd64"), parse_platform("linux/arm64")
ROSETTA = RuntimeClass("rosetta", frozenset({AMD}))
POLICY = Policy(
    runtime_classes={"rosetta": ROSETTA, "wasm": RuntimeClass("wasm", frozenset())},
    preference={"arm64": 10},
    unknown=Choice.ASSUME,
    assume=frozenset({AMD}),
)


def lying(platforms: str, state: PlatformState, on: str) -> Content:
    return index(*platforms.split(), falsely_claimed=(FalselyClaimed(parse_platform(on), state, "/app", "x86-64"),))


def decided(answer: Answer, **spec: Any) -> Decision:
    images = images_of(created(pod(**spec)), POLICY.runtime_classes)
    return Decision(images, facts_of(images, [answer], may_be_pending=False), POLICY, Overrides())


def mutated(answer: Answer, **spec: Any) -> Mutation:
    document = created(pod(**spec))
    images = images_of(document, POLICY.runtime_classes)
    facts = facts_of(images, [answer], may_be_pending=False)
    return Mutator(POLICY, settings("required")).mutate(document, images, facts, Overrides())


@pytest.mark.parametrize(
    ("answer", "runs"),
    [
        (index("linux/amd64"), True),
        (index("linux/amd64", "linux/arm64"), True),
        (index("linux/arm64"), False),
        (lying("linux/arm64", PlatformState.REFUTED, on="linux/amd64"), True),
        (lying("linux/arm64", PlatformState.MISSING, on="linux/amd64"), False),
        (lying("linux/arm64", PlatformState.CONTRADICTORY, on="linux/amd64"), False),
        (lying("", PlatformState.REFUTED, on="linux/arm64"), False),
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
    refusal = decided(index("linux/arm64"), runtimeClassName="rosetta").refusal
    assert refusal == "image app-0:1 is not built for linux/amd64 (RuntimeClass rosetta)"
    lost = decided(lying("linux/arm64", PlatformState.MISSING, on="linux/amd64"), runtimeClassName="rosetta").refusal
    assert lost == "image app-0:1 claims linux/amd64, but its registry has no manifest for that"


def test_what_runs_gets_neither_affinity_nor_toleration_nor_preference() -> None:
    """Which nodes have the runtime, and what they are tainted with, the RuntimeClass itself says."""
    multi = index("linux/amd64", "linux/arm64")
    assert mutated(multi, runtimeClassName="rosetta").patch == b""
    assert decided(multi, runtimeClassName="rosetta").score(ARM) == 0
    assert decided(multi).score(ARM) == 10


def test_nothing_is_assumed_of_its_images() -> None:
    """An assumption is about nodes of that platform, and these pods may be on any."""
    unknown = Failure(Cause.DENIED, "no")
    assert decided(unknown).verdict(ARM) is Verdict.ASSUMED_NO
    assert decided(unknown, runtimeClassName="rosetta").verdict(ARM) is Verdict.PASSED


def test_a_class_without_a_meaning_changes_nothing() -> None:
    """gVisor and Kata run what the node runs."""
    assert decided(index("linux/amd64"), runtimeClassName="gvisor").verdict(ARM) is Verdict.NO


def test_an_image_volume_follows_the_same_platforms() -> None:
    """A runtime that pulls by RuntimeClass does so for volumes."""
    volume = PodImage("data:1", Role.VOLUME, runtime=ROSETTA)
    assert fact_of(volume, index("linux/amd64"), may_be_pending=False) == Anywhere()
    assert isinstance(fact_of(volume, index("linux/arm64"), may_be_pending=False), RunsOn)
