"""The scheduler verbs: filter, prioritize and preempt, from a request's bytes to the answer's.

Each verb gathers what is known of the pod, decides, and encodes. This file says when to wait and for how long;
`placement.scheduling` decides.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
import structlog

from extender.cluster.views import WatchedNodes
from extender.errors import ExtenderError
from extender.images.content import Answer, Content
from extender.images.failures import is_under_way
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
from extender.placement.annotations import Mode, Overrides
from extender.placement.facts import PodImage, facts_of
from extender.placement.nodes import NodePlatforms, platforms_of
from extender.placement.policy import Policy, is_exempt
from extender.placement.scheduling import (
    REMOVED,
    DecidedAnswer,
    Decision,
    Verdict,
    filter_nodes,
    is_unsettled,
    preempt_nodes,
    prioritize_nodes,
)
from extender.resolver.pod_resolver import PodQuestion, PodResolver
from extender.server.routes import Reply, after_answer
from extender.tables import ShareTable, remembered, text_cost

log = structlog.get_logger()

# Three times the largest cluster Kubernetes supports, so that nodes which come and go do not push out those that stay.
SEEN_NODES = 15_000
NO_VIEW = "the request names its nodes and no cluster is watched: set nodeCacheCapable: false, or watch a cluster"
NOT_SYNCED = "the nodes of the cluster are not known yet; to be tried again"


class NodesNotKnown(ExtenderError):
    """The nodes of a request cannot be looked up; the message is the answer's error."""


class RequestNodes:
    """Finds the platforms of the nodes that requests are about.

    `view` is None without a cluster.
    """

    def __init__(self, view: WatchedNodes | None) -> None:
        self._view = view
        self._seen = NodePlatforms()  # without a cluster: of the nodes that requests have shown

    def of(self, args: ExtenderArgs) -> NodePlatforms:
        """The platforms among which the request's nodes can be looked up.

        Raises:
            NodesNotKnown: the request only names its nodes, and the view is missing or not synced.
        """
        if args.nodes is not None:
            shown = platforms_of(args.names, args.nodes)
            if self._view is None:
                self._remember(shown)
            return shown
        if self._view is None:
            raise NodesNotKnown(NO_VIEW)
        return _in_view(self._view)

    def of_candidates(self, names: Iterable[NodeName]) -> NodePlatforms:
        """The platforms among which these can be looked up, of which the request has no more than the names.

        Without a cluster they are those of earlier requests; a node that was in none of them states no platform.

        Raises:
            NodesNotKnown: the view is not synced.
        """
        if self._view is None:
            return NodePlatforms({name: self._seen.get(name) for name in names})
        return _in_view(self._view)

    def _remember(self, shown: NodePlatforms) -> None:
        """Adds the nodes of a request, and evicts those added longest ago. O(its nodes)."""
        self._seen.merge(shown)
        self._seen.drop_first(len(self._seen) - SEEN_NODES)


def _in_view(view: WatchedNodes) -> NodePlatforms:
    if not view.synced:
        raise NodesNotKnown(NOT_SYNCED)
    return view.platforms


# A pod whose row is evicted only starts to wait again. The largest cluster Kubernetes is tested for has 150,000 pods.
_MOST_TRIED = 20_000  # 8 MB at most


class TriedPod(msgspec.Struct, gc=False):
    """A pod that kube-scheduler tries: since when, when last, and how often it had been away before."""

    namespace: str
    since: float
    asked_at: float
    returns: int = 0

    @property
    def seconds(self) -> float:
        """For how long it had been tried when it was last asked about."""
        return self.asked_at - self.since


class TriedPods:
    """The pods about which was asked last, by uid. Every call is O(1).

    One about which nobody asked for `away_seconds` was among kube-scheduler's unschedulable pods, which come back with
    an event or after five minutes. Its time counts anew. A namespace whose pods fill the table evicts its own before
    those of others.
    """

    def __init__(self, clock: Callable[[], float], *, away_seconds: float) -> None:
        self._clock = clock
        self._away_seconds = away_seconds
        self._rows: ShareTable[PodUid, TriedPod] = ShareTable(
            _MOST_TRIED,
            owner_of=lambda _, row: row.namespace,
            cost_of=lambda uid, row: text_cost(uid, row.namespace),
        )

    def note(self, uid: PodUid, namespace: str) -> TriedPod:
        """The row of a pod of this namespace that is asked about now."""
        now = self._clock()
        row = self._rows.get(uid)
        if row is None:
            row = TriedPod(namespace, now, now)
            self._rows.put(uid, row)
        elif now - row.asked_at > self._away_seconds:
            row.since = now
            row.returns += 1
        row.asked_at = now
        return row

    def forget(self, uid: PodUid) -> None:
        """Takes the pod for a new one at the next call for it."""
        self._rows.remove(uid)


