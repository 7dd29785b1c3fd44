"""The scheduler verbs: from a request's bytes through image facts and the decision to the answer's bytes.

Knows when to wait and for how long; what is decided is `placement`'s business, what images run on `resolver`'s.
"""

import asyncio
import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Protocol

import msgspec
import structlog

from extender.credentials.keyring import Keyring
from extender.images.content import Answer, Content
from extender.kubernetes.core_v1 import NodeName, Pod, PodUid
from extender.kubernetes.extender_v1 import (
    ExtenderArgs,
    ExtenderFilterResult,
    ExtenderPreemptionResult,
    decode_args,
    decode_preemption_args,
    encode_filter_result,
    encode_preemption_result,
    encode_priorities,
)
from extender.metrics import counters
from extender.outlets.decision_cache import DecisionCache
from extender.outlets.first_seen import FirstSeen
from extender.outlets.pod_resolver import PodResolver
from extender.outlets.precomputed_scores import PrecomputedScores
from extender.outlets.seen_nodes import SeenNodes
from extender.placement.annotations import Choice, Mode, Overrides
from extender.placement.facts import PodImage, fact_of, images_of
from extender.placement.nodes import NodeLookup, NodePlatforms, list_nodes
from extender.placement.policy import is_exempt, template_key
from extender.placement.scheduling import (
    REFUSED,
    DecidedAnswer,
    Decision,
    Verdict,
    filter_nodes,
    is_unsettled,
    preempt_nodes,
    prioritize_nodes,
)
from extender.server.routes import Reply

log = structlog.get_logger()

NODES = counters(
    "multiarch_nodes_total",
    "Nodes asked about, by endpoint and by what was decided about them.",
    ("endpoint", ("filter", "prioritize", "preempt")),
    ("verdict", tuple(Verdict)),
)

# About 1 KB each; a busy cluster creates pods of some hundred templates at a time.
DECISIONS = 4096
# A node that a synced view does not know yet is asked for once; kube-scheduler waits meanwhile.
FIND_SECONDS = 0.05
NO_VIEW = "the request names its nodes and no cluster is watched: set nodeCacheCapable: false, or watch a cluster"
NOT_IN_VIEW = "node {node} is not in view, and the API server could not be asked about it; to be tried again"
NOT_SYNCED = "the nodes of the cluster are not known yet; to be tried again"


class NodeView(Protocol):
    """The cluster's nodes as a watch keeps them."""

    @property
    def platforms(self) -> NodePlatforms:
        """Of each node in view."""

    @property
    def synced(self) -> bool:
        """Whether every node has been seen once."""

    async def find(self, names: Sequence[NodeName], wait_seconds: float) -> NodeLookup:
        """Ask the API server once for nodes that are not in view, take them in, and say which are still missing."""


class _Question(msgspec.Struct, frozen=True):
    """A filter request about a pod that is our business."""

    args: ExtenderArgs
    overrides: Overrides
    nodes: NodePlatforms
    images: tuple[PodImage, ...]
    keyring: Keyring


class _Scores(msgspec.Struct, frozen=True):
    """A prioritize answer, and how many nodes of which verdict it scores."""

    text: bytes
    verdicts: Mapping[Verdict, int]


_NO_SCORES = _Scores(encode_priorities({}), {})


