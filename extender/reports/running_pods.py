"""What runs on which platform: the image of each container, and what does not match its node.

What a runtime reports as `imageID` proves nothing by itself: it may be the name of another image with the same
configuration, that of an index or that of one of its manifests. So it is read together with what the registry has. Nor
is a program of another architecture told by one sign alone: `exec format error` stands in no status by default, and its
exit code is that of many failures.
"""

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

import msgspec

from extender.errors import InvalidReference
from extender.images.content import Failure, content_of
from extender.images.manifest import Image, Kind
from extender.images.platform import Compatibility, Platform, runs_on
from extender.images.reference import ImageReference, parse_reference
from extender.kubernetes.core_v1 import NodeName
from extender.kubernetes.reported_v1 import (
    ContainerState,
    ContainerStateTerminated,
    ContainerStatus,
    NamedContainer,
    ReportedNode,
    ReportedPod,
)
from extender.placement.cluster_nodes import ARCHITECTURE, OPERATING_SYSTEM
from extender.placement.facts import Anywhere, PodImage, Role, fact_of, role_of
from extender.placement.nodes import name_of_node, platform_of_node
from extender.placement.policy import PREFIX, Overrides, Policy, is_ignored
from extender.placement.reasons import platforms_text

SCHEMA = f"{PREFIX}running/v1"
_EXEC_FORMAT = "exec format error"
# Times have a precision of one second, and a program that the kernel refuses ends at once.
_MOST_SECONDS = 1.0
# A runtime may tell of that end late; where the image itself says that it cannot run, the wider bound misleads nobody.
_MOST_SECONDS_KNOWN = 10.0
_PULL_REFUSED = frozenset({"ErrImagePull", "ImagePullBackOff"})
_NOT_STARTED = frozenset({"RunContainerError", "CreateContainerError", "StartError", "ContainerCannotRun"})


class Symptom(enum.StrEnum):
    """What is wrong with a container, or will be; `gained-platform` alone is no fault."""

    CRASHES = "crashes"
    PULL_REFUSED = "pull-refused"
    MISMATCH = "mismatch"
    LOST_PLATFORM = "lost-platform"
    GAINED_PLATFORM = "gained-platform"


class Certainty(enum.StrEnum):
    """How sure a finding is: known by the image's own platforms, or inferred from how the container fails."""

    KNOWN = "known"
    PROBABLE = "probable"
    POSSIBLE = "possible"


class RunningFinding(msgspec.Struct, frozen=True):
    """One finding about a container, with the sentence that explains it and names the image to blame."""

    kind: Symptom
    certainty: Certainty
    text: str


class RunningContainer(msgspec.Struct, frozen=True, kw_only=True):
    """One container on a node.

    `image` is as the pod names it, `reported` as the runtime does. `digest` is that of the reported index or manifest.
    `chosen` is the digest of the manifest for the node's platform, empty if that is not known. `platforms` are those of
    the reported image, else of the named one; None if neither is known, for `cause`.
    """

    namespace: str
    pod: str
    container: str
    role: str
    node: str
    platform: str
    image: str
    reported: str
    digest: str
    chosen: str
    platforms: list[str] | None
    cause: str
    state: str
    restarts: int
    findings: list[RunningFinding]


class ContradictoryNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node whose labels say another platform than its kubelet."""

    node: str
    label: str
    node_info: str


class RunningReport(msgspec.Struct, frozen=True, kw_only=True):
    """Every container that is bound to a node, by namespace and pod, and the nodes that contradict themselves."""

    schema: str
    containers: list[RunningContainer]
    nodes: list[ContradictoryNode]

    @property
    def has_faults(self) -> bool:
        """Whether anything is wrong, or will be at the next start."""
        return bool(self.nodes) or any(is_fault(each) for item in self.containers for each in item.findings)


def is_fault(finding: RunningFinding) -> bool:
    """Whether the finding is something to mend: neither good news nor a mere possibility."""
    return finding.kind is not Symptom.GAINED_PLATFORM and finding.certainty is not Certainty.POSSIBLE


class PodImages(NamedTuple):
    """A pod, and what its registries say of each of `references_of` it."""

    pod: ReportedPod
    images: Mapping[str, Image | Failure]


class _ContainerUse(NamedTuple):
    """A container as the pod asks for it, as the kubelet reports it, and what it is to the pod."""

    role: str
    container: NamedContainer
    status: ContainerStatus
    image_role: Role


def references_of(pod: ReportedPod) -> list[str]:
    """The images to look up for a pod: as it names them, and as the runtime reports them by digest."""
    found = dict.fromkeys(reference for use in _uses(pod) for reference in (use.container.image or "", _reported(use)))
    return [reference for reference in found if reference]


def is_counted(pod: ReportedPod, overrides: Overrides, policy: Policy) -> bool:
    """Whether the pod is bound to a node, has not finished, is not ignored, and runs what its node's platform says."""
    is_finished = pod.status.phase in ("Succeeded", "Failed") or pod.spec.runtime_class_name in policy.runtime_classes
    return bool(pod.spec.node_name) and not is_finished and not is_ignored(pod.spec, overrides, policy)


