"""The scheduler verbs: filter, prioritize and preempt, from a request's bytes to the answer's.

Each verb gathers what is known of the pod, decides, and encodes. This file says when to wait and for how long;
`placement.scheduling` decides.
"""

import asyncio
import functools
from collections.abc import Callable, Mapping, Sequence

import msgspec
import structlog

from extender.images.content import Answer, Content
from extender.kubernetes.core_v1 import Pod, PodUid
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
from extender.outlets.pod_resolver import PodQuestion, PodResolver
from extender.outlets.precomputed_scores import PrecomputedScores
from extender.outlets.request_nodes import NodesNotKnown, NodeView, RequestNodes
from extender.placement.annotations import Choice, Mode, Overrides
from extender.placement.facts import PodImage, facts_of
from extender.placement.nodes import NodePlatforms
from extender.placement.policy import PreferenceBy, is_exempt, template_key
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
from extender.tables import Table, declare_cache

log = structlog.get_logger()

NODES = counters(
    "multiarch_nodes_total",
    "Nodes asked about, by endpoint and by what was decided about them.",
    ("endpoint", ("filter", "prioritize", "preempt")),
    ("verdict", tuple(Verdict)),
)

# About 1 KB each; a busy cluster creates pods of some hundred templates at a time.
_DECISIONS = declare_cache(
    "outlets.scheduler.decisions", key="images, facts, overrides", bound=4096, at_most="40 MB", shrinks=True
)
NOT_IN_VIEW = "node {node} is not in view, and the API server could not be asked about it; to be tried again"


class _Scores(msgspec.Struct, frozen=True):
    """An encoded prioritize answer, and the number of nodes for each verdict in it."""

    text: bytes
    verdicts: Mapping[Verdict, int]


_NO_SCORES = _Scores(encode_priorities({}), {})


