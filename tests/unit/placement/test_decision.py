"""What is decided for one platform: the order of precedence, and that the unknown never becomes a yes."""

from itertools import product

import pytest

from extender.images.content import LOCAL, Cause, Failure
from extender.images.platform import Platform, parse_platform
from extender.placement.facts import Anywhere, ImageFact, Pending, PodImage, RunsOn, Unknown, fact_of
from extender.placement.policy import Choice, Overrides, Policy
from extender.placement.scheduling import REFUSED, Decision, Verdict

AMD64, ARM64, S390X = map(parse_platform, ("linux/amd64", "linux/arm64", "linux/s390x"))
RETRY, ASSUME, PASS = Choice
YES = "yes"


def decide(facts: list[ImageFact], policy: Policy, overrides: Overrides | None = None) -> Decision:
    images = [PodImage(f"r/image-{index}:1") for index in range(len(facts))]
    return Decision(images, facts, policy, overrides or Overrides())


# By what is to be done about a pending image (down) and an unknown one (across); None: the pod has no such image.
PRECEDENCE: dict[Choice | None, dict[Choice | None, Choice | str]] = {
    None: {None: YES, RETRY: RETRY, ASSUME: ASSUME, PASS: PASS},
    RETRY: {None: RETRY, RETRY: RETRY, ASSUME: RETRY, PASS: RETRY},
    ASSUME: {None: ASSUME, RETRY: RETRY, ASSUME: ASSUME, PASS: ASSUME},
    PASS: {None: PASS, RETRY: RETRY, ASSUME: ASSUME, PASS: PASS},
}
# What that is on a node the operator's assumption runs on (amd64), and on one it does not (arm64).
VERDICTS = {
    YES: (Verdict.YES, Verdict.YES),
    RETRY: (Verdict.RETRY, Verdict.RETRY),
    ASSUME: (Verdict.ASSUMED_YES, Verdict.ASSUMED_NO),
    PASS: (Verdict.PASSED, Verdict.PASSED),
}
KNOWN: dict[str, list[ImageFact]] = {
    "no-known-image": [],
    "runs": [RunsOn(frozenset({AMD64, ARM64})), Anywhere()],
    "runs-nowhere-asked": [RunsOn(frozenset({AMD64, ARM64})), RunsOn(frozenset({S390X}))],
}


@pytest.mark.parametrize("known", KNOWN)
def test_no_beats_retry_beats_assume_beats_pass(known: str) -> None:
    """Every combination of known images with a pending and an unknown one, in either order."""
    for pending, unknown, backwards in product((None, *Choice), (None, *Choice), (False, True)):
        facts = list(KNOWN[known])
        facts += [Pending(Cause.LOOKING_UP, "…")] if pending else []
        facts += [Unknown(Cause.DENIED, "…")] if unknown else []
        policy = Policy(pending=pending or PASS, unknown=unknown or PASS, assume=frozenset({AMD64}))
        decision = decide(facts[::-1] if backwards else facts, policy)
        expected = VERDICTS[PRECEDENCE[pending][unknown]]
        if known == "runs-nowhere-asked":
            expected = (Verdict.NO, Verdict.NO)
        assert (decision.verdict(AMD64), decision.verdict(ARM64)) == expected, (pending, unknown, backwards)


@pytest.mark.parametrize(
    ("facts", "policy", "expected"),
    [
        ([], Policy(), False),
        ([Anywhere(), Unknown(Cause.DENIED, "…")], Policy(), False),
        ([RunsOn(frozenset({AMD64}))], Policy(), True),
        ([Pending(Cause.LOOKING_UP, "…")], Policy(), True),
        ([Unknown(Cause.DENIED, "…")], Policy(unknown=ASSUME), True),
    ],
    ids=["no-images", "passed", "known", "retried", "assumed"],
)
def test_the_nodes_matter_only_where_one_could_be_refused_or_retried(
    facts: list[ImageFact], policy: Policy, expected: bool
) -> None:
    """So that nobody looks a new node up for a pod that may go anywhere."""
    assert (decide(facts, policy).verdict_on_any(frozenset({AMD64, S390X})) is None) is expected


def test_the_usual_platforms_are_always_possible() -> None:
    """The first arm64 node may be asked about before it is in view; and a kind of node that has come counts too."""
    decision = decide([RunsOn(frozenset({AMD64, ARM64}))], Policy())
    assert decision.verdict_on_any(frozenset({AMD64})) is Verdict.YES
    assert decision.verdict_on_any(frozenset({AMD64, S390X})) is None
    assert decision.verdict_on_any(frozenset()) is Verdict.YES
    assert decide([RunsOn(frozenset({AMD64}))], Policy()).verdict_on_any(frozenset({AMD64})) is None


