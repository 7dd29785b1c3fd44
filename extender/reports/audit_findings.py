"""The audit: which images, workloads and DaemonSets keep a cluster from using an architecture, and what they take.

`audit` decides with the functions of `placement`.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from extender.errors import InvalidReference
from extender.images.content import Answer, Cause, Content
from extender.images.platform import Platform, runs_on
from extender.images.platform_states import claim_text
from extender.images.reference import parse_reference
from extender.kubernetes.core_v1 import NodeName
from extender.kubernetes.reported_v1 import ReportedNode
from extender.placement.facts import (
    Anywhere,
    Fit,
    ImageFact,
    Pending,
    PodImage,
    RunsOn,
    RuntimeClass,
    Unknown,
    fact_of,
    fit,
    known_platforms,
)
from extender.placement.node_match import (
    NodeDemands,
    Obstacle,
    Rule,
    as_daemon_pods,
    hard_taints,
    matches,
    may_allow,
    obstacles,
    requirement_text,
    taint_text,
    tolerates,
)
from extender.placement.nodes import ARCHITECTURE, OPERATING_SYSTEM, USUAL, name_of_node, platform_of_node
from extender.placement.pinned_nodes import names_of_node, shown_nodes, wrong_nodes
from extender.placement.policy import MODE, Mode, Policy, common_platforms, read_overrides
from extender.placement.reasons import claims_text
from extender.reports.audit_report import (
    SCHEMA,
    Audit,
    AuditedImage,
    AuditedNodes,
    AuditedUse,
    AuditedWorkload,
    Blocker,
    FalseClaim,
    Finding,
    FindingRule,
    NewerTag,
    PlatformSummary,
    RunAnswer,
    Weight,
    WorkloadPlatform,
)
from extender.reports.quantities import parse_quantity
from extender.reports.running_containers import RunningContainer, fault_of
from extender.reports.workload_reports import RunningPods, Workload

_OWN, _VENDOR = "own", "vendor"
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
    own: Sequence[str] = ()
    problems: Sequence[str] = ()
    running: Sequence[RunningEvidence] = ()


def targets_of(given: AuditInput) -> tuple[Platform, ...]:
    """The platforms to look at: the required ones, else those of the nodes; amd64 and arm64 if these are too few."""
    if given.required:
        return tuple(dict.fromkeys(given.required))
    found = {platform_of_node(node) for node in given.nodes} - {None}
    platforms = sorted(platform for platform in found if platform is not None)
    return tuple(platforms) if len(platforms) > 1 else tuple(dict.fromkeys((*platforms, *USUAL)))


def wanted_newer(report: Audit) -> list[tuple[str, str]]:
    """The images that block a target, each with the target, as in `with_newer`; those that block most first."""
    images = sorted(
        (image for image in report.images if image.lacks),
        key=lambda image: (-image.blocks.cpu_cores, -image.blocks.pods, image.reference),
    )
    return [(image.reference, platform) for image in images for platform in image.lacks]


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
    workloads = [auditor.workload(*each) for each in zip(given.workloads, given.evidence, strict=True)]
    images = auditor.images(workloads)
    return Audit(
        schema=SCHEMA,
        is_partial=False,
        targets=[str(target) for target in auditor.targets],
        required=[str(each) for each in given.required],
        total=sum((workload.weight for workload in workloads), Weight()),
        summary=[_summary(index, str(target), workloads) for index, target in enumerate(auditor.targets)],
        nodes=auditor.node_pools(workloads),
        images=images,
        workloads=workloads,
        findings=sorted(
            (
                *auditor.image_findings(images),
                *auditor.obstructed(workloads),
                *auditor.torn(),
                *auditor.daemon_sets(),
                *auditor.pinned(),
                *auditor.contradictory_nodes(),
                *auditor.running(),
            ),
            key=lambda each: (each.rule, each.subject, each.platform),
        ),
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


class _Auditor:
    def __init__(self, given: AuditInput) -> None:
        self._given = given
        self._compatibility = given.policy.compatibility
        self.targets = targets_of(given)
        self._nodes: dict[Platform | None, list[ReportedNode]] = {}
        self._by_name: dict[NodeName, Platform | None] = {}
        for node in given.nodes:
            platform = platform_of_node(node)
            self._nodes.setdefault(platform, []).append(node)
            self._by_name |= dict.fromkeys(names_of_node(node), platform)
        self._obstacles: dict[tuple[bytes, Platform], tuple[Obstacle, ...]] = {}
        self._judged: dict[str, list[tuple[Workload, ImageFact]]] = {}  # uses of images by workloads that are judged
        self._facts: list[tuple[Workload, list[ImageFact]]] = []  # of the workloads that are judged

    def workload(self, workload: Workload, evidence: Sequence[ImageEvidence]) -> AuditedWorkload:
        facts = self._facts_of(workload, evidence)
        skipped = self._why_skipped(workload)
        if not skipped:
            self._facts.append((workload, [fact for _, fact in facts]))
        for image, fact in () if skipped else facts:
            self._judged.setdefault(image.reference, []).append((workload, fact))
        return AuditedWorkload(
            namespace=workload.key.namespace,
            kind=workload.key.kind,
            name=workload.key.name,
            source=workload.source,
            managed_by=workload.managed_by,
            weight=self._weight(workload),
            images=list(dict.fromkeys(image.reference for image in workload.images)),
            platforms=[] if skipped else [self._platform(target, workload, facts) for target in self.targets],
            skipped=skipped,
        )

    def _weight(self, workload: Workload) -> Weight:
        pods = workload.pods
        if pods is None:
            pods = len(list(self._targeted(workload))) if self._given.nodes else 1
        return Weight(1, pods, round(pods * workload.cpu_cores, 6), int(pods * workload.memory_bytes))

    def _facts_of(self, workload: Workload, evidence: Sequence[ImageEvidence]) -> list[tuple[PodImage, ImageFact]]:
        runtime = self._runtime_of(workload)
        images = [msgspec.structs.replace(image, runtime=runtime) if runtime else image for image in workload.images]
        return [
            (image, fact_of(image, found.answer, may_be_pending=False))
            for image, found in zip(images, evidence, strict=True)
        ]

    def _runtime_of(self, workload: Workload) -> RuntimeClass | None:
        return self._given.policy.runtime_classes.get(workload.spec.runtime_class_name or "")

    def _why_skipped(self, workload: Workload) -> str:
        runtime = self._runtime_of(workload)
        if runtime and not runtime.platforms:
            return f"placement.runtime_classes leaves its RuntimeClass {runtime.name} alone"
        namespace = self._given.namespaces.get(workload.key.namespace)
        overrides = read_overrides(workload.annotations, namespace, self._given.policy.overrides)
        return f"the annotation {MODE} is ignore" if overrides.mode is Mode.IGNORE else ""

    def _platform(
        self, target: Platform, workload: Workload, facts: Sequence[tuple[PodImage, ImageFact]]
    ) -> WorkloadPlatform:
        fits = fit([fact for _, fact in facts], target, self._compatibility)
        images = {Fit.YES: RunAnswer.YES, Fit.NO: RunAnswer.NO, Fit.UNRESOLVED: RunAnswer.UNKNOWN}[fits]
        blockers = [*self._image_blockers(target, facts)]
        in_the_way = [_blocker(obstacle, target) for obstacle in self._obstacles_on(target, workload)]
        os = workload.spec.os.name if workload.spec.os else ""
        if os and target.os != os:
            text = f"on {target}: its spec.os.name is {os}"
            in_the_way.insert(0, Blocker(FindingRule.SELECTOR_BLOCKS, f"spec.os.name={os}", text))
        blockers += in_the_way
        answer = RunAnswer.NO if in_the_way else images
        return WorkloadPlatform(str(target), answer, images, len(self._nodes.get(target, ())), blockers)

    def _image_blockers(self, target: Platform, facts: Sequence[tuple[PodImage, ImageFact]]) -> Iterator[Blocker]:
        for image, fact in facts:
            match fact:
                case RunsOn() if not runs_on(fact.platforms, target, self._compatibility):
                    has, claims = ", ".join(map(str, sorted(fact.platforms))), claims_text(fact.denied)
                    built = (
                        f"is built only for {has}" if has else f"is not built for {fact.asked}" if fact.asked else ""
                    )
                    text = f"image {image.reference} {'; it '.join(filter(None, (built, claims)))}"
                    yield Blocker(FindingRule.IMAGE_LACKS_PLATFORM, image.reference, text)
                case Pending() | Unknown():
                    text = f"image {image.reference} is not known: {fact.detail}"
                    yield Blocker(FindingRule.IMAGE_UNKNOWN, image.reference, text)

    def _obstacles_on(self, target: Platform, workload: Workload) -> tuple[Obstacle, ...]:
        """Why no node of the platform takes the workload's pods, apart from its images; empty if one does."""
        demands = _demands(workload)
        key = msgspec.json.encode(demands), target
        found = self._obstacles.get(key)
        if found is None:
            found = self._obstacles[key] = tuple(self._find_obstacles(target, demands))
        return found

    def _find_obstacles(self, target: Platform, demands: NodeDemands) -> Iterable[Obstacle]:
        nodes = self._nodes.get(target)
        if not nodes:
            return _contradictions(target, demands)
        kinds: Counter[tuple[Obstacle, ...]] = Counter()
        for node in nodes:
            met = obstacles(demands, node)
            if not met:
                return ()
            kinds[met] += 1
        (nearest, _), *_ = sorted(kinds.items(), key=lambda item: (len(item[0]), -item[1], item[0]))
        return nearest

    def _targeted(self, workload: Workload) -> Iterator[ReportedNode]:
        """The nodes that a DaemonSet wants a pod on, were it not for taints."""
        demands = _demands(workload)
        for node in self._given.nodes:
            labels = (node.metadata and node.metadata.labels) or {}
            name = (node.metadata and node.metadata.name) or ""
            if all(labels.get(key) == value for key, value in demands.selector.items()) and (
                demands.terms is None or any(matches(term, labels, name) for term in demands.terms)
            ):
                yield node

    def images(self, workloads: Sequence[AuditedWorkload]) -> list[AuditedImage]:
        uses: dict[str, list[AuditedUse]] = {}
        evidence: dict[str, tuple[PodImage, ImageEvidence]] = {}
        for workload, found in zip(self._given.workloads, self._given.evidence, strict=True):
            for use in workload.uses:
                used = AuditedUse(str(workload), use.used_as, use.name, use.is_injected)
                uses.setdefault(use.image.reference, []).append(used)
            for image, item in zip(workload.images, found, strict=True):
                if _is_better(item, evidence.get(image.reference)):
                    evidence[image.reference] = image, item
        blocks, unblocks = self._weights(workloads)
        nothing = Weight()
        return [
            self._image(image, item, uses[reference], blocks.get(reference, nothing), unblocks.get(reference, nothing))
            for reference, (image, item) in sorted(evidence.items())
        ]

    def _weights(self, workloads: Sequence[AuditedWorkload]) -> tuple[dict[str, Weight], dict[str, Weight]]:
        """What each image blocks, and what it alone blocks."""
        blocks: dict[str, Weight] = {}
        unblocks: dict[str, Weight] = {}
        for workload in workloads:
            blocked: set[str] = set()
            alone: set[str] = set()
            for platform in workload.platforms:
                lacking = {each.subject for each in platform.blockers if each.rule is FindingRule.IMAGE_LACKS_PLATFORM}
                blocked |= lacking
                if len(platform.blockers) == 1:
                    alone |= lacking
            for reference in blocked:
                blocks[reference] = blocks.get(reference, Weight()) + workload.weight
            for reference in alone:
                unblocks[reference] = unblocks.get(reference, Weight()) + workload.weight
        return blocks, unblocks

    def _image(
        self, image: PodImage, evidence: ImageEvidence, uses: list[AuditedUse], blocks: Weight, unblocks: Weight
    ) -> AuditedImage:
        fact = fact_of(image, evidence.answer, may_be_pending=False)
        platforms = fact.platforms if isinstance(fact, RunsOn) else frozenset[Platform]()
        denied = fact.denied if isinstance(fact, RunsOn) else ()
        is_judged = any(isinstance(fact, RunsOn) for _, fact in self._judged.get(image.reference, ()))
        lacks = [
            str(target)
            for target in self.targets
            if (platforms or denied) and is_judged and not runs_on(platforms, target, self._compatibility)
        ]
        canonical = _canonical(image.reference)
        return AuditedImage(
            reference=image.reference,
            canonical=canonical,
            digest=evidence.digest or None,
            state="known" if platforms or denied else "anywhere" if isinstance(fact, Anywhere) else "unknown",
            platforms=[str(platform) for platform in sorted(platforms)],
            lacks=lacks,
            cause=fact.cause.value if isinstance(fact, Pending | Unknown) else "",
            detail=fact.detail if isinstance(fact, Pending | Unknown) else "",
            owner=self._owner(canonical or image.reference),
            used_by=uses,
            blocks=blocks,
            unblocks=unblocks,
            denied=[FalseClaim(str(each.platform), each.state, claim_text(each)) for each in denied],
            verified=[str(each) for each in sorted(platforms & _verified(evidence.answer))],
        )

    def _owner(self, canonical: str) -> str:
        if self._given.own:
            return _OWN if canonical.startswith(tuple(self._given.own)) else _VENDOR
        return _VENDOR if canonical.partition("/")[0] in _PUBLIC else _OWN

    def node_pools(self, workloads: Sequence[AuditedWorkload]) -> list[AuditedNodes]:
        found = []
        for platform, nodes in sorted(self._nodes.items(), key=lambda item: str(item[0] or "")):
            allocatable = [(node.status and node.status.allocatable) or {} for node in nodes]
            blocked = (
                workload.weight
                for workload in workloads
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

    def image_findings(self, images: Sequence[AuditedImage]) -> Iterator[Finding]:
        """What the images lack that judged workloads use, and which of these are unknown to one of them."""
        for image in images:
            uses = self._judged.get(image.reference, ())
            name = image.canonical or image.reference
            workloads = [workload for workload, fact in uses if isinstance(fact, RunsOn)]
            for claim in image.denied:
                text = f"image {image.reference} {claim.text}"
                rule = FindingRule.IMAGE_LIES
                yield _finding(rule, claim.platform, image.reference, workloads, text, "error", name)
            denied = {claim.platform for claim in image.denied}
            for platform in image.lacks:
                if platform in denied:
                    continue
                has = ", ".join(image.platforms)
                text = (
                    f"image {image.reference} does not run on {platform}: it is built only for {has or 'no platform'}"
                )
                rule = FindingRule.IMAGE_LACKS_PLATFORM
                yield _finding(rule, platform, image.reference, workloads, text, "error", name)
            unknown = [(workload, fact) for workload, fact in uses if _is_unknown(fact)]
            for fact in [fact for _, fact in unknown if isinstance(fact, Pending | Unknown)][:1]:
                text = f"image {image.reference} is not known: {fact.detail}"
                workloads = [workload for workload, _ in unknown]
                yield _finding(FindingRule.IMAGE_UNKNOWN, "", image.reference, workloads, text, "warning", name)

    def obstructed(self, workloads: Sequence[AuditedWorkload]) -> Iterator[Finding]:
        """What a workload asks of nodes that keeps it from a platform on which its images run."""
        for workload, audited in zip(self._given.workloads, workloads, strict=True):
            for platform in audited.platforms:
                for each in platform.blockers if platform.images is RunAnswer.YES else ():
                    text, name = f"{workload} {each.text}", f"{_identity(workload)}:{each.subject}"
                    yield _finding(each.rule, platform.platform, str(workload), [workload], text, "note", name)

    def torn(self) -> Iterator[Finding]:
        """The workloads whose images have no platform in common."""
        for workload, facts in self._facts:
            if known_platforms(facts) and not common_platforms(facts, self._compatibility):
                text = f"{workload} can run nowhere: its images have no platform in common"
                name = _identity(workload)
                yield _finding(FindingRule.NO_COMMON_PLATFORM, "", str(workload), [workload], text, "error", name)

    def daemon_sets(self) -> Iterator[Finding]:
        """What keeps DaemonSets from nodes that they target: images, and taints that their pods do not tolerate."""
        for workload, facts in self._facts:
            if not workload.is_daemon_set:
                continue
            platforms: Counter[Platform] = Counter()
            taints: Counter[str] = Counter()
            for node in self._targeted(workload):
                platform = platform_of_node(node)
                if platform and fit(facts, platform, self._compatibility) is Fit.NO:
                    platforms[platform] += 1
                taints.update(_untolerated(workload, node))
            for platform, nodes in sorted(platforms.items()):
                text = f"{workload} targets {nodes} nodes of {platform}, on which its images do not run"
                rule, name = FindingRule.DAEMON_SET_LACKS_PLATFORM, _identity(workload)
                yield _finding(rule, str(platform), str(workload), [workload], text, "error", name)
            for taint, nodes in sorted(taints.items()):
                text = f"{workload} targets {nodes} nodes with the taint {taint}, which it does not tolerate"
                rule, name = FindingRule.DAEMON_SET_TAINT, f"{_identity(workload)} {taint}"
                yield _finding(rule, "", f"{workload} {taint}", [workload], text, "warning", name)

    def pinned(self) -> Iterator[Finding]:
        """The workloads that name their nodes, which are wrong for their images."""
        for workload, facts in self._facts:
            wrong = wrong_nodes(_demands(workload), facts, self._compatibility, self._by_name)
            if wrong and not workload.is_daemon_set:
                text = f"{workload} asks for {shown_nodes(wrong)}, on which its images do not run"
                rule, name = FindingRule.PINNED_TO_WRONG_NODE, f"{_identity(workload)}:{','.join(wrong)}"
                platform = str(next(iter(wrong.values())))
                yield _finding(rule, platform, str(workload), [workload], text, "error", name)

    def contradictory_nodes(self) -> Iterator[Finding]:
        """The nodes whose labels and kubelets name different platforms."""
        for node in self._given.nodes:
            labels, info = (node.metadata and node.metadata.labels) or {}, node.status and node.status.node_info
            said = (labels.get(OPERATING_SYSTEM) or "", labels.get(ARCHITECTURE) or "")
            stated = ((info and info.operating_system) or "", (info and info.architecture) or "")
            if any(label and kubelet and label != kubelet for label, kubelet in zip(said, stated, strict=True)):
                subject = f"node {name_of_node(node)}"
                text = f"{subject}: its labels say {'/'.join(said)}, its kubelet {'/'.join(stated)}"
                yield _finding(FindingRule.NODE_LABELS, "/".join(stated), subject, [], text, "warning")

    def running(self) -> Iterator[Finding]:
        """What does not match between containers and the platforms of their nodes."""
        found: dict[tuple[FindingRule, str, str], tuple[Workload, RunningPods, str]] = {}
        for each in self._given.running:
            workload, container = each.workload, each.container
            if self._why_skipped(workload) or self._runtime_of(workload):
                continue
            if fault := fault_of(container, each.named, each.reported, self._compatibility):
                name = f"{_identity(workload)}:{container.name}:{container.image.reference}"
                key = fault.rule, str(container.platform), name
                _, pods, _ = found.setdefault(key, (workload, RunningPods(0, each.pods.example), fault.text))
                pods.number += each.pods.number
        for (rule, platform, name), (workload, pods, text) in found.items():
            which = f"pod {pods.example}" if pods.number == 1 else f"{pods.number} pods, such as {pods.example}"
            yield _finding(rule, platform, str(workload), [workload], f"{workload}, {which}: {text}", "error", name)


def _verified(answer: Answer) -> frozenset[Platform]:
    return answer.verified if isinstance(answer, Content) else frozenset()


def _is_better(item: ImageEvidence, known: tuple[PodImage, ImageEvidence] | None) -> bool:
    """Whether to show this evidence of an image, of which namespaces with other credentials may have less."""
    return known is None or (not known[1].digest and bool(item.digest))


def _canonical(reference: str) -> str | None:
    try:
        return str(parse_reference(reference))
    except InvalidReference:
        return None


def _demands(workload: Workload) -> NodeDemands:
    spec = workload.spec
    required = spec.affinity and spec.affinity.node_affinity and spec.affinity.node_affinity.required
    demands = NodeDemands(
        selector=spec.node_selector or {},
        terms=(required.node_selector_terms or ()) if required else None,
        tolerations=spec.tolerations or (),
    )
    return as_daemon_pods(demands, host_network=spec.host_network is True) if workload.is_daemon_set else demands


def _contradictions(target: Platform, demands: NodeDemands) -> Iterator[Obstacle]:
    """What a workload's own selector and affinity say against any node of the platform."""
    if not may_allow(NodeDemands(demands.selector), target):
        for key, value in sorted(demands.selector.items()):
            if key.endswith(("kubernetes.io/arch", "kubernetes.io/os")):
                yield Obstacle(Rule.SELECTOR, f"{key}={value}")
    elif demands.terms and not may_allow(demands, target):
        texts = dict.fromkeys(
            requirement_text(each)
            for term in demands.terms
            for each in term.match_expressions or ()
            if each.key.endswith(("kubernetes.io/arch", "kubernetes.io/os"))
        )
        yield Obstacle(Rule.AFFINITY, "; or ".join(texts) or "no term that any node can match")


def _untolerated(workload: Workload, node: ReportedNode) -> Iterator[str]:
    given = _demands(workload).tolerations
    for taint in hard_taints(node):
        if not any(tolerates(each, taint) for each in given):
            yield taint_text(taint)


_BLOCKER_RULES = {
    Rule.SELECTOR: (FindingRule.SELECTOR_BLOCKS, "its nodeSelector asks for {}"),
    Rule.AFFINITY: (FindingRule.AFFINITY_BLOCKS, "its node affinity asks for {}"),
    Rule.TAINT: (FindingRule.TAINT_NOT_TOLERATED, "it does not tolerate the taint {}"),
    Rule.UNSCHEDULABLE: (FindingRule.TAINT_NOT_TOLERATED, "every such node is cordoned ({})"),
}


def _blocker(obstacle: Obstacle, target: Platform) -> Blocker:
    rule, text = _BLOCKER_RULES[obstacle.rule]
    return Blocker(rule, obstacle.subject, f"on {target}: {text.format(obstacle.subject)}")


def _summary(index: int, platform: str, workloads: Sequence[AuditedWorkload]) -> PlatformSummary:
    def weigh(answer: RunAnswer) -> Weight:
        return sum(
            (each.weight for each in workloads if each.platforms and each.platforms[index].answer is answer), Weight()
        )

    return PlatformSummary(
        platform=platform, yes=weigh(RunAnswer.YES), no=weigh(RunAnswer.NO), unknown=weigh(RunAnswer.UNKNOWN)
    )


def _identity(workload: Workload) -> str:
    """The workload's name in fingerprints, which no other workload has."""
    return f"{workload}@{workload.namesake}" if workload.namesake else str(workload)


def _is_unknown(fact: ImageFact) -> bool:
    return isinstance(fact, Pending | Unknown) and fact.cause is not Cause.NEVER_PULLED


def _finding(
    rule: FindingRule,
    platform: str,
    subject: str,
    workloads: Sequence[Workload],
    message: str,
    level: str,
    name: str = "",
) -> Finding:
    """The finding; `name` tells it from others of its rule and platform, instead of its subject."""
    uses = dict.fromkeys((str(workload), workload.source) for workload in workloads)
    return Finding(
        rule=rule, level=level, platform=platform, subject=subject, message=message,
        workloads=[workload for workload, _ in uses],
        sources=[source for _, source in uses if source],
        fingerprint=f"{rule}:{platform}:{name or subject}",
    )  # fmt: skip
