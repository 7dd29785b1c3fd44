"""The decision, from request to answer: filter, prioritize and preempt, preference by filter, precedence."""

import json
from collections.abc import Mapping
from itertools import product
from typing import Any

import msgspec
import pytest

from extender.errors import InvalidRequest
from extender.images.content import LOCAL, Cause, Failure
from extender.images.platform import Compatibility, Platform, parse_platform
from extender.kubernetes.extender_v1 import (
    decode_args,
    decode_preemption_args,
    encode_filter_result,
    encode_preemption_result,
    encode_priorities,
)
from extender.placement.annotations import Choice, Mode, Overrides
from extender.placement.facts import Anywhere, ImageFact, Pending, PodImage, fact_of
from extender.placement.policy import Policy, PreferenceBy
from extender.placement.scheduling import REFUSED, Verdict, filter_nodes, is_unsettled, preempt_nodes, prioritize_nodes
from tests.builders import AMD64, ARM64, MULTI, built_for, platforms
from tests.unit.placement.mutating import COLD, DENIED, NEVER_PULLED
from tests.unit.placement.scheduler_requests import (
    MIXED,
    NAMES,
    NODES,
    Nodes,
    ask,
    both_forms,
    decide,
    filter_answer,
    kept_names,
    view_of,
)

ASSUMING = Policy(pending=Choice.ASSUME, unknown=Choice.ASSUME)
LOOSE = Policy(compatibility=Compatibility(run_386_on_amd64=True, run_arm_on_arm64=True))
TAKEN = "image r/0:1 is not known yet and is taken to run only on linux/amd64 (operator's setting)"
AND_ONE, ONE_AMD64 = " (and 1 more image)", "image r/1:1 is built only for linux/amd64"
LEVEL, ARM_V7 = built_for("linux/amd64/v3"), built_for("linux/arm/v7")
SIDECAR_V6, APP_V7 = built_for("linux/arm/v6", "linux/amd64"), built_for("linux/arm/v7", "linux/amd64")
PREFER, TWO_SCORES = Policy(preference={"arm64": 10, "arm": 4, "amd64": 0}), Policy(preference={"arm64": 3, "amd64": 1})
STRICT = Policy(preference={"arm64": 10}, preference_by=PreferenceBy.FILTER)
THREE = built_for("linux/amd64", "linux/arm64", "linux/s390x")
ZOO: Nodes = {"x": "linux/s390x", "a": "linux/amd64", "b": "linux/arm64", "n": None, "d": "linux/arm64"}


def only(platforms: str, others: str = "") -> str:
    return f"image r/0:1 is built only for {platforms}{others}"


ALL_KINDS: Nodes = {
    "amd64": "linux/amd64", "arm64": "linux/arm64", "arm": "linux/arm", "win": "windows/amd64", "silent": None
}  # fmt: skip


