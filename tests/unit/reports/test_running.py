"""What runs where: by the images' own platforms first, and by how a container fails second."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from extender.images.content import Cause, Failure
from extender.images.manifest import Image, Kind, PlatformEntry
from extender.images.platform import Compatibility, parse_platform
from extender.kubernetes.reported_v1 import ReportedNode, ReportedPod
from extender.placement.facts import RuntimeClass
from extender.placement.policy import Mode, Overrides, Policy
from extender.reports.running_pods import (
    Certainty,
    PodImages,
    RunningContainer,
    RunningReport,
    Symptom,
    is_counted,
    references_of,
    report_running,
)

AMD64, ARM64 = "linux/amd64", "linux/arm64"
HOST = "registry.example.com"
APP = f"{HOST}/team/app:1"
TOLD_LATE = {"startedAt": "2026-11-22T10:00:00Z", "finishedAt": "2026-11-22T10:00:03Z"}
AT_ONCE = {"startedAt": "2026-11-22T10:00:00Z", "finishedAt": "2026-11-22T10:00:00Z"}
LATER = {"startedAt": "2026-11-22T10:00:00Z", "finishedAt": "2026-11-22T10:00:09Z"}
BACK_OFF = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s restarting failed container=c"}}
RUNNING = {"running": {"startedAt": "2026-11-22T10:00:00Z"}}


def digest(letter: str) -> str:
    """Returns a digest of one letter."""
    return "sha256:" + letter * 64


def index(letter: str, *platforms: str) -> Image:
    """Returns an index; its manifests' digests are those of the first letters of the architectures."""
    entries = tuple(PlatformEntry(parse_platform(text), digest(text[6:8][-1]), 1) for text in platforms)
    return Image(digest=digest(letter), media_type="index", kind=Kind.INDEX, entries=entries, states_platforms=True)


def manifest(letter: str, platform: str) -> Image:
    """Returns a single manifest."""
    entry = PlatformEntry(parse_platform(platform), digest(letter), 1)
    return Image(digest=digest(letter), media_type="manifest", kind=Kind.MANIFEST, entries=(entry,))


def node(architecture: str, label: str = "") -> ReportedNode:
    """Returns a node of that name."""
    labels = {"kubernetes.io/arch": label or architecture, "kubernetes.io/os": "linux"}
    info = {"architecture": architecture, "operatingSystem": "linux"}
    document = {"metadata": {"name": architecture, "labels": labels}, "status": {"nodeInfo": info}}
    return msgspec.convert(document, ReportedNode)


def status(letter: str = "", **fields: Any) -> dict[str, Any]:
    """Returns a container's status with that digest in its repository."""
    return {"name": "c", "imageID": f"{HOST}/team/app@{digest(letter)}" if letter else "", "state": RUNNING, **fields}


def pod(on: str, *statuses: Mapping[str, Any], init: Mapping[str, Any] | None = None, image: str = APP) -> ReportedPod:
    """Returns a pod with one container for each status, c, and an init container for `init`."""
    document = {
        "metadata": {"name": "p", "namespace": "ns"},
        "spec": {
            "nodeName": on,
            "containers": [{"name": each["name"], "image": image} for each in statuses],
            "initContainers": [{"name": "i", "image": image}] if init else None,
        },
        "status": {"containerStatuses": statuses, "initContainerStatuses": [init] if init else None},
    }
    return msgspec.convert(document, ReportedPod)


def told(of: ReportedPod, images: Mapping[str, Image | Failure]) -> RunningReport:
    """Returns the report on the pod, in a cluster of one amd64 and one arm64 node."""
    return report_running([PodImages(of, images)], [node("amd64"), node("arm64")], Compatibility(), "")


def only(of: ReportedPod, images: Mapping[str, Image | Failure]) -> RunningContainer:
    """Returns the pod's only container."""
    [found] = told(of, images).containers
    return found


def kinds(item: RunningContainer) -> list[tuple[Symptom, Certainty]]:
    """Returns the container's findings without their texts."""
    return [(each.kind, each.certainty) for each in item.findings]


def by_digest(letter: str) -> str:
    """Returns the reference that a runtime reports for the digest."""
    return f"{HOST}/team/app@{digest(letter)}"


def test_a_container_on_its_platform_has_no_finding() -> None:
    """Its index leads to the manifest for the node's platform."""
    image = index("e", AMD64, ARM64)
    found = only(pod("arm64", status("e")), {APP: image, by_digest("e"): image})
    assert (found.platform, found.platforms, found.digest) == (ARM64, [AMD64, ARM64], digest("e"))
    assert (found.chosen, found.state, found.findings) == (digest("r"), "running", [])


