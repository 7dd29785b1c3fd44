"""What holds for every pod, every set of nodes and every policy."""

import json
from collections.abc import Mapping, Sequence
from itertools import compress

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from extender.images.content import Cause
from extender.images.platform import Compatibility, Platform, normalize_platform, parse_platform, runs_on
from extender.kubernetes.core_v1 import NodeName
from extender.kubernetes.extender_v1 import (
    ExtenderArgs,
    ExtenderFilterResult,
    decode_preemption_args,
    encode_priorities,
)
from extender.placement.annotations import Choice, Overrides
from extender.placement.facts import Anywhere, ImageFact, Pending, PodImage, RunsOn, Unknown
from extender.placement.nodes import NodePlatforms
from extender.placement.policy import Policy, PreferenceBy
from extender.placement.reasons import tightest
from extender.placement.scheduling import REFUSED, Decision, Verdict, filter_nodes, preempt_nodes, prioritize_nodes
from tests.unit.placement.scheduler_requests import NAMES, NODES, ask

PLATFORMS = [*map(parse_platform, (
    "linux/amd64", "linux/amd64/v3", "linux/arm64", "linux/arm64/v9", "linux/arm/v6", "linux/arm/v7", "linux/386",
    "linux/s390x", "windows/amd64",
))]  # fmt: skip

platforms = st.sampled_from(PLATFORMS)
of_nodes = st.sampled_from([each for each in PLATFORMS if normalize_platform(each.os, each.architecture) == each])
some_platforms = st.frozensets(platforms, min_size=1, max_size=4)
causes = st.sampled_from(Cause)
facts: st.SearchStrategy[ImageFact] = st.one_of(
    some_platforms.map(RunsOn),
    st.just(Anywhere()),
    causes.map(lambda cause: Pending(cause, "…")),
    causes.map(lambda cause: Unknown(cause, "…")),
)
choices = st.sampled_from(Choice)
policies = st.builds(
    Policy,
    pending=choices,
    unknown=choices,
    assume=st.frozensets(platforms, max_size=2),
    compatibility=st.builds(Compatibility, run_386_on_amd64=st.booleans(), run_arm_on_arm64=st.booleans()),
    preference=st.dictionaries(st.sampled_from(["amd64", "arm64", "arm"]), st.integers(0, 10)),
    preference_by=st.sampled_from(PreferenceBy),
)
overrides = st.builds(Overrides, unknown=st.none() | choices, prefer=st.sampled_from([None, "amd64", "none"]))
references = st.sampled_from([f"r/{letter}:1" for letter in "abcdefgh"])
Nodes = Mapping[NodeName, Platform | None]
clusters: st.SearchStrategy[Nodes] = st.dictionaries(
    st.integers(0, 99).map(lambda number: NodeName(f"n{number}")), st.none() | of_nodes, min_size=1, max_size=8
)


def decide(images: Sequence[tuple[PodImage, ImageFact]], policy: Policy, overrides: Overrides) -> Decision:
    return Decision([image for image, _ in images], [fact for _, fact in images], policy, overrides)


decisions = st.builds(decide, st.lists(st.tuples(references.map(PodImage), facts), max_size=5), policies, overrides)


def asked(form: str, cluster: Nodes) -> tuple[ExtenderArgs, NodePlatforms]:
    return ask(form, {name: str(platform) if platform else None for name, platform in cluster.items()})


def names_in(result: ExtenderFilterResult) -> list[str]:
    if result.node_names is not None:
        return msgspec.json.decode(result.node_names, type=list[str])
    assert result.nodes is not None
    return [item["metadata"]["name"] for item in msgspec.json.decode(result.nodes)["items"]]


def reasons_in(result: ExtenderFilterResult) -> dict[str, str]:
    return msgspec.json.decode(result.failed_and_unresolvable_nodes, type=dict[str, str])


@given(decisions, clusters)
def test_kept_and_refused_are_the_asked_nodes(decision: Decision, cluster: Nodes) -> None:
    """Each node is in one of the two, in order, once, and every refused one has the reason."""
    outcome = filter_nodes(*asked(NAMES, cluster), decision)
    answer = outcome.answer
    assert bool(answer.error) == (Verdict.RETRY in map(decision.verdict, cluster.values()))
    assert sum(outcome.removed.values()) == (0 if answer.error else len(cluster) - len(names_in(answer)))
    if answer.error:
        return
    refused = reasons_in(answer)
    scores = {name: decision.score(platform) for name, platform in cluster.items() if name not in refused}
    best = max(scores.values(), default=0) if decision.leaves_out else 0
    assert names_in(answer) == [name for name, score in scores.items() if score >= best]
    assert set(refused) <= set(cluster)
    assert set(refused.values()) <= {decision.refusal}
    assert "" not in refused.values()


