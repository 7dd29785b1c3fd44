"""Updates of pods get back what was added at creation, and whatever an author changes stays for the API server."""

import copy
from typing import Any

import msgspec
import pytest

from extender.placement.annotations import ADDED, PLATFORMS, REASON
from extender.placement.gate import GATE, GATED_LABEL
from extender.placement.restoring import restore
from tests.builders import AMD64, ARCH, MULTI, PREFERRED, REQUIRED, Json, created, expression, pod, with_terms
from tests.unit.placement.json_patch import apply
from tests.unit.placement.mutating import ARM_TOLERATION, BOTH_TOLERATION, NOT_READY, after, settings
from tests.unit.placement.random_cases import Outlets, draw

ALL = settings("both", "multiarch", platforms_annotation=True)
OWN = {"key": "team", "operator": "Equal", "value": "shop", "effect": "NoSchedule"}
ZONE = {"matchExpressions": [expression("zone", "a", "b")]}
PREFERENCES: Json = {PREFERRED: [{"weight": 3, "preference": {"matchExpressions": [expression("zone", "a")]}}]}
SHAPES: dict[str, Json] = {
    "bare": {},
    "selector": {"nodeSelector": {"disk": "ssd"}},
    "tolerations": {"tolerations": [OWN, NOT_READY]},
    "no tolerations": {"tolerations": []},
    "a term": {"affinity": with_terms(ZONE)},
    "terms": {"affinity": with_terms(ZONE, {"matchExpressions": [expression("zone", "c")]})},
    "an empty term": {"affinity": with_terms({}, ZONE)},
    "fields": {"affinity": with_terms({"matchFields": [expression("metadata.name", "n")]})},
    "preferences": {"affinity": {"nodeAffinity": PREFERENCES}},
    "both kinds": {"affinity": {"nodeAffinity": {**with_terms(ZONE)["nodeAffinity"], **PREFERENCES}}},
    "other affinity": {"affinity": {"podAntiAffinity": {"x": [1]}}},
    "empty affinity": {"affinity": {"nodeAffinity": {}}},
    "scheduler": {"schedulerName": "default-scheduler"},
    "another scheduler": {"schedulerName": "somebodys"},
    "everything": {
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [OWN],
        "affinity": {"nodeAffinity": {**with_terms(ZONE)["nodeAffinity"], **PREFERENCES}, "podAntiAffinity": {"x": 1}},
    },
}
LISTS = ((REQUIRED, "nodeSelectorTerms"), (PREFERRED,))


def updated(stored: Json, update: Json) -> Json:
    """The update as it leaves the webhook."""
    result: Json = apply(update, msgspec.json.encode(restore(created(update), created(stored))))
    return result


def applied_again(manifest: Json, stored: Json) -> Json:
    """The update of whoever applies the manifest: lists and words that it names are as it has them, others stay."""
    update, spec = copy.deepcopy(stored), copy.deepcopy(manifest["spec"])
    affinity = spec.pop("affinity", {})
    update["spec"].update(spec)
    for path in LISTS:
        wanted, there = affinity.get("nodeAffinity") or {}, update["spec"].get("affinity", {}).get("nodeAffinity", {})
        *parents, last = path
        for step in parents:
            wanted, there = wanted.get(step) or {}, there.get(step) or {}
        if last in wanted:
            there[last] = wanted[last]
    return update


