"""The decision about one pod and the nodes in a request of kube-scheduler: filter, prioritize, preempt.

An unresolved image never counts as known: it passes, makes kube-scheduler retry, or is assumed to run on the operator's
platforms. Only known images give scores. Depends on no registry and no cluster.
"""

import enum
import functools
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from itertools import compress, repeat
from typing import Generic, TypeVar

import msgspec

from extender.images.content import LOCAL, UNANSWERED, Cause
from extender.images.platform import Platform, runs_on
from extender.kubernetes.core_v1 import NodeName
from extender.kubernetes.extender_v1 import (
    ExtenderArgs,
    ExtenderFilterResult,
    ExtenderPreemptionArgs,
    ExtenderPreemptionResult,
)
from extender.placement.annotations import Choice, Mode, Overrides
from extender.placement.facts import Fit, ImageFact, Pending, PodImage, Unknown, fit
from extender.placement.nodes import USUAL, NodePlatforms
from extender.placement.policy import Policy, PreferenceBy, choice_for, is_multi_arch, policy_for, preference_for
from extender.placement.reasons import Constraint, constraints_of, refusal_text, retry_text, system_text

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
    """The node is not in view, and its platform may matter. No platform has this verdict."""
    LEFT_OUT = "left-out"
    """Another requested node is preferred, or lists an image that this one may lack. No platform has this verdict."""
    LISTED = "listed"
    """No registry has answered for an image, and the node lists it. No platform has this verdict."""


Scores = Mapping[int, Sequence[NodeName]]
"""The names of the nodes that have a score above zero, by score."""

REFUSED = frozenset({Verdict.NO, Verdict.ASSUMED_NO, Verdict.NOT_IN_VIEW})
NOT_IN_VIEW = "not in view yet"
"""The reason given for a node that kube-scheduler has seen before us."""
REMOVED = REFUSED | {Verdict.LEFT_OUT}
"""The verdicts on nodes that an answer of filter does not have."""
_NOT_PASSING = REFUSED | {Verdict.RETRY}
_COPIES_TELL = UNANSWERED | {Cause.NEVER_PULLED}
UNRESOLVED = frozenset({Verdict.RETRY, Verdict.ASSUMED_YES, Verdict.ASSUMED_NO, Verdict.PASSED})


class DecidedAnswer(msgspec.Struct, Generic[_Answer], frozen=True):
    """The answer to send and the answer that was decided. They differ only if the pod is merely observed.

    `removed` counts by verdict the requested nodes that are refused or left out: those that pass are not counted.
    """

    answer: _Answer
    decided: _Answer
    removed: Mapping[Verdict, int] = {}


class NodeTable(msgspec.Struct, frozen=True):
    """The decision about nodes by the numbers of their platforms in `NodePlatforms`.

    The last row is about nodes that are not in view. `uniform` is the one verdict by which all nodes pass that a
    cluster may have, None if there is none.
    """

    verdicts: tuple[Verdict, ...]
    scores: tuple[int, ...]
    uniform: Verdict | None


