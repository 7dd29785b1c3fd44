"""What is decided about has bounds: a pod, template or held pod beyond them is left as it is, with a warning."""

from typing import Any

import msgspec
import pytest

from extender.images.content import Cause
from extender.images.platform import Platform
from extender.kubernetes.pod_templates import pod_templates
from extender.placement.additions import read_record
from extender.placement.annotations import ADDED, MODE, REASON
from extender.placement.bounds import PATCH_BYTES, REQUIREMENTS, TERMS, TOUCHED_BYTES
from extender.placement.facts import MOST_IMAGES, ImageFact, Unknown, fact_of, images_of
from extender.placement.gate import GATE
from extender.placement.mutation import AdmissionOutcome, Mutation
from extender.placement.nodes import ClusterNodes
from extender.placement.planning import AdmissionSettings, Outcome, Planner
from extender.placement.policy import Policy
from extender.placement.template_problems import LINE_CHARACTERS, Problem
from extender.placement.templates import TemplateOwner, Templates
from tests.builders import AMD64, ARCH, built_for, created, expression, platforms, pod, with_terms
from tests.unit.placement.held_pods import OURS, patch_of, release
from tests.unit.placement.json_patch import apply
from tests.unit.placement.mutating import (
    ARM_TOLERATION,
    BOTH_TOLERATION,
    DENIED,
    NEVER_PULLED,
    POLICY,
    mutate,
    settings,
    terms_of,
)
from tests.unit.placement.template_reviews import reviewed
from tests.unit.placement.terms import matching
from tests.unit.retained import retained_bytes

Json = Any
ADMISSION = settings("both", "multiarch", unknown="gate")
WIDE = built_for(*(f"system{number % 8}/architecture{number}" for number in range(64)))


def terms(number: int, requirements: int = 1) -> Json:
    first = matching(*[expression("zone", "a", operator="NotIn")] * requirements)
    return with_terms(first, *(matching(expression("zone", f"z{each}")) for each in range(number - 1)))


def filling(size_bytes: int) -> Json:
    empty = {"tolerations": [{"key": ""}], "schedulerName": "default-scheduler"}
    return [{"key": "k" * (size_bytes - len(msgspec.json.encode(empty)))}]


def decide(document: Json, fact: ImageFact, *, may_hold: bool = False) -> Mutation:
    facts = [fact] * len(images_of(created(document)))
    return mutate(document, *facts, admission=ADMISSION, may_hold=may_hold)


WITHIN = {
    "terms": pod(affinity=terms(TERMS)),
    "requirements": pod(affinity=terms(1, REQUIREMENTS - 2)),
    "bytes": pod(tolerations=filling(TOUCHED_BYTES - 1_000)),
    "images": pod(images=MOST_IMAGES),
}
BEYOND = {
    "terms": pod(affinity=terms(TERMS + 1)),
    "requirements": pod(affinity=terms(1, REQUIREMENTS + 1)),
    "bytes": pod(tolerations=filling(TOUCHED_BYTES + 1)),
    "images": pod(images=MOST_IMAGES + 1),
}


@pytest.mark.parametrize("document", WITHIN.values(), ids=WITHIN.keys())
def test_a_pod_within_the_bounds_gets_what_any_other_gets(document: Json) -> None:
    mutation = decide(document, AMD64)
    assert mutation.outcome is AdmissionOutcome.PATCHED
    patched = apply(document, mutation.patch)
    assert ARCH in patched["spec"].get("nodeSelector", {}) or ARCH in str(terms_of(patched))
    taken = apply(patched, decide(patched, NEVER_PULLED).patch)
    assert taken["spec"] == {**document["spec"], "schedulerName": "multiarch"}


beyond = pytest.mark.parametrize("document", BEYOND.values(), ids=BEYOND.keys())


@beyond
def test_a_pod_beyond_the_bounds_is_left_with_a_warning(document: Json) -> None:
    for fact, may_hold in ((AMD64, False), (DENIED, True)):
        mutation = decide(document, fact, may_hold=may_hold)
        assert (mutation.outcome, mutation.patch) == (AdmissionOutcome.EXEMPT, b"")
        [warning] = mutation.warnings
        assert warning.startswith("the pod was let through without node affinity and tolerations: it")
        assert len(warning) < 256


@beyond
def test_a_pod_beyond_the_bounds_that_is_held_is_let_go(document: Json) -> None:
    stored = created({**document, "spec": {**document["spec"], "schedulingGates": [OURS]}})
    found = release(stored, *[AMD64] * len(images_of(stored)), admission=ADMISSION)
    assert found.outcome is Outcome.PASSED
    assert patch_of(found)["metadata"]["annotations"] == {REASON: found.reason}
    assert patch_of(found)["spec"] == {"schedulingGates": [{"$patch": "delete", **OURS}]}


def test_a_gate_of_a_policy_is_taken_off_a_pod_of_too_many_terms() -> None:
    """It is in the same review; a pod of too many bytes waits for the gate controller."""
    document = pod(affinity=terms(TERMS + 1), schedulingGates=[{"name": GATE}, {"name": "other"}])
    patched = apply(document, decide(document, AMD64).patch)
    assert patched["spec"]["schedulingGates"] == [{"name": "other"}]