@pytest.mark.parametrize("image", [AMD64, MULTI], ids=["amd64", "both"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_manifest_that_is_applied_again_changes_nothing(shape: str, image: Any) -> None:
    """Nor does one that replaces the pod, which names none of the annotations."""
    manifest = pod(**SHAPES[shape])
    stored = after(manifest, image, admission=ALL)
    assert ADDED in stored["metadata"]["annotations"]
    assert updated(stored, applied_again(manifest, stored)) == stored
    assert updated(stored, manifest) == stored
    assert restore(created(stored), created(stored)) == []


@pytest.mark.parametrize("seed", range(400))
def test_so_does_any_manifest_of_any_pod(seed: int) -> None:
    outlets = Outlets(draw(seed))
    manifest = outlets.case.pod
    stored = apply(manifest, outlets.mutate(manifest).patch)
    for update in (applied_again(manifest, stored), manifest):
        result = updated(stored, update)
        if ADDED in stored["metadata"]["annotations"]:
            assert result == stored
        else:
            assert result == update


CHANGES: dict[str, tuple[Json, Json]] = {
    "a value": ({"tolerations": [OWN]}, {"tolerations": [{**OWN, "value": "other"}]}),
    "one less": ({"tolerations": [OWN, NOT_READY]}, {"tolerations": [OWN]}),
    "a term": ({"affinity": with_terms(ZONE)}, {"affinity": with_terms({"matchExpressions": [expression("z", "b")]})}),
    "a term more": ({"affinity": with_terms(ZONE)}, {"affinity": with_terms(ZONE, ZONE)}),
    "a scheduler": ({}, {"schedulerName": "somebodys"}),
    "a selector": ({"nodeSelector": {"disk": "ssd"}}, {"nodeSelector": {"disk": "hdd"}}),
    "a preference": ({"affinity": {"nodeAffinity": PREFERENCES}}, {"affinity": {"nodeAffinity": {PREFERRED: []}}}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_an_author_changes_stays_changed(change: str) -> None:
    """So that the API server says no, as it would without us."""
    was, now = CHANGES[change]
    stored = after(pod(**was), AMD64, admission=ALL)
    update = applied_again(pod(**now), stored)
    result = updated(stored, update)
    assert result["spec"] != stored["spec"]
    for part in now:
        found, wanted = result["spec"][part], update["spec"][part]
        assert (found[: len(wanted)] if isinstance(wanted, list) else found) == wanted


def test_an_author_may_add_tolerations_and_change_images() -> None:
    """Which the API server takes if those that are there stay; ours are among them."""
    stored = after(pod(tolerations=[OWN]), MULTI, admission=ALL)
    mine = {"key": "more", "operator": "Exists"}
    update = applied_again(pod(tolerations=[OWN, mine]), stored)
    update["spec"]["containers"][0]["image"] = "other:2"
    result = updated(stored, update)
    assert result["spec"]["tolerations"] == [OWN, mine, BOTH_TOLERATION, ARM_TOLERATION]
    assert {**result["spec"], "tolerations": 0} == {
        **stored["spec"],
        "tolerations": 0,
        "containers": update["spec"]["containers"],
    }


def test_a_record_that_the_update_writes_itself_counts() -> None:
    """As the gate controller's does, which may take back what was added before."""
    stored = after(pod(tolerations=[OWN]), MULTI, admission=ALL)
    update = copy.deepcopy(stored)
    update["metadata"]["annotations"][ADDED] = "{}"
    update["spec"]["tolerations"] = [OWN]
    assert updated(stored, update) == update


def test_the_removal_of_the_gate_may_take_the_record_away() -> None:
    """Else a pod that got nothing would say for ever that it is held."""
    stored = pod(schedulingGates=[{"name": GATE}], tolerations=[OWN])
    stored["metadata"] |= {"annotations": {REASON: "held", ADDED: "{}"}, "labels": {GATED_LABEL: "true"}}
    update = pod(tolerations=[OWN])
    assert restore(created(update), created(stored)) == []
    stored["spec"]["tolerations"] = [OWN, ARM_TOLERATION]
    stored["metadata"]["annotations"][ADDED] = msgspec.json.encode({"tolerations": [ARM_TOLERATION]}).decode()
    assert updated(stored, update)["spec"]["tolerations"] == [OWN, ARM_TOLERATION]


def test_annotations_come_back_with_the_record() -> None:
    stored = after(pod(), AMD64, admission=ALL)
    update = copy.deepcopy(stored)
    for key in (ADDED, REASON, PLATFORMS):
        del update["metadata"]["annotations"][key]
    update["metadata"]["annotations"]["mine"] = "new"
    result = updated(stored, update)
    assert result["metadata"]["annotations"] == {**stored["metadata"]["annotations"], "mine": "new"}


@pytest.mark.parametrize(
    "record",
    [
        None,
        "",
        "{",
        '{"tolerations":[{"key":"team"}],"required":[{"index":0,"matchExpressions":[{"key":"zone","operator":"In"}]}]}',
        '{"x":1}',
        "{}",
    ],
)
def test_a_record_that_is_none_gives_nothing_back(record: str | None) -> None:
    annotations = {} if record is None else {ADDED: record}
    stored = pod(metadata={"annotations": annotations}, tolerations=[OWN, ARM_TOLERATION])
    update = pod(metadata={"annotations": annotations}, tolerations=[OWN])
    assert updated(stored, update) == update


def test_a_record_that_somebody_forged_gives_back_what_is_stored() -> None:
    """Nothing of it comes from the record alone."""
    forged = {"tolerations": [OWN, {"operator": "Exists"}], "schedulerNameWas": "missing"}
    annotations = {ADDED: msgspec.json.encode(forged).decode()}
    stored = pod(metadata={"annotations": annotations}, tolerations=[OWN, ARM_TOLERATION])
    assert updated(stored, pod(metadata={"annotations": annotations}, tolerations=[ARM_TOLERATION])) == stored


@pytest.mark.parametrize("key", ["tolerations", "terms"])
def test_what_is_beyond_the_bounds_is_left_alone(key: str) -> None:
    many = [{"key": f"{ARCH}-{number}", "operator": "Exists"} for number in range(2000)]
    parts = {"tolerations": many} if key == "tolerations" else {"affinity": with_terms(*[ZONE] * 100)}
    stored = after(pod(), AMD64, admission=ALL)
    assert restore(created(pod(**parts)), created(stored)) == []
    stored["spec"] |= parts
    assert restore(created(pod()), created(stored)) == []
