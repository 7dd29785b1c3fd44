"""The audit: which images, workloads and DaemonSets keep a cluster from using an architecture, and what they take.

`audit` decides with the functions of `placement`.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeGuard

import msgspec

from extender.errors import InvalidReference
from extender.images.content import Answer, Cause, is_by_operator
from extender.images.platform import Platform, runs_on
from extender.images.reference import parse_reference
from extender.kubernetes.reported_v1 import ReportedNode
from extender.placement.facts import (
    Anywhere,
    Fit,
    ImageFact,
    Pending,
    PodImage,
    RunsOn,
    Unknown,
    fact_of,
    fit,
    known_platforms,
)
from extender.placement.node_match import Rule, obstacles
from extender.placement.nodes import ARCHITECTURE, OPERATING_SYSTEM, USUAL, platform_of_node
from extender.placement.planning import AdmissionSettings
from extender.placement.policy import Policy, common_platforms
from extender.placement.relaxing import Relaxer
from extender.placement.webhook_reach import WebhookReach
from extender.reports.audit_report import (
    SCHEMA,
    Audit,
    AuditedImage,
    AuditedNodes,
    AuditedUse,
    AuditedWorkload,
    Finding,
    FindingRule,
    NewerTag,
    PlatformSummary,
    RunAnswer,
    Weight,
)
from extender.reports.quantities import counted, parse_quantity
from extender.reports.running_containers import RunningContainer, fault_of
from extender.reports.workload_judgement import JudgedWorkload, WorkloadJudge
from extender.reports.workload_reports import RunningPods, Workload

_OWN, _VENDOR = "own", "vendor"
_OF_AUTHORS = (FindingRule.SELECTOR_BLOCKS, FindingRule.AFFINITY_BLOCKS)
# Registries of which images are somebody else's, unless the caller says which are their own.
_PUBLIC = frozenset(
    ("docker.io", "quay.io", "ghcr.io", "gcr.io", "registry.k8s.io", "k8s.gcr.io", "public.ecr.aws", "nvcr.io",
     "mcr.microsoft.com", "registry.gitlab.com", "docker.elastic.co", "registry.access.redhat.com",
     "registry.redhat.io", "xpkg.upbound.io", "cgr.dev", "registry.suse.com", "lscr.io")
)  # fmt: skip


class ImageEvidence(msgspec.Struct, frozen=True):
    """What a lookup has found for one use of an image."""

    answer: Answer
    digest: str = ""


class RunningEvidence(msgspec.Struct, frozen=True):
    """Containers alike of a workload's pods; what is known of the image that they name, and of what a runtime reports.

    `reported` is None where that is the same image, or is not known by its digest.
    """

    workload: Workload
    container: RunningContainer
    pods: RunningPods
    named: Answer
    reported: Answer


class AuditInput(msgspec.Struct, frozen=True, kw_only=True):
    """What the audit goes by. `evidence` has, for each workload in order, one entry for each of its images.

    `own` has prefixes of references, such as `registry.example.com/team/`, whose images are the caller's own.
    """

    workloads: Sequence[Workload]
    evidence: Sequence[Sequence[ImageEvidence]]
    policy: Policy
    nodes: Sequence[ReportedNode] = ()
    required: Sequence[Platform] = ()
    namespaces: Mapping[str, Mapping[str, str]] = {}
    reach: WebhookReach = WebhookReach()
    admission: AdmissionSettings = AdmissionSettings()
    own: Sequence[str] = ()
    problems: Sequence[str] = ()
    running: Sequence[RunningEvidence] = ()


def _targets_of(given: AuditInput) -> tuple[Platform, ...]:
    """The platforms to look at: the required ones, else those of the nodes; amd64 and arm64 if these are too few."""
    if given.required:
        return tuple(dict.fromkeys(given.required))
    found = {platform_of_node(node) for node in given.nodes} - {None}
    platforms = sorted(platform for platform in found if platform is not None)
    return tuple(platforms) if len(platforms) > 1 else tuple(dict.fromkeys((*platforms, *USUAL)))


def wanted_newer(report: Audit) -> list[tuple[str, str]]:
    """The images that block a target, each with the target, as in `with_newer`; those that block most first."""
    return [(image.reference, platform) for image in report.blocking_images for platform in image.lacks]


def with_newer(report: Audit, newer: Mapping[tuple[str, str], NewerTag]) -> Audit:
    """The report with newer tags of images that block, by image and platform."""

    def image(each: AuditedImage) -> AuditedImage:
        found = (newer.get((each.reference, platform)) for platform in each.lacks)
        return msgspec.structs.replace(each, newer=[one for one in found if one])

    def finding(each: Finding) -> Finding:
        found = newer.get((each.subject, each.platform))
        if each.rule is not FindingRule.IMAGE_LACKS_PLATFORM or not (found and found.tag):
            return each
        text = f"{each.message}; the first newer tag that does is {found.tag}"
        return msgspec.structs.replace(each, message=text)

    images, findings = [image(each) for each in report.images], [finding(each) for each in report.findings]
    return msgspec.structs.replace(report, images=images, findings=findings)


def audit(given: AuditInput) -> Audit:
    """The report. O(workloads × targets), and O(nodes) for each set of demands that workloads make of nodes."""
    auditor = _Auditor(given)
    return Audit(
        schema=SCHEMA,
        is_partial=False,
        targets=[str(target) for target in auditor.targets],
        required=[str(each) for each in given.required],
        total=sum((workload.weight for workload in auditor.workloads), Weight()),
        summary=[_summary(index, str(target), auditor.workloads) for index, target in enumerate(auditor.targets)],
        nodes=auditor.node_pools(),
        images=auditor.images,
        workloads=auditor.workloads,
        findings=auditor.findings(),
        problems=list(given.problems),
    )


def new_findings(report: Audit, baseline: Audit | None) -> list[Finding]:
    """The findings of level error or unknown images for which a gate fails: those that the baseline does not have."""
    known = {finding.fingerprint for finding in baseline.findings} if baseline else set()
    return [
        finding
        for finding in report.findings
        if (finding.level == "error" or finding.rule is FindingRule.IMAGE_UNKNOWN) and finding.fingerprint not in known
    ]


def new_problems(report: Audit, baseline: Audit | None) -> list[str]:
    """What could not be read, for which a gate fails, since nobody knows what it has: what the baseline could read."""
    known = frozenset(baseline.problems) if baseline else frozenset()
    return [problem for problem in report.problems if problem not in known]


class _CollectedImage(msgspec.Struct):
    """What the workloads have of an image. `facts` are what judged workloads go by, which their pods' fields decide."""

    image: PodImage
    evidence: ImageEvidence
    used_by: list[AuditedUse] = []
    facts: list[tuple[Workload, ImageFact]] = []
    blocks: Weight = Weight()
    unblocks: Weight = Weight()