@beyond
@pytest.mark.parametrize("kind", ["Job", "DaemonSet"])
def test_a_template_beyond_the_bounds_is_left_with_a_warning(document: Json, kind: str) -> None:
    [template] = pod_templates({"apiVersion": "v1", "kind": kind, "spec": {"template": document}})
    templates = Templates(POLICY, ADMISSION, guards=True)
    answer = reviewed(templates, template, AMD64, owner=TemplateOwner(is_queued=True))
    [problem] = answer.problems
    assert (answer.operations, problem.problem) == ((), Problem.TOO_LARGE)
    assert problem.line.startswith("spec.template: nothing is decided about it: it")
    assert len(problem.line) <= LINE_CHARACTERS
    question = templates.question(template, None)
    change = templates.fix(template, question, [AMD64] * len(question.images))
    assert change.operations == ()
    assert change.warnings


def test_what_would_be_too_large_to_take_back_is_not_written() -> None:
    """64 platforms over 8 systems make eight terms of each, and a record of all."""
    mutation = decide(pod(affinity=terms(20)), WIDE)
    assert (mutation.outcome, mutation.patch) == (AdmissionOutcome.EXEMPT, b"")
    assert "with what it would get" in mutation.warnings[0] or "the record" in mutation.warnings[0]
    few = apply(pod(), decide(pod(), WIDE).patch)
    assert read_record(few["metadata"]["annotations"][ADDED]) is not None


def test_what_was_added_goes_from_a_pod_that_has_grown_too_large() -> None:
    """Another webhook has added terms, so that affinity would no longer be taken back."""
    document = pod(affinity=terms(40))
    patched = apply(document, decide(document, AMD64).patch)
    terms_of(patched).extend(matching(expression("zone", f"y{each}")) for each in range(20))
    taken = apply(patched, decide(patched, WIDE).patch)
    assert ARCH not in str(taken["spec"])
    assert ADDED not in taken["metadata"]["annotations"]


def test_an_observed_pod_beyond_the_bounds_is_not_changed() -> None:
    """What an earlier pass has added stays too, until somebody enforces again."""
    patched = apply(pod(affinity=terms(40)), decide(pod(affinity=terms(40)), AMD64).patch)
    terms_of(patched).extend(matching(expression("zone", f"y{each}")) for each in range(20))
    mutation = mutate(patched, WIDE, admission=ADMISSION, namespace={MODE: "observe"})
    assert (mutation.patch, mutation.why_left != "") == (b"", True)
    patched["spec"]["schedulingGates"] = [{"name": GATE}]
    ungated = apply(patched, mutate(patched, WIDE, admission=ADMISSION, namespace={MODE: "observe"}).patch)
    assert ungated["spec"] == {**patched["spec"], "schedulingGates": []} or "schedulingGates" not in ungated["spec"]
    assert terms_of(ungated) == terms_of(patched)


@pytest.mark.parametrize("images", [1, 10])
def test_what_images_have_in_common_takes_bounded_memory(images: int) -> None:
    """Images' authors choose up to 64 platforms of long words for each, and pods name any number of images."""
    planner = Planner(Policy(), AdmissionSettings())
    for first in range(0, 60 * images, images):
        numbers = range(first, first + images)
        known = frozenset(frozenset(_long_platform(number, each) for each in range(64)) for number in numbers)
        planner.common(known, ClusterNodes(platforms("linux/amd64", "linux/arm64", "windows/amd64")))
    assert 200_000 < retained_bytes(planner) < 1_150_000


def _long_platform(image: int, number: int) -> Platform:
    return Platform(f"{image:016d}{number % 8:016d}", f"{image:016d}{number:016d}", f"v{number:031d}")


def test_a_patch_has_a_bound_of_its_own() -> None:
    """A list from which items go at both ends is patched item by item."""
    others = [{}, {"key": "a"}] * 3_000
    record = msgspec.json.encode({"tolerations": [ARM_TOLERATION, BOTH_TOLERATION]}).decode()
    document = pod(metadata={"annotations": {ADDED: record}}, tolerations=[ARM_TOLERATION, *others, BOTH_TOLERATION])
    mutation = decide(document, NEVER_PULLED)
    assert (mutation.outcome, mutation.patch) == (AdmissionOutcome.EXEMPT, b"")
    assert mutation.warnings[0].endswith(f": its patch would have more than {PATCH_BYTES // 1024} KiB")


@pytest.mark.parametrize("place", ["containers", "initContainers", "ephemeralContainers", "volumes"])
def test_a_pod_of_more_than_256_images_is_unknown(place: str) -> None:
    names = [f"a:{each}" for each in range(MOST_IMAGES)]
    items: list[Json] = [{"image": {"reference": each} if place == "volumes" else each} for each in names]
    assert len(images_of(created({"spec": {place: items}}))) == MOST_IMAGES
    [image] = images_of(created({"spec": {place: [*items, items[0]]}}))
    assert image.reference == "(more than 256 images)"
    assert fact_of(image, None, may_be_pending=True) == Unknown(Cause.UNSUPPORTED, "so many are not looked up")
