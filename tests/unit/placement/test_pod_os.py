"""A pod that says for which operating system it is (`spec.os.name`): its images count for that one alone."""

from typing import Any

import msgspec
import pytest

from extender.images.content import Answer, Cause, Content, Failure
from extender.images.manifest import Kind
from extender.images.platform import parse_platform
from extender.kubernetes.core_v1 import CreatedPod
from extender.placement.facts import facts_of, images_of
from extender.placement.mutation import AdmissionOutcome, Mutator
from extender.placement.policy import Choice, Overrides, Policy
from extender.placement.scheduling import Decision, Verdict
from tests.builders import pod
from tests.unit.placement.json_patch import apply
from tests.unit.placement.mutating import settings

LINUX, ARM, WINDOWS = "linux/amd64", "linux/arm64", "windows/amd64"
UNKNOWN = Failure(Cause.DENIED, "its registry denies access")


def index(*platforms: str) -> Content:
    return Content(Kind.INDEX, frozenset(map(parse_platform, platforms)), states_platforms=True)


def decided(document: dict[str, Any], answer: Answer, policy: Policy) -> Decision:
    images = images_of(msgspec.json.decode(msgspec.json.encode(document), type=CreatedPod))
    return Decision(images, facts_of(images, [answer], may_be_pending=False), policy, Overrides())


@pytest.mark.parametrize(
    ("os", "content", "runs_on", "refusal"),
    [
        ("windows", index(LINUX, ARM, WINDOWS), [WINDOWS], "is built for windows (spec.os.name) only as windows/amd64"),
        ("linux", index(LINUX, ARM, WINDOWS), [LINUX, ARM],
         "is built for linux (spec.os.name) only as linux/amd64, linux/arm64"),
        ("windows", index(LINUX), [], "is not built for windows (spec.os.name)"),
        ("linux", index(LINUX), [LINUX], "is built only for linux/amd64"),
        (None, index(LINUX, WINDOWS), [LINUX, WINDOWS], "is built only for linux/amd64, windows/amd64"),
    ],
)  # fmt: skip
def test_filter_and_webhook_keep_the_pod_to_its_system(
    os: str | None, content: Content, runs_on: list[str], refusal: str
) -> None:
    """A kubelet refuses it elsewhere, after kube-scheduler has bound it there."""
    document = pod(os={"name": os}) if os else pod()
    policy = Policy()
    decision = decided(document, content, policy)
    everywhere = (LINUX, ARM, WINDOWS, "windows/arm64")
    assert [each for each in everywhere if decision.verdict(parse_platform(each)) is Verdict.YES] == runs_on
    assert decision.refusal == f"image app-0:1 {refusal}"
    created = msgspec.json.decode(msgspec.json.encode(document), type=CreatedPod)
    images = images_of(created)
    facts = facts_of(images, [content], may_be_pending=False)
    mutation = Mutator(policy, settings("required")).mutate(created, images, facts, Overrides())
    assert (mutation.outcome is AdmissionOutcome.IMPOSSIBLE) is not bool(runs_on)
    stored: Any = apply(document, mutation.patch)
    if len(runs_on) == 1:
        system, _, architecture = runs_on[0].partition("/")
        assert stored["spec"]["nodeSelector"] == {"kubernetes.io/arch": architecture, "kubernetes.io/os": system}
    assert refusal in mutation.reason


@pytest.mark.parametrize(
    ("os", "linux", "windows"),
    [("linux", Verdict.ASSUMED_YES, Verdict.ASSUMED_NO), ("windows", Verdict.PASSED, Verdict.PASSED)],
)
def test_nothing_is_assumed_of_another_system(os: str, linux: Verdict, windows: Verdict) -> None:
    """The operator's assumption is of Linux: it says nothing about pods for Windows, which pass."""
    decision = decided(pod(os={"name": os}), UNKNOWN, Policy(unknown=Choice.ASSUME))
    assert (decision.verdict(parse_platform(LINUX)), decision.verdict(parse_platform(WINDOWS))) == (linux, windows)
    created = msgspec.json.decode(msgspec.json.encode(pod(os={"name": os})), type=CreatedPod)
    images = images_of(created)
    facts = facts_of(images, [UNKNOWN], may_be_pending=False)
    admission = settings("required", unknown="assume")
    mutation = Mutator(Policy(), admission).mutate(created, images, facts, Overrides())
    expected = AdmissionOutcome.ASSUMED if os == "linux" else AdmissionOutcome.UNRESOLVED
    assert mutation.outcome is expected