class SchedulerVerbs:
    """filter, prioritize and preempt for one scheduler.

    `nodes` is None without a cluster: then only requests with whole nodes can be answered. `may_read_secrets`: only
    kube-scheduler can reach these endpoints, so the pull secrets that a request's pod names may be read. Any other
    caller gets what is public, and what the operator's credentials open. `observed_pods` collects what would have
    become of pods that are only observed.
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
        self._filters_by_preference = pod_resolver.policy.preference_by is PreferenceBy.FILTER
        self._view = nodes
        self._nodes = RequestNodes(nodes, level_label, pod_resolver.policy.preferred_nodes)
        self._wait_seconds = wait_seconds
        self._pending_limit_seconds = pending_limit_seconds
        self._may_read_secrets = may_read_secrets
        self._first_seen = FirstSeen(clock)
        # The decision about known images depends only on the key, so pods of one template share it.
        self._decisions: Table[tuple[Sequence[PodImage], Sequence[Answer], Overrides], Decision] = _DECISIONS.table()
        self._decision_cache = DecisionCache[Decision](clock)
        self._precomputed_scores = PrecomputedScores[_Scores](clock)

    async def filter(self, body: bytes) -> Reply:
        """The ExtenderFilterResult for ExtenderArgs; waits for lookups that could change it. Raises InvalidRequest."""
        args = decode_args(body)
        gathered = self._gather(args.pod, args.raw_pod, for_scores=self._filters_by_preference)
        if gathered is None:
            return _filter_reply(args.echo())
        try:
            nodes = self._nodes.of(args)
            decision = await self._decide_in_time(args, nodes, gathered)
            decided = filter_nodes(args, nodes, decision)
            if Verdict.UNSTATED in decided.verdicts:
                await self._find_missing(args, nodes, decision)
                decided = filter_nodes(args, nodes, decision)
            elif self._is_rash(args, nodes, decision, decided):
                # A node that is found is judged. One that is not is taken to be of a usual platform, and passes.
                await self._nodes.find_missing(args, nodes, _uid(args.pod))
                decided = filter_nodes(args, nodes, decision)
        except NodesNotKnown as exc:
            return _filter_reply(ExtenderFilterResult(error=str(exc)))
        return self._filtered(args, decision, decided)

    def filter_nowait(self, body: bytes) -> Reply | None:
        """What `filter` answers, or None if it has to look something up first. Raises InvalidRequest."""
        args = decode_args(body)
        gathered = self._gather(args.pod, args.raw_pod, for_scores=self._filters_by_preference)
        if gathered is None:
            return _filter_reply(args.echo())
        decision = gathered if isinstance(gathered, Decision) else self._decide_fresh(args.pod, gathered)
        if decision is None:
            return None
        try:
            nodes = self._nodes.of(args)
        except NodesNotKnown as exc:
            return _filter_reply(ExtenderFilterResult(error=str(exc)))
        decided = filter_nodes(args, nodes, decision)
        if Verdict.UNSTATED in decided.verdicts:
            return None
        if self._view and not self._view.is_current and self._is_rash(args, nodes, decision, decided):
            return None
        if decision.preference and not decision.leaves_out and REFUSED.isdisjoint(decided.verdicts):
            self._precomputed_scores.expect(body, functools.partial(self._score_as, args, nodes, decision))
        return self._filtered(args, decision, decided)

    async def prioritize(self, body: bytes) -> Reply:
        """The HostPriorityList for ExtenderArgs, from the cache only. Raises InvalidRequest."""
        return self.prioritize_nowait(body)

    def prioritize_nowait(self, body: bytes) -> Reply:
        """What `prioritize` answers. Raises InvalidRequest."""
        scores = self._precomputed_scores.take(body) or self._score(decode_args(body))
        _count("prioritize", scores.verdicts)
        return Reply(scores.text)

    async def preempt(self, body: bytes) -> Reply:
        """The ExtenderPreemptionResult for ExtenderPreemptionArgs, from the cache. Raises InvalidRequest.

        Starts lookups of images that are not known, without waiting for them.
        """
        args = decode_preemption_args(body)
        gathered = self._gather(args.pod, b"", for_scores=False)
        if gathered is None:
            return Reply(encode_preemption_result(args.echo()))
        try:
            nodes = self._nodes.known()
        except NodesNotKnown:
            return Reply(encode_preemption_result(ExtenderPreemptionResult({})), "error")
        if isinstance(gathered, PodQuestion):
            gathered = self._decide(args.pod, gathered, await self._pod_resolver.resolve(gathered, 0))
        decided = preempt_nodes(args, nodes, gathered)
        _count("preempt", decided.verdicts)
        return Reply(encode_preemption_result(decided.answer))

    @staticmethod
    def fallback_filter(_body: bytes, event_id: str) -> bytes:
        """An error answer, after which the scheduler retries."""
        return encode_filter_result(ExtenderFilterResult(error=f"internal error {event_id}; see the extender's log"))

    @staticmethod
    def fallback_prioritize(_body: bytes, _event_id: str) -> bytes:
        """An answer without scores, so that the scheduler's own scores decide."""
        return encode_priorities({})

    @staticmethod
    def fallback_preempt(_body: bytes, _event_id: str) -> bytes:
        """An answer without candidates, so that no pod is evicted by mistake."""
        return encode_preemption_result(ExtenderPreemptionResult({}))

    def _gather(self, pod: Pod, raw_pod: bytes, *, for_scores: bool) -> Decision | PodQuestion | None:
        """The cached decision about the pod's template, else the pod's question; None if the pod is exempt.

        Not `for_scores`, the decision may have a preference that this pod of the template has not, and `raw_pod` may be
        empty.
        """
        decision = self._decision_cache.find(template_key(pod))
        if decision and not (for_scores and self._has_no_preference(raw_pod, decision)):
            self._pod_resolver.count_hits(decision.image_count)
            return decision
        namespace = _namespace_of(pod)
        overrides = self._pod_resolver.overrides_of(pod, namespace, raw_pod)
        for problem in overrides.problems:
            log.info("annotation.refused", pod=_uid(pod), problem=problem)
        if overrides.mode is Mode.IGNORE or is_exempt(pod, self._policy):
            return None
        return self._pod_resolver.question(pod, namespace, overrides, may_read=self._may_read_secrets)

    def _decide_fresh(self, pod: Pod, question: PodQuestion) -> Decision | None:
        """The decision from fresh answers, kept for the pod's template; None if one image has no fresh answer.

        It is not kept if it is about this pod alone, or if the problems of its annotations are to be logged for each.
        """
        answers = self._pod_resolver.fresh(question)
        if answers is None:
            return None
        decision = self._decide(pod, question, answers)
        template = template_key(pod)
        overrides = question.overrides
        if template is not None and not overrides.problems and not overrides.is_own and decision.may_be_kept:
            self._decision_cache.keep(template, decision)
        return decision

    async def _decide_in_time(
        self, args: ExtenderArgs, nodes: NodePlatforms, gathered: Decision | PodQuestion
    ) -> Decision:
        """The decision from the cache, or after waiting for lookups if those could change the answer."""
        if isinstance(gathered, Decision):
            return gathered
        answers = await self._pod_resolver.resolve(gathered, 0)
        decision = self._decide(args.pod, gathered, answers)
        if None in answers and self._wait_seconds and is_unsettled(args, nodes, decision):
            answers = await self._pod_resolver.resolve(gathered, self._wait_seconds)
            decision = self._decide(args.pod, gathered, answers)
        return decision

    def _decide(self, pod: Pod, question: PodQuestion, answers: Sequence[Answer]) -> Decision:
        if all(isinstance(answer, Content) for answer in answers):
            return self._decide_known(question.images, tuple(answers), question.overrides)
        waited_seconds = self._first_seen.seconds(_uid(pod), _namespace_of(pod))
        may_be_pending = waited_seconds < self._pending_limit_seconds
        return self._decide_facts(question.images, answers, question.overrides, may_be_pending=may_be_pending)

    def _decide_known(self, images: Sequence[PodImage], answers: Sequence[Answer], overrides: Overrides) -> Decision:
        key = (images, answers, overrides)
        decision = self._decisions.peek(key)
        if decision is None:
            decision = self._decide_facts(images, answers, overrides)
            if decision.may_be_kept:
                self._decisions.put(key, decision)
        return decision

    def _decide_facts(
        self,
        images: Sequence[PodImage],
        answers: Sequence[Answer],
        overrides: Overrides,
        *,
        may_be_pending: bool = False,
    ) -> Decision:
        facts = facts_of(images, answers, may_be_pending=may_be_pending)
        return Decision(images, facts, self._policy, overrides)

    def _is_rash(
        self,
        args: ExtenderArgs,
        nodes: NodePlatforms,
        decision: Decision,
        decided: DecidedAnswer[ExtenderFilterResult],
    ) -> bool:
        """Whether nodes were let pass by the platforms in view while one may be the first of another platform."""
        return decided.is_uniform and bool(decision.constraints) and self._nodes.has_missing(args, nodes)

    async def _find_missing(self, args: ExtenderArgs, nodes: NodePlatforms, decision: Decision) -> None:
        """Adds missing nodes to `nodes`; those that do not exist are ignored.

        Raises:
            NodesNotKnown: a node could not be looked up, and the operator wants pods to wait (`pending: retry`).
        """
        found = await self._nodes.find_missing(args, nodes, _uid(args.pod))
        if found.unreachable and decision.enforced and self._policy.pending is Choice.RETRY:
            raise NodesNotKnown(NOT_IN_VIEW.format(node=found.unreachable[0]))

    def _filtered(self, args: ExtenderArgs, decision: Decision, decided: DecidedAnswer[ExtenderFilterResult]) -> Reply:
        """The reply with the answer. Counts the verdicts; records what a pod that is only observed would have got."""
        _count("filter", decided.verdicts)
        if decided.decided is not decided.answer:
            _log_observed(args.pod, decision, decided)
        return _filter_reply(decided.answer)

    def _has_no_preference(self, raw_pod: bytes, decision: Decision) -> bool:
        """Whether the pod names what takes away the preference of the decision. A microsecond for a usual pod."""
        return bool(decision.preference) and self._policy.preferred_nodes.are_named_in(raw_pod)

    def _score_as(self, args: ExtenderArgs, nodes: NodePlatforms, decision: Decision) -> _Scores:
        """The scores by a decision about the pod's template, if it is one about this pod."""
        return self._score(args) if self._has_no_preference(args.raw_pod, decision) else _scores(args, nodes, decision)

    def _score(self, args: ExtenderArgs) -> _Scores:
        gathered = self._gather(args.pod, args.raw_pod, for_scores=True)
        try:
            nodes = self._nodes.of(args)
        except NodesNotKnown:
            return _NO_SCORES
        if gathered is None:
            return _NO_SCORES
        if isinstance(gathered, PodQuestion):
            gathered = self._decide(args.pod, gathered, self._pod_resolver.peek(gathered))
        return _scores(args, nodes, gathered)


