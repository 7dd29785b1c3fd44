"""What holds for every held pod: the API server allows the patch, and no node that an image cannot run on is left."""

import copy
from collections.abc import Sequence
from typing import Any

import hypothesis
import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from extender.images.platform import Compatibility, Platform, runs_on
from extender.kubernetes.core_v1 import CreatedPod
from extender.placement.facts import Anywhere, ImageFact, RunsOn, images_of
from extender.placement.gate import GATE, GATED, GATED_LABEL, encode_ungating
from extender.placement.nodes import LEVEL_LABEL, ClusterNodes
from extender.placement.policy import ADDED, REASON, Overrides
from extender.placement.ungating import UngatingOutcome, UngatingPlanner
from tests.unit.placement.mutating import ARCH, OS, POLICY, PREFERRED, REQUIRED, built_for, expression, settings
from tests.unit.placement.test_mutation_properties import FACTS, KNOWN, TOLERATIONS

untimed = hypothesis.settings(deadline=None, max_examples=300)

MIXED = built_for("linux/amd64", "linux/arm64", "windows/amd64")  # no product of systems and architectures
IMAGES = st.just(MIXED) | FACTS
OTHERS = {"name": "kueue.x-k8s.io/admission"}
WORDS = {ARCH: ["amd64", "arm64", "s390x"], OS: ["linux", "windows"]}
NODES = [Platform(system, architecture) for system in WORDS[OS] for architecture in WORDS[ARCH]]
EXPRESSIONS = st.sampled_from([ARCH, OS]).flatmap(
    lambda key: st.builds(
        lambda operator, values: expression(key, *values, operator=operator),
        st.sampled_from(["In", "NotIn"]),
        st.lists(st.sampled_from(WORDS[key]), min_size=1, unique=True),
    )
) | st.sampled_from([expression("zone", "a"), {"key": ARCH, "operator": "Exists"}])
FIELDS = st.just([expression("metadata.name", "n1")])
TERMS = st.fixed_dictionaries(
    {}, optional={"matchExpressions": st.lists(EXPRESSIONS, max_size=3), "matchFields": FIELDS}
)
WEIGHTED = st.builds(lambda term: {"weight": 1, "preference": term}, TERMS)
AFFINITIES = st.fixed_dictionaries(
    {},
    optional={
        "podAntiAffinity": st.just({PREFERRED: []}),
        "nodeAffinity": st.fixed_dictionaries(
            {},
            optional={
                REQUIRED: st.lists(TERMS, min_size=1, max_size=3).map(lambda terms: {"nodeSelectorTerms": terms}),
                PREFERRED: st.lists(WEIGHTED, min_size=1, max_size=2),
            },
        ),
    },
)
HELD_PODS = st.builds(
    lambda annotations, gates, spec: {
        "metadata": {
            "name": "p",
            "uid": "u",
            "resourceVersion": "7",
            "labels": {"app": "a", GATED_LABEL: GATED},
            "annotations": annotations,
        },
        "spec": {
            "containers": [{"name": "a", "image": "a:1"}, {"name": "b", "image": "b:1"}],
            "schedulerName": "default-scheduler",
            "schedulingGates": gates,
            **spec,
        },
    },
    st.dictionaries(st.sampled_from(["team", REASON, ADDED]), st.sampled_from(["", "{}", "x"])),
    st.sampled_from([[{"name": GATE}], [OTHERS, {"name": GATE}], [{"name": GATE}, OTHERS]]),
    st.fixed_dictionaries(
        {},
        optional={
            "affinity": AFFINITIES,
            "tolerations": st.lists(TOLERATIONS, max_size=3),
            "nodeSelector": st.sampled_from([{ARCH: "amd64"}, {ARCH: "arm64", OS: "linux"}, {"disk": "ssd"}]),
        },
    ),
)
SETTINGS = st.builds(
    lambda mode, impossible, then: settings(mode, unknown="gate", impossible=impossible, after_gate=then),
    st.sampled_from(["required", "both"]),
    st.sampled_from(["pend", "deny"]),
    st.sampled_from(["pass", "assume"]),
)