class _Auditor:
    """Arranges what is judged of workloads: by image, by platform, and as findings."""

    def __init__(self, given: AuditInput) -> None:
        self._given = given
        self._compatibility = given.policy.compatibility
        self._judge = WorkloadJudge(given.policy, given.nodes, given.namespaces, given.reach)
        self.targets = _targets_of(given)
        self._relaxer = Relaxer(given.policy, given.admission, self.targets)
        self._all = [
            self._judge.judge(workload, [each.answer for each in evidence])
            for workload, evidence in zip(given.workloads, given.evidence, strict=True)
        ]
        self._judged = [each for each in self._all if not each.skipped]
        self.workloads = [self._judge.audited(each, self.targets) for each in self._all]
        self._collected = self._collect_images()
        self.images = [self._image(each) for each in self._collected.values()]

    def _collect_images(self) -> dict[str, _CollectedImage]:
        """What the workloads have of each image, by its reference and in the order of these."""
        found: dict[str, _CollectedImage] = {}
        for judged, audited, evidence in zip(self._all, self.workloads, self._given.evidence, strict=True):
            workload = judged.workload
            for image, fact, item in zip(workload.images, judged.facts, evidence, strict=True):
                collected = found.setdefault(image.reference, _CollectedImage(image, item))
                if item.digest and not collected.evidence.digest:  # namespaces with other credentials may have less
                    collected.image, collected.evidence = image, item
                if not judged.skipped:
                    collected.facts.append((workload, fact))
            for use in workload.uses:
                used = AuditedUse(str(workload), use.used_as, use.name, use.is_injected)
                found[use.image.reference].used_by.append(used)
            blocked, alone = _lacking(audited)
            for reference in blocked:
                found[reference].blocks += audited.weight
            for reference in alone:
                found[reference].unblocks += audited.weight
        return dict(sorted(found.items()))

    def _image(self, collected: _CollectedImage) -> AuditedImage:
        image, evidence = collected.image, collected.evidence
        fact = fact_of(image, evidence.answer, may_be_pending=False)
        platforms = fact.platforms if isinstance(fact, RunsOn) else frozenset[Platform]()
        is_constrained = any(isinstance(each, RunsOn) for _, each in collected.facts)
        lacks = [
            str(target)
            for target in self.targets
            if platforms and is_constrained and not runs_on(platforms, target, self._compatibility)
        ]
        canonical = _canonical(image.reference)
        return AuditedImage(
            reference=image.reference,
            canonical=canonical,
            digest=evidence.digest or None,
            state="known" if platforms else "anywhere" if isinstance(fact, Anywhere) else "unknown",
            platforms=[str(platform) for platform in sorted(platforms)],
            lacks=lacks,
            cause=fact.cause.value if isinstance(fact, Pending | Unknown) else "",
            detail=fact.detail if isinstance(fact, Pending | Unknown) else "",
            owner=self._owner(canonical or image.reference),
            used_by=collected.used_by,
            blocks=collected.blocks,
            unblocks=collected.unblocks,
            by_operator=is_by_operator(evidence.answer),
        )

    def _owner(self, canonical: str) -> str:
        if self._given.own:
            return _OWN if canonical.startswith(tuple(self._given.own)) else _VENDOR
        return _VENDOR if canonical.partition("/")[0] in _PUBLIC else _OWN

    def node_pools(self) -> list[AuditedNodes]:
        """What the nodes of each platform can give, and what of the workloads cannot use it."""
        found = []
        for platform, nodes in sorted(self._judge.nodes.items(), key=lambda item: str(item[0] or "")):
            allocatable = [(node.status and node.status.allocatable) or {} for node in nodes]
            blocked = (
                workload.weight
                for workload in self.workloads
                for each in workload.platforms
                if each.platform == str(platform) and each.answer is RunAnswer.NO
            )
            found.append(
                AuditedNodes(
                    platform=str(platform) if platform else "",
                    nodes=len(nodes),
                    cpu_cores=round(sum(parse_quantity(each.get("cpu", 0)) for each in allocatable), 6),
                    memory_bytes=int(sum(parse_quantity(each.get("memory", 0)) for each in allocatable)),
                    blocked=sum(blocked, Weight()),
                )
            )
        return found

    def findings(self) -> list[Finding]:
        """Everything that is found, in the order of rules."""
        found = [
            *self._of_images(),
            *(finding for each in self._judged for finding in self._of_workload(each)),
            *(finding for each in zip(self._all, self.workloads, strict=True) for finding in self._of_demands(*each)),
            *self._of_running(),
            *(
                _of_workload(FindingRule.PARTLY_GIVEN, each, f"is {each.skipped}")
                for each in self._all
                if each.is_partly_given
            ),
            *_of_nodes(self._given.nodes),
        ]
        return sorted(found, key=lambda each: (each.rule, each.subject, each.platform))

    def _of_images(self) -> Iterator[Finding]:
        """What the images lack that judged workloads use, and which of these are unknown to one of them."""
        for image in self.images:
            pairs, name = self._collected[image.reference].facts, image.canonical or image.reference
            workloads = [workload for workload, fact in pairs if isinstance(fact, RunsOn)]
            text = f"image {image.reference}"
            for platform in image.lacks:
                has = ", ".join(image.platforms)
                why = f"runs only on {has} (operator's setting)" if image.by_operator else f"is built only for {has}"
                said = f"{text} does not run on {platform}: it {why}"
                rule = FindingRule.IMAGE_LACKS_PLATFORM
                yield _finding(rule, platform, image.reference, workloads, said, name=name)
            unknown = [(workload, fact.detail) for workload, fact in pairs if _is_unknown(fact)]
            if unknown:
                said, workloads = f"{text} is not known: {unknown[0][1]}", [workload for workload, _ in unknown]
                rule = FindingRule.IMAGE_UNKNOWN
                yield _finding(rule, "", image.reference, workloads, said, level="warning", name=name)

    def _of_workload(self, judged: JudgedWorkload) -> Iterator[Finding]:
        """What keeps a workload from all platforms, or its pods from the nodes that they are for."""
        facts, workload = judged.facts, judged.workload
        if (known := known_platforms(facts)) and not common_platforms(known, self._compatibility):
            text = "can run nowhere: its images have no platform in common"
            yield _of_workload(FindingRule.NO_COMMON_PLATFORM, judged, text)
        if workload.is_daemon_set:
            yield from self._of_daemon_set(judged)

    def _of_daemon_set(self, judged: JudgedWorkload) -> Iterator[Finding]:
        """What keeps it from nodes that it targets: images, and taints that its pods do not tolerate."""
        platforms, taints = Counter[Platform](), Counter[str]()
        for node, number in judged.targeted:
            platform = platform_of_node(node)
            if platform and fit(judged.facts, platform, self._compatibility) is Fit.NO:
                platforms[platform] += number
            met = obstacles(judged.demands, node)
            taints.update({each.subject: number for each in met if each.rule is Rule.TAINT})
        for platform, nodes in sorted(platforms.items()):
            text = f"targets {counted(nodes, 'node')} of {platform}, on which its images do not run"
            yield _of_workload(FindingRule.DAEMON_SET_LACKS_PLATFORM, judged, text, str(platform))
        for platform in self._judge.to_come(judged, self._given.required):
            if fit(judged.facts, platform, self._compatibility) is Fit.NO:
                text = f"will target nodes of {platform}, on which its images do not run"
                yield _of_workload(FindingRule.DAEMON_SET_LACKS_PLATFORM, judged, text, str(platform))
        for taint, nodes in sorted(taints.items()):
            text = f"targets {counted(nodes, 'node')} with the taint {taint}, which it does not tolerate"
            subject, rule = f"{judged.workload} {taint}", FindingRule.DAEMON_SET_TAINT
            yield _of_workload(rule, judged, text, level="warning", subject=subject, more=f" {taint}")

    def _of_demands(self, judged: JudgedWorkload, audited: AuditedWorkload) -> Iterator[Finding]:
        """What a workload asks of nodes that keeps it from a platform on which its images run, and what it need not."""
        relaxed = self._judge.relaxed(judged, self._relaxer)
        freed_on = self._judge.freed(judged.workload, relaxed)
        for platform, nodes in freed_on.items():
            pods = counted(audited.weight.pods, "pod")
            freed = pods if nodes is None else f"{pods}, {counted(nodes, 'node')}"
            text = f"may run on {platform} too ({freed}): no image needs {', '.join(relaxed.constraints)}"
            yield _of_workload(FindingRule.CONSTRAINT_NOT_NEEDED, judged, text, platform, level="note")
        if relaxed.tolerations:
            text = f"does not need {', '.join(relaxed.tolerations)}, which the webhook gives to its pods"
            yield _of_workload(FindingRule.CONSTRAINT_NOT_NEEDED, judged, text, level="note")
        for asked in audited.platforms:
            for each in asked.blockers if asked.images is RunAnswer.YES else ():
                if asked.platform not in freed_on or each.rule not in _OF_AUTHORS:
                    more = f":{each.subject}"
                    yield _of_workload(each.rule, judged, each.text, asked.platform, level="note", more=more)

    def _of_running(self) -> Iterator[Finding]:
        """What does not match between containers and the platforms of their nodes."""
        by_key = {each.workload.key: each for each in self._judged if not each.has_handler}
        found: dict[tuple[FindingRule, str, str], tuple[JudgedWorkload, RunningPods, str]] = {}
        for each in self._given.running:
            judged, container = by_key.get(each.workload.key), each.container
            fault = judged and fault_of(container, each.named, each.reported, self._compatibility)
            if judged and fault:
                key = fault.rule, str(container.platform), f":{container.name}:{container.image.reference}"
                _, pods, _ = found.setdefault(
                    (*key[:2], f"{judged.identity}{key[2]}"), (judged, RunningPods(0, each.pods.example), fault.text)
                )
                pods.number += each.pods.number
        for (rule, platform, name), (judged, pods, text) in found.items():
            which = f"pod {pods.example}" if pods.number == 1 else f"{pods.number} pods, such as {pods.example}"
            said = f"{judged.workload}, {which}: {text}"
            yield _finding(rule, platform, str(judged.workload), [judged.workload], said, name=name)


