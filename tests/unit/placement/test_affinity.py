"""Node affinity as it ends up in a pod: which terms change, which preferences are added, what the author is told."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest

from extender.images.content import Cause
from extender.images.platform import Compatibility
from extender.placement.affinity import right_nodes
from extender.placement.facts import Anywhere, ImageFact, Pending, Unknown
from extender.placement.mutation import AdmissionOutcome
from extender.placement.nodes import NO_NODES, ClusterNodes
from extender.placement.policy import MODE, PREFER, REASON
from tests.builders import (
    AMD64,
    ARCH,
    ARM64,
    LEVEL,
    MULTI,
    OS,
    PREFERRED,
    REQUIRED,
    Json,
    built_for,
    expression,
    platforms,
    pod,
    with_terms,
)
from tests.unit.placement.held_pods import held, patch_of, release
from tests.unit.placement.mutating import DENIED, POLICY, after, mutate, mutated, settings, terms_of
from tests.unit.placement.terms import IN_AMD64, IN_ARM64, IN_BOTH, LINUX, NO_NODE, ZONE, matching

ONLY_REQUIRED, ONLY_PREFERRED = settings("required", rules=()), settings("preferred", rules=())
MIXED = built_for("linux/amd64", "linux/arm64", "windows/amd64")
TWO_SYSTEMS = built_for("linux/amd64", "windows/amd64")
FIELD = {"matchFields": [expression("metadata.name", "n1")]}
WITH_S390X = expression(ARCH, "amd64", "s390x")
BETA_AMD64, BETA_LINUX = expression(f"beta.{ARCH}", "amd64"), expression(f"beta.{OS}", "linux")
BOTH, WINDOWS = (IN_BOTH, LINUX), (IN_AMD64, expression(OS, "windows"))
ON_AMD64: Mapping[str, str] = {ARCH: "amd64", OS: "linux"}
LINUX_NODES = ClusterNodes(platforms("linux/amd64", "linux/arm64"))
WINDOWS_NODES = ClusterNodes(platforms("windows/amd64", "windows/arm64"))


def without(values: str, key: str = ARCH) -> Json:
    return expression(key, *values.split(), operator="NotIn")


@pytest.mark.parametrize(
    ("terms", "selector", "fact", "added"),
    [
        pytest.param([], {}, MULTI, [[BOTH]], id="nothing there"),
        pytest.param([], {}, MIXED, [[BOTH, WINDOWS]], id="two products"),
        pytest.param([], {}, TWO_SYSTEMS, [[(IN_AMD64, expression(OS, "linux", "windows"))]], id="one product"),
        pytest.param([matching(ZONE, future=1), FIELD], {}, MULTI, [[BOTH], [BOTH]], id="each of two terms"),
        pytest.param([{"matchExpressions": None, **FIELD}], {}, MULTI, [[BOTH]], id="no expressions yet"),
        pytest.param([matching(ZONE, x=1), FIELD], {}, MIXED, [[BOTH, WINDOWS]] * 2, id="each becomes two"),
        pytest.param([matching(IN_AMD64, LINUX)], {}, MULTI, [[()]], id="implied"),
        pytest.param([matching(IN_AMD64)], {}, MULTI, [[(LINUX,)]], id="the architecture is implied"),
        pytest.param([matching(LINUX)], {}, MIXED, [[(IN_BOTH,)]], id="the system leaves one product"),
        pytest.param([matching(WITH_S390X)], {}, MULTI, [[(IN_AMD64, LINUX)]], id="overlapping"),
        pytest.param([matching(WITH_S390X, without("s390x"), LINUX)], {}, MULTI, [[()]], id="implied by two"),
        pytest.param([matching(without("arm64"))], {}, MULTI, [[(IN_AMD64, LINUX)]], id="NotIn implies none"),
        pytest.param([matching({"key": ARCH, "operator": "Exists"}, LINUX)], {}, MULTI, [[(IN_BOTH,)]], id="Exists"),
        pytest.param([matching(expression(ARCH, "x", operator="Near"))], {}, MULTI, [[BOTH]], id="a future operator"),
        pytest.param([matching(BETA_AMD64, BETA_LINUX)], {}, MULTI, [[()]], id="implied by the beta labels"),
        pytest.param([{}, matching(ZONE)], {}, MULTI, [[()], [BOTH]], id="an empty term is left"),
        pytest.param([matching(matchFields=[])], {}, MULTI, [[()]], id="a term of empty lists is left"),
        pytest.param([], {ARCH: "arm64", OS: "linux"}, MULTI, [], id="nodeSelector implies"),
        pytest.param([matching(ZONE)], ON_AMD64, MULTI, [[()]], id="nodeSelector implies for a term"),
        pytest.param([matching(IN_AMD64)], {OS: "linux"}, MULTI, [[()]], id="nodeSelector and term together"),
        pytest.param([], {"disk": "ssd"}, MULTI, [[BOTH]], id="nodeSelector about something else"),
    ],
)
def test_each_term_keeps_the_pod_on_nodes_that_run_its_images(
    terms: list[Json], selector: Mapping[str, str], fact: ImageFact, added: list[list[Sequence[Json]]]
) -> None:
    """Terms are ORed, so each that would allow another node gets what it lacks, beside fields never heard of."""
    document = pod(affinity=with_terms(*terms), nodeSelector=selector)
    mutation, patched = mutated(document, fact, admission=ONLY_REQUIRED)
    assert mutation.warnings == ()
    assert patched["spec"]["nodeSelector"] == selector
    assert terms_of(patched) == [
        {**term, **matching(*(term.get("matchExpressions") or ()), *each)} if each else term
        for term, alternatives in zip(terms or [{}], added, strict=bool(added))
        for each in alternatives
    ]


def test_affinity_without_terms_gets_one() -> None:
    empty: tuple[Any, ...] = (None, {}, {REQUIRED: None}, {REQUIRED: {}}, {REQUIRED: {"nodeSelectorTerms": []}})
    for affinity in (None, {}, *({"nodeAffinity": each} for each in empty)):
        assert terms_of(after(pod(affinity=affinity), MULTI, admission=ONLY_REQUIRED)) == [matching(*BOTH)], affinity


@pytest.mark.parametrize(
    "wrong",
    [
        expression(ARCH, "s390x"), without("amd64 arm64"), {"key": ARCH, "operator": "DoesNotExist"},
        expression(ARCH, "3", operator="Gt"), expression(OS, "windows"), expression(f"beta.{ARCH}", "s390x"),
    ],
    ids=str,
)  # fmt: skip
def test_contradicting_term_allows_no_node_and_its_author_is_warned(wrong: Json) -> None:
    """It would allow nodes on which no image runs. The other terms are served, but for one that matches nothing."""
    terms = [matching(wrong, ZONE), matching(ZONE)]
    document = pod(affinity=with_terms(*terms))
    patched, one = (after(document, fact, admission=ONLY_REQUIRED) for fact in (MULTI, AMD64))
    assert terms_of(patched) == [matching(wrong, ZONE, NO_NODE), matching(ZONE, *BOTH)]
    assert (terms_of(one), one["spec"]["nodeSelector"]) == (terms, ON_AMD64)
    for fact in (MULTI, AMD64):
        mutation = mutate(document, fact, admission=ONLY_REQUIRED)
        [warning] = mutation.warnings
        assert warning.startswith("1 of 2 terms of the pod's node affinity allow no node that the images run on: image")
        assert mutation.outcome is AdmissionOutcome.PATCHED
    alone, empty = pod(affinity=with_terms(matching(wrong), {})), pod(affinity=with_terms({}))
    assert mutate(alone, MULTI, admission=ONLY_REQUIRED).outcome is AdmissionOutcome.IMPOSSIBLE
    assert mutate(empty, MULTI, admission=ONLY_REQUIRED).outcome is not AdmissionOutcome.IMPOSSIBLE


VOID: list[tuple[list[Json], Mapping[str, str]]] = [
    ([IN_AMD64, NO_NODE], {}), ([IN_ARM64], ON_AMD64), ([IN_AMD64, expression(f"beta.{ARCH}", "arm64")], {}),
    ([ZONE, without("a", "zone")], {}), ([ZONE, {"key": "zone", "operator": "DoesNotExist"}], {}),
    ([expression("cores", "2", "4"), expression("cores", "4", operator="Gt")], {}), ([expression(ARCH)], {}),
]  # fmt: skip


@pytest.mark.parametrize("cluster", [NO_NODES, LINUX_NODES], ids=["unknown", "known"])
def test_a_term_that_matches_no_node_gets_nothing(cluster: ClusterNodes) -> None:
    """However often a file is fixed: that leaves no record. Its author is told that it allows no node."""
    for requirements, selector in VOID:
        for terms in (
            [matching(*requirements)],
            [matching(*requirements), matching({"key": "a", "operator": "Exists"})],
        ):
            document = pod(affinity=with_terms(*terms), nodeSelector=selector)
            mutation, patched = mutated(document, AMD64, admission=ONLY_REQUIRED, cluster=cluster)
            assert terms_of(patched)[0] == terms[0], requirements
            assert (mutation.outcome is AdmissionOutcome.IMPOSSIBLE) is (len(terms) == 1)
            assert mutation.warnings[0].startswith(f"1 of {len(terms)} terms")


SELECTED = pod(nodeSelector={ARCH: "arm64"}, affinity=with_terms(matching(ZONE), {}))
SELECTOR_REASON = "nodeSelector allows no node that the images run on: image app-0:1 is built only for linux/amd64"
APART = "no platform is common to all images: image app-0:1 is built only for linux/amd64 (and 1 more image)"
EMPTY_TERM = pod(2, affinity=with_terms({}, matching(ZONE)))
EITHER = [AMD64, ARM64, Pending(Cause.LOOKING_UP, "x")]


@pytest.mark.parametrize(
    ("document", "facts", "terms", "reason"),
    [
        pytest.param(SELECTED, [AMD64], [matching(ZONE, NO_NODE), {}], SELECTOR_REASON, id="nodeSelector"),
        pytest.param(pod(nodeSelector={f"beta.{ARCH}": "arm64"}), [AMD64], [matching(NO_NODE)], SELECTOR_REASON),
        pytest.param(pod(2), [AMD64, ARM64], [matching(NO_NODE)], APART, id="nothing in common"),
        pytest.param(EMPTY_TERM, [AMD64, ARM64], [{}, matching(ZONE, NO_NODE)], APART, id="an empty term"),
        pytest.param(pod(3), EITHER, [matching(NO_NODE)], APART, id="whatever the third turns out to be"),
    ],
)
def test_pod_that_no_node_can_run_waits_with_a_reason(
    document: Any, facts: list[ImageFact], terms: list[Any], reason: str
) -> None:
    """No node has the label, so no scheduler places it and no autoscaler buys for it; it is not held besides."""
    admission = settings("required", unknown="gate")
    mutation = mutate(document, *facts, admission=admission, may_hold=True)
    assert (mutation.outcome, mutation.reason, mutation.warnings) == (AdmissionOutcome.IMPOSSIBLE, reason, (reason,))
    patched = after(document, *facts, admission=admission, may_hold=True)
    assert terms_of(patched) == terms
    assert patched["metadata"]["annotations"][REASON] == reason
    assert "schedulingGates" not in patched["spec"]
    assert mutate(patched, *facts, admission=admission, may_hold=True).patch == b""


@pytest.mark.parametrize("mode", ["none", "preferred", "required", "both"])
def test_impossible_pod_is_denied_where_the_operator_wants_it(mode: str) -> None:
    """Whatever affinity is written otherwise. A possible pod is not, and neither is one that is only observed."""
    admission = settings(mode, impossible="deny")
    mutation = mutate(SELECTED, AMD64, admission=admission)
    assert (mutation.outcome, mutation.reason, mutation.patch) == (AdmissionOutcome.REFUSED, SELECTOR_REASON, b"")
    assert mutation.refusal == SELECTOR_REASON
    assert mutate(SELECTED, ARM64, admission=admission).outcome is not AdmissionOutcome.REFUSED
    observed = mutate(SELECTED, AMD64, admission=admission, namespace={MODE: "observe"})
    assert (observed.outcome, observed.patch) == (AdmissionOutcome.OBSERVED, b"")
    assert observed.audit_annotations["would-deny"] == SELECTOR_REASON
    assert not observed.refusal


@pytest.mark.parametrize("fact", [DENIED, Pending(Cause.LOOKING_UP, "x"), Anywhere()])
def test_known_images_count_where_others_are_not_known(fact: ImageFact) -> None:
    """What they rule out stays ruled out, whatever the others turn out to be; the reason says so."""
    patched = after(pod(2), fact, AMD64, admission=settings("both"))
    assert patched["spec"]["nodeSelector"] == ON_AMD64
    assert "affinity" not in patched["spec"]
    assert patched["metadata"]["annotations"][REASON].endswith("image app-1:1 is built only for linux/amd64")


def test_a_held_pod_gets_requirements_and_no_node_selector() -> None:
    """The policy for the service's account allows nothing else; one is enough there too, and none where none helps."""
    for own in ((), (matching(ZONE),)):
        affinity: Any = {"affinity": with_terms(*own)} if own else {}
        spec = patch_of(release(held(**affinity), AMD64, admission=ONLY_REQUIRED, cluster=LINUX_NODES))["spec"]
        assert "nodeSelector" not in spec
        assert terms_of({"spec": spec}) == [matching(*(ZONE,) * len(own), IN_AMD64)]
        needless = release(held(**affinity), MULTI, admission=ONLY_REQUIRED, cluster=LINUX_NODES)
        assert "affinity" not in patch_of(needless)["spec"]


