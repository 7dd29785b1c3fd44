"""The decision about one pod and the nodes in a request of kube-scheduler: filter, prioritize, preempt.

An unresolved image never counts as known: it passes, makes kube-scheduler retry, or is assumed to run on the operator's
platforms. Only known images give scores. Depends on no registry and no cluster.
"""

import enum
import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from itertools import compress
from typing import Generic, TypeVar

import msgspec

from extender.images.content import LOCAL, Cause
from extender.images.platform import Platform, runs_on
from extender.kubernetes.core_v1 import NodeName
from extender.kubernetes.extender_v1 import (
    ExtenderArgs,
    ExtenderFilterResult,
    ExtenderPreemptionArgs,
    ExtenderPreemptionResult,
    quote,
)
from extender.placement.facts import Fit, ImageFact, Pending, PodImage, RunsOn, Unknown, fit
from extender.placement.nodes import UNSEEN, USUAL, NodePlatforms
from extender.placement.policy import (
    Choice,
    Mode,
    Overrides,
    Policy,
    PreferenceBy,
    choice_for,
    is_multi_arch,
    policy_for,
    preference_for,
)
from extender.placement.reasons import Constraint, refusal_text, retry_text

_Answer = TypeVar("_Answer")


class Verdict(enum.StrEnum):
    """The decision about a pod on the nodes of one platform."""

    YES = "yes"
    NO = "no"
    RETRY = "retry"
    ASSUMED_YES = "assumed-yes"
    ASSUMED_NO = "assumed-no"
    PASSED = "passed"
    UNSTATED = "unstated"
    """The node states no platform, so it passes."""
    NOT_IN_VIEW = "not-in-view"
    """The node is not in view, so it passes if it is not found either. No platform has this verdict."""
    LEFT_OUT = "left-out"
    """Another requested node is preferred, or lists an image that this one may lack. No platform has this verdict."""
    LISTED = "listed"
    """No registry has answered for an image, and the node lists it. No platform has this verdict."""


class RequestedNodes(msgspec.Struct, frozen=True):
    """The quoted names of the nodes in a request, and the code of each node's platform."""

    raw_names: Sequence[bytes]
    codes: bytes


# Verdicts that a decision keeps. A cluster has two or three platforms; a request with whole nodes may state any.
_MOST_VERDICTS = 256

REFUSED = frozenset({Verdict.NO, Verdict.ASSUMED_NO})
_REMOVED = REFUSED | {Verdict.LEFT_OUT}
UNRESOLVED = frozenset({Verdict.RETRY, Verdict.ASSUMED_YES, Verdict.ASSUMED_NO, Verdict.PASSED})

# Verdicts are one byte per node, computed by bytes.translate with these tables. Compared to looking up 5,000 names, the
# rest costs next to nothing.
_NUMBERS = {verdict: number for number, verdict in enumerate(Verdict)}
_IS_REFUSED = bytes(verdict in REFUSED for verdict in Verdict).ljust(256, b"\0")
_IS_KEPT = bytes(verdict not in (*REFUSED, Verdict.LEFT_OUT) for verdict in Verdict).ljust(256, b"\0")
_IS_UNRESOLVED = bytes(verdict in UNRESOLVED for verdict in Verdict).ljust(256, b"\0")


class UniformVerdict(Mapping[Verdict, int]):
    """The verdict counts of a request whose nodes all have one verdict. Counts the nodes when read, not before."""

    def __init__(self, verdict: Verdict, count: Callable[[], int]) -> None:
        self._verdict = verdict
        self._count = count

    def __getitem__(self, verdict: Verdict) -> int:
        if verdict is not self._verdict:
            raise KeyError(verdict)
        return self._count()

    def __contains__(self, verdict: object) -> bool:
        return verdict is self._verdict

    def __iter__(self) -> Iterator[Verdict]:
        return iter((self._verdict,))

    def __len__(self) -> int:
        return 1


class DecidedAnswer(msgspec.Struct, Generic[_Answer], frozen=True):
    """The answer to send and the answer that was decided. They differ only if the pod is merely observed.

    `verdicts` counts the requested nodes by verdict. `is_uniform`: one verdict holds for every platform in view, so
    nodes that are not in view got it too.
    """

    answer: _Answer
    decided: _Answer
    verdicts: Mapping[Verdict, int]
    is_uniform: bool = False


