"""What templates of queues get, held against what Kueue compares, and what a second apply keeps."""

import copy
from typing import Any

import msgspec
import pytest

from extender.images.content import Cause
from extender.images.platform import Compatibility, parse_platform
from extender.kubernetes.pod_templates import PodTemplate, pod_templates
from extender.placement.affinity import AffinityMode
from extender.placement.facts import ImageFact, PodImage, RunsOn, Unknown, images_of
from extender.placement.node_kinds import NodeKind
from extender.placement.node_match import NodeDemands
from extender.placement.patch import apply
from extender.placement.planning import AdmissionSettings
from extender.placement.policy import Overrides
from extender.placement.template_judgement import (
    PREBUILT_LABEL,
    QUEUE_LABEL,
    ChangedTemplate,
    TemplateJudge,
    TemplateOwner,
    read_template,
)
from extender.placement.template_problems import JudgedTemplate, Problem, problems_of
from extender.placement.tolerations import TolerationRule
from tests.unit.placement.mutating import POLICY

RULE = TolerationRule(key="arch", operator="Exists", platforms=("linux/amd64",))
JUDGE = TemplateJudge(POLICY, AdmissionSettings(tolerations=(RULE,), node_affinity=AffinityMode.REQUIRED), guards=True)
AMD64 = RunsOn(frozenset({parse_platform("linux/amd64")}))
Json = dict[str, Any]


def job(**spec: object) -> Json:
    """A Job of one image."""
    containers = [{"name": "c", "image": "app:1", "args": ["run"]}]
    template = {"spec": {"containers": containers, "initContainers": [{"name": "i", "image": "init:1"}], **spec}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}, "spec": {"template": template}}


def template_of(document: Json) -> PodTemplate:
    """Its only template."""
    [found] = pod_templates(document)
    return found


def judged(document: Json, owner: TemplateOwner) -> Json:
    """The spec of the Job's template as it would be stored."""
    template = template_of(document)
    pod = read_template(template)
    images = images_of(pod)
    verdict = JUDGE.judge(ChangedTemplate(template, pod), owner, images, [AMD64] * len(images), Overrides())
    after = apply(copy.deepcopy(dict(template.template)), verdict.operations)
    assert isinstance(after, dict)
    stored: Json = msgspec.convert(after["spec"], Json)
    return stored


def in_sync(plan: Json, found: Json) -> bool:
    """Whether Kueue takes a job for the one that a plan from elsewhere was made of.

    Source: kueue pkg/util/equality/podset.go compares containers, init containers and, before admission, tolerations.
    """
    return all(plan.get(key) == found.get(key) for key in ("containers", "initContainers", "tolerations"))


OWN: dict[str, Json] = {
    "nothing": {},
    "tolerations": {"tolerations": [{"key": "own", "operator": "Exists"}]},
    "a selector": {"nodeSelector": {"disk": "ssd"}},
}


@pytest.mark.parametrize("own", OWN)
@pytest.mark.parametrize(
    ("owner", "stays"),
    [
        (TemplateOwner({QUEUE_LABEL: "team"}), False),
        (TemplateOwner({QUEUE_LABEL: "team", PREBUILT_LABEL: "w"}), True),
        (TemplateOwner({QUEUE_LABEL: "team"}, "kueue.x-k8s.io/multikueue"), True),
    ],
    ids=["a queue here", "planned elsewhere", "run elsewhere"],
)
def test_what_kueue_compares_with_a_plan_from_elsewhere_is_not_changed(
    own: str, owner: TemplateOwner, stays: bool
) -> None:
    """It is kept to its platform by a selector all the same, which Kueue does not compare."""
    document = job(**copy.deepcopy(OWN[own]))
    plan = template_of(document).template["spec"]
    found = judged(document, owner)
    assert found["nodeSelector"]["kubernetes.io/arch"] == "amd64"
    assert in_sync(plan, found) == stays


def test_a_template_of_other_images_or_without_a_record_is_not_kept() -> None:
    """These are decided about anew."""
    template = template_of(job())
    pod = read_template(template)
    assert JUDGE.keep(ChangedTemplate(template, pod)) is None
    assert JUDGE.keep(ChangedTemplate(template, pod, pod)) is None


@pytest.mark.parametrize(
    ("spec", "metadata", "problems"),
    [
        ({"imagePullSecrets": [{"name": "s"}]}, {"namespace": "shop"}, [Problem.DENIED]),
        ({"imagePullSecrets": [{"name": "s"}]}, {}, []),
        ({}, {"namespace": "shop"}, []),
    ],
    ids=["its own secrets", "secrets of another namespace", "none"],
)
def test_an_author_is_told_of_a_denied_image_where_its_secrets_were_tried(
    spec: Json, metadata: Json, problems: list[Problem]
) -> None:
    """An object without a namespace names secrets of wherever its pods will be; a ServiceAccount may bring some."""
    document = job(**spec)
    document["metadata"] |= metadata
    template = template_of(document)
    pod = read_template(template)
    facts: list[ImageFact] = [AMD64, Unknown(Cause.DENIED, "the registry says no")]
    verdict = JUDGE.judge(ChangedTemplate(template, pod), TemplateOwner({}), images_of(pod), facts, Overrides())
    assert [each.problem for each in verdict.problems] == problems


DIGEST = "sha256:" + "a1" * 32
PLACE = "spec.template.spec.replicatedJobs[12].template.spec.template"
ARM64 = RunsOn(frozenset({parse_platform("linux/arm64")}))
MISSING = Unknown(Cause.MISSING, "x")


@pytest.mark.parametrize("facts", [[AMD64], [AMD64, ARM64], [MISSING]], ids=["wrong nodes", "torn", "missing"])
@pytest.mark.parametrize(
    ("place", "image", "shown"),
    [
        pytest.param(PLACE, f"registry.example.com/team/app@{DIGEST}", f"{PLACE}: image {{}} ", id="digest"),
        pytest.param(PLACE * 4, f"registry.example.com/team/app:1@{DIGEST}", ": image {} ", id="long place"),
        pytest.param(PLACE, f"registry.example.com/{'team/' * 60}app:1", ": image ", id="long image"),
    ],
)
def test_a_line_has_the_whole_image_in_what_the_api_server_keeps(
    place: str, image: str, shown: str, facts: list[ImageFact]
) -> None:
    """The place loses its middle before the image does."""
    judged = JudgedTemplate(
        place=place,
        images=[PodImage(image), PodImage("other:1")][: len(facts)],
        facts=facts,
        demands=NodeDemands(),
        is_daemon_set=True,
    )
    kinds = {NodeKind(parse_platform("linux/arm64"), (), ()): 3}
    [problem] = problems_of(judged, Compatibility(), kinds)
    assert len(problem.line) <= 256
    assert shown.format(image) in problem.line
