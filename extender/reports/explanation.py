"""Why a pod may run on some nodes and not on others: its images, the decision, and what else counts.

The decision, its words and the webhook's patch come from `placement`. This file arranges them, and adds what
kube-scheduler itself asks of nodes.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from extender.images.content import Cause, Evidence, is_by_operator
from extender.images.platform import Compatibility, Platform, runs_on
from extender.kubernetes.core_v1 import (
    CreatedPod,
    CreatedSpec,
    NodeMeta,
    NodeName,
    NodeSystemInfo,
    PodSchedulingGate,
    SchedulingSpec,
)
from extender.kubernetes.documents import Json, JsonObject, map_at, value_at
from extender.kubernetes.pod_templates import KubernetesObject
from extender.kubernetes.reported_v1 import PodStatus, ReportedNode, ReportedNodeStatus
from extender.placement.additions import read_record, take_back
from extender.placement.annotations import ADDED, MODE, REASON, Mode, Overrides
from extender.placement.facts import (
    Anywhere,
    ImageFact,
    Pending,
    PodImage,
    Role,
    RunsOn,
    Unknown,
    facts_of,
)
from extender.placement.mutation import Mutator
from extender.placement.node_images import NodeImages
from extender.placement.node_match import (
    NodeDemands,
    Obstacle,
    Rule,
    as_daemon_pods,
    demands_in,
    hard_taints,
    obstacles,
    taint_text,
)
from extender.placement.nodes import (
    NO_NODES,
    PREFIX,
    USUAL,
    ClusterNodes,
    NodePlatforms,
    platform_of_node,
)
from extender.placement.patch import Operation, apply
from extender.placement.policy import Policy, is_exempt
from extender.placement.reasons import platforms_text, retry_text, shown_reference
from extender.placement.resolved_pod import ResolvedPod
from extender.placement.scheduling import REFUSED, Decision, Verdict, verdicts_on
from extender.reports.audit_report import RunAnswer
from extender.reports.running_containers import PlatformFault
from extender.reports.workload_reports import uses_of

SCHEMA = f"{PREFIX}explanation/v1"
_NAMES = 5  # of the nodes of one kind that are named


class ExplainedImage(msgspec.Struct, frozen=True, kw_only=True):
    """One image of a pod: where it is used, what is known of it, and where that comes from.

    `platforms` is None for an image that is not known to be constrained: `state` is then anywhere, pending or unknown,
    the last two with `cause` and `detail`. `detail` has what the pod's RuntimeClass runs, too. The other fields are
    those of `Evidence`. `by_operator`: it is known, or is not, by `placement.images`.
    """

    reference: str
    used_by: list[str]
    state: str
    platforms: list[str] | None
    cause: str
    detail: str
    digest: str
    credential: str
    age_seconds: float | None
    is_fresh: bool
    by_operator: bool = False


class ExplainedNodes(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes for which everything is decided alike. `names` has the first few; `is_assumed` if no cluster has them.

    `answer` counts everything, `images` the images alone. `words` are the event's or the annotation's, where one of
    them has any, and empty for nodes that pass. `lacking` names the images that do not run there. `score` is what
    prioritize gives before the extender's weight.
    """

    platform: str
    nodes: int
    names: tuple[str, ...]
    answer: RunAnswer
    images: RunAnswer
    verdict: Verdict
    words: str
    lacking: tuple[str, ...]
    obstacles: tuple[Obstacle, ...]
    taints: tuple[str, ...]
    score: int
    is_assumed: bool = False

    def of(self, names: Sequence[str]) -> "ExplainedNodes":
        """The same, said of the nodes of these names; nodes of no cluster have empty ones."""
        shown = tuple(filter(None, sorted(names)))[:_NAMES]
        return msgspec.structs.replace(self, nodes=len(names), names=shown, is_assumed=not shown)