def test_a_container_whose_program_comes_from_a_volume_runs_anywhere() -> None:
    """Whatever its image is for, unless that is an index, whose pull fails."""
    on_arm = msgspec.json.decode(msgspec.json.encode(pod("arm64", status("e"))))
    mount = {"name": "tools", "mountPath": "/tools"}
    on_arm["spec"]["containers"][0] |= {"command": ["/tools/serve"], "volumeMounts": [mount]}
    on_arm["spec"]["volumes"] = [{"name": "tools", "emptyDir": {}}]
    data = msgspec.convert(on_arm, ReportedPod)
    assert kinds(only(data, {APP: manifest("e", AMD64)})) == []
    assert kinds(only(data, {APP: index("e", AMD64)})) == [(Symptom.MISMATCH, Certainty.KNOWN)]
    assert kinds(only(pod("arm64", status("e")), {APP: manifest("e", AMD64)})) == [(Symptom.MISMATCH, Certainty.KNOWN)]


def test_the_images_to_look_up_are_the_named_and_the_reported() -> None:
    """A configuration's digest alone is no reference; a scheme is dropped."""
    assert references_of(pod("arm64", status("e"))) == [APP, by_digest("e")]
    assert references_of(pod("arm64", status() | {"imageID": digest("c")})) == [APP]
    assert references_of(pod("arm64", status() | {"imageID": f"docker-pullable://{by_digest('e')}"})) == [
        APP,
        by_digest("e"),
    ]


@pytest.mark.parametrize(
    "failing",
    [
        {"state": BACK_OFF, "lastState": {"terminated": {"exitCode": 1, "reason": "Error", **AT_ONCE}}},
        {"state": BACK_OFF, "lastState": {"terminated": {"exitCode": 255, "reason": "Error", **AT_ONCE}}},
        {"state": {"terminated": {"exitCode": 1, "reason": "Error", **AT_ONCE}}},
        {"state": BACK_OFF, "lastState": {"terminated": {"exitCode": 255, "reason": "Error", **TOLD_LATE}}},
        {"state": {"waiting": {"reason": "RunContainerError", "message": "exec format error"}}},
        {"state": {"terminated": {"exitCode": 128, "reason": "StartError"}}},
    ],
)
def test_an_image_for_another_platform_that_fails_at_each_start(failing: dict[str, Any]) -> None:
    """The image is to blame, whatever exit code and words there are."""
    found = only(pod("arm64", status("a", restartCount=3, **failing)), {APP: manifest("a", AMD64)})
    assert kinds(found) == [(Symptom.CRASHES, Certainty.KNOWN)]
    assert found.findings[0].text == (
        f"image {APP} is built only for linux/amd64, and the node is linux/arm64: it fails at each start"
    )
    assert found.restarts == 3


def test_a_refused_pull_of_an_index_without_the_platform() -> None:
    """Nothing is reported by the runtime then."""
    waiting = status(state={"waiting": {"reason": "ImagePullBackOff"}})
    assert kinds(only(pod("amd64", waiting), {APP: index("e", ARM64)})) == [(Symptom.PULL_REFUSED, Certainty.KNOWN)]


def test_a_refused_pull_of_an_image_with_the_platform_is_no_finding() -> None:
    """Its cause is another: a missing secret, for one."""
    waiting = status(state={"waiting": {"reason": "ErrImagePull"}})
    assert kinds(only(pod("arm64", waiting), {APP: index("e", ARM64)})) == []


def test_an_image_for_another_platform_that_runs_is_a_mismatch() -> None:
    """Its configuration lies, or the node emulates."""
    assert kinds(only(pod("arm64", status("a")), {APP: manifest("a", AMD64)})) == [(Symptom.MISMATCH, Certainty.KNOWN)]


def test_a_crash_of_an_image_with_the_platform_is_not_about_architecture() -> None:
    """However soon it ends; the kernel's words beside it make it probable, and the words alone do not."""
    quick = {"exitCode": 1, "reason": "Error", **AT_ONCE}
    image = {APP: index("e", AMD64, ARM64)}
    crashed = status("e", state=BACK_OFF, lastState={"terminated": quick})
    assert kinds(only(pod("arm64", crashed), image)) == []
    saying = {"terminated": {**quick, "message": "exec /app: Exec format error\n"}}
    said = status("e", state=BACK_OFF, lastState=saying)
    assert kinds(only(pod("arm64", said), image)) == [(Symptom.CRASHES, Certainty.PROBABLE)]
    late = {"terminated": {"exitCode": 1, **LATER, "message": "exec format error"}}
    assert kinds(only(pod("arm64", status("e", state=BACK_OFF, lastState=late)), image)) == []


def test_a_crash_of_an_unknown_image_is_possible_or_probable() -> None:
    """A mere possibility is no fault; a success or a long run is not even that."""
    unknown = {APP: Failure(Cause.DENIED, "no")}
    quick = {"exitCode": 1, **AT_ONCE}
    crashed = pod("arm64", status("e", state=BACK_OFF, lastState={"terminated": quick}))
    report = told(crashed, unknown)
    assert kinds(report.containers[0]) == [(Symptom.CRASHES, Certainty.POSSIBLE)]
    assert not report.has_faults
    assert (report.containers[0].platforms, report.containers[0].cause) == (None, "denied")
    saying = status("e", state=BACK_OFF, lastState={"terminated": {**quick, "message": "exec format error"}})
    assert kinds(only(pod("arm64", saying), unknown)) == [(Symptom.CRASHES, Certainty.PROBABLE)]
    for ended in ({**quick, "exitCode": 0}, {"exitCode": 1, **LATER}, {"exitCode": 1}):
        assert kinds(only(pod("arm64", status("e", state={"terminated": ended})), unknown)) == []
    recovered = status("e", state=RUNNING, lastState={"terminated": quick})
    assert kinds(only(pod("arm64", recovered), unknown)) == []


