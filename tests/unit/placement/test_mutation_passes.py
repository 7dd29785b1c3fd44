"""Several passes over one pod: images that change between them, other webhooks' work, and records that lie."""

import copy
from typing import Any

import msgspec
import pytest

from extender.kubernetes.documents import JsonObject
from extender.placement.additions import NOTHING, read_record, take_back
from extender.placement.annotations import ADDED, REASON, SERVICE_KEYS
from extender.placement.bounds import RECORD_CHARACTERS, RECORD_ITEMS
from extender.placement.mutation import AdmissionOutcome
from extender.placement.nodes import ClusterNodes
from tests.builders import AMD64, ARCH, ARM64, MULTI, PREFERRED, REQUIRED, expression, platforms, pod, with_terms
from tests.unit.placement.mutating import (
    ARM_TOLERATION,
    BOTH_TOLERATION,
    DENIED,
    NEVER_PULLED,
    after,
    mutate,
    settings,
    terms_of,
)
from tests.unit.placement.terms import IN_AMD64, LINUX, ZONE, matching

ALL = settings("both", "multiarch", platforms_annotation=True)
TENANT, MESH = ({"key": key, "operator": "Exists"} for key in ("tenant", "mesh"))
TEXTS: JsonObject = {REQUIRED: {"nodeSelectorTerms": [7, {"matchExpressions": 7}]}}


def with_sidecar(document: Any) -> Any:
    document = copy.deepcopy(document)
    document["spec"]["containers"].append({"name": "sidecar", "image": "sidecar:1"})
    return document


def test_requirements_that_a_cluster_makes_needless_are_taken_back() -> None:
    """The pod was made when no node was known, and comes again when all are: one requirement, or none, is enough."""
    cluster, required = ClusterNodes(platforms("linux/amd64", "linux/arm64")), settings("required")
    for fact, terms in ((AMD64, [matching(IN_AMD64)]), (MULTI, [])):
        patched = after(after(pod(), fact, admission=required), fact, admission=required, cluster=cluster)
        assert terms_of(patched) == terms
        assert patched == after(pod(), fact, admission=required, cluster=cluster)


def test_what_others_did_in_between_is_kept() -> None:
    """A requirement ANDed to our term, a term beside it, a toleration behind ours, another affinity, an annotation."""
    patched = with_sidecar(after(pod(metadata={"annotations": None}, tolerations=[TENANT]), MULTI, admission=ALL))
    terms_of(patched)[0]["matchExpressions"].append(ZONE)
    terms_of(patched).append(matching(ZONE))
    patched["spec"]["tolerations"].append(MESH)
    patched["spec"]["affinity"]["podAffinity"] = {"x": []}
    patched["metadata"]["annotations"]["mesh"] = "on"
    again = after(patched, MULTI, ARM64, admission=ALL)
    assert terms_of(again) == [matching(ZONE, expression(ARCH, "arm64"), LINUX)] * 2
    assert again["spec"]["tolerations"] == [TENANT, MESH, ARM_TOLERATION]
    assert again["spec"]["affinity"]["podAffinity"] == {"x": []}
    assert again["metadata"]["annotations"]["mesh"] == "on"
    gone = after(patched, MULTI, NEVER_PULLED)
    assert gone["spec"]["tolerations"] == [TENANT, MESH]
    assert gone["metadata"]["annotations"] == {"mesh": "on"}


def test_pass_that_would_only_reorder_changes_nothing() -> None:
    """Others have put theirs behind ours; that is no reason to move."""
    patched = after(pod(affinity=with_terms(matching(ZONE))), MULTI, admission=ALL)
    patched["spec"]["tolerations"].append(TENANT)
    terms_of(patched)[0]["matchExpressions"].append(expression("tenant", "a"))
    patched["spec"]["affinity"]["podAffinity"] = {}
    patched["metadata"]["annotations"]["mesh"] = "on"
    mutation = mutate(patched, MULTI, admission=ALL)
    assert (mutation.patch, mutation.outcome) == (b"", AdmissionOutcome.UNCHANGED)


def test_reason_follows_the_images() -> None:
    patched = after(pod(), AMD64, admission=ALL)
    patched["spec"]["containers"][0]["image"] = "app-0:2"
    again = after(patched, AMD64, admission=ALL)
    assert again["metadata"]["annotations"][REASON] == "image app-0:2 is built only for linux/amd64"
    assert again["spec"] == patched["spec"]


def test_scheduler_name_of_another_setting_is_the_pods_own() -> None:
    """Only the name we would give ourselves is taken back, and an empty setting is no name."""
    patched = after(pod(), AMD64, admission=settings(scheduler_name="old"))
    again = after(patched, AMD64, admission=settings(scheduler_name="new"))
    assert again["spec"]["schedulerName"] == "old"
    document = claiming({"schedulerNameWas": "default-scheduler"}, schedulerName="")
    assert after(document, AMD64)["spec"]["schedulerName"] == ""


def claiming(record: object, **spec: Any) -> dict[str, Any]:
    text = record if isinstance(record, str) else msgspec.json.encode(record).decode()
    return pod(metadata={"annotations": {ADDED: text}}, **spec)