@both_forms
@pytest.mark.parametrize(
    ("facts", "policy", "nodes", "kept", "reason"),
    [
        pytest.param([AMD64], None, MIXED, "a z", only("linux/amd64"), id="one architecture"),
        pytest.param([MULTI], None, MIXED, "b a c z", "", id="both"),
        pytest.param([], None, MIXED, "b a c z", "", id="no images"),
        pytest.param([Anywhere()], None, MIXED, "b a c z", "", id="anywhere"),
        pytest.param([MULTI, AMD64], None, MIXED, "a z", ONE_AMD64, id="one of two"),
        pytest.param([AMD64, ARM64], None, MIXED, "", only("linux/amd64", AND_ONE), id="nothing in common"),
        pytest.param([built_for("linux/s390x")], None, MIXED, "", only("linux/s390x"), id="no such node"),
        pytest.param([AMD64], None, ALL_KINDS, "amd64 silent", only("linux/amd64"), id="all kinds"),
        pytest.param([LEVEL], None, ALL_KINDS, "silent", only("linux/amd64/v3"), id="a level"),
        pytest.param([ARM_V7], None, ALL_KINDS, "arm silent", only("linux/arm/v7"), id="arm"),
        pytest.param([ARM_V7], LOOSE, ALL_KINDS, "arm64 arm silent", only("linux/arm/v7"), id="arm on arm64"),
        pytest.param([built_for("linux/386")], LOOSE, ALL_KINDS, "amd64 silent", only("linux/386"), id="386"),
        pytest.param([built_for("windows/amd64")], None, ALL_KINDS, "win silent", only("windows/amd64"), id="windows"),
        pytest.param([DENIED], None, MIXED, "b a c z", "", id="unknown passes"),
        pytest.param([NEVER_PULLED], ASSUMING, MIXED, "b a c z", "", id="never pulled passes"),
        pytest.param([NEVER_PULLED, AMD64], None, MIXED, "a z", ONE_AMD64, id="never pulled and known"),
        pytest.param([DENIED, AMD64], None, MIXED, "a z", ONE_AMD64, id="unknown and known"),
        pytest.param([COLD], Policy(pending=Choice.PASS), MIXED, "b a c z", "", id="pending passes"),
        pytest.param([COLD], ASSUMING, MIXED, "a z", TAKEN, id="assumed"),
        pytest.param([DENIED, MULTI], ASSUMING, MIXED, "a z", TAKEN, id="assumed and known"),
        pytest.param([DENIED, ARM64], ASSUMING, MIXED, "", f"{TAKEN}{AND_ONE}", id="assumed against known"),
        pytest.param([COLD], Policy(pending=Choice.RETRY), {"silent": None}, "silent", "", id="silent"),
    ],
)
def test_filter_keeps_the_nodes_that_may_run_the_pod(
    form: str, facts: list[ImageFact], policy: Policy | None, nodes: Nodes, kept: str, reason: str
) -> None:
    """In the request's form and order; all others with the one reason, unresolvable by eviction."""
    answer = filter_answer(form, nodes, decide(facts, policy))
    assert kept_names(form, answer) == kept.split()
    assert answer["FailedAndUnresolvableNodes"] == {name: reason for name in nodes if name not in kept.split()}
    assert answer["FailedNodes"] == {}
    assert answer["Error"] == ""


@both_forms
@pytest.mark.parametrize(
    ("facts", "policy", "nodes"),
    [
        pytest.param([AMD64, COLD], Policy(), MIXED, id="some are no"),
        pytest.param([MULTI, COLD, DENIED], Policy(unknown=Choice.ASSUME), MIXED, id="beats assume"),
        pytest.param([DENIED, COLD], Policy(pending=Choice.PASS, unknown=Choice.RETRY), MIXED, id="unknown"),
        pytest.param([COLD], Policy(), {"silent": None, "a": "linux/amd64"}, id="one is silent"),
    ],
)
def test_filter_errs_if_an_asked_node_is_to_be_retried(
    form: str, facts: list[ImageFact], policy: Policy, nodes: Nodes
) -> None:
    """For the whole call, naming image and cause, with nothing else for the scheduler to read."""
    answer = filter_answer(form, nodes, decide(facts, policy))
    assert "is not known yet (looking-up: " in answer["Error"] or "is unknown (denied: " in answer["Error"]
    assert answer["Error"].endswith("; to be tried again")
    assert (answer[NAMES], answer[NODES], answer["FailedAndUnresolvableNodes"]) == (None, None, {})


@both_forms
@pytest.mark.parametrize(
    ("facts", "policy", "nodes", "expected"),
    [
        pytest.param([MULTI], Policy(), MIXED, False, id="known"),
        pytest.param([AMD64, COLD], Policy(), MIXED, True, id="some open"),
        pytest.param([AMD64, DENIED], Policy(), {"a": "linux/amd64"}, True, id="unknown"),
        pytest.param([AMD64, COLD], Policy(), {"b": "linux/arm64"}, False, id="a known no"),
        pytest.param([COLD], ASSUMING, {"b": "linux/arm64"}, True, id="assumed no"),
        pytest.param([COLD], Policy(), {"silent": None}, False, id="silent"),
        pytest.param([NEVER_PULLED], Policy(), MIXED, False, id="never pulled"),
        pytest.param([NEVER_PULLED, COLD], Policy(), MIXED, True, id="never pulled and pending"),
        pytest.param([COLD], Policy(), {}, False, id="no nodes"),
    ],
)
def test_waiting_is_worth_it_only_where_it_could_change_the_answer(
    form: str, facts: list[ImageFact], policy: Policy, nodes: Nodes, expected: bool
) -> None:
    """An assumption may turn out wrong either way, a known *no* may not."""
    assert is_unsettled(*ask(form, nodes), decide(facts, policy)) is expected