def _log_observed(pod: Pod, decision: Decision, decided: DecidedAnswer[ExtenderFilterResult]) -> None:
    refused = sum(number for verdict, number in decided.verdicts.items() if verdict in REFUSED)
    left_out = decided.verdicts.get(Verdict.LEFT_OUT, 0)
    reason = decision.refusal or decided.decided.error
    log.info("pod.observed", pod=_uid(pod), refused=refused, left_out=left_out, reason=reason)


def _namespace_of(pod: Pod) -> str:
    return (pod.metadata and pod.metadata.namespace) or ""


def _uid(pod: Pod) -> PodUid:
    """The pod's uid; without one, its namespace and name."""
    metadata = pod.metadata
    if metadata is None:
        return PodUid("")
    return PodUid(metadata.uid or f"{metadata.namespace}/{metadata.name or metadata.generate_name}")


def _filter_reply(result: ExtenderFilterResult) -> Reply:
    return Reply(encode_filter_result(result), "error" if result.error else "answered")


def _scores(args: ExtenderArgs, nodes: NodePlatforms, decision: Decision) -> _Scores:
    decided = prioritize_nodes(args, nodes, decision)
    return _Scores(encode_priorities(decided.answer), decided.verdicts)


def _count(endpoint: str, verdicts: Mapping[Verdict, int]) -> None:
    """Counts after the answer has been written, since the scheduler waits for the answer."""
    asyncio.get_running_loop().call_soon(_count_now, endpoint, verdicts)


def _count_now(endpoint: str, verdicts: Mapping[Verdict, int]) -> None:
    children = NODES[endpoint]
    for verdict, number in verdicts.items():
        children[verdict].inc(number)