class SchedulerVerbs:
    """filter, prioritize and preempt for one scheduler.

    `nodes` is None without a cluster: then only requests with whole nodes can be answered. `may_read_secrets`: only
    kube-scheduler can reach us, so a call may make us read the pull secrets its pod names.
    """

    def __init__(
        self,
        pod_resolver: PodResolver,
        *,
        nodes: NodeView | None,
        wait_seconds: float,
        pending_limit_seconds: float,
        level_label: str,
        clock: Callable[[], float],
        may_read_secrets: bool = False,
    ) -> None:
        self._pod_resolver = pod_resolver
        self._policy = pod_resolver.policy
        self._nodes = nodes
        self._wait_seconds = wait_seconds
        self._pending_limit_seconds = pending_limit_seconds
        self._level_label = level_label
        self._may_read_secrets = may_read_secrets
        self._first_seen = FirstSeen(clock)
        # Pods of one template are decided about alike, and once all images are known the pod itself says nothing more.
        self._decide_known = functools.lru_cache(DECISIONS)(self._decide)
        self._seen_nodes = SeenNodes()
        self._decision_cache = DecisionCache[tuple[Decision, int]](clock)  # each with the number of its images
        self._precomputed_scores = PrecomputedScores[_Scores](clock)

    async def filter(self, body: bytes) -> Reply:
        """ExtenderFilterResult for ExtenderArgs. Raises InvalidRequest."""
        question = self._question(decode_args(body))
        if isinstance(question, Reply):
            return question
        args, nodes = question.args, question.nodes
        decision = await self._decide_in_time(question)
        outcome = filter_nodes(args, nodes, decision)
        if Verdict.UNSTATED in outcome.verdicts:
            node_lookup = await self._seek(args, nodes)
            if node_lookup.unreachable and decision.enforced and self._policy.pending is Choice.RETRY:
                return _filter_reply(ExtenderFilterResult(error=NOT_IN_VIEW.format(node=node_lookup.unreachable[0])))
            outcome = filter_nodes(args, nodes, decision)
        return _conclude(args, decision, outcome)

    def filter_nowait(self, body: bytes) -> Reply | None:
        """What `filter` answers, or None if it has to look something up first. Raises InvalidRequest."""
        args = decode_args(body)
        known = self._decide_nowait(args)
        if known is None or isinstance(known, Reply):
            return known
        nodes, decision = known
        outcome = filter_nodes(args, nodes, decision)
        if Verdict.UNSTATED in outcome.verdicts:
            return None
        if decision.preference and REFUSED.isdisjoint(outcome.verdicts):
            self._precomputed_scores.expect(body, functools.partial(_scores, args, nodes, decision))
        return _conclude(args, decision, outcome)

    async def prioritize(self, body: bytes) -> Reply:
        """HostPriorityList for ExtenderArgs, from memory only. Raises InvalidRequest."""
        return self.prioritize_nowait(body)

    def prioritize_nowait(self, body: bytes) -> Reply:
        """What `prioritize` answers. Raises InvalidRequest."""
        scores = self._precomputed_scores.take(body) or self._score(decode_args(body))
        _count("prioritize", scores.verdicts)
        return Reply(scores.text)

    async def preempt(self, body: bytes) -> Reply:
        """ExtenderPreemptionResult for ExtenderPreemptionArgs, from memory; starts lookups. Raises InvalidRequest."""
        args = decode_preemption_args(body)
        overrides = self._overrides_of(args.pod)
        if overrides is None:
            return Reply(encode_preemption_result(args.echo()))
        if self._nodes is not None and not self._nodes.synced:
            return Reply(encode_preemption_result(ExtenderPreemptionResult({})), "error")
        images = images_of(args.pod)
        answers = await self._pod_resolver.resolve(images, self._keyring_of(args.pod), 0)
        decision = self._decision(args.pod, images, answers, overrides)
        outcome = preempt_nodes(args, self._nodes.platforms if self._nodes else self._seen_nodes.platforms, decision)
        _count("preempt", outcome.verdicts)
        return Reply(encode_preemption_result(outcome.answer))

    @staticmethod
    def fallback_filter(_body: bytes, event_id: str) -> bytes:
        """An error, which makes the scheduler come back."""
        return encode_filter_result(ExtenderFilterResult(error=f"internal error {event_id}; see the extender's log"))

    @staticmethod
    def fallback_prioritize(_body: bytes, _event_id: str) -> bytes:
        """No scores: the scheduler's own decide."""
        return encode_priorities({})

    @staticmethod
    def fallback_preempt(_body: bytes, _event_id: str) -> bytes:
        """No candidates: nobody is evicted by mistake."""
        return encode_preemption_result(ExtenderPreemptionResult({}))

    def _decide_nowait(self, args: ExtenderArgs) -> tuple[NodePlatforms, Decision] | Reply | None:
        """Where to look the nodes up, and the decision; the answer where there is nothing to decide; None if an image
        is not known.
        """
        kind = template_key(args.pod)
        decision = self._recall(kind)
        if decision:
            nodes = self._nodes_for(args)
            return _filter_reply(ExtenderFilterResult(error=nodes)) if isinstance(nodes, str) else (nodes, decision)
        question = self._question(args)
        if isinstance(question, Reply):
            return question
        answers = self._pod_resolver.recall(question.images, question.keyring)
        if answers is None:
            return None
        decision = self._decision(args.pod, question.images, answers, question.overrides)
        if kind is not None and not question.overrides.problems:  # which are told to the log for every pod
            self._decision_cache.keep(kind, (decision, len(answers)))
        return question.nodes, decision

    def _recall(self, kind: Hashable | None) -> Decision | None:
        """What was decided of known images lately, about another pod of this kind."""
        found = self._decision_cache.find(kind)
        if found is None:
            return None
        decision, images = found
        self._pod_resolver.count_recalled(images)
        return decision

    def _question(self, args: ExtenderArgs) -> "_Question | Reply":
        """What there is to decide, or the answer where there is nothing."""
        overrides = self._overrides_of(args.pod)
        if overrides is None:
            return _filter_reply(args.echo())
        nodes = self._nodes_for(args)
        if isinstance(nodes, str):
            return _filter_reply(ExtenderFilterResult(error=nodes))
        return _Question(args, overrides, nodes, images_of(args.pod), self._keyring_of(args.pod))

    def _score(self, args: ExtenderArgs) -> "_Scores":
        nodes = self._nodes_for(args)
        if isinstance(nodes, str):
            return _NO_SCORES
        decision = self._recall(template_key(args.pod))
        if decision:
            return _scores(args, nodes, decision)
        overrides = self._overrides_of(args.pod)
        if overrides is None:
            return _NO_SCORES
        images = images_of(args.pod)
        answers = self._pod_resolver.peek(images, self._keyring_of(args.pod))
        return _scores(args, nodes, self._decision(args.pod, images, answers, overrides))

    def _keyring_of(self, pod: Pod) -> Keyring:
        return self._pod_resolver.keyring_of(pod, _namespace_of(pod), may_read=self._may_read_secrets)

    def _overrides_of(self, pod: Pod) -> Overrides | None:
        """What pod and namespace ask for; None where the pod is none of our business."""
        overrides = self._pod_resolver.overrides_of(pod, _namespace_of(pod))
        for problem in overrides.problems:
            log.info("annotation.refused", pod=_uid(pod), problem=problem)
        return None if overrides.mode is Mode.IGNORE or is_exempt(pod, self._policy) else overrides

    def _nodes_for(self, args: ExtenderArgs) -> NodePlatforms | str:
        """Where to look the asked nodes up, or why that cannot be done."""
        if args.nodes is not None:
            nodes = list_nodes(args.nodes, self._level_label)
            if self._nodes is None:
                self._seen_nodes.remember(nodes)
            return nodes
        if self._nodes is None:
            return NO_VIEW
        return self._nodes.platforms if self._nodes.synced else NOT_SYNCED

    async def _seek(self, args: ExtenderArgs, nodes: NodePlatforms) -> NodeLookup:
        """Look for asked nodes that should be in view and are not. What does not exist passes."""
        if self._nodes is None or nodes is not self._nodes.platforms:
            return NodeLookup()
        missing = [name for name in args.names if name not in nodes]
        if not missing:
            return NodeLookup()
        node_lookup = await self._nodes.find(missing, FIND_SECONDS)
        log.info(
            "node.missed",
            pod=_uid(args.pod),
            nodes=len(missing),
            unknown=len(node_lookup.absent) + len(node_lookup.unreachable),
            unreachable=len(node_lookup.unreachable),
        )
        return node_lookup

    async def _decide_in_time(self, question: "_Question") -> Decision:
        """The decision from memory, or after waiting for lookups where that could change the answer."""
        args, nodes, images, keyring = question.args, question.nodes, question.images, question.keyring
        answers = await self._pod_resolver.resolve(images, keyring, 0)
        decision = self._decision(args.pod, images, answers, question.overrides)
        if None not in answers or not self._wait_seconds or not is_unsettled(args, nodes, decision):
            return decision
        answers = await self._pod_resolver.resolve(images, keyring, self._wait_seconds)
        return self._decision(args.pod, images, answers, question.overrides)

    def _decision(
        self, pod: Pod, images: tuple[PodImage, ...], answers: Sequence[Answer], overrides: Overrides
    ) -> Decision:
        if all(isinstance(answer, Content) for answer in answers):
            return self._decide_known(images, tuple(answers), overrides)
        may_be_pending = self._first_seen.seconds(_uid(pod)) < self._pending_limit_seconds
        return self._decide(images, answers, overrides, may_be_pending=may_be_pending)

    def _decide(
        self,
        images: Sequence[PodImage],
        answers: Sequence[Answer],
        overrides: Overrides,
        *,
        may_be_pending: bool = False,
    ) -> Decision:
        facts = [
            fact_of(image, answer, may_be_pending=may_be_pending) for image, answer in zip(images, answers, strict=True)
        ]
        return Decision(images, facts, self._policy, overrides)