def merged(stored: Any, patch: Any) -> Any:
    """The stored pod after a strategic merge patch: maps merge, gates merge by name, all other lists are replaced."""
    result = dict(stored)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif key == "schedulingGates":
            gone = [gate["name"] for gate in value if gate.get("$patch") == "delete"]
            assert len(gone) == len(value)
            result[key] = [gate for gate in result[key] if gate["name"] not in gone]
        elif isinstance(value, dict):
            result[key] = merged(result.get(key) or {}, value)
        else:
            result[key] = value
    return result


def terms_of(document: Any) -> list[Any] | None:
    """The terms of the required node affinity; None if there is none."""
    affinity = (document["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    return affinity[REQUIRED]["nodeSelectorTerms"] if REQUIRED in affinity else None


def check_allowed(before: Any, after: Any) -> None:
    """What ValidatePodUpdate asks of an update of a pod that a gate holds."""
    spec, changed = before["spec"], after["spec"]
    assert changed["schedulingGates"] == [gate for gate in spec["schedulingGates"] if gate["name"] != GATE]
    assert changed.get("nodeSelector") == spec.get("nodeSelector")
    assert changed["containers"] == spec["containers"]
    assert changed["schedulerName"] == spec["schedulerName"]
    tolerations = changed.get("tolerations") or []
    assert all(toleration in tolerations for toleration in spec.get("tolerations") or [])
    own, affinity = spec.get("affinity") or {}, changed.get("affinity") or {}
    assert affinity.get("podAntiAffinity") == own.get("podAntiAffinity")
    terms, now = terms_of(before), terms_of(after)
    assert now is None or now
    if terms is None:
        assert all(term.get("matchExpressions") for term in now or [])
        return
    assert now is not None
    assert len(now) == len(terms)
    for term, later in zip(terms, now, strict=True):
        expressions = term.get("matchExpressions") or []
        if not expressions and not term.get("matchFields"):
            assert later == term
        assert later.get("matchFields") == term.get("matchFields")
        assert (later.get("matchExpressions") or [])[: len(expressions)] == expressions
        assert all(item["operator"] != "In" or item["values"] for item in later.get("matchExpressions") or [])


def admits(document: Any, node: Platform) -> bool:
    """Whether a node of this platform and level v3, in zone a and with a disk ssd, satisfies selector and terms."""
    labels = {ARCH: node.architecture, OS: node.os, LEVEL_LABEL: "v3", "zone": "a", "disk": "ssd"}
    selector = document["spec"].get("nodeSelector") or {}
    if any(labels.get(key) != value for key, value in selector.items()):
        return False
    terms = terms_of(document)
    return terms is None or any(_satisfies(term, labels) for term in terms)


def _satisfies(term: Any, labels: dict[str, str]) -> bool:
    items = term.get("matchExpressions") or []
    if not items and not term.get("matchFields"):
        return False
    return all(
        item["key"] in labels
        if item["operator"] == "Exists"
        else (labels.get(item["key"]) in item["values"]) is (item["operator"] == "In")
        for item in items
    )


def can_run(facts: Sequence[ImageFact], node: Platform) -> bool:
    """Whether no known image is known not to run on the node, which has the levels of any image."""
    return all(
        any(runs_on(fact.platforms, Platform(node.os, node.architecture, variant), Compatibility()) for variant in _ANY)
        for fact in facts
        if isinstance(fact, RunsOn)
    )


_ANY = ("", "v3", "v7", "v9")

# No product of systems and architectures, and the one with Linux is on no node.
ARM_OR_WINDOWS = built_for("linux/arm/v6", "windows/amd64")
ON_ONE_NODE: Any = {
    "metadata": {
        "name": "p",
        "uid": "u",
        "resourceVersion": "7",
        "annotations": {},
        "labels": {"app": "a", GATED_LABEL: GATED},
    },
    "spec": {
        "containers": [{"name": "a", "image": "a:1"}, {"name": "b", "image": "b:1"}],
        "schedulerName": "default-scheduler",
        "schedulingGates": [{"name": GATE}],
        "affinity": {
            "nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchFields": [expression("metadata.name", "n1")]}]}}
        },
    },
}


