"""Why a pod may run on some nodes and not on others: its images, the decision, and what else counts.

The decision, its words and the webhook's patch come from `placement`. This file arranges them, and adds what
kube-scheduler itself asks of nodes.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from extender.images.content import Answer, Cause, Content, Evidence
from extender.images.platform import Platform, runs_on
from extender.images.platform_states import claim_text
from extender.kubernetes.core_v1 import CreatedPod, CreatedSpec, NodeMeta, NodeSystemInfo
from extender.kubernetes.reported_v1 import ReportedNode, ReportedNodeStatus
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
from extender.placement.mutation import Mutation, Mutator
from extender.placement.node_match import (
    NodeDemands,
    Obstacle,
    Rule,
    as_daemon_pods,
    demands_of,
    hard_taints,
    obstacles,
    taint_text,
)
from extender.placement.nodes import PREFIX, USUAL, ClusterNodes, name_of_node, platform_of_node
from extender.placement.patch import Operation
from extender.placement.policy import ADDED, MODE, REASON, Mode, Overrides, Policy, is_exempt
from extender.placement.reasons import platforms_text, retry_text, shown_reference
from extender.placement.scheduling import REFUSED, Decision, Verdict
from extender.reports.audit_report import RunAnswer
from extender.reports.running_containers import PlatformFault

SCHEMA = f"{PREFIX}explanation/v1"
_NAMES = 5  # of the nodes of one kind that are named


class ExplainedImage(msgspec.Struct, frozen=True, kw_only=True):
    """One image of a pod: where it is used, what is known of it, and where that comes from.

    `platforms` is None for an image that is not known to be constrained: `state` is then anywhere, pending or unknown,
    the last two with `cause` and `detail`. `detail` has what the pod's RuntimeClass runs, too. `claims` are sentences
    about platforms that it claims falsely, `verified` the platforms for which its program is known to be. The other
    fields are those of `Evidence`.
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
    claims: list[str] = []
    verified: list[str] = []


class ExplainedPlatform(msgspec.Struct, frozen=True, kw_only=True):
    """The decision about nodes of one platform, by the images alone.

    `words` are those of kube-scheduler's event, empty for nodes that pass. `lacking` names the images that do not run
    there. `score` is what prioritize gives before the extender's weight.
    """

    platform: str
    answer: RunAnswer
    verdict: Verdict
    words: str
    lacking: list[str]
    score: int