class Decision:
    """The decision about a pod for any node, from the facts about its images, the policy and the overrides.

    `retried` holds the unresolved images for which kube-scheduler should retry, and `assumed` those that count as built
    for the operator's platforms: none if any is to be retried. `listable` are those of `retried`, if no registry has
    answered for any of them. `copied` are those that pass and of which no registry says more than nodes' copies do.
    `enforced` is false for a pod that is only observed. `can_be_learned`: whether a lookup could still resolve an
    unresolved image.
    """

    def __init__(
        self, images: Sequence[PodImage], facts: Sequence[ImageFact], policy: Policy, overrides: Overrides
    ) -> None:
        """`facts` has the fact of each of `images`, in the same order."""
        found = [
            (image, fact) for image, fact in zip(images, facts, strict=True) if isinstance(fact, (Pending, Unknown))
        ]
        if found:  # else nothing is assumed
            policy = policy_for(policy, images)
        unresolved = [(image, fact, choice_for(fact, policy, overrides)) for image, fact in found]
        self.enforced = overrides.mode is Mode.ENFORCE
        self.can_be_learned = any(fact.cause not in LOCAL for _, fact, _ in unresolved)
        self.retried = [(image, fact) for image, fact, choice in unresolved if choice is Choice.RETRY]
        self.assumed = frozenset(
            image for image, _, choice in unresolved if choice is Choice.ASSUME and not self.retried
        )
        self.listable = _listable(self.retried)
        self.copied = tuple(
            image for image, fact, choice in unresolved if choice is Choice.PASS and fact.cause in _COPIES_TELL
        )
        self._images = images
        self._facts = facts
        self.policy = policy
        self._overrides = overrides
        self._table: tuple[tuple[Platform | None, ...], NodeTable] | None = None

    @functools.cached_property
    def constraints(self) -> Sequence[Constraint]:
        """The images that can refuse a node, in pod order: those that are known, and those that are assumed."""
        return constraints_of(self._images, self._facts, self.assumed, self.policy.assume)

    @functools.cached_property
    def refusal(self) -> str:
        """The reason given for every node that is refused for its platform."""
        return refusal_text(self.constraints) or system_text(self._images, self._facts)

    def verdict(self, platform: Platform | None) -> Verdict:
        """The verdict on nodes of `platform`, None for nodes that state none. O(images)."""
        if platform is None:
            return Verdict.UNSTATED
        match fit(self._facts, platform, self.policy.compatibility):
            case Fit.NO:
                return Verdict.NO
            case Fit.YES:
                return Verdict.YES
        if self.retried:
            return Verdict.RETRY
        if not self.assumed:
            return Verdict.PASSED
        runs = runs_on(self.policy.assume, platform, self.policy.compatibility)
        return Verdict.ASSUMED_YES if runs else Verdict.ASSUMED_NO

    def table(self, nodes: NodePlatforms) -> NodeTable:
        """The verdict and the score of each number in `nodes`. Computed once while their platforms are the same."""
        if self._table is None or self._table[0] is not nodes.platforms:
            self._table = nodes.platforms, self._tabulate(nodes)
        return self._table[1]

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

    def _tabulate(self, nodes: NodePlatforms) -> NodeTable:
        uniform = self.verdict_on_any(nodes.distinct)
        return NodeTable(
            (*map(self.verdict, nodes.platforms), uniform or Verdict.NOT_IN_VIEW),
            (*map(self.score, nodes.platforms), 0),
            uniform,
        )

    def verdict_on_any(self, platforms: frozenset[Platform]) -> Verdict | None:
        """The one verdict on all possible nodes of a cluster with `platforms`, if it lets nodes pass; else None.

        Possible nodes include the usual platforms, because a node that is not in view may be the first of its platform,
        which kube-scheduler has seen before us.
        """
        possible = {self.verdict(platform) for platform in platforms.union(USUAL)}
        return possible.pop() if len(possible) == 1 and possible.isdisjoint(_NOT_PASSING) else None


def filter_nodes(args: ExtenderArgs, nodes: NodePlatforms, decision: Decision) -> DecidedAnswer[ExtenderFilterResult]:
    """The requested nodes that remain. If all do, the answer is the request's own list, byte for byte.

    A node that is not in `nodes` is refused, unless it passes whatever its platform is. The whole answer is an error
    only if the verdict on a requested node is to retry, and none of them lists the images that are not known: those
    that do stay, and the others are left out. So are those without images that are never pulled, or of which no
    registry says what they are, while others have them.

    With `PreferenceBy.FILTER` the pod keeps the nodes of the highest score among the requested ones, whatever it is.
    The others are in neither map of failures: kube-scheduler then takes them for nodes on which evicting pods would not
    help. It asks about no node that is full, and about a nominated node alone, so no pod waits for a left-out node.

    Raises:
        InvalidRequest: `NodeNames` has an item that is not a string.
    """
    table = decision.table(nodes)
    if table.uniform and not decision.leaves_out and not decision.copied:
        return DecidedAnswer(echo := args.echo(), echo)
    numbers, verdicts = verdicts_on(args.names, nodes, decision)
    if Verdict.RETRY in verdicts and Verdict.RETRY in {verdicts[number] for number in set(numbers)}:
        decided, removed = ExtenderFilterResult(error=retry_text(decision.retried)), dict[Verdict, int]()
    else:
        decided, removed = _remove(args, numbers, verdicts, decision)
    return DecidedAnswer(decided if decision.enforced else args.echo(), decided, removed)


def verdicts_on(names: Sequence[NodeName], nodes: NodePlatforms, decision: Decision) -> tuple[list[int], list[Verdict]]:
    """The row of each of these nodes, which are all that are asked about, and the verdict of each row."""
    table = decision.table(nodes)
    verdicts, numbers = [*table.verdicts], numbers_of(names, nodes)
    if decision.leaves_out:
        best = max((table.scores[number] for number in set(numbers)), default=0)
        verdicts = _leave_out(table, best) if best else verdicts
    for verdict, images in ((Verdict.RETRY, decision.listable), (Verdict.PASSED, decision.copied)):
        if images and verdict in verdicts:
            numbers = _keep_listing(names, numbers, verdicts, verdict, nodes.images.nodes_with(images))
    return numbers, verdicts


def numbers_of(names: Sequence[NodeName], nodes: NodePlatforms) -> list[int]:
    """The row of each node in a table about `nodes`. This is the only look-up of a name."""
    return list(map(nodes.numbers.get, names, repeat(len(nodes.platforms))))


