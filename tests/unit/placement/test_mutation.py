"""What a created pod is given: tolerations, schedulerName, annotations, warnings; and which pods are left alone."""

from typing import Any

import msgspec
import pytest

from extender.images.content import LOCAL, Cause
from extender.images.platform import Platform
from extender.kubernetes.core_v1 import Pod
from extender.placement.annotations import ADDED, MODE, PREFER, REASON, Overrides
from extender.placement.facts import Anywhere, ImageFact, Pending, PodImage, Unknown
from extender.placement.mutation import AdmissionOutcome, Mutator, skipped_as
from extender.placement.nodes import ClusterNodes
from extender.placement.resolved_pod import ResolvedPod
from extender.placement.tolerations import TolerationRule
from tests.builders import AMD64, ARCH, ARM64, MULTI, OS, built_for, created, expression, platforms, pod, with_terms
from tests.unit.placement.json_patch import apply
from tests.unit.placement.mutating import (
    ARM_RULE,
    ARM_TOLERATION,
    BOTH_TOLERATION,
    COLD,
    DENIED,
    NOT_READY,
    POLICY,
    after,
    mutate,
    record_of,
    settings,
)
from tests.unit.retained import retained_bytes

UNRESOLVED: list[Pending | Unknown] = [
    *(Pending(cause, "x") for cause in (Cause.LOOKING_UP, Cause.MISSING, Cause.THROTTLED, Cause.UNAVAILABLE)),
    *(Unknown(cause, "x") for cause in Cause),
]
ANNOTATIONS, NOTE = "/metadata/annotations", "/metadata/annotations/multiarch-extender.io~1added"
DAEMON = {"kind": "DaemonSet", "name": "d"}
LINUX_ARM64 = platforms("linux/arm64")


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        pytest.param([MULTI], [BOTH_TOLERATION, ARM_TOLERATION], id="multi-arch"),
        pytest.param([ARM64], [ARM_TOLERATION], id="arm64 alone"),
        pytest.param([AMD64], [], id="amd64 alone"),
        pytest.param([MULTI, AMD64], [], id="one image lacks arm64"),
        pytest.param([MULTI, ARM64], [ARM_TOLERATION], id="one image lacks amd64"),
        pytest.param([MULTI, Anywhere()], [BOTH_TOLERATION, ARM_TOLERATION], id="a volume that constrains nothing"),
        pytest.param([Anywhere()], [], id="nothing that constrains"),
        pytest.param([built_for("linux/arm64/v9")], [], id="a level above the rule's"),
        pytest.param([built_for("windows/arm64")], [], id="another system"),
    ],
)
def test_toleration_is_earned_by_every_image_on_every_platform_of_the_rule(
    facts: list[ImageFact], expected: list[dict[str, str]]
) -> None:
    patched = after(pod(len(facts), tolerations=[NOT_READY]), *facts)
    assert patched["spec"]["tolerations"] == [NOT_READY, *expected]
    assert (ADDED in patched["metadata"]["annotations"]) is bool(expected)
    assert REASON not in patched["metadata"]["annotations"]


@pytest.mark.parametrize("others", [[], [MULTI], [ARM64, Anywhere()]], ids=["alone", "beside multi", "beside arm64"])
def test_unresolved_image_earns_nothing(others: list[ImageFact]) -> None:
    """Whatever the cause, and whatever is known of the others: no toleration and no preference; alone no affinity."""
    document = pod(1 + len(others))
    for fact in UNRESOLVED:
        mutation = mutate(document, *others, fact, admission=settings("preferred"))
        assert apply(document, mutation.patch)["spec"] == document["spec"]
        never_pulled = isinstance(fact, Unknown) and fact.cause in LOCAL
        assert mutation.outcome is (AdmissionOutcome.UNCHANGED if never_pulled else AdmissionOutcome.UNRESOLVED), fact
        assert bool(mutation.unresolved) is not never_pulled
        mutation = mutate(pod(), fact, admission=settings("both"))
        assert apply(pod(), mutation.patch)["spec"] == pod()["spec"]
        told = f"no node affinity was written: nothing is known of image app-0:1 ({fact.cause})"
        assert mutation.warnings == (told,)