@untimed
@given(HELD_PODS, IMAGES, IMAGES, SETTINGS, st.booleans(), st.sampled_from([frozenset(), frozenset(NODES)]))
@example(ON_ONE_NODE, ARM_OR_WINDOWS, ARM_OR_WINDOWS, settings("required", unknown="gate"), False, frozenset(NODES))
def test_patch_is_allowed_and_leaves_no_wrong_node(
    stored: Any, first: ImageFact, second: ImageFact, admission: Any, expired: bool, cluster: frozenset[Platform]
) -> None:
    """And every pod for which the cluster has a right node still has one; only a hold sends nothing."""
    facts = (first, second)
    pod = msgspec.json.decode(msgspec.json.encode(stored), type=CreatedPod)
    planner = UngatingPlanner(POLICY, admission)
    found = planner.plan(pod, images_of(pod), facts, Overrides(), ClusterNodes(cluster), expired=expired)
    assert bool(found.patch) is (found.outcome is not UngatingOutcome.HOLD)
    assert not (expired and found.outcome is UngatingOutcome.HOLD)
    if not found.patch:
        return
    released = merged(stored, msgspec.json.decode(found.patch))
    check_allowed(stored, released)
    assert released["metadata"]["labels"] == {"app": "a"}
    assert released["metadata"]["annotations"].get(REASON, "") == found.reason
    assert released["metadata"]["annotations"].get("team") == stored["metadata"]["annotations"].get("team")
    right = [node for node in NODES if can_run(facts, node) and admits(stored, node)]
    left = [node for node in NODES if admits(released, node)]
    assert all(node in right for node in left)
    if cluster and found.outcome in (UngatingOutcome.KNOWN, UngatingOutcome.PASSED):
        assert bool(left) is bool(right)
    if found.outcome is UngatingOutcome.IMPOSSIBLE:
        assert not left


@untimed
@given(HELD_PODS, KNOWN, KNOWN | st.just(Anywhere()))
def test_known_pods_are_always_let_go(stored: Any, first: ImageFact, second: ImageFact) -> None:
    """With tolerations by the same rules as at creation."""
    pod = msgspec.json.decode(msgspec.json.encode(stored), type=CreatedPod)
    planner = UngatingPlanner(POLICY, settings("required", unknown="gate"))
    found = planner.plan(pod, images_of(pod), (first, second), Overrides(), expired=False)
    assert found.outcome in (UngatingOutcome.KNOWN, UngatingOutcome.IMPOSSIBLE)


@untimed
@given(HELD_PODS)
def test_what_ungates_a_pod_changes_gate_label_and_reason_alone(stored: Any) -> None:
    """Whatever else the pod has."""
    released = merged(stored, msgspec.json.decode(encode_ungating(stored["metadata"]["uid"])))
    expected = copy.deepcopy(stored)
    expected["spec"]["schedulingGates"] = [gate for gate in stored["spec"]["schedulingGates"] if gate == OTHERS]
    del expected["metadata"]["labels"][GATED_LABEL]
    expected["metadata"].get("annotations", {}).pop(REASON, None)
    assert released == expected


def test_checks_of_this_file_tell_nodes_apart() -> None:
    """By image and by term."""
    assert can_run([MIXED], Platform("windows", "amd64"))
    assert not can_run([MIXED], Platform("windows", "arm64"))
    term = {"matchExpressions": [expression(ARCH, "amd64")]}
    before = {"spec": {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [term]}}}}}
    assert admits(before, Platform("windows", "amd64"))
    assert not admits(before, Platform("windows", "arm64"))
