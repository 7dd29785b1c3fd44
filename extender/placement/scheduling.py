"""The decision about one pod and the nodes kube-scheduler asks about: filter, prioritize, preempt.

Not knowing never becomes a platform here: what is unresolved passes, asks for another try, or is taken for what the
operator said, and only the known earns a score. Knows no wire bytes, no registry and no cluster.
"""

import enum
import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Generic, TypeVar

import msgspec

from extender.images.platform import Platform, runs_on
from extender.kubernetes.extender_v1 import (
    ExtenderArgs,
    ExtenderFilterResult,
    ExtenderPreemptionArgs,
    ExtenderPreemptionResult,
    HostPriority,
)
from extender.placement.annotations import Choice, Mode, Wishes
from extender.placement.facts import Cause, Fit, ImageFact, Pending, PodImage, RunsOn, Unknown, fit
from extender.placement.nodes import NodePlatforms
from extender.placement.policy import Policy, choice_for, is_multi_arch, preference_for
from extender.placement.reasons import Constraint, refusal_text, retry_text

_Answer = TypeVar("_Answer")


class Verdict(enum.StrEnum):
    """What is decided about a pod on the nodes of one platform."""

    YES = "yes"
    NO = "no"
    RETRY = "retry"
    ASSUMED_YES = "assumed-yes"
    ASSUMED_NO = "assumed-no"
    PASSED = "passed"
    UNSTATED = "unstated"
    """The node states no platform, or is not in view: it passes."""


_USUAL = frozenset({Platform("linux", "amd64"), Platform("linux", "arm64")})

REFUSED = frozenset({Verdict.NO, Verdict.ASSUMED_NO})
UNRESOLVED = frozenset({Verdict.RETRY, Verdict.ASSUMED_YES, Verdict.ASSUMED_NO, Verdict.PASSED})

# A byte per node: beside looking 5,000 names up, counting and selecting bytes costs next to nothing.
_CODES = {verdict: code for code, verdict in enumerate(Verdict)}
_IS_REFUSED = bytes(verdict in REFUSED for verdict in Verdict).ljust(256, b"\0")


class Alike(Mapping[Verdict, int]):
    """All asked nodes have one verdict. How many they are is counted when somebody wants to know, after the answer."""

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


class Outcome(msgspec.Struct, Generic[_Answer], frozen=True):
    """What to answer, and what was decided: the same, unless the pod is only observed.

    `verdicts` counts the asked nodes by what was decided about them.
    """

    answer: _Answer
    decided: _Answer
    verdicts: Mapping[Verdict, int]


class Decision:
    """What a pod's images mean for any node: a function of what is known of them, the policy and the wishes.

    `constraints` are what can refuse a node, in pod order: the known images, and under `assume` the unresolved ones,
    which are taken for what the operator said. `retried` are the images whose lookup the scheduler should come back
    for; where there are any, nothing is assumed (retry beats assume). `enforced` is false for a pod that is only
    observed. `can_be_learned`: an image is unresolved whose lookup could still tell.
    """

    def __init__(self, images: Sequence[PodImage], facts: Sequence[ImageFact], policy: Policy, wishes: Wishes) -> None:
        """`facts` are those of `images`, in the same order."""
        unresolved = [
            (image, fact, choice_for(fact, policy, wishes))
            for image, fact in zip(images, facts, strict=True)
            if isinstance(fact, Pending | Unknown)
        ]
        self.enforced = wishes.mode is Mode.ENFORCE
        self.can_be_learned = any(fact.cause is not Cause.NEVER_PULLED for _, fact, _ in unresolved)
        self.retried = [(image, fact) for image, fact, choice in unresolved if choice is Choice.RETRY]
        assumed = {image for image, _, choice in unresolved if choice is Choice.ASSUME and not self.retried}
        self.constraints = tuple(_constraints(images, facts, assumed, policy.assume))
        self._facts = facts
        self._policy = policy
        self._wishes = wishes
        self._verdicts: dict[Platform | None, Verdict] = {}

    @property
    def can_refuse(self) -> bool:
        """Whether there could be a node at all that is refused or retried, so that the nodes' platforms matter."""
        return bool(self.constraints or self.retried)

    @functools.cached_property
    def refusal(self) -> str:
        """The reason for every node that is refused."""
        return refusal_text(self.constraints)

    def verdict(self, platform: Platform | None) -> Verdict:
        """The verdict on nodes of `platform`; None is a node that states none. Worked out once per platform."""
        found = self._verdicts.get(platform)
        if found is None:
            found = self._verdicts[platform] = self._decide(platform)
        return found

    @functools.cached_property
    def preference(self) -> Mapping[str, int]:
        """The score of each architecture, empty for a pod that is not known to be multi-arch."""
        if not is_multi_arch(self._facts, self._policy.compatibility):
            return {}
        return preference_for(self._policy, self._wishes)

    def _decide(self, platform: Platform | None) -> Verdict:
        if platform is None:
            return Verdict.UNSTATED
        match fit(self._facts, platform, self._policy.compatibility):
            case Fit.NO:
                return Verdict.NO
            case Fit.YES:
                return Verdict.YES
        if self.retried:
            return Verdict.RETRY
        if not any(constraint.assumed for constraint in self.constraints):
            return Verdict.PASSED
        runs = runs_on(self._policy.assume, platform, self._policy.compatibility)
        return Verdict.ASSUMED_YES if runs else Verdict.ASSUMED_NO