def test_a_held_pod_is_kept_to_a_product_of_its_nodes() -> None:
    """To one that the cluster has: a term may get requirements, and none may come beside it."""
    stored = held(affinity=with_terms(matching(ZONE)))
    for cluster, expected in ((NO_NODES, BOTH), (WINDOWS_NODES, (IN_AMD64,))):
        spec = patch_of(release(stored, MIXED, admission=ONLY_REQUIRED, cluster=cluster))["spec"]
        assert terms_of({"spec": spec}) == [matching(ZONE, *expected)]


ARM_100 = {"arm64": 100}


@pytest.mark.parametrize(
    ("facts", "prefer", "preference", "weights"),
    [
        pytest.param([MULTI], "", {"arm64": 10}, ARM_100, id="multi-arch"),
        pytest.param([MULTI], "", {"arm64": 1, "amd64": 5}, {"amd64": 50, "arm64": 10}, id="one for each"),
        pytest.param([MULTI], "", {"arm64": 0}, {}, id="no point, no term, since a weight is 1 at least"),
        pytest.param([MULTI], "", {"arm64": 11}, ARM_100, id="100 at most"),
        pytest.param([MULTI, Anywhere()], "", {"arm64": 10}, ARM_100, id="beside a volume"),
        pytest.param([ARM64], "", {"arm64": 10}, {}, id="one architecture"),
        pytest.param([TWO_SYSTEMS], "", {"amd64": 10}, {}, id="two systems, one architecture"),
        pytest.param([MULTI, DENIED], "", {"arm64": 10}, {}, id="one unknown"),
        pytest.param([MULTI], "", {"s390x": 10}, {}, id="not the preferred architecture"),
        pytest.param([MULTI], "amd64", {"arm64": 10}, {"amd64": 100}, id="the pod's own"),
        pytest.param([MULTI], "aarch64", {"arm64": 10}, ARM_100, id="in another spelling"),
        pytest.param([MULTI], "s390x", {"arm64": 10}, {}, id="which its images lack"),
        pytest.param([MULTI], "none", {"arm64": 10}, {}, id="the pod wants none"),
    ],
)
def test_preference_is_written_for_multi_arch_pods(
    facts: list[ImageFact], prefer: str, preference: dict[str, int], weights: dict[str, int]
) -> None:
    """Where all images are known and have two architectures in common; behind the author's own, if not of these."""
    own = {"weight": 7, "preference": matching(ZONE), "future": 1}
    annotations, policy = {PREFER: prefer} if prefer else {}, msgspec.structs.replace(POLICY, preference=preference)
    document = pod(len(facts), {"annotations": annotations}, affinity={"nodeAffinity": {PREFERRED: [own]}})
    patched = after(document, *facts, admission=ONLY_PREFERRED, policy=policy)
    ours = [{"weight": each, "preference": matching(expression(ARCH, name))} for name, each in weights.items()]
    assert patched["spec"]["affinity"]["nodeAffinity"][PREFERRED] == [own, *ours]
    reason = patched["metadata"]["annotations"].get(REASON, "")
    assert reason.startswith("image app-1:1 is unknown (denied: x)") is isinstance(facts[-1], Unknown)
    own["preference"] = matching(IN_AMD64)
    assert after(document, *facts, admission=ONLY_PREFERRED, policy=policy)["spec"] == document["spec"]


