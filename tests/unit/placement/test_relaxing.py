"""What of an author's constraints on architecture goes from a template, and what pods may run on then."""

import copy
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from extender.images.content import Cause
from extender.images.platform import parse_platform
from extender.kubernetes.core_v1 import CreatedPod, SchedulingSpec, Taint
from extender.kubernetes.pod_templates import pod_templates
from extender.kubernetes.reported_v1 import ReportedNode
from extender.placement.annotations import ADDED, Overrides
from extender.placement.facts import Anywhere, Fit, ImageFact, Unknown, fit, images_of
from extender.placement.node_match import demands_in, obstacles
from extender.placement.nodes import USUAL, platform_of_node
from extender.placement.patch import apply
from extender.placement.planning import Planner
from extender.placement.relaxing import Relaxation, Relaxer
from extender.placement.resolved_pod import ResolvedPod
from extender.placement.templates import TemplateAnswer
from tests.builders import AMD64, ARCH, ARM64, MULTI, OS, built_for, created, decoded, expression, node, with_terms
from tests.unit.placement.mutating import ARM_TOLERATION, BOTH_TOLERATION, POLICY, settings
from tests.unit.placement.terms import IN_AMD64, IN_ARM64, ZONE, matching
from tools.docs.pages import PROJECT

BETA, NOT_ARM64 = f"beta.{ARCH}", expression(ARCH, "arm64", operator="NotIn")
ADMISSION = settings()
ALL = built_for("linux/amd64", "linux/arm64", "linux/s390x")
GONE = Unknown(Cause.MISSING, "the registry has no such image")
IMAGES: dict[str, ImageFact] = {
    "multi": MULTI,
    "all": ALL,
    "amd": AMD64,
    "arm": ARM64,
    "missing": GONE,
    "artifact": GONE,
}
TARGETS = ("linux/amd64", "linux/arm64", "linux/s390x")
MOSTLY_MULTI: st.SearchStrategy[ImageFact] = st.sampled_from([MULTI, MULTI, ALL, ALL, ARM64, GONE, Anywhere()])
REQUIREMENTS = st.sampled_from([IN_AMD64, IN_AMD64, IN_ARM64, ZONE, expression(BETA, "amd64", "s390x"), NOT_ARM64])


def relaxer(*targets: str) -> Relaxer:
    return Relaxer(POLICY, ADMISSION, tuple(map(parse_platform, targets)) or USUAL)


def relax(*facts: ImageFact, targets: tuple[str, ...] = (), daemon: bool = False, **spec: Any) -> Relaxation:
    containers = [{"name": f"c{index}", "image": f"app-{index}:1"} for index, _ in enumerate(facts)]
    pod = created({"spec": {"containers": containers, **spec}})
    images = images_of(pod)
    of_volumes = [Anywhere()] * (len(images) - len(facts))
    resolved = ResolvedPod(pod, images, [*facts, *of_volumes], Overrides())
    return relaxer(*targets).relax(resolved, is_daemon_set=daemon)


