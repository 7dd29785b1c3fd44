"""What is remembered of pods gives what would be worked out anew: patches and decisions of 300 random pods.

`make fuzz` takes 20,000, by the variable DECISIONS.
"""

import functools
import os
import random
from collections.abc import Callable, Sequence

import msgspec
import pytest

from extender.images.content import Content
from extender.kubernetes.core_v1 import CreatedPod, NodeName
from extender.kubernetes.extender_v1 import ExtenderArgs, decode_args, decode_preemption_args, encode_filter_result
from extender.placement.annotations import ADDED, REASON, Choice, Overrides
from extender.placement.facts import MOST_IMAGES, Anywhere, PodImage
from extender.placement.gate import GATE, GATED, GATED_LABEL
from extender.placement.mutation import Mutation, Mutator
from extender.placement.mutation_key import KEPT_BYTES, MutationKey, mutation_key
from extender.placement.nodes import NO_NODES, USUAL_NODES, NodePlatforms, platforms_of
from extender.placement.policy import Policy
from extender.placement.resolved_pod import ResolvedPod
from extender.placement.scheduling import Decision, filter_nodes, preempt_nodes, prioritize_nodes
from extender.scheduler.verbs import KnownPod
from extender.tables import remembered
from tests.builders import ARM64, MULTI, Json, created, decoded, pod
from tests.unit.placement.json_patch import apply
from tests.unit.placement.mutating import COLD, POLICY, settings
from tests.unit.placement.random_cases import Outlets, draw

CASES = min(int(os.environ.get("DECISIONS", "300")), 20_000)


def siblings(template: Json, chosen: random.Random) -> list[Json]:
    """The template's pods as controllers and policies make them: what differs is theirs alone, or ours."""
    metadata, spec = template["metadata"], template["spec"]
    others = metadata["annotations"]
    records = ["", "x", '{"tolerations":[{"key":"multi","operator":"Equal","value":"yes","effect":"NoSchedule"}]}']
    ours = {ADDED: chosen.choice(records), REASON: "held"}
    gated = {"schedulingGates": [{"name": "others"}, {"name": GATE}]}
    nothings: list[Json | None] = [{}, None]
    metas: list[Json] = [
        {"annotations": {**others, "checksum": str(chosen.random())}, "labels": {"pod-index": "1"}},
        {"annotations": {**others, **ours, "checksum": "1"}, "labels": {GATED_LABEL: GATED}},
        {"annotations": {**ours, **others}, "labels": {"note": f"no {GATED_LABEL}"}},
        *({"annotations": each, "labels": each} for each in nothings),
        {},
    ]
    return [
        {**template, "metadata": {**each, "name": str(chosen.random())}, "spec": {**spec, **gates}}
        for each in metas
        for gates in ({}, gated)
    ]


def test_random_pods_get_what_they_would_get_without_a_memory() -> None:
    """Every pod twice, among others of its template, and of other templates with the same settings."""
    asked, worked_out = 0, 0
    memories: dict[int, Callable[[MutationKey], Mutation]] = {}

    def work(mutator: Mutator, key: MutationKey) -> Mutation:
        nonlocal worked_out
        worked_out += 1
        return key.mutation(mutator)

    for seed in range(CASES):
        case, chosen = draw(seed, is_odd=seed % 2 == 1), random.Random(seed)
        outlets, mutator = Outlets(case), case.settings.mutator
        memory = memories.setdefault(
            id(mutator),
            remembered(functools.partial(work, mutator), rows=64, is_kept=MutationKey.is_small_with),
        )
        for document in siblings(case.pod, chosen):
            pod, may_hold = decoded(document, CreatedPod), chosen.random() < 0.5
            if mutator.skip(pod, outlets.overrides):
                continue
            for _ in range(2):
                asked += 1
                resolved = ResolvedPod(pod, outlets.images, outlets.facts, outlets.overrides, outlets.cluster)
                fresh = mutator.mutate(resolved, may_hold=may_hold)
                assert memory(mutation_key(resolved, may_hold=may_hold)) == fresh, f"{seed}: {case}"
    assert 0 < worked_out <= 0.6 * asked


def test_random_decisions_are_those_that_would_be_made_anew() -> None:
    """One for all pods of a template, while nodes come and go and requests have whole nodes or their names."""
    memories: dict[int, Callable[[KnownPod], Decision]] = {}
    asked = 0
    for seed in range(CASES):
        case, chosen = draw(seed, is_odd=seed % 2 == 1), random.Random(seed)
        outlets = Outlets(case)
        answers = tuple(case.answers[image.reference] for image in outlets.images)
        if not all(isinstance(each, Content) for each in answers):
            continue
        known = KnownPod(outlets.images, answers, outlets.overrides)
        policy = outlets.policy  # one object for each of the settings, which are never forgotten
        memory = memories.setdefault(
            id(policy), remembered(functools.partial(decide, policy), rows=8, is_kept=lambda pod, _: pod.is_small)
        )
        view = NodePlatforms({NodeName(name): platform for name, platform in outlets.platforms.items()})
        names = [*view, NodeName("not-in-view")]
        for _ in range(4):
            for args in requests(case.pod, names, case.nodes):
                asked += 1
                nodes = view if args.nodes is None else platforms_of(args.names, args.nodes)
                both = [made(args, nodes, each) for each in (memory(known), known.decision(policy))]
                assert both[0] == both[1], f"{seed}: {case}"
            view.drop(chosen.choice(names))
            view.put(chosen.choice(names), chosen.choice([*outlets.platforms.values(), None]))
    assert asked > CASES