class Decision:
    """The decision about a pod for any node, from the facts about its images, the policy and the overrides.

    `constraints` holds the images that can refuse a node, in pod order: the known images and, under `assume`, the
    unresolved ones with the operator's platforms. `retried` holds the unresolved images for which kube-scheduler should
    retry. If there are any, nothing is assumed (retry beats assume). `listable` are the same images, if no registry has
    answered for any of them. `never_pulled` are those that only nodes' copies can tell about. `enforced` is false for a
    pod that is only observed. `can_be_learned`: whether a lookup could still resolve an unresolved image.
    """

    def __init__(
        self, images: Sequence[PodImage], facts: Sequence[ImageFact], policy: Policy, overrides: Overrides
    ) -> None:
        """`facts` has the fact of each of `images`, in the same order."""
        policy = policy_for(policy, images)
        unresolved = [
            (image, fact, choice_for(fact, policy, overrides))
            for image, fact in zip(images, facts, strict=True)
            if isinstance(fact, Pending | Unknown)
        ]
        self.enforced = overrides.mode is Mode.ENFORCE
        self.can_be_learned = any(fact.cause not in LOCAL for _, fact, _ in unresolved)
        self.retried = [(image, fact) for image, fact, choice in unresolved if choice is Choice.RETRY]
        assumed = {image for image, _, choice in unresolved if choice is Choice.ASSUME and not self.retried}
        self.constraints = tuple(_constraints(images, facts, assumed, policy.assume))
        self.listable = _listable(self.retried)
        self.never_pulled = tuple(image for image, fact, _ in unresolved if fact.cause is Cause.NEVER_PULLED)
        self._facts = facts
        self.policy = policy
        self._overrides = overrides
        self._verdicts: dict[Platform | None, Verdict] = {}
        self._uniform: Mapping[frozenset[Platform], Verdict | None] = {}  # for the platforms of the last call

    @functools.cached_property
    def refusal(self) -> str:
        """The reason given for every refused node."""
        return refusal_text(self.constraints)

    def verdict(self, platform: Platform | None) -> Verdict:
        """The verdict on nodes of `platform`, None for nodes that state none. Computed once per platform."""
        found = self._verdicts.get(platform)
        if found is None:
            if len(self._verdicts) >= _MOST_VERDICTS:
                self._verdicts.clear()
            found = self._verdicts[platform] = self._decide(platform)
        return found

    @functools.cached_property
    def preference(self) -> Mapping[str, int]:
        """The score of each architecture, empty for a pod that is not known to be multi-arch."""
        if not is_multi_arch(self._facts, self.policy.compatibility):
            return {}
        return preference_for(self.policy, self._overrides)

    @functools.cached_property
    def leaves_out(self) -> bool:
        """Whether filter keeps only the most preferred of the nodes that can run the pod."""
        return self.policy.preference_by is PreferenceBy.FILTER and any(self.preference.values())

    def score(self, platform: Platform | None) -> int:
        """The score of nodes of `platform`; 0 unless their verdict is *yes* and the architecture is preferred."""
        score = self.preference.get(platform.architecture, 0) if platform else 0
        return score if score and self.verdict(platform) is Verdict.YES else 0

    def scores(self, nodes: NodePlatforms) -> list[int]:
        """The score of the nodes of each code: 0 for those that are spared preferences."""
        pairs = zip(nodes.by_code, nodes.spared_by_code, strict=True)
        return [0 if spared else self.score(platform) for platform, spared in pairs]

    def verdict_on_any(self, platforms: frozenset[Platform]) -> Verdict | None:
        """The one verdict on all possible nodes of a cluster with `platforms`, if it lets nodes pass; else None.

        Possible nodes include the usual platforms, because a node that is not in view may be the first of its platform,
        which kube-scheduler has seen before us. That it is of another platform is possible while the view is not
        current; the caller then looks it up first (`RequestNodes.has_missing`).
        """
        if platforms not in self._uniform:
            possible = {self.verdict(platform) for platform in platforms.union(USUAL)}
            lets_pass = len(possible) == 1 and possible.isdisjoint({*REFUSED, Verdict.RETRY})
            self._uniform = {platforms: possible.pop() if lets_pass else None}
        return self._uniform[platforms]

    def _decide(self, platform: Platform | None) -> Verdict:
        if platform is None:
            return Verdict.UNSTATED
        match fit(self._facts, platform, self.policy.compatibility):
            case Fit.NO:
                return Verdict.NO
            case Fit.YES:
                return Verdict.YES
        if self.retried:
            return Verdict.RETRY
        if not any(constraint.assumed for constraint in self.constraints):
            return Verdict.PASSED
        runs = runs_on(self.policy.assume, platform, self.policy.compatibility)
        return Verdict.ASSUMED_YES if runs else Verdict.ASSUMED_NO


