"""The decision about one pod and the nodes in a request of kube-scheduler: filter, prioritize, preempt.

An unresolved image never counts as known: it passes, makes kube-scheduler retry, or is assumed to run on the operator's
platforms. Only known images give scores. Depends on no registry and no cluster.
"""

import enum
import functools
from collections import Counter
from collections.abc import Mapping, Sequence, Set
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
from extender.placement.facts import Fit, ImageFact, Pending, PodImage, Unknown, fit
from extender.placement.nodes import USUAL, NodePlatforms
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


Verdicts = Mapping[Verdict, list[NodeName]]
"""The names of the nodes of each verdict that a node has, in the order of the request."""
Scores = Mapping[int, Sequence[NodeName]]
"""The names of the nodes that have a score above zero, by score."""

REFUSED = frozenset({Verdict.NO, Verdict.ASSUMED_NO, Verdict.NOT_IN_VIEW})
NOT_IN_VIEW = "not in view yet"
"""The reason given for a node that kube-scheduler has seen before us."""
_REMOVED = REFUSED | {Verdict.LEFT_OUT}
_NOT_PASSING = REFUSED | {Verdict.RETRY}
_COPIES_TELL = UNANSWERED | {Cause.NEVER_PULLED}
UNRESOLVED = frozenset({Verdict.RETRY, Verdict.ASSUMED_YES, Verdict.ASSUMED_NO, Verdict.PASSED})


class DecidedAnswer(msgspec.Struct, Generic[_Answer], frozen=True):
    """The answer to send and the answer that was decided. They differ only if the pod is merely observed.

    `verdicts` counts the requested nodes by verdict.
    """

    answer: _Answer
    decided: _Answer
    verdicts: Mapping[Verdict, int]