def _lacking(workload: AuditedWorkload) -> tuple[set[str], set[str]]:
    """The images that keep the workload from a platform, and those that alone do so."""
    blocked, alone = set[str](), set[str]()
    for platform in workload.platforms:
        lacking = {each.subject for each in platform.blockers if each.rule is FindingRule.IMAGE_LACKS_PLATFORM}
        blocked |= lacking
        if len(platform.blockers) == 1:
            alone |= lacking
    return blocked, alone


def _of_nodes(nodes: Sequence[ReportedNode]) -> Iterator[Finding]:
    """The nodes of which the labels and the kubelet say different platforms."""
    for node in nodes:
        labels, info = node.labels, node.status and node.status.node_info
        said = (labels.get(OPERATING_SYSTEM) or "", labels.get(ARCHITECTURE) or "")
        stated = ((info and info.operating_system) or "", (info and info.architecture) or "")
        if any(label and kubelet and label != kubelet for label, kubelet in zip(said, stated, strict=True)):
            subject, platform = f"node {node.name}", str(platform_of_node(node))
            text = f"{subject}: its labels say {'/'.join(said)}, its kubelet {'/'.join(stated)}"
            yield _finding(FindingRule.NODE_LABELS, platform, subject, [], text, level="warning")


def _canonical(reference: str) -> str | None:
    try:
        return str(parse_reference(reference))
    except InvalidReference:
        return None