def _namespace_of(pod: Pod) -> str:
    return (pod.metadata and pod.metadata.namespace) or ""


def _uid(pod: Pod) -> PodUid:
    """The pod's uid, or what names it where it has none."""
    metadata = pod.metadata
    if metadata is None:
        return PodUid("")
    return PodUid(metadata.uid or f"{metadata.namespace}/{metadata.name or metadata.generate_name}")


def _conclude(args: ExtenderArgs, decision: Decision, outcome: DecidedAnswer[ExtenderFilterResult]) -> Reply:
    _count("filter", outcome.verdicts)
    if outcome.decided is not outcome.answer:
        refused = sum(number for verdict, number in outcome.verdicts.items() if verdict in REFUSED)
        log.info("pod.observed", pod=_uid(args.pod), refused=refused, reason=decision.refusal or outcome.decided.error)
    return _filter_reply(outcome.answer)


def _filter_reply(result: ExtenderFilterResult) -> Reply:
    return Reply(encode_filter_result(result), "error" if result.error else "answered")


def _scores(args: ExtenderArgs, nodes: NodePlatforms, decision: Decision) -> _Scores:
    outcome = prioritize_nodes(args, nodes, decision)
    return _Scores(encode_priorities(outcome.answer), outcome.verdicts)


def _count(endpoint: str, verdicts: Mapping[Verdict, int]) -> None:
    """Count once the answer has been written: the scheduler waits for that, not for our books."""
    asyncio.get_running_loop().call_soon(_count_now, endpoint, verdicts)


def _count_now(endpoint: str, verdicts: Mapping[Verdict, int]) -> None:
    children = NODES[endpoint]
    for verdict, number in verdicts.items():
        children[verdict].inc(number)