def test_unrefused_names_are_given_back_untouched_and_unread() -> None:
    """Not even looked at: the list may hold anything. Where it has to be read, that is the caller's mistake."""
    args, view = decode_args(b'{"Pod":{},"NodeNames":[ "x", 7 ]}'), view_of({"x": "linux/amd64"})
    outcome = filter_nodes(args, view, decide([MULTI]))
    assert outcome.answer.node_names is not None
    assert bytes(outcome.answer.node_names) == b'[ "x", 7 ]'
    assert outcome.removed == {}
    with pytest.raises(InvalidRequest):
        filter_nodes(args, view, decide([ARM64]))


@pytest.mark.parametrize(
    ("seen", "facts", "kept", "late", "removed"),
    [
        (MIXED, [AMD64], "a z", "new", {Verdict.NO: 2, Verdict.NOT_IN_VIEW: 1}),
        ({"a": "linux/amd64"}, [AMD64], "a", "new b c z", {Verdict.NOT_IN_VIEW: 4}),
        ({}, [AMD64, COLD], "", "new b a c z", {Verdict.NOT_IN_VIEW: 5}),
        (MIXED, [MULTI], "new b a c z", "", {}),
        ({}, [MULTI], "new b a c z", "", {}),
    ],
    ids=["beside others", "where all in view are right", "an empty view", "anywhere", "anywhere, an empty view"],
)
def test_a_node_that_is_not_in_view_is_refused_alone_where_its_platform_matters(
    seen: Nodes, facts: list[ImageFact], kept: str, late: str, removed: Mapping[Verdict, int]
) -> None:
    """As unresolvable, so that nobody is evicted for it: it may be the first of its platform, which the view lacks."""
    args, _ = ask(NAMES, {"new": None, **MIXED})
    outcome = filter_nodes(args, view_of(seen), decide(facts))
    assert outcome.answer.node_names is not None
    assert msgspec.json.decode(outcome.answer.node_names) == kept.split()
    failed = msgspec.json.decode(outcome.answer.failed_and_unresolvable_nodes, type=dict[str, str])
    assert {name for name, reason in failed.items() if reason == "not in view yet"} == set(late.split())
    assert outcome.removed == removed
    candidates = dict.fromkeys(["new", *MIXED], ())
    for meta in (False, True):
        victims = decode_preemption_args(preempt_body(candidates, meta=meta))
        left = preempt_nodes(victims, view_of(seen), decide(facts)).answer.node_name_to_meta_victims
        assert set(left) == (set() if COLD in facts else set(kept.split()))


@pytest.mark.parametrize(
    ("facts", "policy", "refused"),
    [
        pytest.param([AMD64], Policy(), True, id="known"),
        pytest.param([COLD], Policy(), True, id="retried"),
        pytest.param([DENIED], Policy(unknown=Choice.ASSUME), True, id="assumed"),
        pytest.param([DENIED], Policy(unknown=Choice.PASS), False, id="passed"),
        pytest.param([AMD64, DENIED], Policy(unknown=Choice.PASS), True, id="known and passed"),
        pytest.param([MULTI, Anywhere()], Policy(), False, id="anywhere"),
        pytest.param([], Policy(), False, id="no images"),
    ],
)
def test_a_new_node_is_waited_for_only_where_its_platform_matters(
    facts: list[ImageFact], policy: Policy, refused: bool
) -> None:
    """Nothing else is refused with it, and the whole call is no error for it."""
    args, _ = ask(NAMES, {"new": None})
    answer = filter_nodes(args, view_of({"a": "linux/amd64"}), decide(facts, policy)).answer
    assert answer.error == ""
    assert bytes(answer.failed_and_unresolvable_nodes) == (b'{"new":"not in view yet"}' if refused else b"{}")
    assert bytes(answer.node_names or b"") == (b"[]" if refused else b'["new"]')


