"""The decision about one pod and the nodes kube-scheduler asks about: filter, prioritize, preempt.

Not knowing never becomes a platform here: what is unresolved passes, asks for another try, or is taken for what the
operator said, and only the known earns a score. Knows no wire bytes, no registry and no cluster.
"""

import enum
import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from itertools import compress
from typing import Generic, TypeVar

import msgspec

from extender.images.content import Cause
from extender.images.platform import Platform, runs_on
from extender.kubernetes.extender_v1 import (
    ExtenderArgs,
    ExtenderFilterResult,
    ExtenderPreemptionArgs,
    ExtenderPreemptionResult,
)
from extender.placement.annotations import Choice, Mode, Overrides
from extender.placement.facts import Fit, ImageFact, Pending, PodImage, RunsOn, Unknown, fit
from extender.placement.nodes import UNSEEN, NodePlatforms
from extender.placement.policy import Policy, choice_for, is_multi_arch, preference_for
from extender.placement.reasons import Constraint, refusal_text, retry_text
from extender.tables import declare_cache

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


class RequestedNodes(msgspec.Struct, frozen=True):
    """The nodes of a request: each one's quoted name, and the code of its platform."""

    raw_names: Sequence[bytes]
    codes: bytes


_USUAL = frozenset({Platform("linux", "amd64"), Platform("linux", "arm64")})

REFUSED = frozenset({Verdict.NO, Verdict.ASSUMED_NO})
UNRESOLVED = frozenset({Verdict.RETRY, Verdict.ASSUMED_YES, Verdict.ASSUMED_NO, Verdict.PASSED})

# A byte per node, and tables for bytes.translate: beside looking 5,000 names up, all else costs next to nothing.
_NUMBERS = {verdict: number for number, verdict in enumerate(Verdict)}
_IS_REFUSED = bytes(verdict in REFUSED for verdict in Verdict).ljust(256, b"\0")
_IS_UNRESOLVED = bytes(verdict in UNRESOLVED for verdict in Verdict).ljust(256, b"\0")


class UniformVerdict(Mapping[Verdict, int]):
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


class DecidedAnswer(msgspec.Struct, Generic[_Answer], frozen=True):
    """What to answer, and what was decided: the same, unless the pod is only observed.

    `verdicts` counts the asked nodes by what was decided about them.
    """

    answer: _Answer
    decided: _Answer
    verdicts: Mapping[Verdict, int]


class Decision:
    """What a pod's images mean for any node: a function of what is known of them, the policy and the overrides.

    `constraints` are what can refuse a node, in pod order: the known images, and under `assume` the unresolved ones,
    which are taken for what the operator said. `retried` are the images whose lookup the scheduler should come back
    for; where there are any, nothing is assumed (retry beats assume). `enforced` is false for a pod that is only
    observed. `can_be_learned`: an image is unresolved whose lookup could still tell.
    """

    def __init__(
        self, images: Sequence[PodImage], facts: Sequence[ImageFact], policy: Policy, overrides: Overrides
    ) -> None:
        """`facts` are those of `images`, in the same order."""
        unresolved = [
            (image, fact, choice_for(fact, policy, overrides))
            for image, fact in zip(images, facts, strict=True)
            if isinstance(fact, Pending | Unknown)
        ]
        self.image_count = len(images)
        self.enforced = overrides.mode is Mode.ENFORCE
        self.can_be_learned = any(fact.cause is not Cause.NEVER_PULLED for _, fact, _ in unresolved)
        self.retried = [(image, fact) for image, fact, choice in unresolved if choice is Choice.RETRY]
        assumed = {image for image, _, choice in unresolved if choice is Choice.ASSUME and not self.retried}
        self.constraints = tuple(_constraints(images, facts, assumed, policy.assume))
        self._facts = facts
        self.policy = policy
        self._overrides = overrides
        self._verdicts: dict[Platform | None, Verdict] = {}
        self._uniform: Mapping[frozenset[Platform], Verdict | None] = {}  # for the last platforms asked about

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
        if not is_multi_arch(self._facts, self.policy.compatibility):
            return {}
        return preference_for(self.policy, self._overrides)

    def score(self, platform: Platform | None) -> int:
        """The score of nodes of `platform`, 0 for those that get none."""
        score = self.preference.get(platform.architecture, 0) if platform else 0
        return score if score and self.verdict(platform) is Verdict.YES else 0

    def verdict_on_any(self, platforms: frozenset[Platform]) -> Verdict | None:
        """The verdict on every node there could be in a cluster of these platforms, if there is one and it lets pass.

        A node that is not in view could be of any of the usual platforms: it may be the first of its kind, seen by the
        scheduler before us.
        """
        if platforms not in self._uniform:
            possible = {self.verdict(platform) for platform in platforms | _USUAL}
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
    """Which of the asked nodes remain. Where none is refused, the answer is the request's own list, byte for byte.

    A node that is not in `nodes` passes. An error, for the whole call, only if some asked node's verdict is to retry.

    Raises:
        InvalidRequest: `NodeNames` holds something but strings.
    """
    uniform = decision.verdict_on_any(nodes.distinct)
    if uniform:
        echo = args.echo()
        return DecidedAnswer(echo, echo, UniformVerdict(uniform, args.count))
    requested = look_up(args, nodes)
    numbers = requested.codes.translate(_verdict_table(nodes, decision))
    verdicts = {verdict: count for verdict, number in _NUMBERS.items() if (count := numbers.count(number))}
    if Verdict.RETRY in verdicts:
        decided = ExtenderFilterResult(error=retry_text(decision.retried))
    elif not REFUSED.isdisjoint(verdicts):
        decided = args.without(requested.raw_names, numbers.translate(_IS_REFUSED), decision.refusal)
    else:
        decided = args.echo()
    return DecidedAnswer(decided if decision.enforced else args.echo(), decided, verdicts)