def test_rule_that_another_rule_covers_adds_nothing_more() -> None:
    """The same rule twice, or a narrower one after a wider one; nor is one without platforms, which proves nothing."""
    wide = TolerationRule(key="kubernetes.io/arch", operator="Exists", platforms=("linux/arm64",))
    empty = TolerationRule(key="a", operator="Exists", platforms=())
    patched = after(pod(), ARM64, admission=settings(rules=(wide, ARM_RULE, wide, empty)))
    assert patched["spec"]["tolerations"] == [{"key": "kubernetes.io/arch", "operator": "Exists"}]


@pytest.mark.parametrize(
    ("metadata", "spec", "steps"),
    [
        pytest.param(
            {"annotations": {"a": "b"}}, {"tolerations": [NOT_READY]}, [NOTE, "/spec/tolerations/1"], id="all"
        ),
        pytest.param({"annotations": {}}, {"tolerations": []}, [NOTE, "/spec/tolerations/0"], id="empty"),
        pytest.param({"annotations": None}, {"tolerations": None}, [ANNOTATIONS, "/spec/tolerations"], id="null"),
        pytest.param({}, {}, [ANNOTATIONS, "/spec/tolerations"], id="missing"),
        pytest.param(None, {}, ["/metadata", "/spec/tolerations"], id="metadata null"),
        pytest.param(..., {}, ["/metadata", "/spec/tolerations"], id="metadata missing"),
    ],
)
def test_parents_are_made_where_they_are_absent(metadata: Any, spec: dict[str, Any], steps: list[str]) -> None:
    document = {key: value for key, value in {**pod(**spec), "metadata": metadata}.items() if value is not ...}
    mutation = mutate(document, ARM64)
    assert sorted(step["path"] for step in msgspec.json.decode(mutation.patch)) == steps
    patched = apply(document, mutation.patch)
    assert patched["spec"]["tolerations"] == [*(spec.get("tolerations") or []), ARM_TOLERATION]
    assert mutate(patched, ARM64).patch == b""


def test_pod_without_images_is_left() -> None:
    odd: list[Any] = [{}, {"metadata": {}, "spec": None}, {"spec": {}}, {"metadata": {"labels": None}, "spec": {}}]
    for document in (*odd, {"spec": {"containers": None}}):
        mutation = mutate(document, admission=settings("both"))
        assert (mutation.patch, mutation.warnings) == (b"", ())


def test_fields_never_heard_of_are_kept() -> None:
    document = pod(
        tolerations=[{**NOT_READY, "futureField": {"x": [1, None]}}],
        futureList=[{"a": 1.5}],
        affinity={"futureAffinity": {}, "nodeAffinity": {"future": 1}},
        containers=[{"name": "c", "image": "app-0:1", "futureProbe": {"exec": []}}],
        metadata={"managedFields": [{"manager": "m", "fieldsV1": {"f:spec": {}}}], "annotations": None},
    )
    patched = after(document, MULTI, admission=settings("both", "multiarch"))
    for key in ("futureList", "containers"):
        assert patched["spec"][key] == document["spec"][key]
    assert patched["spec"]["tolerations"][0] == document["spec"]["tolerations"][0]
    assert patched["spec"]["affinity"]["futureAffinity"] == {}
    assert patched["spec"]["affinity"]["nodeAffinity"]["future"] == 1
    assert patched["metadata"]["managedFields"] == document["metadata"]["managedFields"]
    assert patched["status"] == {}


LEFT, NOT_LEFT = AdmissionOutcome.EXEMPT, AdmissionOutcome.PATCHED
NULLS = pod(runtimeClassName=None, nodeName="", metadata={"ownerReferences": None, "annotations": None})