UNREADABLE = {
    "no JSON": "yes",
    "empty": "",
    "null": "null",
    "a list": "[]",
    "cut off": '{"tolerations":[{"key":"tenant"',
    "nested without end": '{"tolerations":' + "[" * 5_000,
    "unknown key": {"removed": []},
    "toleration that is none": {"tolerations": [7]},
    "index below zero": {"required": [matching(IN_AMD64, index=-1)]},
    "requirement on another label": {"required": [matching(ZONE, index=0)]},
    "preference of another label": {"preferred": [{"weight": 1, "preference": matching(ZONE)}]},
    "preference of a field": {"preferred": [{"weight": 1, "preference": matching(IN_AMD64, matchFields=[ZONE])}]},
    "preference of nothing": {"preferred": [{"weight": 1, "preference": {}}]},
    "another scheduler": {"schedulerNameWas": "volcano"},
    "too many items": {"tolerations": [{"key": f"k{each}"} for each in range(RECORD_ITEMS + 1)]},
    "too many characters": '{"tolerations":[]' + " " * RECORD_CHARACTERS + "}",
}
RICH = {
    "nodeSelector": {"tenant": "a", ARCH: "amd64"},
    "tolerations": [TENANT, ARM_TOLERATION],
    "affinity": {
        "nodeAffinity": {
            **with_terms(
                matching(expression("tenant", "a")), matching(expression(ARCH, "amd64", operator="NotIn")), {}
            )["nodeAffinity"],
            PREFERRED: [{"weight": 1, "preference": matching(ZONE)}],
        }
    },
    "schedulerName": "multiarch",
}


def test_record_that_we_could_not_have_written_removes_nothing() -> None:
    """It is replaced or dropped, since the annotation is ours."""
    for what, record in UNREADABLE.items():
        document = claiming(record, **RICH)
        assert read_record(document["metadata"]["annotations"][ADDED]) is None, what
        patched = after(document, NEVER_PULLED, admission=ALL)
        assert patched["spec"] == document["spec"]
        assert "annotations" not in patched["metadata"]


def test_every_annotation_of_ours_is_taken_back() -> None:
    """Whatever an earlier pass wrote, a pass that has nothing to say leaves none of it; others' annotations stay."""
    document = pod(metadata={"annotations": {"team": "a/b~c", **dict.fromkeys(SERVICE_KEYS, "{}")}})
    assert after(document, NEVER_PULLED)["metadata"]["annotations"] == {"team": "a/b~c"}


CLAIMS = {
    "a toleration of no rule": {"tolerations": [TENANT]},
    "a toleration that is not there": {"tolerations": [BOTH_TOLERATION]},
    "a term that says otherwise": {"required": [matching(IN_AMD64, index=0)]},
    "a term that is not there": {"required": [matching(IN_AMD64, index=9)]},
    "the empty term": {"required": [matching(IN_AMD64, index=2, whole=True)]},
}


def test_claim_to_what_we_did_not_add_removes_nothing() -> None:
    """Only what stands exactly so and has the form of our own goes."""
    for what, record in CLAIMS.items():
        document = claiming(record, **RICH)
        patched = after(document, NEVER_PULLED, admission=settings("both"))
        assert patched["spec"] == document["spec"], what
        assert patched["metadata"] == {"name": "p", "creationTimestamp": None}


def test_one_claim_removes_one_toleration() -> None:
    document = claiming({"tolerations": [ARM_TOLERATION] * 2}, tolerations=[ARM_TOLERATION, TENANT, ARM_TOLERATION])
    assert after(document, AMD64)["spec"]["tolerations"] == [ARM_TOLERATION, TENANT]
    assert after(claiming({"tolerations": [ARM_TOLERATION]}), ARM64)["spec"]["tolerations"] == [ARM_TOLERATION]


def test_claim_never_leaves_a_term_that_matches_nothing_or_more() -> None:
    """An author's term of our form cannot be emptied, and a copy goes only beside its equal."""
    affinity = with_terms(matching(IN_AMD64), matching(IN_AMD64, ZONE))
    first, second = matching(IN_AMD64, index=0), matching(IN_AMD64, index=1, whole=True)
    patched = after(claiming({"required": [first, second]}, affinity=affinity), DENIED, admission=ALL)
    assert terms_of(patched) == [matching(IN_AMD64), matching(ZONE)]


@pytest.mark.parametrize("affinity", [None, [7], "text", {"nodeAffinity": [7]}, {"nodeAffinity": TEXTS}], ids=str)
def test_record_meets_affinity_of_any_shape(affinity: Any) -> None:
    record = read_record(after(pod(), MULTI, admission=ALL)["metadata"]["annotations"][ADDED])
    document: JsonObject = {"spec": {"affinity": copy.deepcopy(affinity), "tolerations": "none"}}
    assert record is not None
    assert take_back(document, record, record.tolerations, "multiarch") == (document, NOTHING)
    assert document == {"spec": {"affinity": affinity, "tolerations": "none"}}
