"""What runs on the wrong platform: by the images' own platforms first, and by how a container fails second."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from extender.images.content import Answer, Cause, Content, Failure
from extender.images.manifest import Kind
from extender.images.platform import Compatibility, parse_platform
from extender.kubernetes.reported_v1 import PodStatus
from extender.placement.facts import PodImage, Role
from extender.reports.audit_report import FindingRule
from extender.reports.running_containers import PlatformFault, containers_of, fault_of
from tests.builders import index

AMD64, ARM64 = "linux/amd64", "linux/arm64"
HOST = "registry.example.com"
APP = f"{HOST}/team/app:1"
BY_DIGEST = f"{HOST}/team/app@sha256:{'e' * 64}"
TOLD_LATE = {"startedAt": "2026-11-22T10:00:00Z", "finishedAt": "2026-11-22T10:00:03Z"}
AT_ONCE = {"startedAt": "2026-11-22T10:00:00Z", "finishedAt": "2026-11-22T10:00:00Z"}
LATER = {"startedAt": "2026-11-22T10:00:00Z", "finishedAt": "2026-11-22T10:00:59Z"}
BACK_OFF = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s restarting failed container=c"}}
RUNNING = {"running": {"startedAt": "2026-11-22T10:00:00Z"}}
SAYING = {"exitCode": 1, "reason": "Error", **AT_ONCE, "message": "exec /app: Exec format error\n"}
UNKNOWN = Failure(Cause.DENIED, "no")


def manifest(platform: str) -> Content:
    return Content(Kind.MANIFEST, frozenset((parse_platform(platform),)), states_platforms=False)


def fault(
    named: Answer, reported: Answer = None, *, on: str = ARM64, role: Role = Role.CONTAINER, **said: Any
) -> PlatformFault | None:
    status = {"containerStatuses": [{"name": "c", "imageID": BY_DIGEST, "state": RUNNING, **said}]}
    images = [("c", PodImage(APP, role))]
    [container] = containers_of(images, msgspec.convert(status, PodStatus), parse_platform(on))
    return fault_of(container, named, reported, Compatibility())


def rule(*answers: Answer, **said: Any) -> FindingRule | None:
    found = fault(*answers, **said)
    return found.rule if found else None


def test_a_container_on_its_platform_has_no_fault() -> None:
    image = index(AMD64, ARM64)
    assert rule(image) is rule(image, image) is rule(UNKNOWN) is None


@pytest.mark.parametrize(
    "failing",
    [
        {"state": BACK_OFF, "lastState": {"terminated": {"exitCode": 1, "reason": "Error", **AT_ONCE}}},
        {"state": {"terminated": {"exitCode": 1, "reason": "Error", **AT_ONCE}}},
        {"state": BACK_OFF, "lastState": {"terminated": {"exitCode": 255, "reason": "Error", **TOLD_LATE}}},
        {"state": {"waiting": {"reason": "RunContainerError", "message": "exec format error"}}},
        {"state": {"terminated": {"exitCode": 128, "reason": "StartError"}}},
    ],
)
def test_an_image_for_another_platform_that_fails_at_each_start(failing: Mapping[str, Any]) -> None:
    """The image is to blame, whatever exit code and words there are."""
    assert fault(manifest(AMD64), **failing) == PlatformFault(
        FindingRule.EXEC_FORMAT_ERROR,
        f"image {APP} is built only for linux/amd64, and the node is linux/arm64: it fails at each start",
    )


@pytest.mark.parametrize("reason", ["ErrImagePull", "ImagePullBackOff"])
def test_a_refused_pull_is_about_the_platform_where_the_index_lacks_it(reason: str) -> None:
    """Otherwise its cause is another: a missing secret, for one."""
    waiting = {"state": {"waiting": {"reason": reason}}, "imageID": ""}
    assert rule(index(ARM64), on=AMD64, **waiting) is FindingRule.PULL_REFUSED
    assert rule(index(ARM64), **waiting) is None


def test_an_image_for_another_platform_that_runs() -> None:
    """Its configuration lies, or the node emulates; a program that comes from a volume runs anywhere."""
    assert rule(manifest(AMD64)) is FindingRule.RUNS_ON_WRONG_PLATFORM
    assert rule(manifest(AMD64), role=Role.DATA) is None
    assert rule(index(AMD64), role=Role.DATA) is FindingRule.RUNS_ON_WRONG_PLATFORM


@pytest.mark.parametrize("image", [index(AMD64, ARM64), UNKNOWN])
def test_a_crash_is_about_architecture_where_the_kernel_says_so_at_once(image: Answer) -> None:
    """Of an image that claims the platform, and of one of which nothing is known; many programs end at once."""
    assert rule(image, state=BACK_OFF, lastState={"terminated": SAYING}) is FindingRule.EXEC_FORMAT_ERROR
    for ended in ({**SAYING, "message": "no"}, {**SAYING, **LATER}, {**SAYING, "exitCode": 0}):
        assert rule(image, state={"terminated": ended}) is None
    assert rule(image, state=RUNNING, lastState={"terminated": SAYING}) is None


def test_a_tag_that_has_lost_the_platform_is_named_with_the_remedy() -> None:
    """The digest that runs is the last that had it; another repository's name says nothing of the tag."""
    found = fault(index(AMD64), index(AMD64, ARM64))
    assert found
    assert found.rule is FindingRule.TAG_LOST_PLATFORM
    assert BY_DIGEST in found.text
    mirror = f"docker-pullable://{HOST}/aaa/mirror@sha256:{'e' * 64}"
    assert rule(index(AMD64), index(AMD64, ARM64), imageID=mirror) is None
    assert rule(index(AMD64, ARM64), manifest(ARM64)) is rule(UNKNOWN, manifest(ARM64)) is None


@pytest.mark.parametrize(
    ("said", "reported"),
    [(f"docker-pullable://{BY_DIGEST}", BY_DIGEST), (BY_DIGEST, BY_DIGEST), (f"sha256:{'c' * 64}", ""), (None, "")],
)
def test_what_is_reported_is_a_name_by_digest(said: str | None, reported: str) -> None:
    status = msgspec.convert({"initContainerStatuses": [{"name": "c", "imageID": said}]}, PodStatus)
    [container] = containers_of([("c", PodImage(APP))], status, parse_platform(ARM64))
    assert container.reported == reported