class ExplainedWebhook(msgspec.Struct, frozen=True, kw_only=True):
    """What the webhook does to the pod as given: `patch` is a JSON Patch, `verdict` is for the audit log."""

    outcome: str
    verdict: str
    patch: list[Operation]
    warnings: list[str]


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """All that is said about one pod.

    `skipped` says why no decision is made about the pod, and is empty if one is made. `refusal` is the reason for every
    refused node, `retry` that of an answer after which kube-scheduler comes back. `annotation` is the reason that the
    webhook has written or would write, `added` its record of what it has added. While a pod has `gates`, kube-scheduler
    does not look at it. `remedies` say what would change the answer. `faults` are about containers of a pod on a node.
    """

    schema: str
    kind: str
    name: str
    namespace: str
    mode: Mode
    skipped: str
    images: list[ExplainedImage]
    refusal: str
    retry: str
    annotation: str
    added: str
    webhook: ExplainedWebhook
    problems: list[str]
    node_name: str
    nodes: list[ExplainedNodes]
    remedies: list[str]
    gates: list[str]
    faults: list[PlatformFault] = []

    @property
    def answer(self) -> RunAnswer:
        """Whether some node is known to take the pod; unknown if one may."""
        answers = {each.answer for each in self.nodes}
        order = (RunAnswer.YES, RunAnswer.UNKNOWN)
        return next((answer for answer in order if answer in answers), RunAnswer.NO)


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """What is explained: an object of `kind`, and the pod that it is or makes, as JSON and decoded.

    `is_created`: the pod has been stored by an API server, on the node of that name if it has one; `status` is its.
    `has_waited`: kube-scheduler has had it for so long that no image of it is pending any more. `defaults` are the
    annotations of its namespace, where they are known from manifests.
    """

    kind: str
    name: str
    namespace: str
    document: KubernetesObject
    pod: CreatedPod
    is_created: bool = False
    has_waited: bool = False
    node_name: str = ""
    status: PodStatus | None = None
    defaults: Mapping[str, str] | None = None

    def demands(self, document: Json) -> NodeDemands:
        """What the pods ask of their nodes when they are as in `document`."""
        demands = demands_in(msgspec.convert(map_at(document, "spec"), SchedulingSpec))
        if self.kind == "DaemonSet":
            return as_daemon_pods(demands, host_network=value_at(document, "spec", "hostNetwork") is True)
        return demands

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


def explain(
    subject: Subject,
    evidence: Mapping[PodImage, Evidence],
    overrides: Overrides,
    policy: Policy,
    mutator: Mutator,
    nodes: Sequence[ReportedNode],
    *,
    is_reviewed: bool = True,
    cluster: ClusterNodes | None = None,
) -> Explanation:
    """The explanation by the cluster's nodes, or the usual ones if it has none. O(nodes).

    `evidence` has what is known of each image, in pod order. A pod that is yet to be created is judged as the webhook
    would have it, if there is one (`is_reviewed`). `cluster` has the images that nodes list, and all platforms if there
    are more nodes than these.
    """
    cluster = cluster or cluster_nodes(nodes)
    pod, images = subject.pod, tuple(evidence)
    answers = [each.answer for each in evidence.values()]
    may_be_pending, lists = not subject.has_waited, cluster.images.lists
    known = dict(zip(images, facts_of(images, answers, may_be_pending=may_be_pending, lists=lists), strict=True))
    decision = Decision(images, facts_of(images, answers, may_be_pending=may_be_pending), policy, overrides)
    created = facts_of(images, answers, may_be_pending=True, lists=lists)
    resolved = ResolvedPod(pod, images, created, overrides, cluster)
    mutation = mutator.skip(pod, overrides) or mutator.mutate(resolved, may_hold=True)
    patch = msgspec.json.decode(mutation.patch or b"[]", type=list[Operation])
    annotation = (mutation.reason if patch and not mutation.would_be else "") or pod.annotations.get(REASON, "")
    skipped = _why_skipped(pod, policy, overrides)
    is_patched = bool(patch) and is_reviewed and not subject.is_created
    demands = subject.demands(apply(subject.document, patch) if is_patched else subject.document)
    # Nobody can change what is recorded as ours but the images' authors.
    authors = msgspec.structs.replace(subject.demands(_as_written(subject.document)), tolerations=demands.tolerations)
    explained_images = list(_images(pod, known, evidence))
    nodes = nodes or usual_nodes()
    unmet = [obstacles(demands, node) for node in nodes]
    verdicts = [Verdict.PASSED] * len(nodes) if skipped else _verdicts(decision, nodes, unmet, cluster.images)
    kinds: dict[ExplainedNodes, list[str]] = {}
    for node, own, verdict in zip(nodes, unmet, verdicts, strict=True):
        kind = _kind_of(node, own, obstacles(authors, node), verdict, None if skipped else decision, known, annotation)
        kinds.setdefault(kind, []).append(node.name)
    explained_nodes = sorted(
        (kind.of(names) for kind, names in kinds.items()),
        key=lambda kind: (kind.platform, kind.obstacles, kind.taints, kind.words),
    )
    return Explanation(
        schema=SCHEMA,
        kind=subject.kind,
        name=subject.name,
        namespace=subject.namespace,
        mode=overrides.mode,
        skipped=skipped,
        images=explained_images,
        refusal=decision.refusal,
        retry="" if Verdict.LISTED in verdicts else retry_text(decision.retried),
        annotation=annotation,
        added=pod.annotations.get(ADDED, ""),
        webhook=ExplainedWebhook(
            outcome=mutation.outcome.replace("_", " "),
            verdict=mutation.audit_annotations.get("verdict", ""),
            patch=patch,
            warnings=list(mutation.warnings),
        ),
        problems=list(overrides.problems),
        node_name=subject.node_name,
        nodes=explained_nodes,
        remedies=list(dict.fromkeys(_remedies(explained_images, explained_nodes, authors))),
        gates=_gates(pod.spec),
    )