def changed(*facts: ImageFact, **spec: Any) -> dict[str, Any]:
    """The constraints of the spec after it was relaxed."""
    found: Any = apply({"spec": copy.deepcopy(spec)}, relax(*facts, **spec).operations)
    return dict(found["spec"])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"nodeSelector": {ARCH: "amd64"}}, {}),
        ({"nodeSelector": {BETA: "amd64", "disk": "ssd"}}, {"nodeSelector": {"disk": "ssd"}}),
        ({"affinity": with_terms(matching(IN_AMD64))}, {}),
        ({"affinity": with_terms(matching(IN_AMD64, ZONE))}, {"affinity": with_terms(matching(ZONE))}),
        (
            {"affinity": with_terms(matching(IN_AMD64, ZONE), matching(expression("disk", "ssd"), IN_AMD64))},
            {"affinity": with_terms(matching(ZONE), matching(expression("disk", "ssd")))},
        ),
        ({"affinity": with_terms(matching(IN_AMD64), matching(IN_AMD64))}, {}),
        ({"affinity": {**with_terms(matching(IN_AMD64)), "podAffinity": {}}}, {"affinity": {"podAffinity": {}}}),
        ({"nodeSelector": {ARCH: "amd64"}, "affinity": with_terms(matching(IN_ARM64))}, {}),
        ({"nodeSelector": {ARCH: "amd64"}, "tolerations": [ARM_TOLERATION]}, {}),
    ],
)
def test_architectures_alone_go_and_nothing_empty_stays(before: dict[str, Any], after: dict[str, Any]) -> None:
    """A term without requirements would match no node, so the last of them goes with its affinity."""
    assert changed(MULTI, **before) == after
    assert changed(MULTI, **after) == after
    assert changed(MULTI, Anywhere(), **before) == after


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({"affinity": with_terms(matching(NOT_ARM64))}, "its operator is NotIn"),
        ({"affinity": with_terms(matching(IN_AMD64), matching(IN_ARM64, ZONE))}, "one of its terms is enough"),
        ({"affinity": with_terms(matching(IN_AMD64), matching(ZONE))}, "one of its terms is enough"),
        ({"affinity": with_terms(matching(IN_AMD64), matching(IN_AMD64, ZONE))}, "one of its terms is enough"),
        ({"affinity": with_terms(matching(IN_AMD64), {})}, "one of its terms is enough"),
        (
            {"affinity": with_terms(matching(IN_AMD64, matchFields=[expression("metadata.name", "n")]))},
            "a term has more than matchExpressions",
        ),
        ({"nodeSelector": {ARCH: "amd64"}, "affinity": with_terms(matching(NOT_ARM64))}, "allows no other platform"),
        ({"nodeSelector": {ARCH: "amd64", OS: "windows"}}, "allows no other platform"),
        ({"tolerations": [{"key": ARCH, "operator": "Exists"}]}, "no rule of admission.tolerations gives as much"),
        ({"tolerations": [{**ARM_TOLERATION, "effect": "NoExecute"}]}, "no rule of admission.tolerations"),
        ({"tolerations": [{**ARM_TOLERATION, "tolerationSeconds": 60}]}, "no rule of admission.tolerations"),
        (
            {"tolerations": [ARM_TOLERATION], "affinity": with_terms(matching(NOT_ARM64))},
            "the webhook does not give it",
        ),
    ],
)
def test_what_its_own_words_do_not_settle_stays_with_a_reason(spec: dict[str, Any], why: str) -> None:
    found = relax(MULTI, **spec)
    assert (found.operations, found.gained) == ((), ())
    assert why in " ".join(found.kept)


def test_every_image_must_run_on_every_platform_that_opens() -> None:
    """One image that lacks one, or is not known, keeps everything; the reason names it."""
    spec: Any = {"nodeSelector": {ARCH: "amd64"}}
    assert relax(MULTI, AMD64, **spec).kept == (
        f"nodeSelector {ARCH}=amd64: image app-1:1 is built only for linux/amd64",
    )
    assert relax(MULTI, GONE, **spec) == Relaxation()
    assert relax(MULTI, targets=TARGETS, **spec).operations == ()
    found = relax(ALL, targets=TARGETS, **spec)
    assert found.constraints == (f"nodeSelector {ARCH}=amd64",)
    assert list(map(str, found.gained)) == ["linux/arm64", "linux/s390x"]


def test_a_platform_that_other_requirements_close_asks_nothing_of_the_images() -> None:
    targets = ("linux/amd64", "linux/arm64", "windows/amd64")
    closed: Any = {"nodeSelector": {ARCH: "amd64", OS: "linux"}}
    assert list(map(str, relax(MULTI, targets=targets, **closed).gained)) == ["linux/arm64"]
    assert relax(MULTI, targets=targets, nodeSelector={ARCH: "amd64"}).gained == ()


def test_what_keeps_off_no_target_is_not_looked_at() -> None:
    """All that runs here is allowed, and it may be meant for what does not."""
    for affinity in (expression(ARCH, "arm64", "amd64"), expression(ARCH, "s390x", operator="NotIn")):
        found = relax(MULTI, affinity=with_terms(matching(affinity)))
        assert (found.operations, found.kept) == ((), ())