def is_unsettled(args: ExtenderArgs, nodes: NodePlatforms, decision: Decision) -> bool:
    """Whether learning more of the pod's images could change the answer: not if every asked node is refused already.

    Raises:
        InvalidRequest: `NodeNames` holds something but strings.
    """
    if not decision.can_be_learned:
        return False
    numbers = look_up(args, nodes).codes.translate(_verdict_table(nodes, decision))
    return 1 in numbers.translate(_IS_UNRESOLVED)


Scores = Mapping[int, Sequence[bytes]]
"""The quoted names of the nodes that have a score above zero, by score."""


def prioritize_nodes(args: ExtenderArgs, nodes: NodePlatforms, decision: Decision) -> DecidedAnswer[Scores]:
    """The scores above zero: for a multi-arch pod, each node that is *yes* has the preference for its architecture.

    `verdicts` counts the scored nodes only.

    Raises:
        InvalidRequest: `NodeNames` holds something but strings.
    """
    scores = bytes(map(decision.score, nodes.by_code))
    if not any(scores):
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
    """The candidates on which evicting pods could help: not those that filter would refuse.

    None at all while an image is to be retried: what was evicted for nothing does not come back.
    """
    verdicts = {name: decision.verdict(nodes.get(name)) for name in args.victims}
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
            yield Constraint(image.reference, fact.platforms)
        elif image in assumed:
            yield Constraint(image.reference, assume, assumed=True)


def look_up(args: ExtenderArgs, nodes: NodePlatforms) -> RequestedNodes:
    """The asked nodes and their platforms' codes.

    Raises:
        InvalidRequest: `NodeNames` holds something but strings.
    """
    codes = nodes.codes_of(args.raw_names)
    if UNSEEN not in codes:
        return RequestedNodes(args.raw_names, codes)
    return RequestedNodes(
        args.canonical_names, nodes.codes_of(args.canonical_names)
    )  # a node not in view, or a name in another spelling


def _verdict_table(nodes: NodePlatforms, decision: Decision) -> bytes:
    """From a platform's code to its verdict's number; a node that is not in view states no platform."""
    numbers = bytes(_NUMBERS[decision.verdict(platform)] for platform in nodes.by_code)
    return numbers.ljust(256, bytes([_NUMBERS[Verdict.UNSTATED]]))


_MASKS = declare_cache("placement.scheduling.masks", key="score", bound=256)


@functools.lru_cache(_MASKS.rows)
def _only(score: int) -> bytes:
    """A table for bytes.translate that maps this score to 1 and all others to 0."""
    return bytes(number == score for number in range(256))
