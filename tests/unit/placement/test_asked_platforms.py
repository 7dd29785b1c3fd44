"""Platforms that a pod asks for by another field than its images: its operating system, and its RuntimeClass."""

import pytest

from extender.images.content import Cause, Content, Failure
from extender.images.manifest import Kind
from extender.images.platform import parse_platform
from extender.placement.annotations import Choice
from extender.placement.facts import Anywhere, PodImage, Role, RunsOn, RuntimeClass, fact_of
from extender.placement.mutation import AdmissionOutcome
from extender.placement.policy import Policy
from extender.placement.scheduling import Verdict
from tests.builders import ARCH, OS, Json, expression, index, platforms, pod
from tests.unit.placement.json_patch import apply
from tests.unit.placement.mutating import judge, settings, terms_of

LINUX, LINUX_ARM, WINDOWS = "linux/amd64", "linux/arm64", "windows/amd64"
BOTH_SYSTEMS = index(LINUX, LINUX_ARM, WINDOWS)


def pod_for(os: str | None) -> Json:
    return pod(os={"name": os}) if os else pod()


@pytest.mark.parametrize(
    ("os", "content", "runs_on", "refusal"),
    [
        ("windows", BOTH_SYSTEMS, [WINDOWS], "is built for windows (spec.os.name) only as windows/amd64"),
        ("linux", BOTH_SYSTEMS, [LINUX, LINUX_ARM],
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
    document = pod_for(os)
    decision, mutation = judge(document, [content])
    everywhere = (LINUX, LINUX_ARM, WINDOWS, "windows/arm64")
    assert [each for each in everywhere if decision.verdict(parse_platform(each)) is Verdict.YES] == runs_on
    assert decision.refusal == f"image app-0:1 {refusal}"
    assert (mutation.outcome is AdmissionOutcome.IMPOSSIBLE) is not bool(runs_on)
    if len(runs_on) == 1:
        system, _, architecture = runs_on[0].partition("/")
        requirements = [expression(ARCH, architecture), expression(OS, system)]
        assert terms_of(apply(document, mutation.patch)) == [{"matchExpressions": requirements}]
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
    policy, admission = Policy(unknown=Choice.ASSUME), settings("required", unknown="assume")
    decision, mutation = judge(pod_for(os), [Failure(Cause.DENIED, "its registry denies access")], policy, admission)
    assert (decision.verdict(parse_platform(LINUX)), decision.verdict(parse_platform(WINDOWS))) == (linux, windows)
    assert mutation.outcome is outcome


DATA = pod(images=0, os={"name": "windows"}, volumes=[{"name": "d", "image": {"reference": "data:1"}}])
PROGRAM = {"name": "c", "image": "app:1", "command": ["/t/run"], "volumeMounts": [{"name": "t", "mountPath": "/t"}]}
COPIED = pod(os={"name": "windows"}, containers=[PROGRAM], volumes=[{"name": "t", "emptyDir": {}}])


@pytest.mark.parametrize(
    ("document", "image"),
    [
        (DATA, "data:1"),
        (COPIED, "app:1"),
        ({**COPIED, "spec": {**COPIED["spec"], "nodeSelector": {ARCH: "arm64"}}}, "app:1"),
    ],
    ids=["an image volume", "a program from a volume", "of one architecture"],
)
def test_a_pod_of_data_alone_is_kept_to_its_system(document: Json, image: str) -> None:
    """On any architecture: no image names a platform, but a kubelet of another system refuses the pod."""
    answer = Content(Kind.MANIFEST, platforms(LINUX), states_platforms=False)
    decision, mutation = judge(document, [answer])
    verdicts = {each: decision.verdict(parse_platform(each)) for each in (LINUX, LINUX_ARM, WINDOWS, "windows/arm64")}
    assert [each for each, verdict in verdicts.items() if verdict is Verdict.YES] == [WINDOWS, "windows/arm64"]
    assert decision.refusal == mutation.reason == f"image {image} is in a pod for windows (spec.os.name)"
    assert decision.preference == {}
    stored = apply(document, mutation.patch)
    assert terms_of(stored) == [{"matchExpressions": [expression(OS, "windows")]}]
    assert stored["spec"].get("nodeSelector") == document["spec"].get("nodeSelector")
    assert "tolerations" not in stored["spec"]
    assert mutation.audit_annotations["verdict"] == "runs anywhere on windows"


AMD, ARM = parse_platform("linux/amd64"), parse_platform("linux/arm64")
ROSETTA = RuntimeClass("rosetta", platforms("linux/amd64"))
POLICY = Policy(
    runtime_classes={"rosetta": ROSETTA, "wasm": RuntimeClass("wasm", frozenset())},
    preference={"arm64": 10},
    unknown=Choice.ASSUME,
    assume=platforms("linux/amd64"),
)
PLAIN, OF_CLASS = pod(), pod(runtimeClassName="rosetta")
MULTI, UNKNOWN = index("linux/amd64", "linux/arm64"), Failure(Cause.DENIED, "no")


@pytest.mark.parametrize(
    ("answer", "runs"),
    [
        (index("linux/amd64"), True),
        (index("linux/amd64", "linux/arm64"), True),
        (index("linux/arm64"), False),
    ],
)
def test_its_platforms_decide_on_every_node(answer: Content, runs: bool) -> None:
    decision, mutation = judge(OF_CLASS, [answer], POLICY)
    assert {decision.verdict(node) for node in (AMD, ARM)} == {Verdict.YES if runs else Verdict.NO}
    assert mutation.outcome is (AdmissionOutcome.UNCHANGED if runs else AdmissionOutcome.IMPOSSIBLE)


def test_a_refusal_names_the_class_and_what_it_runs() -> None:
    text = "image app-0:1 is not built for linux/amd64 (RuntimeClass rosetta)"
    assert judge(OF_CLASS, [index("linux/arm64")], POLICY).decision.refusal == text


def test_what_runs_gets_neither_affinity_nor_toleration_nor_preference() -> None:
    """Which nodes have the runtime, and what they are tainted with, the RuntimeClass itself says."""
    assert judge(OF_CLASS, [MULTI], POLICY).mutation.patch == b""
    assert [judge(each, [MULTI], POLICY).decision.score(ARM) for each in (OF_CLASS, PLAIN)] == [0, 10]


def test_nothing_is_assumed_of_its_images() -> None:
    """An assumption is about nodes of that platform, and these pods may be on any."""
    verdicts = [judge(each, [UNKNOWN], POLICY).decision.verdict(ARM) for each in (PLAIN, OF_CLASS)]
    assert verdicts == [Verdict.ASSUMED_NO, Verdict.PASSED]


def test_a_class_without_a_meaning_changes_nothing() -> None:
    """gVisor and Kata run what the node runs."""
    decision, _ = judge(pod(runtimeClassName="gvisor"), [index("linux/amd64")], POLICY)
    assert decision.verdict(ARM) is Verdict.NO


def test_an_image_volume_follows_the_same_platforms() -> None:
    """A runtime that pulls by RuntimeClass does so for volumes."""
    volume = PodImage("data:1", Role.VOLUME, runtime=ROSETTA)
    assert fact_of(volume, index("linux/amd64"), may_be_pending=False) == Anywhere()
    assert isinstance(fact_of(volume, index("linux/arm64"), may_be_pending=False), RunsOn)