@given(decisions, clusters)
def test_filter_is_idempotent(decision: Decision, cluster: Nodes) -> None:
    first = filter_nodes(*asked(NAMES, cluster), decision).answer
    if first.error:
        return
    kept = {name: cluster[NodeName(name)] for name in names_in(first)}
    args, nodes = asked(NAMES, {NodeName(name): platform for name, platform in kept.items()})
    assert filter_nodes(args, nodes, decision).answer == args.echo()


@given(decisions, clusters)
def test_both_forms_are_answered_alike(decision: Decision, cluster: Nodes) -> None:
    named, whole = (filter_nodes(*asked(form, cluster), decision) for form in (NAMES, NODES))
    assert named.removed == whole.removed
    assert named.answer.error == whole.answer.error
    assert reasons_in(named.answer) == reasons_in(whole.answer)
    assert named.answer.error or names_in(named.answer) == names_in(whole.answer)
    scores = [prioritize_nodes(*asked(form, cluster), decision).answer for form in (NAMES, NODES)]
    assert scores[0] == scores[1]


@given(decisions, clusters, st.data())
def test_the_reason_does_not_depend_on_the_nodes_asked(decision: Decision, cluster: Nodes, data: st.DataObject) -> None:
    picks = data.draw(st.lists(st.booleans(), min_size=len(cluster), max_size=len(cluster)))
    part = {name: cluster[name] for name in compress(cluster, picks)}
    reasons = {
        reason
        for nodes in (cluster, part, dict(reversed(list(cluster.items()))))
        for reason in reasons_in(filter_nodes(*asked(NAMES, nodes), decision).answer).values()
    }
    assert len(reasons) <= 1
    assert all(len(reason) < 512 for reason in reasons)


@given(decisions)
def test_the_reason_is_true_of_every_refused_platform(decision: Decision) -> None:
    """One of the images to blame does not run there, by what it was built for or is assumed to be."""
    compatibility = decision.policy.compatibility
    for platform in PLATFORMS:
        if decision.verdict(platform) in REFUSED:
            refusing = tightest(decision.constraints)
            assert any(not runs_on(item.platforms, platform, compatibility) for item in refusing)
            assert decision.refusal.startswith(f"image {refusing[0].reference} is ")
            assert ("operator's setting" in decision.refusal) == refusing[0].assumed


@given(decisions, clusters)
def test_scores_are_integers_from_one_to_ten_for_nodes_filter_keeps(decision: Decision, cluster: Nodes) -> None:
    scores = json.loads(encode_priorities(prioritize_nodes(*asked(NAMES, cluster), decision).answer))
    assert len({item["Host"] for item in scores}) == len(scores)
    for item in scores:
        assert type(item["Score"]) is int
        assert 1 <= item["Score"] <= 10
        assert decision.verdict(cluster[item["Host"]]) is Verdict.YES


@given(decisions, clusters)
def test_preempt_agrees_with_filter(decision: Decision, cluster: Nodes) -> None:
    args, nodes = asked(NAMES, cluster)
    filtered = filter_nodes(args, nodes, decision).answer
    victims = decode_preemption_args(
        msgspec.json.encode({"Pod": {}, "NodeNameToMetaVictims": {name: {} for name in cluster}})
    )
    kept = preempt_nodes(victims, nodes, decision).answer.node_name_to_meta_victims
    refused = reasons_in(filtered)
    assert list(kept) == ([] if decision.retried else [name for name in cluster if name not in refused])


@given(st.lists(facts, min_size=1, max_size=5), policies, overrides, platforms)
def test_the_order_of_images_changes_no_verdict(
    images: list[ImageFact], policy: Policy, overrides: Overrides, platform: Platform
) -> None:
    """Only the text names the first in pod order."""
    named = [(PodImage(f"r/{index}:1"), fact) for index, fact in enumerate(images)]
    forwards, backwards = decide(named, policy, overrides), decide(named[::-1], policy, overrides)
    assert forwards.verdict(platform) is backwards.verdict(platform)
    assert set(tightest(forwards.constraints)) == set(tightest(backwards.constraints))