@both_forms
@pytest.mark.parametrize("mode", [Mode.OBSERVE, Mode.IGNORE])
@pytest.mark.parametrize("facts", [[AMD64], [COLD], [MULTI]], ids=["refused", "retried", "scored"])
def test_an_observed_pod_is_left_as_it_is(form: str, mode: Mode, facts: list[ImageFact]) -> None:
    """Filter and preempt echo, prioritize is neutral, and what would have been done can still be recorded."""
    policy = Policy(preference={"arm64": 10})
    observed, enforced = (decide(facts, policy, Overrides(mode=each)) for each in (mode, Mode.ENFORCE))
    args, nodes = ask(form, MIXED)
    filtered, would = filter_nodes(args, nodes, observed), filter_nodes(args, nodes, enforced)
    assert encode_filter_result(filtered.answer) == encode_filter_result(args.echo())
    assert encode_filter_result(filtered.decided) == encode_filter_result(would.answer)
    assert filtered.removed == would.removed
    priorities = prioritize_nodes(args, nodes, observed)
    assert priorities.answer == {}
    assert priorities.decided == prioritize_nodes(args, nodes, enforced).answer
    victims = decode_preemption_args(b'{"Pod":{},"NodeNameToMetaVictims":{"a":{},"b":{}}}')
    preempted = preempt_nodes(victims, nodes, observed)
    assert list(preempted.answer.node_name_to_meta_victims) == ["a", "b"]
    assert preempted.decided == preempt_nodes(victims, nodes, enforced).answer


@both_forms
@pytest.mark.parametrize(
    ("facts", "policy", "prefer", "scores"),
    [
        pytest.param([MULTI], PREFER, None, {"arm64": 10}, id="multi"),
        pytest.param([MULTI, Anywhere()], PREFER, None, {"arm64": 10}, id="and anywhere"),
        pytest.param([MULTI], PREFER, "amd64", {"amd64": 10}, id="the pod's own"),
        pytest.param([MULTI], PREFER, "s390x", {}, id="another"),
        pytest.param([MULTI], PREFER, "none", {}, id="none"),
        pytest.param([MULTI], Policy(), None, {}, id="no preference"),
        pytest.param([MULTI], TWO_SCORES, None, {"amd64": 1, "arm64": 3}, id="two scores"),
        pytest.param([SIDECAR_V6, APP_V7], PREFER, None, {"arm": 4}, id="v6 and v7"),
        pytest.param([built_for("linux/amd64/v3", "linux/arm64")], PREFER, "amd64", {}, id="a level alone"),
        pytest.param([ARM64], PREFER, None, {}, id="one architecture"),
        pytest.param([MULTI, ARM64], PREFER, None, {}, id="one in common"),
        pytest.param([built_for("linux/arm/v6", "linux/arm/v7")], PREFER, None, {}, id="variants alone"),
        pytest.param([], PREFER, "amd64", {}, id="no images"),
        pytest.param([Anywhere()], PREFER, "amd64", {}, id="anywhere"),
        pytest.param([MULTI, COLD], PREFER, "amd64", {}, id="pending"),
        pytest.param([MULTI, DENIED], ASSUMING, "amd64", {}, id="assumed"),
        pytest.param([MULTI, NEVER_PULLED], PREFER, None, {}, id="never pulled"),
    ],
)
def test_prioritize_scores_the_nodes_of_multi_arch_pods(
    form: str, facts: list[ImageFact], policy: Policy, prefer: str | None, scores: dict[str, int]
) -> None:
    """Only nodes known to run all images, by the preference for their architecture; zeros are left out."""
    outcome = prioritize_nodes(*ask(form, ALL_KINDS), decide(facts, policy, Overrides(prefer=prefer)))
    answer = json.loads(encode_priorities(outcome.answer))
    assert answer == [{"Host": name, "Score": scores[name]} for name in ALL_KINDS if name in scores]
    assert all(type(item["Score"]) is int for item in answer)


def preempt_body(victims: Mapping[str, Any], *, meta: bool) -> bytes:
    pods = {
        name: [{"UID": uid} if meta else {"metadata": {"uid": uid}} for uid in uids] for name, uids in victims.items()
    }
    filled = {name: {"Pods": uids, "NumPDBViolations": len(name)} for name, uids in pods.items()}
    return json.dumps(
        {"Pod": {}, "NodeNameToMetaVictims": filled if meta else None, "NodeNameToVictims": None if meta else filled}
    ).encode()