def report_running(
    pods: Iterable[PodImages], nodes: Sequence[ReportedNode], compatibility: Compatibility, level_label: str
) -> RunningReport:
    """The report on all containers of pods that are bound to a node. O(containers)."""
    platforms = {name_of_node(node): platform_of_node(node, level_label) for node in nodes}
    containers = [
        _container(item, use, platforms.get(NodeName(item.pod.spec.node_name)), compatibility)
        for item in pods
        if item.pod.spec.node_name
        for use in _uses(item.pod)
    ]
    return RunningReport(
        schema=SCHEMA,
        containers=sorted(containers, key=lambda each: (each.namespace, each.pod)),
        nodes=list(_contradictions(nodes)),
    )


def _uses(pod: ReportedPod) -> Iterator[_ContainerUse]:
    spec, status = pod.spec, pod.status
    for role, containers, statuses in (
        ("init container", spec.init_containers, status.init_container_statuses),
        ("container", spec.containers, status.container_statuses),
        ("ephemeral container", spec.ephemeral_containers, status.ephemeral_container_statuses),
    ):
        by_name = {each.name: each for each in statuses or ()}
        for container in containers or ():
            is_sidecar = role == "init container" and container.restart_policy == "Always"
            yield _ContainerUse(
                "sidecar" if is_sidecar else role,
                container,
                by_name.get(container.name, ContainerStatus(container.name)),
                role_of(container, spec.volumes),
            )


def _reported(use: _ContainerUse) -> str:
    """The reference by digest in `imageID`; empty where it is a digest alone, which may be a configuration's."""
    reported = (use.status.image_id or "").rpartition("://")[2]
    return reported if "@" in reported else ""


def _container(
    item: PodImages, use: _ContainerUse, platform: Platform | None, compatibility: Compatibility
) -> RunningContainer:
    named, reported = use.container.image or "", _reported(use)
    judged = _judged(item.images, named, reported)
    failure = item.images.get(named)
    metadata = item.pod.metadata
    findings = _findings(item.images, use, platform, compatibility) if platform else ()
    return RunningContainer(
        namespace=metadata.namespace or "",
        pod=metadata.name or "",
        container=use.container.name,
        role=use.role,
        node=item.pod.spec.node_name or "",
        platform=str(platform) if platform else "",
        image=named,
        reported=reported,
        digest=reported.rpartition("@")[2],
        chosen=_chosen(judged, platform, compatibility) if judged and platform else "",
        platforms=sorted(map(str, content_of(judged).platforms)) if judged else None,
        cause=failure.cause.value if not judged and isinstance(failure, Failure) else "",
        state=_state_text(use.status.state),
        restarts=use.status.restart_count,
        findings=list(findings),
    )


def _judged(images: Mapping[str, Image | Failure], named: str, reported: str) -> Image | None:
    """The image that the runtime reports, if its registry still has it; else the one that the pod names."""
    found = (images.get(reference) for reference in (reported, named))
    return next((image for image in found if isinstance(image, Image) and image.entries), None)


def _chosen(image: Image, platform: Platform, compatibility: Compatibility) -> str:
    """The digest of the manifest that a runtime takes on the platform: of an index its first fitting entry."""
    if image.kind is not Kind.INDEX:
        return image.digest
    exact = [entry.digest for entry in image.entries if entry.platform == platform]
    near = (entry.digest for entry in image.entries if runs_on(frozenset({entry.platform}), platform, compatibility))
    return exact[0] if exact else next(near, "")


