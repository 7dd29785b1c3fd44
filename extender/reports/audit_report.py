"""What the audit reports: images, workloads, nodes and findings.

The structs are what `audit -o json` prints; their schema has a version, which changes when a field is removed or means
something else.
"""

import enum
from collections.abc import Mapping

import msgspec

from extender.placement.nodes import PREFIX

SCHEMA = f"{PREFIX}audit/v1"


class RunAnswer(enum.StrEnum):
    """Whether a workload or an image runs on a platform."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


class FindingRule(enum.StrEnum):
    """What is found."""

    IMAGE_LACKS_PLATFORM = "image-lacks-platform"
    IMAGE_UNKNOWN = "image-unknown"
    NO_COMMON_PLATFORM = "no-common-platform"
    SELECTOR_BLOCKS = "selector-blocks"
    AFFINITY_BLOCKS = "affinity-blocks"
    TAINT_NOT_TOLERATED = "taint-not-tolerated"
    CONSTRAINT_NOT_NEEDED = "constraint-not-needed"
    DAEMON_SET_LACKS_PLATFORM = "daemonset-lacks-platform"
    DAEMON_SET_TAINT = "daemonset-taint-not-tolerated"
    RUNS_ON_WRONG_PLATFORM = "runs-on-wrong-platform"
    EXEC_FORMAT_ERROR = "exec-format-error"
    PULL_REFUSED = "pull-refused"
    TAG_LOST_PLATFORM = "tag-lost-platform"
    NODE_LABELS = "node-labels-contradict-kubelet"
    PARTLY_GIVEN = "partly-given"


RULES: Mapping[FindingRule, str] = {
    FindingRule.IMAGE_LACKS_PLATFORM: "An image is not built for a platform, so the workloads that use it cannot run "
    "there",
    FindingRule.IMAGE_UNKNOWN: "The platforms of an image are not known",
    FindingRule.NO_COMMON_PLATFORM: "The images of a workload have no platform in common, so it can run nowhere",
    FindingRule.SELECTOR_BLOCKS: "The nodeSelector of a workload allows no node of a platform on which its images run",
    FindingRule.AFFINITY_BLOCKS: "The node affinity of a workload allows no node of a platform on which its images run",
    FindingRule.TAINT_NOT_TOLERATED: "A workload does not tolerate the taint of nodes on which its images run",
    FindingRule.CONSTRAINT_NOT_NEEDED: "A workload may run on more than its author allows: none of its images needs a "
    "nodeSelector, node affinity or toleration on architecture",
    FindingRule.DAEMON_SET_LACKS_PLATFORM: "A DaemonSet targets nodes on which its images do not run",
    FindingRule.DAEMON_SET_TAINT: "A DaemonSet does not tolerate the taint of nodes that it targets",
    FindingRule.RUNS_ON_WRONG_PLATFORM: "A container runs on a node for whose platform its image is not built",
    FindingRule.EXEC_FORMAT_ERROR: "A container fails at each start, as a program of another architecture does",
    FindingRule.PULL_REFUSED: "A node's runtime does not pull an image that lacks the node's platform",
    FindingRule.TAG_LOST_PLATFORM: "A container runs, and its tag has since lost its node's platform",
    FindingRule.NODE_LABELS: "The labels of a node, by which affinity goes, name another platform than its kubelet",
    FindingRule.PARTLY_GIVEN: "A workload is not judged, since somebody gives it an image later",
}
"""What each rule means."""


class Weight(msgspec.Struct, frozen=True):
    """What workloads take: how many there are, how many pods they want, and what these request together."""

    workloads: int = 0
    pods: int = 0
    cpu_cores: float = 0.0
    memory_bytes: int = 0

    def __add__(self, other: "Weight") -> "Weight":
        """Both together."""
        return Weight(
            self.workloads + other.workloads,
            self.pods + other.pods,
            round(self.cpu_cores + other.cpu_cores, 6),
            self.memory_bytes + other.memory_bytes,
        )


class NewerTag(msgspec.Struct, frozen=True):
    """The first newer tag of an image that runs on a platform: `tag` is None if there is none, and `why` says why."""

    platform: str
    tag: str | None
    why: str = ""


class AuditedUse(msgspec.Struct, frozen=True):
    """Where an image is used. `is_injected`: pods have it that the workload's template does not name."""

    workload: str
    used_as: str
    name: str
    is_injected: bool = False