def test_the_init_container_is_to_blame_if_it_fails() -> None:
    """Of two containers of a pod each is judged by its own image."""
    failing = {"name": "i", "state": {"terminated": {"exitCode": 1, **AT_ONCE}}}
    waiting = {"name": "c", "state": {"waiting": {"reason": "PodInitializing"}}}
    found = told(pod("arm64", waiting, init=failing), {APP: manifest("a", AMD64)}).containers
    assert [(each.role, kinds(each)[0][0]) for each in found] == [
        ("init container", Symptom.CRASHES),
        ("container", Symptom.MISMATCH),
    ]


def test_a_tag_that_has_lost_the_platform_is_named_with_the_remedy() -> None:
    """The digest that runs is the last that had it."""
    images = {APP: index("f", AMD64), by_digest("e"): index("e", AMD64, ARM64)}
    found = only(pod("arm64", status("e")), images)
    assert kinds(found) == [(Symptom.LOST_PLATFORM, Certainty.KNOWN)]
    assert by_digest("e") in found.findings[0].text
    assert found.platforms == [AMD64, ARM64]


def test_a_tag_that_has_gained_a_platform_is_no_fault() -> None:
    """It is good news."""
    report = told(pod("amd64", status("e")), {APP: index("f", AMD64, ARM64), by_digest("e"): index("e", AMD64)})
    assert kinds(report.containers[0]) == [(Symptom.GAINED_PLATFORM, Certainty.KNOWN)]
    assert not report.has_faults


def test_the_digest_of_a_manifest_within_the_tag_s_index_is_no_change() -> None:
    """A runtime reports whichever reference to the configuration it sorts first."""
    images = {APP: index("e", AMD64, ARM64), by_digest("r"): manifest("r", ARM64)}
    found = only(pod("arm64", status("r")), images)
    assert (found.findings, found.chosen) == ([], digest("r"))


def test_another_repository_s_name_says_nothing_of_the_tag() -> None:
    """The runtime knows the same image by it."""
    mirror = f"{HOST}/aaa/mirror@{digest('e')}"
    reported = status() | {"imageID": mirror}
    images = {APP: index("f", AMD64, ARM64), mirror: index("e", AMD64)}
    assert kinds(only(pod("amd64", reported), images)) == []


def test_nodes_that_contradict_themselves_are_named() -> None:
    """A label that is absent contradicts nothing."""
    nodes = [node("amd64"), node("arm64", label="amd64")]
    report = report_running([], nodes, Compatibility(), "")
    assert [(each.node, each.label, each.node_info) for each in report.nodes] == [
        ("arm64", "linux/amd64", "linux/arm64")
    ]
    assert report.has_faults


def test_a_pod_without_a_node_is_left_out() -> None:
    """Nothing of it runs."""
    assert told(pod("", status()), {}).containers == []


def test_a_node_that_states_no_platform_gives_no_finding() -> None:
    """Nor does one that is gone."""
    assert kinds(only(pod("gone", status("a")), {APP: manifest("a", AMD64)})) == []


def test_the_report_is_json() -> None:
    """And comes back whole."""
    report = told(pod("arm64", status("a")), {APP: manifest("a", AMD64)})
    assert msgspec.json.decode(msgspec.json.encode(report), type=RunningReport) == report


@pytest.mark.parametrize(
    ("spec", "phase", "mode", "counts"),
    [
        ({"nodeName": "amd64"}, "Running", Mode.ENFORCE, True),
        ({"nodeName": "amd64"}, "Pending", Mode.OBSERVE, True),
        ({"nodeName": "amd64"}, None, Mode.ENFORCE, True),
        ({"nodeName": "amd64"}, "Succeeded", Mode.ENFORCE, False),
        ({"nodeName": "amd64"}, "Failed", Mode.ENFORCE, False),
        ({"nodeName": "amd64"}, "Running", Mode.IGNORE, False),
        ({"nodeName": "amd64", "runtimeClassName": "wasm"}, "Running", Mode.ENFORCE, False),
        ({"nodeName": "amd64", "runtimeClassName": "gvisor"}, "Running", Mode.ENFORCE, True),
        ({}, "Pending", Mode.ENFORCE, False),
    ],
)
def test_what_counts(spec: dict[str, str], phase: str | None, mode: Mode, counts: bool) -> None:
    """A finished pod starts nowhere again, and what the operator or the author ignores is no fault."""
    policy = Policy(runtime_classes={"wasm": RuntimeClass("wasm", frozenset())})
    found = msgspec.convert({"spec": spec, "status": {"phase": phase}}, ReportedPod)
    assert is_counted(found, Overrides(mode=mode), policy) is counts