def _findings(
    images: Mapping[str, Image | Failure], use: _ContainerUse, platform: Platform, compatibility: Compatibility
) -> Iterator[RunningFinding]:
    named, reported = use.container.image or "", _reported(use)
    judged = _judged(images, named, reported)
    status = use.status
    if judged is None:
        yield from _of_unknown(use, platform)
        return
    if isinstance(fact_of(PodImage(named, use.image_role), content_of(judged), may_be_pending=False), Anywhere):
        return
    name = f"image {named}"
    built_for = f"is built only for {platforms_text(content_of(judged).platforms)}, and the node is {platform}"
    if not runs_on(content_of(judged).platforms, platform, compatibility):
        waiting = status.state.waiting.reason if status.state.waiting else ""
        if waiting in _PULL_REFUSED:
            yield RunningFinding(Symptom.PULL_REFUSED, Certainty.KNOWN, f"{name} {built_for}: its pull is refused")
        elif _fails_at_start(status, _MOST_SECONDS_KNOWN):
            yield RunningFinding(Symptom.CRASHES, Certainty.KNOWN, f"{name} {built_for}: it fails at each start")
        else:
            yield RunningFinding(Symptom.MISMATCH, Certainty.KNOWN, f"{name} {built_for}")
        return
    if _fails_at_start(status) and says_exec_format(status):
        claims = f"{name} claims {platform}, and its program fails as one of another architecture does"
        yield RunningFinding(Symptom.CRASHES, Certainty.PROBABLE, claims)
    yield from _of_tag(images, named, reported, platform, compatibility)


def _of_unknown(use: _ContainerUse, platform: Platform) -> Iterator[RunningFinding]:
    """What the way in which a container fails says of an image of which no registry tells anything."""
    if not _fails_at_start(use.status):
        return
    name = f"image {use.container.image or ''} is not known"
    if says_exec_format(use.status):
        fails = f"{name}; it fails at each start as a program of another architecture than {platform} does"
        yield RunningFinding(Symptom.CRASHES, Certainty.PROBABLE, fails)
    else:
        fails = f"{name}; it ends within a second of each start, so it may be for another platform than {platform}"
        yield RunningFinding(Symptom.CRASHES, Certainty.POSSIBLE, fails)


def _of_tag(
    images: Mapping[str, Image | Failure], named: str, reported: str, platform: Platform, compatibility: Compatibility
) -> Iterator[RunningFinding]:
    """What the tag has lost or gained since the runtime pulled; nothing where the two images cannot be compared."""
    now, then = images.get(named), images.get(reported)
    if not (isinstance(now, Image) and isinstance(then, Image)) or now.digest == then.digest:
        return
    if (
        not now.entries
        or not _is_of_one_repository(named, reported)
        or any(entry.digest == then.digest for entry in now.entries)
    ):
        return
    has, had = content_of(now).platforms, content_of(then).platforms
    if not runs_on(has, platform, compatibility):
        lost = (
            f"image {named} is now built only for {platforms_text(has)}: the next start on this node fails; {reported} "
        )
        yield RunningFinding(Symptom.LOST_PLATFORM, Certainty.KNOWN, f"{lost}still has {platform}")
    gained = has - had
    if gained and then.kind is Kind.INDEX:
        text = f"image {named} is by now built for {platforms_text(gained)} too"
        yield RunningFinding(Symptom.GAINED_PLATFORM, Certainty.KNOWN, text)


def _is_of_one_repository(named: str, reported: str) -> bool:
    first, second = _parse(named), _parse(reported)
    return bool(first and second and first.repository == second.repository)


def _parse(text: str) -> ImageReference | None:
    try:
        return parse_reference(text)
    except InvalidReference:
        return None


def _fails_at_start(status: ContainerStatus, most_seconds: float = _MOST_SECONDS) -> bool:
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


def says_exec_format(status: ContainerStatus) -> bool:
    """Whether a message repeats the kernel's words, as with `terminationMessagePolicy: FallbackToLogsOnError`."""
    states = (status.state, status.last_state)
    messages = [each.message for state in states for each in (state.waiting, state.terminated) if each]
    return any(_EXEC_FORMAT in (message or "").lower() for message in messages)


def _state_text(state: ContainerState) -> str:
    if state.running:
        return "running"
    if state.terminated:
        return f"terminated: {state.terminated.reason or 'Unknown'}, exit code {state.terminated.exit_code}"
    return f"waiting: {(state.waiting and state.waiting.reason) or 'Unknown'}"


def _contradictions(nodes: Sequence[ReportedNode]) -> Iterator[ContradictoryNode]:
    for node in nodes:
        labels = (node.metadata and node.metadata.labels) or {}
        info = node.status and node.status.node_info
        if not info:
            continue
        label = (labels.get(OPERATING_SYSTEM) or "", labels.get(ARCHITECTURE) or "")
        stated = (info.operating_system or "", info.architecture or "")
        if any(ours and theirs and ours != theirs for ours, theirs in zip(label, stated, strict=True)):
            yield ContradictoryNode(node=name_of_node(node), label="/".join(label), node_info="/".join(stated))
