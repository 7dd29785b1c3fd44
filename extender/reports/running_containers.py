"""What does not match between a container that runs, or should, and the platform of its node.

What a runtime reports as `imageID` proves nothing by itself: it may be the name of another image with the same
configuration, that of an index or that of one of its manifests. So it is read together with what the registry has. Nor
is a program of another architecture recognised by one sign alone: `exec format error` stands in no status by default,
and its exit code is that of many failures.
"""

import enum
from collections.abc import Iterable, Iterator
from datetime import datetime

import msgspec

from extender.errors import InvalidReference
from extender.images.content import Answer, Content, is_by_operator
from extender.images.platform import Compatibility, Platform, runs_on
from extender.images.reference import ImageReference, parse_reference
from extender.kubernetes.reported_v1 import ContainerStateTerminated, ContainerStatus, PodStatus
from extender.placement.facts import ImageFact, PodImage, RunsOn, Unknown, fact_of
from extender.placement.reasons import built_text, platforms_text
from extender.reports.audit_report import FindingRule

_EXEC_FORMAT = "exec format error"
# Times have a precision of one second, and a program that the kernel refuses ends at once.
_MOST_SECONDS = 1.0
# A runtime may report that end late; where the image itself says that it cannot run, the wider bound misleads nobody.
_MOST_SECONDS_KNOWN = 10.0
_PULL_REFUSED = frozenset({"ErrImagePull", "ImagePullBackOff"})
_NOT_STARTED = frozenset({"RunContainerError", "CreateContainerError", "StartError", "ContainerCannotRun"})


class ContainerOutcome(enum.Enum):
    """What the kubelet says of a container, as far as it can be about its platform."""

    OTHER = enum.auto()
    FAILS_AT_START = enum.auto()
    SAYS_EXEC_FORMAT = enum.auto()
    PULL_REFUSED = enum.auto()


class RunningContainer(msgspec.Struct, frozen=True):
    """A container on a node of `platform`. `reported` is the image's name by digest as its runtime reports it."""

    name: str
    image: PodImage
    reported: str
    platform: Platform
    outcome: ContainerOutcome


class PlatformFault(msgspec.Struct, frozen=True):
    """What is wrong with a container, in words that name the image to blame."""

    rule: FindingRule
    text: str


def containers_of(
    images: Iterable[tuple[str, PodImage]], status: PodStatus, platform: Platform
) -> Iterator[RunningContainer]:
    """The containers of a pod on a node of that platform; `images` has their names."""
    lists = (status.container_statuses, status.init_container_statuses, status.ephemeral_container_statuses)
    statuses = {each.name: each for some in lists for each in some or ()}
    for name, image in images:
        found = statuses.get(name, ContainerStatus(name))
        yield RunningContainer(name, image, _reported(found), platform, _outcome(found))


def other_name(container: RunningContainer, named: Answer, digest: str) -> str:
    """What to look up beside the image that the pod names, of which `named` and `digest` are known; mostly nothing.

    It is what the runtime reports, unless that is the same image, or the operator says what the image runs on.
    """
    is_same = bool(digest) and container.reported.endswith(f"@{digest}")
    return "" if is_same or is_by_operator(named) else container.reported


def fault_of(
    container: RunningContainer, named: Answer, reported: Answer, compatibility: Compatibility
) -> PlatformFault | None:
    """What is wrong with the container; None if nothing is known to be.

    `named` is the answer for the image as the pod names it, and `reported` for what its runtime reports, None where
    that was not looked up.
    """
    decisive = next((each for each in (reported, named) if isinstance(each, Content) and each.platforms), named)
    fact = fact_of(container.image, decisive, may_be_pending=False)
    says = container.outcome is ContainerOutcome.SAYS_EXEC_FORMAT
    match fact:
        case RunsOn() if not runs_on(fact.platforms, container.platform, compatibility):
            return _of_another_platform(container, fact)
        case RunsOn() if says:
            text = f"{_claims(fact)} {container.platform}, and its program fails as one of another architecture does"
            return _fault(FindingRule.EXEC_FORMAT_ERROR, container, f"{text}; {_REMEDY}")
        case RunsOn() if decisive is reported:
            return _of_tag(container, fact_of(container.image, named, may_be_pending=False), compatibility)
        case Unknown() if says:
            text = f"is not known; it fails as a program of another architecture than {container.platform} does"
            return _fault(FindingRule.EXEC_FORMAT_ERROR, container, f"{text}; {_REMEDY}")
        case _:
            return None