class AuditedImage(msgspec.Struct, frozen=True, kw_only=True):
    """One image. `state` is known, anywhere or unknown; of an unknown one `cause` and `detail` say why.

    `lacks` has the targets on which it does not run, if a workload uses it that is judged. `blocks` weighs the
    workloads that it keeps from one of them, and `unblocks` those that nothing else keeps from it: what a build of this
    image alone would set free. `owner` is own or vendor. `by_operator`: it is known, or is not, by `placement.images`.
    """

    reference: str
    canonical: str | None
    digest: str | None
    state: str
    platforms: list[str]
    lacks: list[str]
    cause: str
    detail: str
    owner: str
    used_by: list[AuditedUse]
    blocks: Weight
    unblocks: Weight
    newer: list[NewerTag] = []
    by_operator: bool = False


class Blocker(msgspec.Struct, frozen=True):
    """What keeps a workload from a platform; `subject` is the image, label, requirement or taint."""

    rule: FindingRule
    subject: str
    text: str


class WorkloadPlatform(msgspec.Struct, frozen=True):
    """Whether a workload runs on a platform: by its images alone, and with all that its pods ask of nodes.

    `nodes` counts the cluster's nodes of the platform, 0 if there are none or no cluster was asked.
    """

    platform: str
    answer: RunAnswer
    images: RunAnswer
    nodes: int
    blockers: list[Blocker]


class AuditedWorkload(msgspec.Struct, frozen=True, kw_only=True):
    """One workload. `weight` is what its pods request; `skipped` says why it is not judged, else it is empty."""

    namespace: str
    kind: str
    name: str
    source: str
    managed_by: str
    weight: Weight
    images: list[str]
    platforms: list[WorkloadPlatform]
    skipped: str = ""


class AuditedNodes(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes of one platform: what they can give, and what of the workloads cannot use it."""

    platform: str
    nodes: int
    cpu_cores: float
    memory_bytes: int
    blocked: Weight


class PlatformSummary(msgspec.Struct, frozen=True, kw_only=True):
    """How much of all could run on a platform today."""

    platform: str
    yes: Weight
    no: Weight
    unknown: Weight


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is found. `fingerprint` stays the same as long as it is the same finding.

    `workloads` are those that it concerns, and `sources` the document of each, where they are from manifests.
    `level` is error for a blocker and for what runs on the wrong platform, warning for what is unknown or for a
    DaemonSet's nodes, note for the rest.
    """

    rule: FindingRule
    level: str
    platform: str
    subject: str
    workloads: list[str]
    sources: list[str]
    message: str
    fingerprint: str


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    """The whole report. `targets` are the platforms that were looked at. `problems` say what could not be read.

    `is_partial`: it was interrupted before every image was looked up.
    """

    schema: str
    is_partial: bool
    targets: list[str]
    required: list[str]
    total: Weight
    summary: list[PlatformSummary]
    nodes: list[AuditedNodes]
    images: list[AuditedImage]
    workloads: list[AuditedWorkload]
    findings: list[Finding]
    problems: list[str]

    @property
    def is_weighed_by_pods(self) -> bool:
        """Whether pods are the measure, since some workload has pods that request no CPU."""
        return any(each.weight.pods and not each.weight.cpu_cores for each in self.workloads)

    @property
    def blocking_images(self) -> list[AuditedImage]:
        """The images that lack a target, what blocks most first: a work plan."""
        found = [image for image in self.images if image.lacks]
        return sorted(found, key=lambda each: (*self.heaviest_first(each.blocks), each.reference))

    def heaviest_first(self, weight: Weight) -> tuple[float, ...]:
        """What sorts weights by the measure of this report, the heaviest first."""
        of_requests = (-weight.cpu_cores, -weight.memory_bytes)
        return (-weight.pods, *of_requests) if self.is_weighed_by_pods else (*of_requests, -weight.pods)