@pytest.mark.parametrize(
    ("document", "outcome"),
    [
        pytest.param(pod(metadata={"ownerReferences": [{**DAEMON, "controller": True}]}), LEFT, id="DaemonSet"),
        pytest.param(pod(nodeName="n1"), LEFT, id="bound"),
        pytest.param(pod(metadata={"annotations": {"kubernetes.io/config.mirror": "hash"}}), LEFT, id="mirror"),
        pytest.param(pod(metadata={"annotations": {"kubernetes.io/config.source": "file"}}), LEFT, id="static"),
        pytest.param(pod(runtimeClassName="wasm"), LEFT, id="ignored RuntimeClass"),
        pytest.param(pod(metadata={"ownerReferences": [DAEMON]}), NOT_LEFT, id="a DaemonSet that is no controller"),
        pytest.param(pod(runtimeClassName="gvisor"), NOT_LEFT, id="another RuntimeClass"),
        pytest.param(NULLS, NOT_LEFT, id="nulls"),
    ],
)
def test_pods_that_are_none_of_our_business_are_left_alone(document: Any, outcome: AdmissionOutcome) -> None:
    """Not even schedulerName is set, and their images need no lookup."""
    mutation = mutate(document, MULTI, admission=settings("both", "multiarch"))
    assert mutation.outcome is outcome
    if outcome is LEFT:
        assert (mutation.patch, mutation.warnings) == (b"", ())
        assert mutation.audit_annotations == {"verdict": "left alone, so the images were not looked up"}
        assert skipped_as(msgspec.convert(document, Pod), Overrides(), POLICY) is AdmissionOutcome.EXEMPT


def test_ignored_pod_is_not_looked_at() -> None:
    """Not by its own annotation nor by its namespace's, and a bad value beside it is still reported."""
    document = pod(metadata={"annotations": {MODE: "ignore", PREFER: "?"}})
    mutation = mutate(document, MULTI, admission=settings("both", "multiarch"))
    assert (mutation.outcome, mutation.patch) == (AdmissionOutcome.IGNORED, b"")
    [warning] = mutation.warnings
    assert PREFER in warning
    assert mutate(pod(), MULTI, namespace={MODE: "ignore"}).outcome is AdmissionOutcome.IGNORED
    enforced = mutate(pod(metadata={"annotations": {PREFER: "?"}}), ARM64)
    assert (enforced.outcome, enforced.warnings) == (AdmissionOutcome.PATCHED, (warning,))


def test_observed_pod_is_not_changed_and_the_record_goes_to_the_audit_log() -> None:
    """What would have been added is what enforcing adds, and its reason the text of the annotation."""
    for fact, admission in ((MULTI, settings("both", "multiarch")), (AMD64, settings("required"))):
        observed = mutate(pod(), fact, admission=admission, namespace={MODE: "observe"})
        enforced, written = mutate(pod(), fact, admission=admission), after(pod(), fact, admission=admission)
        assert (observed.outcome, observed.would_be) == (AdmissionOutcome.OBSERVED, AdmissionOutcome.PATCHED)
        assert observed.patch == b""
        assert enforced.would_be is None
        notes = written["metadata"]["annotations"]
        assert enforced.audit_annotations == {"verdict": observed.audit_annotations["verdict"], "added": notes[ADDED]}
        reason = {"would-annotate": notes[REASON]} if REASON in notes else {}
        would = {"would-be": "patched", "would-add": notes[ADDED], **reason}
        assert observed.audit_annotations == {"verdict": enforced.audit_annotations["verdict"], **would}
    nothing = mutate(pod(), AMD64, namespace={MODE: "observe"})
    assert nothing.audit_annotations == {"verdict": "runs on linux/amd64"}


@pytest.mark.parametrize(
    ("before", "expected", "was"),
    [
        pytest.param("default-scheduler", "multiarch", "default-scheduler", id="the default"),
        pytest.param("", "multiarch", "", id="empty"),
        pytest.param(None, "multiarch", "missing", id="null"),
        pytest.param(..., "multiarch", "missing", id="missing"),
        pytest.param("volcano", "volcano", None, id="another"),
        pytest.param("multiarch", "multiarch", None, id="ours already"),
    ],
)
def test_scheduler_name_is_given_to_pods_that_chose_none(before: Any, expected: str, was: str | None) -> None:
    document = pod()
    document["spec"] |= {"schedulerName": before}
    if before is ...:
        del document["spec"]["schedulerName"]
    patched = after(document, COLD, admission=settings(scheduler_name="multiarch"))
    assert patched["spec"]["schedulerName"] == expected
    assert "tolerations" not in patched["spec"]
    assert record_of(patched).get("schedulerNameWas") == was
    for name in ("", "default-scheduler"):
        assert mutate(pod(), AMD64, admission=settings(scheduler_name=name)).patch == b""