def usual_nodes() -> list[ReportedNode]:
    """A plain node of each usual platform, for pods of no cluster."""
    return [
        ReportedNode(
            metadata=NodeMeta(
                labels={"kubernetes.io/arch": platform.architecture, "kubernetes.io/os": platform.os},
            ),
            status=ReportedNodeStatus(NodeSystemInfo(platform.architecture, platform.os)),
        )
        for platform in USUAL
    ]


def cluster_nodes(nodes: Sequence[ReportedNode], images: NodeImages = NO_NODES.images) -> ClusterNodes:
    """What the webhook of a cluster with these nodes knows of them, which list these images."""
    return ClusterNodes(frozenset(filter(None, map(platform_of_node, nodes))), images)


def _as_written(document: KubernetesObject) -> JsonObject:
    """The pod without what is recorded as ours."""
    own, _ = take_back(document, read_record(value_at(document, "metadata", "annotations", ADDED)), (), "")
    return own


def _verdicts(
    decision: Decision, nodes: Sequence[ReportedNode], unmet: Sequence[tuple[Obstacle, ...]], images: NodeImages
) -> list[Verdict]:
    """The verdict on each node: filter's, which is asked about those alone that meet the pod's own demands."""
    names = [node.name or NodeName(str(index)) for index, node in enumerate(nodes)]
    view = NodePlatforms(dict(zip(names, map(platform_of_node, nodes), strict=True)))
    view.images = images
    asked = [name for name, own in zip(names, unmet, strict=True) if not own]
    numbers, verdicts = verdicts_on(asked, view, decision)
    found = {name: verdicts[number] for name, number in zip(asked, numbers, strict=True)}
    return [found.get(name) or decision.verdict(view[name]) for name in names]


def _kind_of(
    node: ReportedNode,
    unmet: tuple[Obstacle, ...],
    own: tuple[Obstacle, ...],
    verdict: Verdict,
    decision: Decision | None,
    known: Mapping[PodImage, ImageFact],
    annotation: str,
) -> ExplainedNodes:
    """What is said of nodes like this one, not counted yet; `decision` is None if none is made about the pod."""
    platform = platform_of_node(node)
    images = _answer(decision.verdict(platform)) if decision else RunAnswer.YES
    is_selected = not any(each.rule in (Rule.SELECTOR, Rule.AFFINITY) for each in unmet)
    return ExplainedNodes(
        platform=str(platform) if platform else "",
        nodes=0,
        names=(),
        answer=RunAnswer.NO if unmet else images,
        images=images,
        verdict=verdict,
        words=_words(verdict, decision, "" if is_selected else annotation),
        lacking=tuple(_lacking(known, platform, decision.policy.compatibility)) if platform and decision else (),
        obstacles=own,
        taints=tuple(map(taint_text, hard_taints(node))),
        score=decision.score(platform) if decision else 0,
    )


def _words(verdict: Verdict, decision: Decision | None, annotation: str) -> str:
    """The annotation's words where it is about these nodes, or else those of kube-scheduler's event."""
    if annotation or decision is None:
        return annotation
    if verdict is Verdict.RETRY:
        return retry_text(decision.retried)
    return decision.refusal if verdict in REFUSED else ""


def _lacking(known: Mapping[PodImage, ImageFact], platform: Platform, compatibility: Compatibility) -> Iterator[str]:
    for image, fact in known.items():
        is_other = isinstance(fact, RunsOn) and not runs_on(fact.platforms, platform, compatibility)
        if is_other and image.runtime is None:
            yield image.reference


_GATES = msgspec.json.Decoder(list[PodSchedulingGate] | None)


def _gates(spec: CreatedSpec | None) -> list[str]:
    gates = _GATES.decode(spec.scheduling_gates) if spec and spec.scheduling_gates else None
    return [gate.name for gate in gates or ()]


def _why_skipped(pod: CreatedPod, policy: Policy, overrides: Overrides) -> str:
    if overrides.mode is Mode.IGNORE:
        return f"the annotation {MODE} is ignore, so nothing is looked up and nothing refused"
    if is_exempt(pod, policy):
        return (
            "the pod is static, or of a RuntimeClass that placement.runtime_classes leaves alone, so nothing is refused"
        )
    return ""


