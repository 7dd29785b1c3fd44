"""Preference by filter: which nodes remain, which are left out without being refused, and what the other verbs say."""

import json
from collections.abc import Mapping

import msgspec
import pytest

from extender.images.platform import Platform, parse_platform
from extender.kubernetes.core_v1 import NodeName
from extender.kubernetes.extender_v1 import decode_args, decode_preemption_args, encode_filter_result
from extender.placement.facts import Anywhere, ImageFact
from extender.placement.nodes import NodePlatforms
from extender.placement.policy import Mode, Overrides, Policy, PreferenceBy
from extender.placement.scheduling import (
    REFUSED,
    Verdict,
    filter_nodes,
    preempt_nodes,
    prioritize_nodes,
)
from tests.unit.placement.test_scheduling import (
    AMD64_ONLY,
    LOOKING_UP,
    MIXED,
    MULTI,
    NAMES,
    Nodes,
    ask,
    both_forms,
    built_for,
    decide,
    filter_answer,
    kept_names,
)

STRICT = Policy(preference={"arm64": 10}, preference_by=PreferenceBy.FILTER)
THREE = built_for("linux/amd64", "linux/arm64", "linux/s390x")
ZOO: Nodes = {"x": "linux/s390x", "a": "linux/amd64", "b": "linux/arm64", "n": None, "d": "linux/arm64"}


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
        pytest.param([AMD64_ONLY], STRICT, None, "a n", id="one architecture"),
        pytest.param(
            [THREE, LOOKING_UP], msgspec.structs.replace(STRICT, pending="pass"), None, "x a b n d", id="unknown"
        ),
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


def _platform(text: str | None) -> Platform | None:
    return parse_platform(text) if text else None


@both_forms
def test_nodes_of_one_preference_come_back_byte_for_byte(form: str) -> None:
    """Where nothing is left out nothing is written anew, whether all are preferred or none is."""
    for nodes in ({"b": "linux/arm64", "d": "linux/arm64"}, {"a": "linux/amd64"}):
        args, view = ask(form, nodes)
        assert filter_nodes(args, view, decide([MULTI], STRICT)).answer == args.echo()


def test_a_nominated_node_is_asked_about_alone_and_stays() -> None:
    """Whatever its architecture, as kube-scheduler asks about no other node at that moment."""
    decision = decide([MULTI], STRICT)
    for name, platform in MIXED.items():
        assert kept_names(NAMES, filter_answer(NAMES, {name: platform}, decision)) == [name]


def test_preempt_lets_every_node_that_can_run_the_pod_be_a_candidate() -> None:
    """kube-scheduler chooses the cheapest victims as it would without a preference."""
    body = {"Pod": {}, "NodeNameToMetaVictims": {name: {"Pods": [], "NumPDBViolations": 0} for name in MIXED}}
    args = decode_preemption_args(json.dumps(body).encode())
    _, nodes = ask(NAMES, MIXED)
    assert list(preempt_nodes(args, nodes, decide([MULTI], STRICT)).answer.node_name_to_meta_victims) == list(MIXED)


def test_prioritize_has_nothing_to_add() -> None:
    """Every node that is left has the same score."""
    assert prioritize_nodes(*ask(NAMES, MIXED), decide([MULTI], STRICT)).answer == {}


def test_a_node_that_is_not_in_view_is_neither_preferred_nor_lost() -> None:
    """It is left out where a preferred one is there, and remains with the others where none is."""
    for decision, seen, kept in (
        (decide([MULTI], STRICT), {"b": "linux/arm64"}, ["b"]),
        (decide([MULTI], STRICT), {"a": "linux/amd64"}, ["a", "new"]),
    ):
        args, _ = ask(NAMES, {**seen, "new": None})
        _, view = ask(NAMES, seen)
        found = filter_nodes(args, view, decision)
        assert found.answer.node_names is not None
        assert json.loads(bytes(found.answer.node_names)) == kept
        assert found.is_uniform


def test_verdicts_count_the_nodes_left_out() -> None:
    """Each asked node once."""
    verdicts = dict(filter_nodes(*ask(NAMES, ZOO), decide([MULTI], STRICT)).verdicts)
    assert verdicts == {Verdict.YES: 2, Verdict.NO: 1, Verdict.LEFT_OUT: 2}


@both_forms
def test_an_observed_pod_keeps_every_node(form: str) -> None:
    """What would have been done is decided all the same."""
    args, nodes = ask(form, MIXED)
    observed = filter_nodes(args, nodes, decide([MULTI], STRICT, Overrides(mode=Mode.OBSERVE)))
    enforced = filter_nodes(args, nodes, decide([MULTI], STRICT))
    assert encode_filter_result(observed.answer) == encode_filter_result(args.echo())
    assert encode_filter_result(observed.decided) == encode_filter_result(enforced.answer)
    assert observed.verdicts == enforced.verdicts


def test_the_answer_is_what_go_would_write() -> None:
    """The names that remain, and two empty maps."""
    body = b'{"Pod":{"metadata":{"name":"p"}},"Nodes":null,"NodeNames":["a","b","z"]}'
    view = NodePlatforms({NodeName(name): _platform(text) for name, text in MIXED.items()})
    answer = encode_filter_result(filter_nodes(decode_args(body), view, decide([MULTI], STRICT)).answer)
    assert answer == (b'{"Nodes":null,"NodeNames":["b"],"FailedNodes":{},"FailedAndUnresolvableNodes":{},"Error":""}')