class Decision:
    """The decision about a pod for any node, from the facts about its images, the policy and the overrides.

    `retried` holds the unresolved images for which kube-scheduler should retry, and `assumed` those that count as built
    for the operator's platforms: none if any is to be retried. `listable` are those of `retried`, if no registry has
    answered for any of them. `copied` are those that pass and
    of which no registry says more than nodes' copies do. `enforced` is false for a
    pod that is only observed. `can_be_learned`: whether a lookup could still resolve an unresolved image.
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
        self._verdicts: dict[Platform | None, Verdict] = {}

    @functools.cached_property
    def constraints(self) -> Sequence[Constraint]:
        """The images that can refuse a node, in pod order: those that are known, and those that are assumed."""
        return constraints_of(self._images, self._facts, self.assumed, self.policy.assume)

    @functools.cached_property
    def refusal(self) -> str:
        """The reason given for every node that is refused for its platform."""
        return refusal_text(self.constraints) or system_text(self._images, self._facts)

    def verdict(self, platform: Platform | None) -> Verdict:
        """The verdict on nodes of `platform`, None for nodes that state none. Computed once per platform."""
        found = self._verdicts.get(platform)
        if found is None:
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

    def scores(self, names: Sequence[NodeName], nodes: NodePlatforms) -> Scores:
        """The nodes in view that have a score."""
        platforms: dict[int, set[Platform | None]] = {}
        for platform in nodes.distinct:
            platforms.setdefault(self.score(platform), set()).add(platform)
        found = {score: nodes.select(names, platforms[score]) for score in sorted(platforms.keys() - {0})}
        return {score: chosen for score, chosen in found.items() if chosen}

    def verdicts(self, names: Sequence[NodeName], nodes: NodePlatforms) -> Verdicts:
        """The nodes of each verdict."""
        platforms: dict[Verdict, set[Platform | None]] = {}
        for platform in (None, *nodes.distinct):
            platforms.setdefault(self.verdict(platform), set()).add(platform)
        found = {verdict: nodes.select(names, chosen) for verdict, chosen in platforms.items()}
        if sum(map(len, found.values())) < len(names):
            unseen = self.verdict_unseen(nodes.distinct)
            found[unseen] = _in_order(names, [found.get(unseen, []), nodes.missing(names)])
        return _filled(found)

    def verdict_on_any(self, platforms: frozenset[Platform]) -> Verdict | None:
        """The one verdict on all possible nodes of a cluster with `platforms`, if it lets nodes pass; else None.

        Possible nodes include the usual platforms, because a node that is not in view may be the first of its platform,
        which kube-scheduler has seen before us.
        """
        possible = {self.verdict(platform) for platform in platforms.union(USUAL)}
        return possible.pop() if len(possible) == 1 and possible.isdisjoint(_NOT_PASSING) else None

    def verdict_unseen(self, platforms: frozenset[Platform]) -> Verdict:
        """The verdict on a node that is not in view, in a cluster with `platforms`."""
        return self.verdict_on_any(platforms) or Verdict.NOT_IN_VIEW

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
        if not self.assumed:
            return Verdict.PASSED
        runs = runs_on(self.policy.assume, platform, self.policy.compatibility)
        return Verdict.ASSUMED_YES if runs else Verdict.ASSUMED_NO


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
    uniform = decision.verdict_on_any(nodes.distinct)
    if uniform and not decision.leaves_out and not decision.copied:
        return _all_pass(args, uniform)
    found = decision.verdicts(args.names, nodes)
    if decision.leaves_out:
        found = _leave_out(found, decision.scores(args.names, nodes))
    for verdict, images in ((Verdict.RETRY, decision.listable), (Verdict.PASSED, decision.copied)):
        if images and verdict in found:
            found = _keep_listing(found, verdict, nodes.images.nodes_with(images))
    if Verdict.RETRY in found:
        decided = ExtenderFilterResult(error=retry_text(decision.retried))
    elif not _REMOVED.isdisjoint(found):
        kept = _in_order(args.names, [names for verdict, names in found.items() if verdict not in _REMOVED])
        refused = dict[NodeName, str]()
        for verdict in found.keys() & REFUSED:
            reason = NOT_IN_VIEW if verdict is Verdict.NOT_IN_VIEW else decision.refusal
            refused |= dict.fromkeys(found[verdict], reason)
        decided = args.keep(kept, refused)
    else:
        decided = args.echo()
    numbers = {verdict: len(names) for verdict, names in found.items()}
    return DecidedAnswer(decided if decision.enforced else args.echo(), decided, numbers)


def _in_order(names: Sequence[NodeName], parts: Sequence[list[NodeName]]) -> list[NodeName]:
    """The names that are in one of the parts, each of which is in order."""
    parts = [part for part in parts if part]
    if len(parts) < 2:
        return parts[0] if parts else []
    chosen = set[NodeName]().union(*parts)
    return [name for name in names if name in chosen]


def _keep_listing(found: Verdicts, unresolved: Verdict, listing: Set[NodeName]) -> Verdicts:
    """The verdicts by which the nodes `listing` the images stay, and others that are `unresolved` are left out.

    The verdicts themselves if none of `listing` is among those.
    """
    listed = [name for name in found[unresolved] if name in listing]
    if not listed:
        return found
    others = [name for name in found[unresolved] if name not in listing]
    left_out = [*found.get(Verdict.LEFT_OUT, ()), *others]
    return _filled({**found, unresolved: [], Verdict.LISTED: listed, Verdict.LEFT_OUT: left_out})


def _filled(found: Verdicts) -> Verdicts:
    return {verdict: names for verdict, names in found.items() if names}


def _all_pass(args: ExtenderArgs, verdict: Verdict) -> DecidedAnswer[ExtenderFilterResult]:
    echo = args.echo()
    number = args.count()
    return DecidedAnswer(echo, echo, {verdict: number} if number else {})


def _leave_out(found: Verdicts, scores: Scores) -> Verdicts:
    """The verdicts by which all nodes but those of the highest score are left out, if one has a score at all.

    Those that are refused stay so.
    """
    if not scores:
        return found
    best = frozenset(scores[max(scores)])
    stay = {
        verdict: names if verdict in REFUSED else [name for name in names if name in best]
        for verdict, names in found.items()
    }
    others = [names for verdict, names in found.items() if verdict not in REFUSED]
    return _filled({**stay, Verdict.LEFT_OUT: [name for names in others for name in names if name not in best]})


def is_unsettled(args: ExtenderArgs, nodes: NodePlatforms, decision: Decision) -> bool:
    """Whether resolving more of the pod's images could change the answer; not if all requested nodes are refused.

    Raises:
        InvalidRequest: `NodeNames` has an item that is not a string.
    """
    if not decision.can_be_learned:
        return False
    return not UNRESOLVED.isdisjoint(decision.verdicts(args.names, nodes))


def prioritize_nodes(args: ExtenderArgs, nodes: NodePlatforms, decision: Decision) -> DecidedAnswer[Scores]:
    """The scores above zero: for a multi-arch pod, each node with verdict *yes* scores its architecture's preference.

    There are none where filter has left only the most preferred nodes. `verdicts` counts the scored nodes only.

    Raises:
        InvalidRequest: `NodeNames` has an item that is not a string.
    """
    if decision.leaves_out or not decision.preference:
        return DecidedAnswer({}, {}, {})
    decided = decision.scores(args.names, nodes)
    verdicts = {Verdict.YES: sum(map(len, decided.values()))} if decided else {}
    return DecidedAnswer(decided if decision.enforced else {}, decided, verdicts)


def preempt_nodes(
    args: ExtenderPreemptionArgs, nodes: NodePlatforms, decision: Decision
) -> DecidedAnswer[ExtenderPreemptionResult]:
    """The candidates on which evicting pods could help, which excludes nodes that filter would refuse.

    There are none while an image is to be retried, as pods evicted in vain do not come back. Preference does not count:
    filter keeps a node that is asked about alone, so any of them may be nominated.
    """
    unseen = decision.verdict_unseen(nodes.distinct)
    verdicts = {name: decision.verdict(nodes[name]) if name in nodes else unseen for name in args.victims}
    kept = {
        name: victims
        for name, victims in args.victims.items()
        if not decision.retried and verdicts[name] not in REFUSED
    }
    decided = ExtenderPreemptionResult(kept)
    return DecidedAnswer(decided if decision.enforced else args.echo(), decided, Counter(verdicts.values()))


def _listable(retried: Sequence[tuple[PodImage, Pending | Unknown]]) -> tuple[PodImage, ...]:
    """The images if no registry has answered for any of them, none if one is still asked."""
    if not retried or any(fact.cause is Cause.LOOKING_UP for _, fact in retried):
        return ()
    return tuple(image for image, _ in retried)