@pytest.mark.parametrize("meta", [True, False], ids=["meta-victims", "full-pods"])
@pytest.mark.parametrize(
    ("facts", "policy", "kept"),
    [
        pytest.param([AMD64], Policy(), "a z", id="known"),
        pytest.param([AMD64, COLD], Policy(), "", id="retried"),
        pytest.param([COLD], ASSUMING, "a z", id="assumed"),
        pytest.param([NEVER_PULLED], Policy(unknown=Choice.RETRY), "a b z new", id="never pulled"),
    ],
)
def test_preempt_echoes_the_nodes_filter_would_keep(
    facts: list[ImageFact], policy: Policy, kept: str, meta: bool
) -> None:
    """By identifiers in both forms, victims untouched, empty lists too; nothing while an image is to be retried."""
    victims = {"a": ["u1", "u2"], "b": ["u3"], "z": [], "new": ["u4"]}
    args = decode_preemption_args(preempt_body(victims, meta=meta))
    outcome = preempt_nodes(args, view_of(MIXED), decide(facts, policy))
    answer = json.loads(encode_preemption_result(outcome.answer))
    expected = {
        name: {"Pods": [{"UID": uid} for uid in victims[name]], "NumPDBViolations": len(name)} for name in kept.split()
    }
    assert answer == {"NodeNameToMetaVictims": expected}
    assert sum(outcome.removed.values()) == (0 if facts == [NEVER_PULLED] else 2)


def strictly(preference: Mapping[str, int]) -> Policy:
    return msgspec.structs.replace(STRICT, preference=preference)


@both_forms
@pytest.mark.parametrize(
    ("facts", "policy", "prefer", "kept"),
    [
        pytest.param([THREE], STRICT, None, "b d", id="the preferred"),
        pytest.param([THREE], strictly({"arm64": 5, "s390x": 10}), None, "x", id="the most preferred"),
        pytest.param([THREE], strictly({"arm64": 5, "s390x": 5}), None, "x b d", id="two alike"),
        pytest.param([THREE], strictly({"riscv64": 9}), None, "x a b n d", id="none is there"),
        pytest.param([THREE], strictly({"riscv64": 9, "amd64": 1}), None, "a", id="the next one"),
        pytest.param([THREE], strictly({}), None, "x a b n d", id="no preference"),
        pytest.param([THREE], strictly({"arm64": 0}), None, "x a b n d", id="zero"),
        pytest.param([THREE], STRICT, "s390x", "x", id="the pod's own"),
        pytest.param([THREE], STRICT, "none", "x a b n d", id="the pod wants none"),
        pytest.param([THREE, Anywhere()], STRICT, None, "b d", id="beside a volume"),
        pytest.param([MULTI], STRICT, None, "b d", id="beside a refused node"),
        pytest.param([MULTI], strictly({"s390x": 10}), None, "a b n d", id="the preferred is refused"),
        pytest.param([AMD64], STRICT, None, "a n", id="one architecture"),
        pytest.param([THREE, DENIED], STRICT, None, "x a b n d", id="unknown"),
        pytest.param([Anywhere()], STRICT, None, "x a b n d", id="anywhere"),
    ],
)
def test_filter_keeps_the_most_preferred_nodes_that_are_asked_about(
    form: str, facts: list[ImageFact], policy: Policy, prefer: str | None, kept: str
) -> None:
    """Of multi-arch pods alone; the nodes left out have no reason, and those that cannot run the pod keep theirs."""
    decision = decide(facts, policy, Overrides(prefer=prefer))
    answer = filter_answer(form, ZOO, decision)
    assert kept_names(form, answer) == kept.split()
    assert answer["FailedNodes"] == {}
    refused = {name for name, text in ZOO.items() if decision.verdict(_platform(text)) in REFUSED}
    assert set(answer["FailedAndUnresolvableNodes"]) == refused
    assert answer["Error"] == ""
    removed = filter_nodes(*ask(form, ZOO), decision).removed
    assert removed.get(Verdict.LEFT_OUT, 0) == len(ZOO) - len(refused) - len(kept.split())
    assert sum(removed.values()) == len(ZOO) - len(kept.split())