class ExplainedNodes(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes for which everything is decided alike. `names` has the first few; `is_assumed` if no cluster has them.

    `answer` counts everything, `images` the images alone. `words` are the event's or the annotation's, where one of
    them has any.
    """

    platform: str
    nodes: int
    names: list[str]
    answer: RunAnswer
    images: RunAnswer
    verdict: Verdict
    words: str
    obstacles: list[Obstacle]
    taints: list[str]
    score: int
    is_assumed: bool = False


class ExplainedWebhook(msgspec.Struct, frozen=True, kw_only=True):
    """What the webhook does to the pod as given: `patch` is a JSON Patch, `verdict` is for the audit log."""

    outcome: str
    verdict: str
    patch: list[Operation]
    warnings: list[str]


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """All that is to say about one pod.

    `skipped` tells why no decision is made about the pod, empty if one is. `refusal` are the words for every refused
    node, `retry` those of an answer after which kube-scheduler comes back. `annotation` is the reason that the webhook
    has written or would write, `added` its record of what it has added. While a pod has `gates`, kube-scheduler does
    not look at it. `remedies` tell what would change the answer. `faults` are of the containers of a pod on a node.
    """

    schema: str
    kind: str
    name: str
    namespace: str
    mode: Mode
    skipped: str
    images: list[ExplainedImage]
    platforms: list[ExplainedPlatform]
    refusal: str
    retry: str
    annotation: str
    added: str
    webhook: ExplainedWebhook
    problems: list[str]
    node_name: str = ""
    nodes: list[ExplainedNodes] = []
    remedies: list[str] = []
    gates: list[str] = []
    faults: list[PlatformFault] = []

    @property
    def answer(self) -> RunAnswer:
        """Whether some node is known to take the pod; unknown if one may."""
        answers = {each.answer for each in self.nodes} or {each.answer for each in self.platforms}
        order = (RunAnswer.YES, RunAnswer.UNKNOWN)
        return next((answer for answer in order if answer in answers), RunAnswer.NO)


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """What is explained: an object of `kind`, and the pod that it is or makes, whose JSON is `raw_pod`."""

    kind: str
    name: str
    namespace: str
    pod: CreatedPod
    raw_pod: bytes = b""


class PodEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """What the decision about a pod depends on: its images, in pod order, what is known of each, and the overrides."""

    images: tuple[PodImage, ...]
    evidence: Sequence[Evidence]
    overrides: Overrides


def explain(subject: Subject, found: PodEvidence, policy: Policy, mutator: Mutator, nodes: ClusterNodes) -> Explanation:
    """The explanation without nodes; `nodes` are the cluster's, and the usual platforms are told of besides."""
    pod, images, overrides = subject.pod, found.images, found.overrides
    facts = facts_of(images, [each.answer for each in found.evidence], may_be_pending=True)
    decision = Decision(images, facts, policy, overrides)
    mutation = mutator.skip(pod, overrides) or mutator.mutate(pod, images, facts, overrides, nodes, may_hold=True)
    skipped = _why_skipped(pod, policy, overrides)
    patch = msgspec.json.decode(mutation.patch or b"[]", type=list[Operation])
    annotations = (pod.metadata and pod.metadata.annotations) or {}
    return Explanation(
        schema=SCHEMA,
        kind=subject.kind,
        name=subject.name,
        namespace=subject.namespace,
        mode=overrides.mode,
        skipped=skipped,
        images=[
            _image(image, fact, evidence, pod.spec)
            for image, fact, evidence in zip(images, facts, found.evidence, strict=True)
        ],
        platforms=[
            _platform(each, decision, images, facts, policy) if not skipped else _allowed(each)
            for each in sorted(nodes.platforms.union(USUAL))
        ],
        refusal=decision.refusal,
        retry=retry_text(decision.retried),
        annotation=_reason(patch) or annotations.get(REASON, ""),
        added=annotations.get(ADDED, ""),
        webhook=_webhook(mutation, patch),
        problems=list(overrides.problems),
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


def with_nodes(
    explanation: Explanation, spec: CreatedSpec, nodes: Sequence[ReportedNode], *, is_assumed: bool
) -> Explanation:
    """The explanation with the kinds of `nodes`, and with what would change the answer. O(nodes).

    `spec` is that of the pod as kube-scheduler sees it. `is_assumed`: whether no cluster has these nodes.
    """
    demands = demands_of(spec)
    if explanation.kind == "DaemonSet":
        demands = as_daemon_pods(demands, host_network=spec.host_network is True)
    grouped: dict[tuple[str, tuple[Obstacle, ...], tuple[str, ...]], list[str]] = {}
    for node in nodes:
        platform = platform_of_node(node)
        taints = tuple(taint_text(taint) for taint in hard_taints(node))
        key = (str(platform) if platform else "", obstacles(demands, node), taints)
        grouped.setdefault(key, []).append(name_of_node(node))
    by_platform = {each.platform: each for each in explanation.platforms}
    kinds = [
        _kind(explanation, by_platform.get(platform), platform, blocked, taints, sorted(names), is_assumed=is_assumed)
        for (platform, blocked, taints), names in sorted(grouped.items())
    ]
    return msgspec.structs.replace(
        explanation, nodes=kinds, remedies=list(dict.fromkeys(_remedies(explanation, kinds, demands)))
    )


def _kind(
    explanation: Explanation,
    decided: ExplainedPlatform | None,
    platform: str,
    blocked: tuple[Obstacle, ...],
    taints: tuple[str, ...],
    names: list[str],
    *,
    is_assumed: bool,
) -> ExplainedNodes:
    images = decided.answer if decided else RunAnswer.UNKNOWN
    words = decided.words if decided else ""
    if any(each.rule in (Rule.SELECTOR, Rule.AFFINITY) for each in blocked) and explanation.annotation:
        words = explanation.annotation
    return ExplainedNodes(
        platform=platform,
        nodes=len(names),
        names=[name for name in names[:_NAMES] if name],
        answer=RunAnswer.NO if blocked else images,
        images=images,
        verdict=decided.verdict if decided else Verdict.UNSTATED,
        words=words,
        obstacles=list(blocked),
        taints=list(taints),
        score=decided.score if decided else 0,
        is_assumed=is_assumed,
    )


class _Gate(msgspec.Struct):
    name: str = ""


_GATES = msgspec.json.Decoder(list[_Gate] | None)


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


def _image(image: PodImage, fact: ImageFact, evidence: Evidence, spec: CreatedSpec | None) -> ExplainedImage:
    return ExplainedImage(
        reference=image.reference,
        used_by=list(_users(image, spec)),
        state=_state(fact),
        platforms=[str(platform) for platform in sorted(fact.platforms)] if isinstance(fact, RunsOn) else None,
        cause=fact.cause.value if isinstance(fact, Pending | Unknown) else "",
        detail=fact.detail if isinstance(fact, Pending | Unknown) else _why_anywhere(image, fact),
        digest=evidence.digest,
        credential=evidence.credential,
        age_seconds=None if evidence.age_seconds is None else round(evidence.age_seconds, 1),
        is_fresh=evidence.is_fresh,
        claims=[claim_text(each) for each in fact.denied] if isinstance(fact, RunsOn) else [],
        verified=[str(platform) for platform in sorted(_verified(fact, evidence.answer))],
    )


def _why_anywhere(image: PodImage, fact: ImageFact) -> str:
    if image.runtime:
        return f"RuntimeClass {image.runtime.name} runs {platforms_text(image.runtime.platforms)}"
    is_data = image.role is Role.DATA and isinstance(fact, Anywhere)
    return "its program comes from a volume" if is_data else ""


def _verified(fact: ImageFact, answer: Answer) -> frozenset[Platform]:
    """The platforms that decide and for which the image's program is known to be."""
    return fact.platforms & answer.verified if isinstance(fact, RunsOn) and isinstance(answer, Content) else frozenset()


def _state(fact: ImageFact) -> str:
    match fact:
        case RunsOn():
            return "known"
        case Anywhere():
            return "anywhere"
        case Pending():
            return "pending"
        case Unknown():
            return "unknown"


def _users(image: PodImage, spec: CreatedSpec | None) -> Iterator[str]:
    """The containers or volumes that name the image."""
    if spec is None:
        return
    if image.role is Role.VOLUME:
        for volume in spec.volumes or ():
            if volume.image and volume.image.reference == image.reference:
                yield f"volume {volume.name}"
        return
    kinds = (
        ("container", spec.containers),
        ("init container", spec.init_containers),
        ("ephemeral container", spec.ephemeral_containers),
    )
    for word, containers in kinds:
        for item in containers or ():
            if (item.image or "") == image.reference and (item.image_pull_policy or "") == image.pull_policy:
                sidecar = word == "init container" and item.restart_policy == "Always"
                yield f"{'sidecar' if sidecar else word} {item.name}"


def _platform(
    platform: Platform, decision: Decision, images: Sequence[PodImage], facts: Sequence[ImageFact], policy: Policy
) -> ExplainedPlatform:
    verdict = decision.verdict(platform)
    return ExplainedPlatform(
        platform=str(platform),
        answer=_answer(verdict),
        verdict=verdict,
        words=decision.refusal
        if verdict in REFUSED
        else retry_text(decision.retried)
        if verdict is Verdict.RETRY
        else "",
        lacking=[
            image.reference
            for image, fact in zip(images, facts, strict=True)
            if isinstance(fact, RunsOn)
            and image.runtime is None
            and not runs_on(fact.platforms, platform, policy.compatibility)
        ],
        score=decision.score(platform),
    )


def _allowed(platform: Platform) -> ExplainedPlatform:
    """What is decided about a pod of which nothing is looked up."""
    return ExplainedPlatform(
        platform=str(platform), answer=RunAnswer.YES, verdict=Verdict.PASSED, words="", lacking=[], score=0
    )


def _answer(verdict: Verdict) -> RunAnswer:
    if verdict in REFUSED:
        return RunAnswer.NO
    return RunAnswer.YES if verdict is Verdict.YES else RunAnswer.UNKNOWN


def _webhook(mutation: Mutation, patch: list[Operation]) -> ExplainedWebhook:
    return ExplainedWebhook(
        outcome=mutation.outcome.replace("_", " "),
        verdict=mutation.audit_annotations.get("verdict", ""),
        patch=patch,
        warnings=list(mutation.warnings),
    )


def _reason(patch: Sequence[Operation]) -> str:
    """The reason annotation that the patch writes; empty if it writes none."""
    for operation in patch:
        value = operation.value
        if operation.path == "/metadata" and isinstance(value, Mapping):
            value = value.get("annotations")
        if operation.path in ("/metadata", "/metadata/annotations") and isinstance(value, Mapping) and REASON in value:
            return str(value[REASON])
        if operation.path == "/metadata/annotations/" + REASON.replace("/", "~1") and isinstance(value, str):
            return value
    return ""


# What would make an image known, by why it is not.
_CURES = {
    Cause.LOOKING_UP: "its lookup has not ended; ask again",
    Cause.MISSING: "push it, or correct its name",
    Cause.THROTTLED: "wait, or give a login with a higher limit",
    Cause.UNAVAILABLE: "mend the way to its registry",
    Cause.INVALID_REFERENCE: "correct its name",
    Cause.DENIED: "name a pull secret that may read it",
    Cause.REFUSED: "ask the registry's owner why it does not hand the image out",
    Cause.NOT_ALLOWED: "let the operator change the setting, or the nodes' file, that keeps us from it",
    Cause.ARTIFACT: "name an image instead of an artifact",
    Cause.UNSUPPORTED: "push it again with a current tool, as an OCI or Docker image",
    Cause.INVALID: "push it again: what the registry has is malformed",
    Cause.ON_NODES: "push it where nodes may pull it from, or nothing: the nodes that have it run their copies",
    Cause.NEVER_PULLED: "choose another imagePullPolicy than Never, or know the nodes' copies",
}


def _remedies(explanation: Explanation, kinds: Sequence[ExplainedNodes], demands: NodeDemands) -> Iterator[str]:
    by_platform = {each.platform: each for each in explanation.platforms}
    for kind in kinds:
        if kind.answer is RunAnswer.YES:
            continue
        name = kind.platform or "nodes that state no platform"
        decided = by_platform.get(kind.platform)
        for reference in decided.lacking if decided else ():
            yield f"{name}: build image {shown_reference(reference)} for {kind.platform} too"
        for obstacle in kind.obstacles:
            yield f"{name}: {_cure_of(obstacle, demands)}"
    if any(kind.answer is RunAnswer.UNKNOWN for kind in kinds):
        for image in explanation.images:
            if image.cause:
                reference = shown_reference(image.reference)
                yield f"image {reference} is not known ({image.cause}): {_CURES[Cause(image.cause)]}"


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