def test_a_toleration_goes_only_where_the_webhook_gives_it_again() -> None:
    """Not to a DaemonSet's pods, and not for an image that lacks the platform of its taint. Others are not touched."""
    own = {"key": "dedicated", "operator": "Exists"}
    assert changed(ARM64, tolerations=[own, ARM_TOLERATION]) == {"tolerations": [own]}
    assert changed(AMD64, tolerations=[ARM_TOLERATION]) == {"tolerations": [ARM_TOLERATION]}
    found = relax(MULTI, daemon=True, tolerations=[ARM_TOLERATION], nodeSelector={ARCH: "amd64"})
    assert (found.tolerations, found.constraints) == ((), (f"nodeSelector {ARCH}=amd64",))
    assert found.kept == (f"toleration {ARCH}=arm64:NoSchedule: a DaemonSet's pods get no toleration from the webhook",)


def test_no_platform_of_another_system_opens_to_a_pod_whose_images_run_on_any() -> None:
    """Its kubelets would refuse the pod, which says for which system it is."""
    found = relax(Anywhere("windows"), os={"name": "windows"}, nodeSelector={ARCH: "amd64"})
    assert (found.operations, found.gained) == ((), ())
    assert found.kept == (f"nodeSelector {ARCH}=amd64: image app-0:1 is in a pod for windows (spec.os.name)",)


def test_what_the_webhook_recorded_is_its_own_to_take_back() -> None:
    spec = {"containers": [{"image": "app:1"}], "nodeSelector": {ARCH: "amd64"}}
    pod = created({"metadata": {"annotations": {ADDED: "{}"}}, "spec": spec})
    found = relaxer().relax(ResolvedPod(pod, images_of(pod), [MULTI], Overrides()))
    assert (found.operations, found.constraints, len(found.kept)) == ((), (), 1)


@pytest.mark.parametrize(
    ("namespace", "given", "labels", "stays"),
    [
        ("shop", "", {}, False),
        ("", "", {}, False),
        ("kube-system", "", {}, True),
        ("", "kube-system", {}, True),
        ("shop", "kube-system", {}, False),
        ("shop", "", {"app.kubernetes.io/name": "multiarch-extender"}, True),
    ],
)
def test_a_toleration_stays_where_no_webhook_is_called(
    namespace: str, given: str, labels: dict[str, str], stays: bool
) -> None:
    """In the namespaces that every shipped one leaves out, and on the service's own pods. A constraint goes there."""
    spec = {"containers": [{"image": "app:1"}], "tolerations": [ARM_TOLERATION], "nodeSelector": {ARCH: "amd64"}}
    document = {
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "it", "namespace": namespace},
        "spec": {"template": {"metadata": {"labels": labels}, "spec": spec}},
    }  # fmt: skip
    [template] = pod_templates(document)
    fixer = Relaxer(POLICY, ADMISSION, USUAL, given)
    found = fixer.fix(template, fixer.question(template, None), [MULTI])
    toleration = f"toleration {ARCH}=arm64:NoSchedule"
    assert found.removed == (f"nodeSelector {ARCH}=amd64", *(() if stays else (toleration,)))
    assert found.kept == ((f"{toleration}: the webhook is not called for these pods",) if stays else ())