def _platform(text: str | None) -> Platform | None:
    return parse_platform(text) if text else None


def test_a_nominated_node_is_asked_about_alone_and_stays() -> None:
    """Whatever its architecture, as kube-scheduler asks about no other node then; the answer is its own bytes."""
    for form, (name, platform) in product((NAMES, NODES), MIXED.items()):
        args, view = ask(form, {name: platform})
        assert filter_nodes(args, view, decide([MULTI], STRICT)).answer == args.echo()


def test_the_other_verbs_have_nothing_to_add() -> None:
    """Every node that is left has the same score, and any that can run the pod is a candidate for preemption."""
    decision = decide([MULTI], STRICT)
    assert prioritize_nodes(*ask(NAMES, MIXED), decision).answer == {}
    args = decode_preemption_args(preempt_body(dict.fromkeys(MIXED, ()), meta=True))
    assert list(preempt_nodes(args, view_of(MIXED), decision).answer.node_name_to_meta_victims) == list(MIXED)


@pytest.mark.parametrize(("platform", "kept"), [("linux/arm64", ["a"]), ("linux/amd64", ["a", "new"])])
def test_a_node_that_is_not_in_view_is_neither_preferred_nor_lost(platform: str, kept: list[str]) -> None:
    """It is left out where a preferred one is there, and remains with the others where none is."""
    args, _ = ask(NAMES, {"a": platform, "new": None})
    found = filter_nodes(args, view_of({"a": platform}), decide([MULTI], STRICT))
    assert json.loads(bytes(found.answer.node_names or b"")) == kept


NODE_AMD64, NODE_ARM64, NODE_S390X = map(parse_platform, ("linux/amd64", "linux/arm64", "linux/s390x"))
RETRY, ASSUME, PASS = Choice  # each beats those behind it
# What is decided on a node the operator's assumption runs on (amd64), and on one it does not (arm64).
VERDICTS = {
    None: (Verdict.YES, Verdict.YES),
    RETRY: (Verdict.RETRY, Verdict.RETRY),
    ASSUME: (Verdict.ASSUMED_YES, Verdict.ASSUMED_NO),
    PASS: (Verdict.PASSED, Verdict.PASSED),
}
KNOWN: dict[str, list[ImageFact]] = {
    "no-known-image": [], "runs": [MULTI, Anywhere()], "runs-nowhere-asked": [MULTI, built_for("linux/s390x")]
}  # fmt: skip
WHEN_PENDING, WHEN_UNKNOWN = Policy(pending=RETRY, unknown=PASS), Policy(pending=PASS, unknown=ASSUME)
NOTHING_TO_ASSUME = Policy(pending=ASSUME, assume=frozenset())


@pytest.mark.parametrize("known", KNOWN)
def test_no_beats_retry_beats_assume_beats_pass(known: str) -> None:
    """Every combination of known images with a pending and an unknown one, in either order; a silent node passes."""
    for pending, unknown, backwards in product((None, *Choice), (None, *Choice), (False, True)):
        facts = [*KNOWN[known], *([COLD] if pending else []), *([DENIED] if unknown else [])]
        policy = Policy(pending=pending or PASS, unknown=unknown or PASS, assume=frozenset({NODE_AMD64}))
        decision = decide(facts[::-1] if backwards else facts, policy)
        strongest = next((each for each in Choice if each in (pending, unknown)), None)
        expected = (Verdict.NO, Verdict.NO) if known == "runs-nowhere-asked" else VERDICTS[strongest]
        assert (decision.verdict(NODE_AMD64), decision.verdict(NODE_ARM64)) == expected, (pending, unknown, backwards)
        assert decision.verdict(None) is Verdict.UNSTATED