def filter_nodes(args: ExtenderArgs, nodes: NodePlatforms, decision: Decision) -> Outcome[ExtenderFilterResult]:
    """Which of the asked nodes remain. Where none is refused, the answer is the request's own list, byte for byte.

    A node that is not in `nodes` passes. An error, for the whole call, only if some asked node's verdict is to retry.

    Raises:
        InvalidRequest: `NodeNames` holds something but strings.
    """
    verdicts, refused = _partition(args, nodes, decision)
    if Verdict.RETRY in verdicts:
        decided = ExtenderFilterResult(error=retry_text(decision.retried))
    elif not REFUSED.isdisjoint(verdicts):
        decided = args.without(refused, decision.refusal)
    else:
        decided = args.echo()
    return Outcome(decided if decision.enforced else args.echo(), decided, verdicts)


def is_unsettled(args: ExtenderArgs, nodes: NodePlatforms, decision: Decision) -> bool:
    """Whether learning more of the pod's images could change the answer: not if every asked node is refused already.

    Raises:
        InvalidRequest: `NodeNames` holds something but strings.
    """
    if not decision.can_be_learned:
        return False
    unresolved = {platform for platform in nodes.distinct if decision.verdict(platform) in UNRESOLVED}
    return bool(unresolved) and any(nodes.platforms.get(name) in unresolved for name in args.names)


def prioritize_nodes(args: ExtenderArgs, nodes: NodePlatforms, decision: Decision) -> Outcome[list[HostPriority]]:
    """The scores above zero: for a multi-arch pod, each node that is *yes* has the preference for its architecture.

    `verdicts` counts the scored nodes only.

    Raises:
        InvalidRequest: `NodeNames` holds something but strings.
    """
    scores = {
        platform: score
        for platform in nodes.distinct
        if (score := decision.preference.get(platform.architecture, 0)) and decision.verdict(platform) is Verdict.YES
    }
    names = args.names if scores else []
    asked = zip(names, map(nodes.platforms.get, names), strict=True)
    decided = [HostPriority(name, scores[platform]) for name, platform in asked if platform in scores]
    return Outcome(decided if decision.enforced else [], decided, {Verdict.YES: len(decided)})


def preempt_nodes(
    args: ExtenderPreemptionArgs, nodes: NodePlatforms, decision: Decision
) -> Outcome[ExtenderPreemptionResult]:
    """The candidates on which evicting pods could help: not those that filter would refuse.

    None at all while an image is to be retried: what was evicted for nothing does not come back.
    """
    verdicts = {name: decision.verdict(nodes.platforms.get(name)) for name in args.victims}
    kept = {
        name: victims
        for name, victims in args.victims.items()
        if not decision.retried and verdicts[name] not in REFUSED
    }
    decided = ExtenderPreemptionResult(kept)
    return Outcome(decided if decision.enforced else args.echo(), decided, Counter(verdicts.values()))


def _constraints(
    images: Sequence[PodImage], facts: Sequence[ImageFact], assumed: Set[PodImage], assume: frozenset[Platform]
) -> Iterator[Constraint]:
    for image, fact in zip(images, facts, strict=True):
        if isinstance(fact, RunsOn):
            yield Constraint(image.reference, fact.platforms)
        elif image in assumed:
            yield Constraint(image.reference, assume, assumed=True)


def _partition(args: ExtenderArgs, nodes: NodePlatforms, decision: Decision) -> tuple[Mapping[Verdict, int], bytes]:
    """How many asked nodes have which verdict, and a byte for each, 1 if it is refused.

    No names are decoded, and there are no bytes, if no node can be refused and all have one verdict. A node that is not
    in view could be of any of the usual platforms: it may be the first of its kind, seen by the scheduler before us.
    """
    possible = {decision.verdict(platform) for platform in nodes.distinct | _USUAL}
    if len(possible) == 1 and possible.isdisjoint({*REFUSED, Verdict.RETRY}):
        return Alike(possible.pop(), args.count), b""
    codes = {platform: _CODES[decision.verdict(platform)] for platform in (None, *nodes.distinct)}
    asked = bytes(map(codes.__getitem__, map(nodes.platforms.get, args.names)))
    verdicts = {verdict: number for verdict, code in _CODES.items() if (number := asked.count(code))}
    return verdicts, asked.translate(_IS_REFUSED)
