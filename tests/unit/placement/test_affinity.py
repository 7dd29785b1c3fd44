"""Node affinity as it ends up in a pod: which terms change, which preferences are added, what the author is told."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest

from extender.images.content import Cause
from extender.placement.annotations import MODE, PREFER, REASON
from extender.placement.facts import Anywhere, ImageFact, Pending, Unknown
from extender.placement.mutation import AdmissionOutcome
from extender.placement.nodes import NO_NODES, ClusterNodes
from tests.builders import (
    AMD64,
    ARCH,
    ARM64,
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
BOTH, ON_AMD64 = (IN_BOTH, LINUX), (IN_AMD64, LINUX)
EITHER_SYSTEM = expression(OS, "linux", "windows")
APART_BY_SYSTEM = built_for("linux/arm64", "windows/amd64")
ON_LINUX, ON_WINDOWS = (IN_ARM64, LINUX), (IN_AMD64, expression(OS, "windows"))
AMD64_SELECTOR: Mapping[str, str] = {ARCH: "amd64", OS: "linux"}
LINUX_NODES = ClusterNodes(platforms("linux/amd64", "linux/arm64"))
WINDOWS_NODES = ClusterNodes(platforms("linux/amd64", "windows/amd64"))


def without(values: str, key: str = ARCH) -> Json:
    return expression(key, *values.split(), operator="NotIn")


@pytest.mark.parametrize(
    ("terms", "selector", "fact", "added"),
    [
        pytest.param([], {}, MULTI, [BOTH], id="nothing there"),
        pytest.param([], {}, AMD64, [ON_AMD64], id="one platform"),
        pytest.param([], {}, MIXED, [(IN_BOTH, EITHER_SYSTEM)], id="two systems"),
        pytest.param([], {}, TWO_SYSTEMS, [(IN_AMD64, EITHER_SYSTEM)], id="of one architecture"),
        pytest.param([], {}, APART_BY_SYSTEM, [ON_LINUX], id="systems of different architectures: Linux"),
        pytest.param([], {OS: "windows"}, APART_BY_SYSTEM, [(IN_AMD64,)], id="or the author's"),
        pytest.param([matching(ZONE, future=1), FIELD], {}, MULTI, [BOTH, BOTH], id="each of two terms"),
        pytest.param([{"matchExpressions": None, **FIELD}], {}, MULTI, [BOTH], id="no expressions yet"),
        pytest.param([matching(ZONE, x=1), FIELD], {}, MIXED, [(IN_BOTH, EITHER_SYSTEM)] * 2, id="of two systems, too"),
        pytest.param([matching(IN_AMD64, LINUX)], {}, MULTI, [()], id="implied"),
        pytest.param([matching(IN_AMD64)], {}, MULTI, [(LINUX,)], id="the architecture is implied"),
        pytest.param([matching(LINUX)], {}, AMD64, [(IN_AMD64,)], id="the system is implied"),
        pytest.param([matching(WITH_S390X)], {}, MULTI, [BOTH], id="overlapping"),
        pytest.param([matching(WITH_S390X, without("s390x"), LINUX)], {}, MULTI, [()], id="implied by two"),
        pytest.param([matching(without("arm64"))], {}, MULTI, [BOTH], id="NotIn implies none"),
        pytest.param([matching({"key": ARCH, "operator": "Exists"}, LINUX)], {}, AMD64, [(IN_AMD64,)], id="Exists"),
        pytest.param([matching(expression(ARCH, "x", operator="Near"))], {}, MULTI, [BOTH], id="a future operator"),
        pytest.param([matching(BETA_AMD64, BETA_LINUX)], {}, MULTI, [()], id="implied by the beta labels"),
        pytest.param([{}, matching(ZONE)], {}, MULTI, [(), BOTH], id="an empty term is left"),
        pytest.param([matching(matchFields=[])], {}, MULTI, [()], id="a term of empty lists is left"),
        pytest.param([], {ARCH: "arm64", OS: "linux"}, MULTI, [], id="nodeSelector implies"),
        pytest.param([matching(ZONE)], AMD64_SELECTOR, MULTI, [()], id="nodeSelector implies for a term"),
        pytest.param([matching(IN_AMD64)], {OS: "linux"}, MULTI, [()], id="nodeSelector and term together"),
        pytest.param([], {"disk": "ssd"}, MULTI, [BOTH], id="nodeSelector about something else"),
    ],
)
def test_each_term_keeps_the_pod_on_nodes_that_run_its_images(
    terms: list[Json], selector: Mapping[str, str], fact: ImageFact, added: list[Sequence[Json]]
) -> None:
    """Terms are ORed, so each that would allow another node gets what it lacks, beside fields never heard of."""
    document = pod(affinity=with_terms(*terms) if terms else None, nodeSelector=selector)
    mutation, patched = mutated(document, fact, admission=ONLY_REQUIRED)
    assert mutation.warnings == ()
    assert patched["spec"]["nodeSelector"] == selector
    assert terms_of(patched) == [
        {**term, **matching(*(term.get("matchExpressions") or ()), *each)} if each else term
        for term, each in zip(terms or [{}], added, strict=bool(added))
    ]


@pytest.mark.parametrize(
    ("cluster", "images", "added"),
    [
        ("linux/amd64 linux/arm64", "linux/amd64 linux/arm64", []),
        ("linux/amd64", "linux/amd64 linux/arm64", []),
        ("linux/amd64 linux/s390x", "linux/amd64 linux/arm64", [IN_BOTH]),
        ("linux/amd64", "linux/amd64", [IN_AMD64]),
        ("linux/amd64 windows/amd64", "linux/amd64 linux/arm64", [IN_BOTH, LINUX]),
        ("linux/amd64 windows/amd64", "linux/amd64 linux/arm64 windows/amd64", []),
        ("linux/amd64 windows/amd64", "windows/amd64", ON_WINDOWS),
        ("linux/amd64 linux/arm64", "windows/amd64", ON_WINDOWS),
        ("linux/amd64 windows/amd64", "linux/amd64 windows/amd64", [IN_AMD64]),
        ("linux/amd64 windows/amd64", "linux/arm64 windows/amd64", ON_WINDOWS),
        ("linux/arm64 windows/amd64", "linux/arm64 windows/amd64", ON_LINUX),
        ("linux/amd64 linux/arm64", "linux/arm64 windows/amd64", [IN_ARM64]),
        ("linux/amd64 linux/arm64", "linux/amd64 linux/amd64/v3", [IN_AMD64]),
        ("linux/amd64 linux/arm64", "linux/amd64/v3 linux/arm64", [IN_ARM64]),
        ("linux/amd64 linux/arm64", "linux/arm64/v9 linux/arm64/v8.2 linux/amd64", [IN_AMD64]),
        ("linux/amd64 linux/arm", "linux/arm/v6", [expression(ARCH, "arm")]),
    ],
    ids=str,
)
def test_what_is_written_keeps_the_pod_off_nodes_that_may_be_there(
    cluster: str, images: str, added: Sequence[Json]
) -> None:
    """Those of the cluster, and the usual ones; a pod has one operating system."""
    nodes, fact = ClusterNodes(platforms(*cluster.split())), built_for(*images.split())
    assert terms_of(after(pod(), fact, admission=ONLY_REQUIRED, cluster=nodes)) == [matching(*added)] * bool(added)


@pytest.mark.parametrize("levels", ["linux/amd64/v3", "linux/arm64/v8.2 linux/arm64/v9", "linux/riscv64/rva22"])
def test_an_index_of_levels_alone_runs_nowhere(levels: str) -> None:
    """Container runtimes know no level of their node. It is shown as it is."""
    mutation, patched = mutated(pod(), built_for(*levels.split()), admission=ONLY_REQUIRED, cluster=LINUX_NODES)
    assert mutation.outcome is AdmissionOutcome.IMPOSSIBLE
    assert mutation.reason.endswith(f"image app-0:1 is built only for {levels.replace(' ', ', ')}")
    assert terms_of(patched) == [matching(NO_NODE)]


def test_affinity_without_terms_gets_one() -> None:
    for affinity in (None, {}, *({"nodeAffinity": each} for each in (None, {}, {REQUIRED: None}))):
        assert terms_of(after(pod(affinity=affinity), MULTI, admission=ONLY_REQUIRED)) == [matching(*BOTH)], affinity


@pytest.mark.parametrize("fact", [MULTI, AMD64, built_for("linux/amd64/v3")])
def test_a_pod_that_no_api_server_accepts_is_not_made_valid(fact: ImageFact) -> None:
    """Required affinity must have a term."""
    empty: tuple[Any, ...] = ({}, {"nodeSelectorTerms": []}, {"nodeSelectorTerms": None})
    for required in empty:
        document = pod(affinity={"nodeAffinity": {REQUIRED: required}})
        assert after(document, fact, admission=ONLY_REQUIRED)["spec"] == document["spec"]


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
    assert terms_of(one) == [matching(wrong, ZONE, NO_NODE), matching(ZONE, *ON_AMD64)]
    for fact in (MULTI, AMD64):
        mutation = mutate(document, fact, admission=ONLY_REQUIRED)
        [warning] = mutation.warnings
        assert warning.startswith("1 of 2 terms of the pod's node affinity allow no node that the images run on: image")
        assert mutation.outcome is AdmissionOutcome.PATCHED
    alone, empty = pod(affinity=with_terms(matching(wrong), {})), pod(affinity=with_terms({}))
    assert mutate(alone, MULTI, admission=ONLY_REQUIRED).outcome is AdmissionOutcome.IMPOSSIBLE
    assert mutate(empty, MULTI, admission=ONLY_REQUIRED).outcome is not AdmissionOutcome.IMPOSSIBLE


VOID: list[tuple[list[Json], Mapping[str, str]]] = [
    ([IN_AMD64, NO_NODE], {}), ([IN_ARM64], AMD64_SELECTOR), ([IN_AMD64, expression(f"beta.{ARCH}", "arm64")], {}),
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
    assert terms_of(patched) == [matching(*ON_AMD64)]
    assert patched["metadata"]["annotations"][REASON].endswith("image app-1:1 is built only for linux/amd64")


OWN_TERMS: tuple[tuple[Json, ...], ...] = ((), (matching(ZONE),), (matching(ZONE), {}, FIELD))


def test_a_held_pod_gets_what_a_created_one_gets() -> None:
    for cluster in (NO_NODES, LINUX_NODES, WINDOWS_NODES):
        for own in OWN_TERMS:
            affinity: Any = {"affinity": with_terms(*own)} if own else {}
            for fact in (AMD64, MULTI, APART_BY_SYSTEM):
                spec = patch_of(release(held(**affinity), fact, admission=ONLY_REQUIRED, cluster=cluster))["spec"]
                created = after(pod(**affinity), fact, admission=ONLY_REQUIRED, cluster=cluster)
                assert spec.get("affinity", affinity.get("affinity")) == created["spec"].get("affinity")


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