def filter_nodes(args: ExtenderArgs, nodes: NodePlatforms, decision: Decision) -> DecidedAnswer[ExtenderFilterResult]:
    """The requested nodes that remain. If all do, the answer is the request's own list, byte for byte.

    A node that is not in `nodes` passes. The whole answer is an error only if the verdict on a requested node is to
    retry, and none of them lists the images that are not known: those that do stay, and the others are left out. So
    are those without images that are never pulled, while others have them.

    With `PreferenceBy.FILTER` the pod keeps the nodes of the highest score among the requested ones, whatever it is.
    The others are in neither map of failures: kube-scheduler then takes them for nodes on which evicting pods would not
    help. It asks about no node that is full, and about a nominated node alone, so no pod waits for a left-out node.

    Raises:
        InvalidRequest: `NodeNames` has an item that is not a string.
    """
    uniform = decision.verdict_on_any(nodes.distinct)
    if uniform and not decision.leaves_out and not decision.never_pulled:
        return _all_pass(args, uniform)
    requested = look_up(args, nodes)
    table = _verdict_table(nodes, decision, unseen=uniform or Verdict.NOT_IN_VIEW)
    if decision.leaves_out:
        table = _leave_out(table, requested.codes, nodes, decision)
    numbers = requested.codes.translate(table)
    for verdict, images in ((Verdict.RETRY, decision.listable), (Verdict.PASSED, decision.never_pulled)):
        if images and _NUMBERS[verdict] in numbers:
            numbers = _keep_listing(numbers, verdict, requested, nodes.images.nodes_with(images))
    verdicts = {verdict: count for verdict, number in _NUMBERS.items() if (count := numbers.count(number))}
    if Verdict.RETRY in verdicts:
        decided = ExtenderFilterResult(error=retry_text(decision.retried))
    elif not _REMOVED.isdisjoint(verdicts):
        refused, kept = numbers.translate(_IS_REFUSED), numbers.translate(_IS_KEPT)
        decided = args.without(requested.raw_names, refused, decision.refusal, kept=kept)
    elif uniform:
        return _all_pass(args, uniform)
    else:
        decided = args.echo()
    return DecidedAnswer(decided if decision.enforced else args.echo(), decided, verdicts, bool(uniform))


def _keep_listing(numbers: bytes, unresolved: Verdict, requested: RequestedNodes, nodes: Set[NodeName]) -> bytes:
    """The numbers in which `nodes`, which list the images, stay, and others with the verdict `unresolved` are left out.

    The numbers themselves if none of `nodes` is among them.
    """
    listing = {quote(name) for name in nodes}
    open_number, listed, left_out = (_NUMBERS[each] for each in (unresolved, Verdict.LISTED, Verdict.LEFT_OUT))
    judged = bytes(
        number if number != open_number else listed if name in listing else left_out
        for name, number in zip(requested.raw_names, numbers, strict=True)
    )
    return judged if listing and listed in judged else numbers


def _all_pass(args: ExtenderArgs, verdict: Verdict) -> DecidedAnswer[ExtenderFilterResult]:
    echo = args.echo()
    return DecidedAnswer(echo, echo, UniformVerdict(verdict, args.count), is_uniform=True)


def _leave_out(table: bytes, codes: bytes, nodes: NodePlatforms, decision: Decision) -> bytes:
    """The table of verdicts in which all platforms but the most preferred ones among `codes` are left out.

    Those that are refused stay so. The table itself if no platform among them is preferred.
    """
    scores = decision.scores(nodes)
    best = max((score for code, score in enumerate(scores) if code in codes), default=0)
    if not best:
        return table
    left_out = _NUMBERS[Verdict.LEFT_OUT]
    in_view = (
        number if score == best or _IS_REFUSED[number] else left_out
        for number, score in zip(table, scores, strict=False)
    )
    return bytes(in_view).ljust(256, bytes([left_out]))


