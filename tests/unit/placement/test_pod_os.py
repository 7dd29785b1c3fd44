"""A pod that says for which operating system it is (`spec.os.name`): its images count for that one alone."""

import pytest

from extender.images.content import Answer, Cause, Content, Failure
from extender.images.platform import parse_platform
from extender.placement.facts import ImageFact, PodImage, facts_of, images_of
from extender.placement.mutation import AdmissionOutcome, Mutator
from extender.placement.policy import Choice, Overrides, Policy
from extender.placement.scheduling import Decision, Verdict
from tests.builders import ARCH, OS, Json, created, index, pod
from tests.unit.placement.json_patch import apply
from tests.unit.placement.mutating import settings

LINUX, ARM, WINDOWS = "linux/amd64", "linux/arm64", "windows/amd64"
UNKNOWN = Failure(Cause.DENIED, "its registry denies access")


def facts(os: str | None, answer: Answer) -> tuple[Json, tuple[PodImage, ...], list[ImageFact]]:
    document = pod(os={"name": os}) if os else pod()
    images = images_of(created(document))
    return document, images, facts_of(images, [answer], may_be_pending=False)


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
    document, images, known = facts(os, content)
    decision = Decision(images, known, Policy(), Overrides())
    everywhere = (LINUX, ARM, WINDOWS, "windows/arm64")
    assert [each for each in everywhere if decision.verdict(parse_platform(each)) is Verdict.YES] == runs_on
    assert decision.refusal == f"image app-0:1 {refusal}"
    mutation = Mutator(Policy(), settings("required")).mutate(created(document), images, known, Overrides())
    assert (mutation.outcome is AdmissionOutcome.IMPOSSIBLE) is not bool(runs_on)
    if len(runs_on) == 1:
        system, _, architecture = runs_on[0].partition("/")
        assert apply(document, mutation.patch)["spec"]["nodeSelector"] == {ARCH: architecture, OS: system}
    assert refusal in mutation.reason


@pytest.mark.parametrize(
    ("os", "linux", "windows", "outcome"),
    [
        ("linux", Verdict.ASSUMED_YES, Verdict.ASSUMED_NO, AdmissionOutcome.ASSUMED),
        ("windows", Verdict.PASSED, Verdict.PASSED, AdmissionOutcome.UNRESOLVED),
    ],
)
def test_nothing_is_assumed_of_another_system(
    os: str, linux: Verdict, windows: Verdict, outcome: AdmissionOutcome
) -> None:
    """The operator's assumption is of Linux: it says nothing about pods for Windows, which pass."""
    document, images, unknown = facts(os, UNKNOWN)
    decision = Decision(images, unknown, Policy(unknown=Choice.ASSUME), Overrides())
    assert (decision.verdict(parse_platform(LINUX)), decision.verdict(parse_platform(WINDOWS))) == (linux, windows)
    mutator = Mutator(Policy(), settings("required", unknown="assume"))
    assert mutator.mutate(created(document), images, unknown, Overrides()).outcome is outcome