def _remove(
    args: ExtenderArgs, numbers: Sequence[int], verdicts: Sequence[Verdict], decision: Decision
) -> tuple[ExtenderFilterResult, dict[Verdict, int]]:
    """The answer without the nodes whose verdict refuses them or leaves them out, and how many they are."""
    kept = _chosen(args.names, numbers, [verdict not in REMOVED for verdict in verdicts])
    left = len(args.names) - len(kept)
    if not left:
        return args.echo(), {}
    reasons, removed = list[tuple[str, Sequence[NodeName]]](), dict[Verdict, int]()
    for refusing in REFUSED.intersection(verdicts):
        names = _chosen(args.names, numbers, [verdict is refusing for verdict in verdicts]) if left else []
        if names:
            reasons.append((NOT_IN_VIEW if refusing is Verdict.NOT_IN_VIEW else decision.refusal, names))
            removed[refusing] = len(names)
            left -= len(names)
    if left:
        removed[Verdict.LEFT_OUT] = left
    return args.keep(kept, reasons), removed


def _chosen(names: Sequence[NodeName], numbers: Sequence[int], rows: Sequence[bool]) -> list[NodeName]:
    """The names whose row says yes, in order."""
    return list(compress(names, [rows[number] for number in numbers]))


def _keep_listing(
    names: Sequence[NodeName],
    numbers: list[int],
    verdicts: list[Verdict],
    unresolved: Verdict,
    listing: Set[NodeName],
) -> list[int]:
    """The rows by which the nodes `listing` the images stay, and others that are `unresolved` are left out.

    The rows themselves if none of `listing` is among those. Adds two rows to `verdicts`.
    """
    listed, left_out = len(verdicts), len(verdicts) + 1
    found = [
        (listed if name in listing else left_out) if verdicts[number] is unresolved else number
        for name, number in zip(names, numbers, strict=True)
    ]
    if listed not in found:
        return numbers
    verdicts += Verdict.LISTED, Verdict.LEFT_OUT
    return found


def _leave_out(table: NodeTable, best: int) -> list[Verdict]:
    """The verdicts by which all nodes but those of the best score are left out; those that are refused stay so."""
    return [
        verdict if verdict in REFUSED or score == best else Verdict.LEFT_OUT
        for verdict, score in zip(table.verdicts, table.scores, strict=True)
    ]


def is_unsettled(args: ExtenderArgs, nodes: NodePlatforms, decision: Decision) -> bool:
    """Whether resolving more of the pod's images could change the answer; not if all requested nodes are refused.

    Raises:
        InvalidRequest: `NodeNames` has an item that is not a string.
    """
    verdicts = decision.table(nodes).verdicts
    if not decision.can_be_learned or UNRESOLVED.isdisjoint(verdicts):
        return False
    return any(verdicts[number] in UNRESOLVED for number in set(numbers_of(args.names, nodes)))


def prioritize_nodes(args: ExtenderArgs, nodes: NodePlatforms, decision: Decision) -> DecidedAnswer[Scores]:
    """The scores above zero: for a multi-arch pod, each node with verdict *yes* scores its architecture's preference.

    There are none where filter has left only the most preferred nodes.

    Raises:
        InvalidRequest: `NodeNames` has an item that is not a string.
    """
    if decision.leaves_out or not decision.preference:
        return DecidedAnswer({}, {})
    scores = decision.table(nodes).scores
    numbers = numbers_of(args.names, nodes)
    found = {
        best: _chosen(args.names, numbers, [score == best for score in scores]) for best in sorted({*scores} - {0})
    }
    decided = {score: names for score, names in found.items() if names}
    return DecidedAnswer(decided if decision.enforced else {}, decided)


def preempt_nodes(
    args: ExtenderPreemptionArgs, nodes: NodePlatforms, decision: Decision
) -> DecidedAnswer[ExtenderPreemptionResult]:
    """The candidates on which evicting pods could help, which excludes nodes that filter would refuse.

    There are none while an image is to be retried, as pods evicted in vain do not come back. Preference does not count:
    filter keeps a node that is asked about alone, so any of them may be nominated.
    """
    verdicts = decision.table(nodes).verdicts
    found = [verdicts[number] for number in numbers_of([*args.victims], nodes)]
    kept = {
        name: victims
        for (name, victims), verdict in zip(args.victims.items(), found, strict=True)
        if not decision.retried and verdict not in REFUSED
    }
    decided = ExtenderPreemptionResult(kept)
    removed = Counter(verdict for verdict in found if verdict in REFUSED)
    return DecidedAnswer(decided if decision.enforced else args.echo(), decided, removed)


def _listable(retried: Sequence[tuple[PodImage, Pending | Unknown]]) -> tuple[PodImage, ...]:
    """The images if no registry has answered for any of them, none if one is still asked."""
    if not retried or any(fact.cause is Cause.LOOKING_UP for _, fact in retried):
        return ()
    return tuple(image for image, _ in retried)