_REMEDY = "build it again, or say in placement.images what it runs on"


def _claims(fact: RunsOn) -> str:
    return "is said in placement.images to run on" if fact.by_operator else "claims"


def _of_another_platform(container: RunningContainer, fact: RunsOn) -> PlatformFault:
    built_for = f"{built_text(fact)}, and the node is {container.platform}"
    match container.outcome:
        case ContainerOutcome.PULL_REFUSED:
            return _fault(FindingRule.PULL_REFUSED, container, f"{built_for}: its pull is refused")
        case ContainerOutcome.OTHER:
            return _fault(FindingRule.RUNS_ON_WRONG_PLATFORM, container, built_for)
        case _:
            return _fault(FindingRule.EXEC_FORMAT_ERROR, container, f"{built_for}: it fails at each start")


def _of_tag(container: RunningContainer, now: ImageFact, compatibility: Compatibility) -> PlatformFault | None:
    """What the tag has lost since the runtime pulled; nothing where the two images are of different repositories."""
    if not isinstance(now, RunsOn) or runs_on(now.platforms, container.platform, compatibility):
        return None
    if not _is_of_one_repository(container.image.reference, container.reported):
        return None
    text = (
        f"is now built only for {platforms_text(now.platforms)}: the next start on a node of {container.platform} "
        f"fails; {container.reported} still has it"
    )
    return _fault(FindingRule.TAG_LOST_PLATFORM, container, text)


def _fault(rule: FindingRule, container: RunningContainer, text: str) -> PlatformFault:
    return PlatformFault(rule, f"image {container.image.reference} {text}")


def _reported(status: ContainerStatus) -> str:
    """The reference by digest in `imageID`; empty where it is a digest alone, which may be a configuration's."""
    reported = (status.image_id or "").rpartition("://")[2]
    return reported if "@" in reported else ""


def _outcome(status: ContainerStatus) -> ContainerOutcome:
    if status.state.waiting and status.state.waiting.reason in _PULL_REFUSED:
        return ContainerOutcome.PULL_REFUSED
    if _fails_at_start(status, _MOST_SECONDS) and _says_exec_format(status):
        return ContainerOutcome.SAYS_EXEC_FORMAT
    return ContainerOutcome.FAILS_AT_START if _fails_at_start(status, _MOST_SECONDS_KNOWN) else ContainerOutcome.OTHER


def _is_of_one_repository(named: str, reported: str) -> bool:
    first, second = _parse(named), _parse(reported)
    return bool(first and second and first.repository == second.repository)


def _parse(text: str) -> ImageReference | None:
    try:
        return parse_reference(text)
    except InvalidReference:
        return None


def _fails_at_start(status: ContainerStatus, most_seconds: float) -> bool:
    """Whether the container's last end was a failure so soon after its start, or it could not be started."""
    waiting = status.state.waiting
    if waiting and waiting.reason in _NOT_STARTED:
        return True
    ended = status.state.terminated or (None if status.state.running else status.last_state.terminated)
    if ended is None:
        return False
    return ended.exit_code != 0 and (ended.reason in _NOT_STARTED or _lasted_seconds(ended) <= most_seconds)


def _lasted_seconds(ended: ContainerStateTerminated) -> float:
    try:
        started = datetime.fromisoformat(ended.started_at or "")
        finished = datetime.fromisoformat(ended.finished_at or "")
        return (finished - started).total_seconds()
    except (ValueError, TypeError):
        return float("inf")


def _says_exec_format(status: ContainerStatus) -> bool:
    """Whether a message repeats the kernel's words, as with `terminationMessagePolicy: FallbackToLogsOnError`."""
    states = (status.state, status.last_state)
    messages = [each.message for state in states for each in (state.waiting, state.terminated) if each]
    return any(_EXEC_FORMAT in (message or "").lower() for message in messages)