def _images(
    pod: CreatedPod, known: Mapping[PodImage, ImageFact], evidence: Mapping[PodImage, Evidence]
) -> Iterator[ExplainedImage]:
    used_by = defaultdict[tuple[str, Role, str], list[str]](list)
    for use in uses_of(pod.spec or CreatedSpec()):
        used_by[_use_of(use.image)].append(f"{use.used_as} {use.name}")
    for image, fact in known.items():
        found = evidence[image]
        yield ExplainedImage(
            reference=image.reference,
            used_by=used_by[_use_of(image)],
            state=_STATES[type(fact)],
            platforms=[str(platform) for platform in sorted(fact.platforms)] if isinstance(fact, RunsOn) else None,
            cause=fact.cause.value if isinstance(fact, Pending | Unknown) else "",
            detail=fact.detail if isinstance(fact, Pending | Unknown) else _why_anywhere(image, fact),
            digest=found.digest,
            credential=found.credential,
            age_seconds=None if found.age_seconds is None else round(found.age_seconds, 1),
            is_fresh=found.is_fresh,
            by_operator=is_by_operator(found.answer),
        )


def _use_of(image: PodImage) -> tuple[str, Role, str]:
    """What a container or volume says of its image; the rest the pod says."""
    return image.reference, image.role, image.pull_policy


_STATES: Mapping[type[ImageFact], str] = {
    RunsOn: "known", Anywhere: "anywhere", Pending: "pending", Unknown: "unknown",
}  # fmt: skip


def _why_anywhere(image: PodImage, fact: ImageFact) -> str:
    if image.runtime:
        return f"RuntimeClass {image.runtime.name} runs {platforms_text(image.runtime.platforms)}"
    is_data = image.role is Role.DATA and isinstance(fact, Anywhere)
    return "its program comes from a volume" if is_data else ""


def _answer(verdict: Verdict) -> RunAnswer:
    if verdict in REFUSED:
        return RunAnswer.NO
    return RunAnswer.YES if verdict is Verdict.YES else RunAnswer.UNKNOWN


# What would make an image known, by why it is not.
_CURES = {
    Cause.LOOKING_UP: "its lookup has not ended; ask again",
    Cause.MISSING: "push it, or correct its name",
    Cause.THROTTLED: "wait, or give a login with a higher limit",
    Cause.UNAVAILABLE: "repair the way to its registry",
    Cause.INVALID_REFERENCE: "correct its name",
    Cause.DENIED: "name a pull secret that may read it",
    Cause.REFUSED: "ask the registry's owner why it does not hand the image out",
    Cause.NOT_ALLOWED: "let the operator change the setting, or the nodes' file, that keeps us from it",
    Cause.ARTIFACT: "name an image instead of an artifact",
    Cause.UNSUPPORTED: "push it again with a current tool, as an OCI or Docker image",
    Cause.INVALID: "push it again: what the registry has is malformed",
    Cause.ON_NODES: "push it where nodes may pull it from, or nothing: the nodes that have it run their copies",
    Cause.BY_OPERATOR: "let the operator say in placement.images what it runs on",
    Cause.NEVER_PULLED: "choose another imagePullPolicy than Never, or know the nodes' copies",
}


def _remedies(images: Sequence[ExplainedImage], kinds: Sequence[ExplainedNodes], demands: NodeDemands) -> Iterator[str]:
    stated = {image.reference for image in images if image.by_operator}
    for kind in kinds:
        if kind.answer is RunAnswer.YES:
            continue
        name = kind.platform or "nodes that state no platform"
        for reference in kind.lacking:
            image = f"image {shown_reference(reference)}"
            if reference in stated:
                yield f"{name}: let the operator say in placement.images that {image} runs there"
            else:
                yield f"{name}: build {image} for {kind.platform} too"
        for obstacle in kind.obstacles:
            yield f"{name}: {_cure_of(obstacle, demands)}"
    if any(kind.answer is RunAnswer.UNKNOWN for kind in kinds):
        for each in images:
            if each.cause:
                reference = shown_reference(each.reference)
                yield f"image {reference} is not known ({each.cause}): {_CURES[Cause(each.cause)]}"


def _cure_of(obstacle: Obstacle, demands: NodeDemands) -> str:
    match obstacle.rule:
        case Rule.UNSCHEDULABLE:
            return "uncordon the nodes"
        case Rule.TAINT:
            return f"tolerate the taint {obstacle.subject}"
        case Rule.SELECTOR:
            return f"the pod's nodeSelector asks for {obstacle.subject}; change it, or label the nodes"
        case Rule.AFFINITY:
            terms = len(demands.terms or ())
            return f"required node affinity ({terms} term{'s' if terms != 1 else ''}) asks for {obstacle.subject}"