def decide(policy: Policy, known: KnownPod) -> Decision:
    return known.decision(policy)


def requests(document: Json, names: list[NodeName], nodes: Sequence[Json]) -> list[ExtenderArgs]:
    """The pod's request in both forms."""
    forms: tuple[Json, Json] = {"NodeNames": names}, {"Nodes": {"items": list(nodes)}}
    return [decode_args(msgspec.json.encode({"Pod": document, **form})) for form in forms]


def made(args: ExtenderArgs, nodes: NodePlatforms, decision: Decision) -> tuple[object, ...]:
    """What filter, prioritize and preempt make of the request."""
    victims = decode_preemption_args(
        msgspec.json.encode({"Pod": {}, "NodeNameToMetaVictims": {name: {} for name in args.names}})
    )
    filtered, preempted = filter_nodes(args, nodes, decision), preempt_nodes(victims, nodes, decision)
    scored = prioritize_nodes(args, nodes, decision)
    return encode_filter_result(filtered.answer), filtered.removed, scored, preempted


def key_of(document: Json, **changed: object) -> MutationKey:
    resolved = ResolvedPod(created(document), (PodImage("app-0:1"),), [MULTI], Overrides(), USUAL_NODES)
    return msgspec.structs.replace(mutation_key(resolved, may_hold=False), **changed)


def test_pods_of_one_template_have_one_key() -> None:
    """Whatever controllers write of the single pod, such as the index of a Job's."""
    one, other = (
        {**pod(), "metadata": {"name": name, "annotations": {"index": name}, "labels": {"pod-name": name}}}
        for name in ("a", "b")
    )
    assert key_of(one) == key_of(other)
    assert hash(key_of(one)) == hash(key_of(other))


@pytest.mark.parametrize(
    "changed",
    [
        {"facts": (ARM64,)},
        {"facts": (Anywhere(),)},
        {"facts": (COLD,)},
        {"overrides": Overrides(unknown=Choice.PASS)},
        {"overrides": Overrides(problems=("x",))},
        {"overrides": Overrides(is_preferring=True)},
        {"platforms": NO_NODES.platforms},
        {"may_hold": True},
        {"images": (PodImage("app-0:1", os="windows"),)},
    ],
)  # fmt: skip
def test_what_else_decides_is_in_the_key(changed: dict[str, object]) -> None:
    """A cluster's first node of a platform, an annotation of the namespace, a gate controller that is gone."""
    assert key_of(pod(), **changed) != key_of(pod())


def test_an_escaped_label_is_still_ours() -> None:
    """JSON has many spellings of a key; of labels with an escape in them all are in the key."""
    escaped = GATED_LABEL.replace("g", "\\u0067")
    raw = msgspec.json.encode({**pod(), "spec": {**pod()["spec"], "schedulingGates": [{"name": GATE}]}})
    document = raw.replace(b'"metadata":{', b'"metadata":{"labels":{"%b":"true"},' % escaped.encode(), 1)
    found = msgspec.json.decode(document, type=CreatedPod)
    facts, mutator = [ARM64], Mutator(POLICY, settings("required"))
    resolved = ResolvedPod(found, (PodImage("app-0:1"),), facts, Overrides())
    key = mutation_key(resolved, may_hold=False)
    assert key.mutation(mutator) == mutator.mutate(resolved)
    patched = apply(msgspec.json.decode(document), key.mutation(mutator).patch)
    assert GATED_LABEL not in patched["metadata"]["labels"]


def test_large_pods_are_not_kept() -> None:
    """Neither for what they are, nor for what they get; usual ones are."""
    mutator = Mutator(POLICY, settings("both", "multiarch"))

    def is_kept(document: Json, images: int = 1) -> bool:
        found = tuple(PodImage(f"app-{number}:1") for number in range(images))
        key = mutation_key(ResolvedPod(created(document), found, [ARM64] * images, Overrides()), may_hold=False)
        return key.is_small_with(key.mutation(mutator))

    assert is_kept(pod())
    for size in (KEPT_BYTES - 200, 100_000):
        assert not is_kept(pod(nodeSelector={"zone": "x" * size}))
    assert not is_kept(pod(), MOST_IMAGES)