def answer(spec: dict[str, Any], *facts: ImageFact, kind: str = "Deployment", **annotations: str) -> TemplateAnswer:
    made = {"metadata": {"annotations": annotations}, "spec": {"containers": [{"image": "app:1"}], **spec}}
    document = {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": "it"}, "spec": {"template": made}}
    [template] = pod_templates(document)
    fixer = relaxer()
    question = fixer.question(template, None)
    return fixer.fix(template, question, facts[: len(question.images)])


def test_a_template_is_asked_about_only_if_it_has_something_to_take_out() -> None:
    """An unknown image of any other is nobody's concern, and so is one whose pods are only observed."""
    constrained = {"nodeSelector": {ARCH: "amd64"}}
    assert answer({}, GONE) == answer({"nodeSelector": {"disk": "ssd"}}, GONE) == TemplateAnswer()
    assert answer(constrained, GONE).unknown
    assert answer(constrained, MULTI).removed == (f"nodeSelector {ARCH}=amd64",)
    later = {"initContainers": [{"name": "it", "image": "auto"}]}
    assert (answer(later).gap, answer({**later, **constrained}).gap.partition(":")[0]) == ("", "partly given")
    for mode in ("observe", "ignore"):
        assert answer(constrained, MULTI, **{"multiarch-extender.io/mode": mode}) == TemplateAnswer()


def golden() -> Iterator[dict[str, Any]]:
    yield from yaml.safe_load((PROJECT / "tests/data/audit/golden.yaml").read_text())


def test_of_the_golden_workloads_the_one_goes_whose_image_runs_on_both() -> None:
    """The others have no constraint, an image for one architecture, or one that says NotIn."""
    relaxed, kept = set(), set()
    for row in golden():
        facts = [IMAGES.get(image, GONE) for image in row["images"]]
        found = relax(*facts, daemon=row["kind"] == "DaemonSet", **{**row.get("spec", {}), "initContainers": None})
        relaxed |= {row["name"]} if found.operations else set()
        kept |= {row["name"]} if found.kept else set()
    assert (relaxed, kept) == ({"pinned"}, {"asking", "amd-agent"})


NODES = [
    decoded(node("n", platform, {BETA: platform.removeprefix("linux/"), **labels}, taints=taints), ReportedNode)
    for platform in TARGETS
    for labels in ({}, {"zone": "a", "disk": "ssd"})
    for taints in ((), (Taint(ARCH, "arm64", "NoSchedule"),), (Taint("multi", "yes", "NoSchedule"),))
]


def nodes_of(pod: CreatedPod, spec: Any, facts: list[ImageFact]) -> set[int]:
    planned = ResolvedPod(pod, images_of(pod), facts, Overrides())
    own = msgspec.convert(spec, SchedulingSpec)
    given, demands = Planner(POLICY, ADMISSION).plan(planned, own).additions.tolerations, demands_in(own)
    demands = msgspec.structs.replace(demands, tolerations=(*demands.tolerations, *given))
    return {index for index, node in enumerate(NODES) if not obstacles(demands, node)}


TERMS = st.lists(REQUIREMENTS, max_size=2).map(lambda expressions: matching(*expressions))
SPECS = st.fixed_dictionaries(
    {"containers": st.just([{"name": "a", "image": "a:1"}, {"name": "b", "image": "b:1"}])},
    optional={
        "nodeSelector": st.sampled_from([{ARCH: "amd64"}, {BETA: "arm64", "disk": "ssd"}, {"zone": "a"}]),
        "affinity": st.lists(TERMS, min_size=1, max_size=2).map(lambda terms: with_terms(*terms)),
        "tolerations": st.lists(
            st.sampled_from([ARM_TOLERATION, BOTH_TOLERATION, {"key": ARCH, "operator": "Exists"}, {"key": "own"}]),
            max_size=3,
        ),
    },
)


@given(
    SPECS.map(lambda spec: {"spec": spec}),
    st.tuples(MOSTLY_MULTI, MOSTLY_MULTI),
    st.sampled_from([TARGETS, TARGETS[:2]]),
)
def test_pods_may_run_on_more_nodes_and_each_of_these_runs_their_images(
    document: Any, facts: tuple[ImageFact, ImageFact], targets: tuple[str, ...]
) -> None:
    """Whatever their terms, operators and tolerations; nothing is left to take out, and no other field changes."""
    pod, platforms = created(document), tuple(map(parse_platform, targets))
    fixer, known = Relaxer(POLICY, ADMISSION, platforms), list(facts)
    found = fixer.relax(ResolvedPod(pod, images_of(pod), known, Overrides()))
    relaxed: Any = apply(document, found.operations)
    before, after = (nodes_of(pod, each["spec"], known) for each in (document, relaxed))
    here = {index for index, node in enumerate(NODES) if platform_of_node(node) in platforms}
    assert before <= after
    gained = {platform_of_node(NODES[index]) for index in (after - before) & here}
    assert all(platform and fit(known, platform, POLICY.compatibility) is Fit.YES for platform in gained)
    assert fixer.relax(ResolvedPod(created(relaxed), images_of(pod), known, Overrides())).operations == ()
    for each in (document, relaxed):
        for name in ("affinity", "nodeSelector", "tolerations"):
            each["spec"].pop(name, None)
    assert relaxed == document