def _summary(index: int, platform: str, workloads: Sequence[AuditedWorkload]) -> PlatformSummary:
    def weigh(answer: RunAnswer) -> Weight:
        return sum(
            (each.weight for each in workloads if each.platforms and each.platforms[index].answer is answer), Weight()
        )

    return PlatformSummary(
        platform=platform, yes=weigh(RunAnswer.YES), no=weigh(RunAnswer.NO), unknown=weigh(RunAnswer.UNKNOWN)
    )


def _is_unknown(fact: ImageFact) -> TypeGuard[Pending | Unknown]:
    return isinstance(fact, Pending | Unknown) and fact.cause is not Cause.NEVER_PULLED


def _of_workload(
    rule: FindingRule,
    judged: JudgedWorkload,
    text: str,
    platform: str = "",
    *,
    level: str = "error",
    subject: str = "",
    more: str = "",
) -> Finding:
    """The finding of a workload; `more` distinguishes it from others of its rule and platform."""
    workload, name = judged.workload, f"{judged.identity}{more}"
    return _finding(rule, platform, subject or str(workload), [workload], f"{workload} {text}", level=level, name=name)


def _finding(
    rule: FindingRule,
    platform: str,
    subject: str,
    workloads: Sequence[Workload],
    message: str,
    *,
    level: str = "error",
    name: str = "",
) -> Finding:
    """The finding; `name` distinguishes it from others of its rule and platform, instead of its subject."""
    uses = dict.fromkeys((str(workload), workload.source) for workload in workloads)
    return Finding(
        rule=rule, level=level, platform=platform, subject=subject, message=message,
        workloads=[workload for workload, _ in uses],
        sources=[source for _, source in uses if source],
        fingerprint=f"{rule}:{platform}:{name or subject}",
    )  # fmt: skip