def test_record_is_compact_and_complete() -> None:
    document = pod(metadata={"annotations": None})
    on_arm64 = [expression(ARCH, "arm64"), expression(OS, "linux")]
    scheduler = {"schedulerNameWas": "default-scheduler"}
    one = after(document, ARM64, admission=settings("required", "multiarch"))
    assert record_of(one) == {
        "tolerations": [ARM_TOLERATION],
        "required": [{"index": 0, "matchExpressions": on_arm64, "whole": True}],
        **scheduler,
    }
    several = after(document, MULTI, admission=settings("required", "multiarch", rules=()))
    added = [expression(ARCH, "amd64", "arm64"), expression(OS, "linux")]
    assert record_of(several) == {"required": [{"index": 0, "matchExpressions": added, "whole": True}], **scheduler}


@pytest.mark.parametrize(
    ("facts", "verdict"),
    [
        pytest.param([MULTI, AMD64], "runs on linux/amd64", id="known"),
        pytest.param([ARM64, AMD64], "runs on no platform", id="nothing in common"),
        pytest.param([Anywhere()], "runs anywhere", id="unconstrained"),
        pytest.param(
            [MULTI, DENIED, Pending(Cause.MISSING, "x")],
            "2 of 3 images unresolved, first app-1:1 (denied)",
            id="unresolved",
        ),
    ],
)
def test_verdict_is_in_the_audit_annotations(facts: list[ImageFact], verdict: str) -> None:
    assert mutate(pod(len(facts)), *facts).audit_annotations["verdict"] == verdict


@pytest.mark.parametrize(
    ("facts", "cluster", "warned"),
    [
        pytest.param([AMD64], LINUX_ARM64, True, id="no node fits"),
        pytest.param([AMD64], platforms("linux/amd64", "linux/arm64"), False, id="one kind fits"),
        pytest.param([AMD64], frozenset(), False, id="nodes not known"),
        pytest.param([DENIED], LINUX_ARM64, False, id="image not known"),
        pytest.param([AMD64, DENIED], LINUX_ARM64, True, id="known to fit nowhere all the same"),
    ],
)
def test_pod_that_can_run_nowhere_is_warned_about(
    facts: list[ImageFact], cluster: frozenset[Platform], warned: bool
) -> None:
    """While its author is still looking, not when it hangs."""
    warnings = mutate(pod(len(facts)), *facts, cluster=ClusterNodes(cluster)).warnings
    expected = "this pod can run on no node of this cluster: image app-0:1 is built only for linux/amd64"
    assert warnings == ((expected,) if warned else ())


@pytest.mark.parametrize("fact", [Unknown(Cause.INVALID_REFERENCE, "no reference"), ARM64], ids=["unknown", "known"])
@pytest.mark.parametrize("letter", ["x", "\N{GRINNING FACE}", "\x07"], ids=["long", "wide", "control"])
def test_what_a_long_reference_leaves_in_answers_is_short(fact: ImageFact, letter: str) -> None:
    """Audit annotations and warnings are kept by the API server, for each pod that somebody tries to create."""
    images = [PodImage(letter * 100_000)] * 20
    mutator = Mutator(POLICY, settings("both", "multiarch"))
    document = created(pod(images=20, nodeSelector={ARCH: "amd64"}))
    mutation = mutator.mutate(ResolvedPod(document, images, [fact] * 20, Overrides(), ClusterNodes(LINUX_ARM64)))
    texts = [*mutation.warnings, *mutation.audit_annotations.values()]
    assert texts
    assert max(map(len, texts)) < 1_000
    assert all(text.isprintable() for text in texts)


def test_nothing_of_a_pod_is_kept() -> None:
    """Whoever creates pods, as a dry run too, would choose what the service's memory is full of."""
    mutator = Mutator(POLICY, settings("both", "multiarch"))
    image = [PodImage("app-0:1")]
    mutator.mutate(ResolvedPod(created(pod()), image, [MULTI], Overrides()))
    before = retained_bytes(mutator)
    for number in range(50):
        terms = [{"matchExpressions": [{"key": f"zone-{number}-{term}", "operator": "Exists"}]} for term in range(60)]
        mutator.mutate(ResolvedPod(created(pod(affinity=with_terms(*terms))), image, [MULTI], Overrides()))
    assert retained_bytes(mutator) == before