def test_the_pods_wish_decides_for_unknown_images_only() -> None:
    """A pod cannot wish away the wait for a pending one."""
    policy = Policy(pending=RETRY, unknown=PASS)
    overrides = Overrides(unknown=ASSUME)
    assert decide([Unknown(Cause.DENIED, "…")], policy, overrides).verdict(ARM64) is Verdict.ASSUMED_NO
    assert decide([Pending(Cause.LOOKING_UP, "…")], policy, overrides).verdict(ARM64) is Verdict.RETRY


def test_assume_passes_where_the_operator_names_nothing_to_assume() -> None:
    """A pod's wish cannot make an empty list refuse every node."""
    nothing = Policy(pending=ASSUME, assume=frozenset())
    assert decide([Pending(Cause.LOOKING_UP, "…")], nothing).verdict(ARM64) is Verdict.PASSED
    assert decide([Unknown(Cause.DENIED, "…")], nothing, Overrides(unknown=ASSUME)).verdict(ARM64) is Verdict.PASSED


def test_a_node_that_states_no_platform_passes() -> None:
    """Whatever is known of the images: it is said apart, since it was not looked at."""
    pending: list[ImageFact] = [Pending(Cause.LOOKING_UP, "…")]
    for facts in ([], KNOWN["runs"], pending):
        assert decide(facts, Policy()).verdict(None) is Verdict.UNSTATED


def test_an_unresolved_image_that_is_never_pulled_passes() -> None:
    """Whatever its lookup said, and whatever the operator and the pod want done about unknown images."""
    image = PodImage("r/local:1", pull_policy="Never")
    for cause in Cause:
        fact = fact_of(image, Failure(cause, "…"), may_be_pending=True)
        decision = Decision([image], [fact], Policy(pending=RETRY, unknown=RETRY), Overrides(unknown=ASSUME))
        assert decision.verdict(ARM64) is Verdict.PASSED
        assert decision.verdict_on_any(frozenset({AMD64, S390X})) is Verdict.PASSED
        assert not decision.can_be_learned


@pytest.mark.parametrize("cause", Cause)
def test_the_unknown_is_never_a_yes(cause: Cause) -> None:
    """Each cause, age, choice and wish: no platform is made up but the operator's, and nothing is earned."""
    for young, pending, unknown, override in product((True, False), Choice, Choice, (None, *Choice)):
        fact = fact_of(PodImage("r/image-1:1"), Failure(cause, "…"), may_be_pending=young)
        policy = Policy(
            pending=pending, unknown=unknown, assume=frozenset({S390X}), preference={"amd64": 10, "s390x": 10}
        )
        decision = decide(
            [RunsOn(frozenset({AMD64, ARM64, S390X})), fact], policy, Overrides(prefer="s390x", unknown=override)
        )
        verdicts = {platform: decision.verdict(platform) for platform in (AMD64, ARM64, S390X)}
        assert Verdict.YES not in verdicts.values()
        assert Verdict.NO not in verdicts.values()
        assert decision.preference == {}
        choice = pending if isinstance(fact, Pending) else override or unknown
        refused = {platform for platform, verdict in verdicts.items() if verdict in REFUSED}
        never = cause in LOCAL
        assert refused == ({AMD64, ARM64} if choice is ASSUME and not never else set[Platform]())


def test_nothing_is_assumed_while_another_image_is_to_be_retried() -> None:
    """Retry beats assume, so only the known images can refuse a node, and only they can be blamed, in pod order."""
    denied, pending = Unknown(Cause.DENIED, "…"), Pending(Cause.LOOKING_UP, "…")
    decision = decide([denied, pending, RunsOn(frozenset({ARM64}))], Policy(pending=RETRY, unknown=ASSUME))
    assert [item.reference for item in decision.constraints] == ["r/image-2:1"]
    assert decision.refusal == "image r/image-2:1 is built only for linux/arm64"
    constraints = decide([denied, Anywhere(), RunsOn(frozenset({ARM64}))], Policy(unknown=ASSUME)).constraints
    assert [(item.reference, item.assumed) for item in constraints] == [("r/image-0:1", True), ("r/image-2:1", False)]