REMOVED_NODES = counters(
    "multiarch_removed_nodes_total",
    "Nodes asked about that were refused or left out, by endpoint and verdict; those that pass are not counted.",
    ("endpoint", ("filter", "preempt")),
    ("verdict", tuple(sorted(REMOVED))),
)

_KNOWN = frozenset({Content})
_NO_SCORES = encode_priorities({})


# Verbs ask about one pod several times, and about many pods of one template. A row takes 2 KB, and 10 KB at most.
_MOST_DECISIONS, _MOST_IMAGES = 256, 16


class KnownPod(msgspec.Struct, frozen=True):
    """Everything on which the decision about a pod depends whose images are all known."""

    images: tuple[PodImage, ...]
    answers: tuple[Answer, ...]
    overrides: Overrides

    @property
    def is_small(self) -> bool:
        """Whether it is worth remembering."""
        return len(self.images) <= _MOST_IMAGES

    def decision(self, policy: Policy) -> Decision:
        """The decision about every such pod."""
        facts = facts_of(self.images, self.answers, may_be_pending=False)
        return Decision(self.images, facts, policy, self.overrides)


class SchedulerVerbs:
    """filter, prioritize and preempt for one scheduler.

    `nodes` is None without a cluster: then only requests with whole nodes can be answered. Only kube-scheduler reaches
    these endpoints, so the pull secrets that a request's pod names are read. `observed_pods` collects what would have
    become of pods that are only observed.
    """

    def __init__(
        self,
        pod_resolver: PodResolver,
        *,
        nodes: WatchedNodes | None,
        wait_seconds: float,
        pending_limit_seconds: float,
        clock: Callable[[], float],
    ) -> None:
        self._pod_resolver = pod_resolver
        self._policy = pod_resolver.policy
        self._nodes = RequestNodes(nodes)
        self._wait_seconds = wait_seconds
        self._pending_limit_seconds = pending_limit_seconds
        # kube-scheduler tries a pod again after 10 s at most, unless it is unschedulable.
        self._tried = TriedPods(clock, away_seconds=pending_limit_seconds + wait_seconds)
        policy = self._policy
        self._decide_known: Callable[[KnownPod], Decision] = remembered(
            lambda pod: pod.decision(policy), rows=_MOST_DECISIONS, is_kept=lambda pod, _: pod.is_small
        )

    async def filter(self, body: bytes) -> Reply:
        """The ExtenderFilterResult for ExtenderArgs; waits for lookups that could change it. Raises InvalidRequest."""
        args = decode_args(body)
        question = self._gather(args.pod)
        if question is None:
            return _filter_reply(args.echo())
        try:
            nodes = self._nodes.of(args)
            decision = await self._decide_in_time(args, nodes, question)
        except NodesNotKnown as exc:
            return _filter_reply(ExtenderFilterResult(error=str(exc)) if _is_enforced(question) else args.echo())
        decided = filter_nodes(args, nodes, decision)
        _count("filter", decided.removed)
        if decided.decided is not decided.answer:
            after_answer(_log_observed, args.pod, decision, decided)
        return _filter_reply(decided.answer)

    async def prioritize(self, body: bytes) -> Reply:
        """The HostPriorityList for ExtenderArgs, from the cache only. Raises InvalidRequest."""
        args = decode_args(body)
        question = self._gather(args.pod)
        if question is None:
            return Reply(_NO_SCORES)
        try:
            nodes = self._nodes.of(args)
        except NodesNotKnown:
            return Reply(_NO_SCORES)
        decided = prioritize_nodes(args, nodes, self._decide(args.pod, question, self._pod_resolver.peek(question)))
        return Reply(args.encode_scores(decided.answer))

    async def preempt(self, body: bytes) -> Reply:
        """The ExtenderPreemptionResult for ExtenderPreemptionArgs, from the cache. Raises InvalidRequest.

        Starts lookups of images that are not known, without waiting for them.
        """
        args = decode_preemption_args(body)
        question = self._gather(args.pod)
        if question is None:
            return Reply(encode_preemption_result(args.echo()))
        try:
            nodes = self._nodes.of_candidates(args.victims)
        except NodesNotKnown:
            if not _is_enforced(question):
                return Reply(encode_preemption_result(args.echo()))
            return Reply(encode_preemption_result(ExtenderPreemptionResult({})), "error")
        decision = self._decide(args.pod, question, await self._pod_resolver.resolve(question, 0))
        decided = preempt_nodes(args, nodes, decision)
        _count("preempt", decided.removed)
        return Reply(encode_preemption_result(decided.answer))

    @staticmethod
    def fallback_filter(_body: bytes, event_id: str) -> bytes:
        """An error answer, after which the scheduler retries."""
        return encode_filter_result(ExtenderFilterResult(error=f"internal error {event_id}; see the extender's log"))

    @staticmethod
    def fallback_prioritize(_body: bytes, _event_id: str) -> bytes:
        """An answer without scores, so that the scheduler's own scores decide."""
        return _NO_SCORES

    @staticmethod
    def fallback_preempt(_body: bytes, _event_id: str) -> bytes:
        """An answer without candidates, so that no pod is evicted by mistake."""
        return encode_preemption_result(ExtenderPreemptionResult({}))

    def _gather(self, pod: Pod) -> PodQuestion | None:
        """What is asked about the pod; None if it is exempt."""
        namespace = _namespace_of(pod)
        overrides = self._pod_resolver.overrides_of(pod, namespace)
        for problem in overrides.problems:
            log.info("annotation.refused", pod=_uid(pod), problem=problem)
        if overrides.mode is Mode.IGNORE or is_exempt(pod, self._policy):
            return None
        return self._pod_resolver.question(pod, namespace, overrides, may_read=True)

    async def _decide_in_time(self, args: ExtenderArgs, nodes: NodePlatforms, question: PodQuestion) -> Decision:
        """The decision from the cache, or after waiting for lookups if those could change an answer that counts.

        The wait counts from the first call in which an image of the pod was not known, or since it came back:
        kube-scheduler asks for one pod after the other, and later pods would wait at each attempt for images of those
        before them.
        """
        answers = await self._pod_resolver.resolve(question, 0)
        decision = self._decide(args.pod, question, answers)
        if any(map(is_under_way, answers)) and decision.enforced and is_unsettled(args, nodes, decision):
            left_seconds = self._wait_seconds - self._note(args.pod).seconds
            if left_seconds > 0:
                answers = await self._pod_resolver.resolve(question, left_seconds)
                decision = self._decide(args.pod, question, answers)
        return decision

    def _decide(self, pod: Pod, question: PodQuestion, answers: Sequence[Answer]) -> Decision:
        if _KNOWN.issuperset(map(type, answers)):
            self._tried.forget(_uid(pod))  # its images may have to be looked up again, when it is tried next
            return self._decide_known(KnownPod(question.images, tuple(answers), question.overrides))
        facts = facts_of(question.images, answers, may_be_pending=self._may_be_pending(pod, answers))
        return Decision(question.images, facts, self._policy, question.overrides)

    def _may_be_pending(self, pod: Pod, answers: Sequence[Answer]) -> bool:
        """Whether what is not known of the pod's images is likely to be known soon.

        When a pod comes back, the failures that it was refused for seldom hold any more, and the call itself begins to
        look its images up. That counts once: it may be so each time.
        """
        tried = self._note(pod)
        is_awaited = tried.returns == 0 or (tried.returns == 1 and any(map(is_under_way, answers)))
        return is_awaited and tried.seconds < self._pending_limit_seconds

    def _note(self, pod: Pod) -> TriedPod:
        return self._tried.note(_uid(pod), _namespace_of(pod))


def _log_observed(pod: Pod, decision: Decision, decided: DecidedAnswer[ExtenderFilterResult]) -> None:
    left_out = decided.removed.get(Verdict.LEFT_OUT, 0)
    refused = sum(decided.removed.values()) - left_out
    reason = decision.refusal or decided.decided.error
    log.info("pod.observed", pod=_uid(pod), refused=refused, left_out=left_out, reason=reason)


def _is_enforced(question: PodQuestion) -> bool:
    """Whether the answer may differ from what was asked; not for a pod that is only observed."""
    return question.overrides.mode is Mode.ENFORCE


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


def _count(endpoint: str, removed: Mapping[Verdict, int]) -> None:
    for verdict, number in removed.items():
        REMOVED_NODES[endpoint][verdict].inc(number)
