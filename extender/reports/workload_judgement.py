"""What the audit makes of one workload: the facts of its images, what keeps it from a platform, and what it takes."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from extender.images.content import Answer
from extender.images.platform import Platform, runs_on
from extender.kubernetes.core_v1 import CreatedPod, Toleration
from extender.kubernetes.pod_templates import given_later
from extender.kubernetes.reported_v1 import ReportedNode
from extender.placement.annotations import MODE, Mode, Overrides, read_overrides
from extender.placement.facts import Fit, ImageFact, Pending, PodImage, RunsOn, Unknown, fact_of, fit
from extender.placement.node_match import (
    NodeDemands,
    Obstacle,
    Rule,
    as_daemon_pods,
    demands_in,
    may_allow,
    obstacles,
    requirement_text,
)
from extender.placement.nodes import platform_of_node
from extender.placement.policy import Policy
from extender.placement.reasons import built_text
from extender.placement.relaxing import Relaxation, Relaxer
from extender.placement.resolved_pod import ResolvedPod
from extender.placement.webhook_reach import WebhookReach
from extender.reports.audit_report import AuditedWorkload, Blocker, FindingRule, RunAnswer, Weight, WorkloadPlatform
from extender.reports.workload_reports import Workload


class JudgedWorkload(msgspec.Struct, frozen=True):
    """A workload with what decides about it: its images, their facts, in order, and what its pods ask of nodes.

    `targeted` has, for a DaemonSet, one of all nodes alike on which it wants a pod, were it not for taints, and how
    many there are. `skipped` says why it is not judged, else it is empty. `has_handler`: its RuntimeClass decides what
    runs where. `is_partly_given`: it is not judged since nobody knows all of its images.
    """

    workload: Workload
    images: Sequence[PodImage]
    facts: Sequence[ImageFact]
    demands: NodeDemands
    overrides: Overrides
    targeted: Sequence[tuple[ReportedNode, int]]
    skipped: str
    has_handler: bool
    is_partly_given: bool

    @property
    def identity(self) -> str:
        """Its name in fingerprints, which no other workload has."""
        return f"{self.workload}@{self.workload.namesake}" if self.workload.namesake else str(self.workload)


class WorkloadJudge:
    """Judges workloads by the operator's policy, the nodes of a cluster if there are any, and their namespaces."""

    def __init__(
        self,
        policy: Policy,
        nodes: Sequence[ReportedNode],
        namespaces: Mapping[str, Mapping[str, str]],
        reach: WebhookReach,
    ) -> None:
        """`namespaces` has the annotations of each."""
        self._reach = reach
        self._policy = policy
        self._namespaces = namespaces
        self._alike: dict[tuple[Platform | None, frozenset[str]], list[tuple[ReportedNode, int]]] = {}
        self.nodes: dict[Platform | None, list[ReportedNode]] = {}
        for node in nodes:
            self.nodes.setdefault(platform_of_node(node), []).append(node)

    def judge(self, workload: Workload, answers: Iterable[Answer]) -> JudgedWorkload:
        """The workload with its facts; `answers` are those for its images, in order."""
        runtime = self._policy.runtime_classes.get(workload.spec.runtime_class_name or "")
        images = list(workload.images)
        if runtime:
            images = [msgspec.structs.replace(image, runtime=runtime, has_handler=False) for image in images]
        demands = _demands_of_pods(workload, demands_in(workload.spec))
        namespace = self._namespaces.get(workload.key.namespace)
        overrides = read_overrides(workload.annotations, namespace, self._policy.overrides)
        skipped = f"the annotation {MODE} is ignore" if overrides.mode is Mode.IGNORE else ""
        if runtime and not runtime.platforms:
            skipped = f"placement.runtime_classes leaves its RuntimeClass {runtime.name} alone"
        is_partly_given = bool(workload.missing and not skipped)
        if is_partly_given:
            skipped = f"partly given: {given_later(workload.missing)}"
        facts = [fact_of(image, answer, may_be_pending=False) for image, answer in zip(images, answers, strict=True)]
        targeted = list(self._targeted(demands)) if workload.is_daemon_set else []
        return JudgedWorkload(
            workload, images, facts, demands, overrides, targeted, skipped, runtime is not None, is_partly_given
        )

    def audited(self, judged: JudgedWorkload, targets: Sequence[Platform]) -> AuditedWorkload:
        workload = judged.workload
        return AuditedWorkload(
            namespace=workload.key.namespace,
            kind=workload.key.kind,
            name=workload.key.name,
            source=workload.source,
            managed_by=workload.managed_by,
            weight=self._weight(judged),
            images=list(dict.fromkeys(image.reference for image in workload.images)),
            platforms=[] if judged.skipped else [self._platform(target, judged) for target in targets],
            skipped=judged.skipped,
        )

    def _targeted(self, demands: NodeDemands) -> Iterator[tuple[ReportedNode, int]]:
        demands = msgspec.structs.replace(demands, tolerations=(Toleration(operator="Exists"),))
        for platform in self.nodes:
            yield from (alike for alike in self._nodes_alike(platform, demands) if not obstacles(demands, alike[0]))

    def to_come(self, judged: JudgedWorkload, platforms: Iterable[Platform]) -> list[Platform]:
        """Those of the platforms of which a cluster has no node yet, and of which a DaemonSet would want all."""
        os = judged.workload.spec.os.name if judged.workload.spec.os else ""
        return [
            each
            for each in dict.fromkeys(platforms)
            if self.nodes and each not in self.nodes and os in ("", each.os)
            if not any(_contradictions(each, judged.demands))
        ]

    def relaxed(self, judged: JudgedWorkload, relaxer: Relaxer) -> Relaxation:
        """The constraints on architecture that the workload's images do not need; none for most."""
        is_left = judged.skipped or judged.overrides.mode is Mode.OBSERVE
        if is_left or not relaxer.is_constrained(judged.demands):
            return Relaxation()
        workload = judged.workload
        written = {"metadata": {"annotations": workload.annotations}, "spec": workload.spec}
        return relaxer.relax(
            ResolvedPod(
                msgspec.json.decode(msgspec.json.encode(written), type=CreatedPod),
                judged.images,
                judged.facts,
                judged.overrides,
            ),
            is_daemon_set=workload.is_daemon_set,
            is_reached=self._reach.includes(workload.key.namespace, workload.labels, workload.spec.priority_class_name),
        )

    def freed(self, workload: Workload, relaxed: Relaxation) -> dict[str, int | None]:
        """The platforms on which its pods may run without these constraints, with how many nodes there then take them.

        None where there are no nodes yet, or no cluster was asked.
        """
        demands = _demands_of_pods(workload, relaxed.demands)
        taking = {platform: self._met(platform, demands)[()] for platform in relaxed.gained}
        return {str(each): nodes or None for each, nodes in taking.items() if nodes or each not in self.nodes}

    def _weight(self, judged: JudgedWorkload) -> Weight:
        workload, pods = judged.workload, judged.workload.pods
        if pods is None:
            pods = sum(number for _, number in judged.targeted) if self.nodes else 1
        return Weight(1, pods, round(pods * workload.cpu_cores, 6), int(pods * workload.memory_bytes))

    def _platform(self, target: Platform, judged: JudgedWorkload) -> WorkloadPlatform:
        fits = fit(judged.facts, target, self._policy.compatibility)
        images = {Fit.YES: RunAnswer.YES, Fit.NO: RunAnswer.NO, Fit.UNRESOLVED: RunAnswer.UNKNOWN}[fits]
        in_the_way = [_blocker(obstacle, target) for obstacle in self._obstacles_on(target, judged.demands)]
        os = judged.workload.spec.os.name if judged.workload.spec.os else ""
        if os and target.os != os:
            text = f"on {target}: its spec.os.name is {os}"
            in_the_way.insert(0, Blocker(FindingRule.SELECTOR_BLOCKS, f"spec.os.name={os}", text))
        answer = RunAnswer.NO if in_the_way else images
        blockers = [*self._image_blockers(target, judged), *in_the_way]
        return WorkloadPlatform(str(target), answer, images, len(self.nodes.get(target, ())), blockers)

    def _image_blockers(self, target: Platform, judged: JudgedWorkload) -> Iterator[Blocker]:
        for image, fact in zip(judged.images, judged.facts, strict=True):
            match fact:
                case RunsOn() if not runs_on(fact.platforms, target, self._policy.compatibility):
                    text = f"image {image.reference} {built_text(fact)}"
                    yield Blocker(FindingRule.IMAGE_LACKS_PLATFORM, image.reference, text)
                case Pending() | Unknown():
                    text = f"image {image.reference} is not known: {fact.detail}"
                    yield Blocker(FindingRule.IMAGE_UNKNOWN, image.reference, text)

    def _obstacles_on(self, target: Platform, demands: NodeDemands) -> Iterable[Obstacle]:
        """Why no node of the platform takes pods with these demands; empty if one does."""
        if target not in self.nodes:
            return _contradictions(target, demands)
        met = self._met(target, demands)
        (nearest, _), *_ = sorted(met.items(), key=lambda item: (len(item[0]), -item[1], item[0]))
        return nearest

    def _met(self, platform: Platform, demands: NodeDemands) -> Counter[tuple[Obstacle, ...]]:
        """How many nodes of the platform have which obstacles for pods with these demands."""
        found: Counter[tuple[Obstacle, ...]] = Counter()
        for node, number in self._nodes_alike(platform, demands):
            found[obstacles(demands, node)] += number
        return found

    def _nodes_alike(self, platform: Platform | None, demands: NodeDemands) -> Sequence[tuple[ReportedNode, int]]:
        """One of all nodes that these demands cannot tell apart, and how many there are: few among thousands."""
        nodes, terms = self.nodes.get(platform, ()), demands.terms or ()
        if any(term.match_fields for term in terms):
            return [(node, 1) for node in nodes]
        named = (each.key for term in terms for each in term.match_expressions or ())
        keys = frozenset(demands.selector).union(named)
        if (platform, keys) not in self._alike:
            groups: dict[object, list[ReportedNode]] = {}
            for node in nodes:
                labels = node.labels
                groups.setdefault((node.spec, *map(labels.get, keys)), []).append(node)
            self._alike[platform, keys] = [(group[0], len(group)) for group in groups.values()]
        return self._alike[platform, keys]


def _demands_of_pods(workload: Workload, demands: NodeDemands) -> NodeDemands:
    """What the workload's pods ask of nodes, where their spec asks for this: a DaemonSet's tolerate more."""
    if not workload.is_daemon_set:
        return demands
    return as_daemon_pods(demands, host_network=workload.spec.host_network is True)


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


_BLOCKER_RULES = {
    Rule.SELECTOR: (FindingRule.SELECTOR_BLOCKS, "its nodeSelector asks for {}"),
    Rule.AFFINITY: (FindingRule.AFFINITY_BLOCKS, "its node affinity asks for {}"),
    Rule.TAINT: (FindingRule.TAINT_NOT_TOLERATED, "it does not tolerate the taint {}"),
    Rule.UNSCHEDULABLE: (FindingRule.TAINT_NOT_TOLERATED, "every such node is cordoned ({})"),
}


def _blocker(obstacle: Obstacle, target: Platform) -> Blocker:
    rule, text = _BLOCKER_RULES[obstacle.rule]
    return Blocker(rule, obstacle.subject, f"on {target}: {text.format(obstacle.subject)}")