def test_both_write_both() -> None:
    patched = after(pod(), MULTI, admission=settings("both"))
    prefers = {"weight": 100, "preference": matching(IN_ARM64)}
    assert patched["spec"]["affinity"] == {
        "nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [matching(*BOTH)]}, PREFERRED: [prefers]}
    }


@pytest.mark.parametrize(
    ("images", "cluster", "level"),
    [
        pytest.param("linux/amd64/v3", "", ("In", "v3", "amd64-v3", "v4", "amd64-v4"), id="at least"),
        pytest.param("linux/amd64/v5", "", ("In", "v5", "amd64-v5"), id="one to come"),
        pytest.param("linux/amd64/v3 linux/amd64", "", (), id="of two platforms"),
        pytest.param("linux/arm/v7", "", (), id="the baseline"),
        pytest.param("linux/arm/v7", "linux/arm/v6", ("NotIn", "v6", "arm-v6"), id="below it"),
        pytest.param("linux/riscv64/rva22", "", None, id="one that no label can state is that of no node"),
    ],
)
def test_level_of_the_nodes(images: str, cluster: str, level: tuple[str, ...] | None) -> None:
    """By the label, in both documented ways; what runs on the baseline is kept off lower levels that are there."""
    found = right_nodes([platforms(*images.split())], platforms(*cluster.split()), Compatibility())
    said = [(each.key, each.operator, *(each.values or ())) if each else () for each in found.values()]
    assert said == ([] if level is None else [(LEVEL, *level) if level else ()])