@pytest.mark.parametrize(
    ("facts", "policy", "cluster", "verdict"),
    [
        pytest.param([], Policy(), "linux/amd64 linux/s390x", Verdict.YES, id="no images"),
        pytest.param([Anywhere(), DENIED], Policy(), "linux/amd64 linux/s390x", Verdict.PASSED, id="passed"),
        pytest.param([AMD64], Policy(), "linux/amd64 linux/s390x", None, id="known"),
        pytest.param([COLD], Policy(), "linux/amd64 linux/s390x", None, id="retried"),
        pytest.param([DENIED], WHEN_UNKNOWN, "linux/amd64 linux/s390x", None, id="assumed"),
        pytest.param([MULTI], Policy(), "linux/amd64", Verdict.YES, id="the usual platforms are possible"),
        pytest.param([MULTI], Policy(), "", Verdict.YES, id="no node yet"),
        pytest.param([MULTI], Policy(), "linux/amd64 linux/s390x", None, id="a kind of node that has come"),
        pytest.param([AMD64], Policy(), "linux/amd64", None, id="the first arm64 node may not be in view yet"),
    ],
)
def test_the_nodes_matter_only_where_one_could_be_refused_or_retried(
    facts: list[ImageFact], policy: Policy, cluster: str, verdict: Verdict | None
) -> None:
    """So that no pod that may go anywhere waits for a new node to come into view."""
    assert decide(facts, policy).verdict_on_any(platforms(*cluster.split())) is verdict


@pytest.mark.parametrize(
    ("fact", "policy", "wish", "verdict"),
    [
        pytest.param(DENIED, WHEN_PENDING, ASSUME, Verdict.ASSUMED_NO, id="unknown"),
        pytest.param(COLD, WHEN_PENDING, ASSUME, Verdict.RETRY, id="no pod can wish away the wait"),
        pytest.param(COLD, NOTHING_TO_ASSUME, None, Verdict.PASSED, id="nothing to assume"),
        pytest.param(DENIED, NOTHING_TO_ASSUME, ASSUME, Verdict.PASSED, id="nothing to assume, for all its wishes"),
    ],
)
def test_the_pods_wish_decides_for_unknown_images_only(
    fact: ImageFact, policy: Policy, wish: Choice | None, verdict: Verdict
) -> None:
    assert decide([fact], policy, Overrides(unknown=wish)).verdict(NODE_ARM64) is verdict


@pytest.mark.parametrize("cause", Cause)
def test_the_unknown_is_never_a_yes(cause: Cause) -> None:
    """Each cause, age, choice and wish: no platform is made up but the operator's, and nothing is earned."""
    for young, pending, unknown, override in product((True, False), Choice, Choice, (None, *Choice)):
        fact = fact_of(PodImage("r/image-1:1"), Failure(cause, "…"), may_be_pending=young)
        assume, preference = frozenset({NODE_S390X}), {"amd64": 10, "s390x": 10}
        policy = Policy(pending=pending, unknown=unknown, assume=assume, preference=preference)
        everywhere = built_for("linux/amd64", "linux/arm64", "linux/s390x")
        decision = decide([everywhere, fact], policy, Overrides(prefer="s390x", unknown=override))
        verdicts = {platform: decision.verdict(platform) for platform in (NODE_AMD64, NODE_ARM64, NODE_S390X)}
        assert {Verdict.YES, Verdict.NO}.isdisjoint(verdicts.values())
        assert decision.preference == {}
        assert decision.can_be_learned is (cause not in LOCAL)
        choice = pending if isinstance(fact, Pending) else override or unknown
        refused = {platform for platform, verdict in verdicts.items() if verdict in REFUSED}
        assert refused == ({NODE_AMD64, NODE_ARM64} if choice is ASSUME and cause not in LOCAL else set())
        assert cause not in LOCAL or {*verdicts.values()} == {Verdict.PASSED}


def test_nothing_is_assumed_while_another_image_is_to_be_retried() -> None:
    """Retry beats assume, so only the known images can refuse a node, and only they can be blamed, in pod order."""
    decision = decide([DENIED, COLD, ARM64], Policy(pending=RETRY, unknown=ASSUME))
    assert [item.reference for item in decision.constraints] == ["r/2:1"]
    assert decision.refusal == "image r/2:1 is built only for linux/arm64"
    constraints = decide([DENIED, Anywhere(), ARM64], WHEN_UNKNOWN).constraints
    assert [(item.reference, item.assumed) for item in constraints] == [("r/0:1", True), ("r/2:1", False)]