def is_unsettled(args: ExtenderArgs, nodes: NodePlatforms, decision: Decision) -> bool:
    """Whether resolving more of the pod's images could change the answer; not if all requested nodes are refused.

    Raises:
        InvalidRequest: `NodeNames` has an item that is not a string.
    """
    if not decision.can_be_learned:
        return False
    numbers = look_up(args, nodes).codes.translate(_verdict_table(nodes, decision, unseen=Verdict.NOT_IN_VIEW))
    return 1 in numbers.translate(_IS_UNRESOLVED)


Scores = Mapping[int, Sequence[bytes]]
"""The quoted names of the nodes that have a score above zero, by score."""


def prioritize_nodes(args: ExtenderArgs, nodes: NodePlatforms, decision: Decision) -> DecidedAnswer[Scores]:
    """The scores above zero: for a multi-arch pod, each node with verdict *yes* scores its architecture's preference.

    There are none where filter has left only the most preferred nodes. `verdicts` counts the scored nodes only.

    Raises:
        InvalidRequest: `NodeNames` has an item that is not a string.
    """
    scores = bytes(decision.scores(nodes))
    if decision.leaves_out or not any(scores):
        return DecidedAnswer({}, {}, {})
    requested = look_up(args, nodes)
    by_node = requested.codes.translate(scores.ljust(256, b"\0"))
    decided = {
        score: list(compress(requested.raw_names, by_node.translate(_only(score)))) for score in sorted({*scores} - {0})
    }
    return DecidedAnswer(decided if decision.enforced else {}, decided, {Verdict.YES: len(by_node) - by_node.count(0)})


def preempt_nodes(
    args: ExtenderPreemptionArgs, nodes: NodePlatforms, decision: Decision
) -> DecidedAnswer[ExtenderPreemptionResult]:
    """The candidates on which evicting pods could help, which excludes nodes that filter would refuse.

    There are none while an image is to be retried, as pods evicted in vain do not come back. Preference does not count:
    filter keeps a node that is asked about alone, so any of them may be nominated.
    """
    verdicts = {name: decision.verdict(nodes[name]) if name in nodes else Verdict.NOT_IN_VIEW for name in args.victims}
    kept = {
        name: victims
        for name, victims in args.victims.items()
        if not decision.retried and verdicts[name] not in REFUSED
    }
    decided = ExtenderPreemptionResult(kept)
    return DecidedAnswer(decided if decision.enforced else args.echo(), decided, Counter(verdicts.values()))


def _constraints(
    images: Sequence[PodImage], facts: Sequence[ImageFact], assumed: Set[PodImage], assume: frozenset[Platform]
) -> Iterator[Constraint]:
    for image, fact in zip(images, facts, strict=True):
        if isinstance(fact, RunsOn):
            yield Constraint(image.reference, fact.platforms, asked=fact.asked, denied=fact.denied)
        elif image in assumed:
            yield Constraint(image.reference, assume, assumed=True)


def _listable(retried: Sequence[tuple[PodImage, Pending | Unknown]]) -> tuple[PodImage, ...]:
    """The images if no registry has answered for any of them, none if one is still asked."""
    if any(fact.cause is Cause.LOOKING_UP for _, fact in retried):
        return ()
    return tuple(image for image, _ in retried)


def look_up(args: ExtenderArgs, nodes: NodePlatforms) -> RequestedNodes:
    """The requested nodes and the codes of their platforms.

    Raises:
        InvalidRequest: `NodeNames` has an item that is not a string.
    """
    codes = nodes.codes_of(args.raw_names)
    if UNSEEN not in codes:
        return RequestedNodes(args.raw_names, codes)
    return RequestedNodes(
        args.canonical_names, nodes.codes_of(args.canonical_names)
    )  # a node is not in view, or the request spells its name otherwise


def _verdict_table(nodes: NodePlatforms, decision: Decision, *, unseen: Verdict) -> bytes:
    """A table for bytes.translate from a platform's code to its verdict's number; `UNSEEN` maps to that of `unseen`."""
    numbers = bytes(_NUMBERS[decision.verdict(platform)] for platform in nodes.by_code)
    return numbers.ljust(256, bytes([_NUMBERS[unseen]]))


def _only(score: int) -> bytes:
    """A table for bytes.translate that maps this score to 1 and all others to 0."""
    return bytes(score) + b"\1" + bytes(255 - score)
