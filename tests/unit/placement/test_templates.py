"""What pod templates get: those that `fix` reads, and those of objects that are created or changed."""

import contextlib
import copy
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.images.content import Cause
from extender.images.platform import parse_platform
from extender.kubernetes.pod_templates import PodTemplate
from extender.placement.additions import Additions
from extender.placement.affinity import AffinityMode
from extender.placement.annotations import ADDED, MODE
from extender.placement.facts import ImageFact, Unknown
from extender.placement.node_kinds import NodeKind
from extender.placement.nodes import ClusterNodes
from extender.placement.patch import apply
from extender.placement.planning import AdmissionSettings
from extender.placement.policy import Policy
from extender.placement.template_problems import Problem
from extender.placement.templates import (
    PREBUILT_LABEL,
    QUEUE_LABEL,
    TemplateAnswer,
    TemplateOwner,
    Templates,
    owner_of,
)
from extender.placement.tolerations import TolerationRule
from tests.builders import AMD64, ARCH, ARM64, MULTI, OS, PREFERRED, REQUIRED, Json, expression, platforms
from tests.unit.placement.mutating import POLICY, terms_of
from tests.unit.placement.template_reviews import job, reviewed, template_of

RULE = TolerationRule(
    key="arch", operator="Equal", value="arm64", effect="NoSchedule", platforms=("linux/amd64", "linux/arm64")
)
ADMISSION = AdmissionSettings(tolerations=(RULE,), node_affinity=AffinityMode.BOTH, scheduler_name="second")
NOT_KNOWN = Unknown(Cause.MISSING, "the registry has no such image")
KEYS = ("nodeAffinity", REQUIRED, PREFERRED, "nodeSelectorTerms", "matchExpressions", "key", "values", "name", "image")
AMD_RULE = TolerationRule(key="arch", operator="Exists", platforms=("linux/amd64",))
TEMPLATES = Templates(
    POLICY, AdmissionSettings(tolerations=(AMD_RULE,), node_affinity=AffinityMode.REQUIRED), guards=True
)
DIGEST = "sha256:" + "a1" * 32
MIXED = ClusterNodes(platforms("linux/amd64", "linux/arm64", "windows/amd64"))
PLACE = "spec.template.spec.replicatedJobs[12].template.spec.template"
MISSING = Unknown(Cause.MISSING, "x")


def template(kind: str = "Deployment", /, *, annotations: Mapping[str, str] | None = None, **spec: Any) -> PodTemplate:
    made = {"metadata": {"annotations": dict(annotations or {})}, "spec": {"containers": [{"image": "app:1"}], **spec}}
    return template_of({"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": "it"}, "spec": {"template": made}})


def change(
    found: PodTemplate,
    *facts: ImageFact,
    admission: AdmissionSettings = ADMISSION,
    namespace: dict[str, str] | None = None,
) -> TemplateAnswer:
    mutator = Templates(Policy(preference={"arm64": 10}), admission, cluster=MIXED)
    return mutator.fix(found, mutator.question(found, namespace), facts)


def paths(found: TemplateAnswer) -> list[str]:
    return [operation.path for operation in found.operations]


def test_a_deployment_gets_what_its_pods_would_get() -> None:
    found = change(template(), MULTI)
    assert paths(found) == ["/spec/tolerations", "/spec/affinity", "/spec/schedulerName"]
    assert found.added == (
        "node affinity kubernetes.io/arch In [amd64, arm64] and kubernetes.io/os In [linux]",
        "preferred node affinity kubernetes.io/arch In [arm64]",
        "toleration arch=arm64:NoSchedule",
        "schedulerName",
    )
    assert (found.unknown, found.warnings) == ((), ())


def test_a_daemon_set_is_kept_off_nodes_its_images_lack() -> None:
    """Required affinity and tolerations; its controller chooses the nodes, so no preference and no scheduler."""
    affinity = "node affinity kubernetes.io/arch In [amd64] and kubernetes.io/os In [linux]"
    assert change(template("DaemonSet"), AMD64).added == (affinity,)
    assert paths(change(template("DaemonSet"), MULTI)) == ["/spec/tolerations", "/spec/affinity"]


TOOL = {"initContainers": [{"image": "tool:2"}]}


@pytest.mark.parametrize(
    ("spec", "facts", "unknown", "warning"),
    [
        (TOOL, [MULTI, NOT_KNOWN], "image tool:2 is not known (missing): the registry has no such image", ""),
        ({"nodeSelector": {ARCH: "arm64"}}, [AMD64], "",
         "nodeSelector allows no node that the images run on: image app:1 is built only for linux/amd64"),
        (TOOL, [ARM64, AMD64], "", "no platform is common to all images: image app:1 is built only for linux/arm64"),
    ],
    ids=["an image is unknown", "its author allows no node", "no node can run it"],
)  # fmt: skip
def test_a_template_is_left_as_it_is(spec: Json, facts: list[ImageFact], unknown: str, warning: str) -> None:
    """What no affinity could mend its author must; a template gets no reason."""
    found = change(template(**spec), *facts)
    assert (found.operations, found.unknown) == ((), (unknown,) if unknown else ())
    assert "".join(found.warnings).startswith(warning)
    assert bool(found.warnings) is bool(warning)


@pytest.mark.parametrize("mode", ["ignore", "observe"])
def test_a_template_that_opts_out_is_left_as_it_is(mode: str) -> None:
    """By its own annotation, or its namespace's; so is that of bound pods, and of an ignored RuntimeClass."""
    assert change(template(annotations={MODE: mode}), MULTI) == TemplateAnswer()
    assert change(template(), MULTI, namespace={MODE: mode}) == TemplateAnswer()
    mutator = Templates(POLICY, ADMISSION)
    for left in (template(nodeName="one"), template(runtimeClassName="wasm")):
        assert mutator.question(left, None).images == ()


def test_a_record_of_the_webhook_is_kept_true() -> None:
    """A manifest that was read back from a pod has what the webhook added, with its record, which is narrowed."""
    mutator = Templates(Policy(), msgspec.structs.replace(ADMISSION, scheduler_name=""))
    tolerations = [msgspec.to_builtins(RULE.toleration)]
    record = Additions(tolerations=(RULE.toleration,)).record
    found = template(annotations={ADDED: record}, tolerations=tolerations)
    written = paths(mutator.fix(found, mutator.question(found, None), [AMD64]))
    for part in ("/metadata/annotations", "/spec/tolerations"):
        assert any(path.startswith(part) for path in written)


NO_PARTS: list[Json] = [
    {"volumes": "data"}, {"nodeSelector": ["amd64"]}, {"tolerations": {"key": "arch"}}, {"tolerations": ["arch"]},
    {"affinity": {"nodeAffinity": {REQUIRED: []}}}, {"schedulerName": 3},
]  # fmt: skip


@pytest.mark.parametrize("spec", NO_PARTS, ids=str)
def test_a_template_no_server_would_accept_is_refused(spec: Json) -> None:
    with pytest.raises(msgspec.ValidationError, match="Expected"):
        Templates(Policy(), ADMISSION).question(template(**spec), None)


JUNK: st.SearchStrategy[object] = st.recursive(
    st.sampled_from([None, True, 0, 1.5, "", "text", [], {}]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=2),
    max_leaves=6,
)
FIELDS = (
    "tolerations", "affinity", "nodeSelector", "schedulerName", "schedulingGates", "volumes", "initContainers",
)  # fmt: skip


@given(st.sampled_from(FIELDS), JUNK, st.sampled_from(["labels", "annotations"]), JUNK)
def test_junk_is_refused_and_nothing_else_is_raised(field: str, value: object, own: str, about: object) -> None:
    """Manifests are validated by nobody before they come here."""
    made = {"metadata": {own: about}, "spec": {"containers": [{"image": "app:1"}], field: value}}
    found = template_of({"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "it"}, "template": made})
    mutator = Templates(Policy(), ADMISSION)
    with contextlib.suppress(msgspec.ValidationError):
        question = mutator.question(found, None)
        mutator.fix(found, question, [MULTI for _ in question.images])


OWN_TOLERATION, OWN_SELECTOR = (
    {"tolerations": [{"key": "own", "operator": "Exists"}]},
    {"nodeSelector": {"disk": "ssd"}},
)


@pytest.mark.parametrize("own", [{}, OWN_TOLERATION, OWN_SELECTOR], ids=["nothing", "tolerations", "a selector"])
@pytest.mark.parametrize(
    ("owner", "stays"),
    [
        (owner_of({"metadata": {"labels": {QUEUE_LABEL: "team"}}}), False),
        (owner_of({"metadata": {"labels": {QUEUE_LABEL: "team", PREBUILT_LABEL: "w"}}}), True),
        (
            owner_of(
                {
                    "metadata": {"labels": {QUEUE_LABEL: "team"}},
                    "spec": {"managedBy": "kueue.x-k8s.io/multikueue"},
                }
            ),
            True,
        ),
    ],
    ids=["a queue here", "planned elsewhere", "run elsewhere"],
)
def test_what_kueue_compares_with_a_plan_from_elsewhere_is_not_changed(
    own: Json, owner: TemplateOwner, stays: bool
) -> None:
    """It is kept to its platform by node affinity all the same, which Kueue does not compare.

    Source: kueue pkg/util/equality/podset.go compares containers, init containers and, before admission, tolerations.
    """
    found = template_of(job(**copy.deepcopy(own)))
    plan = copy.deepcopy(dict(found.template))
    changed: Any = apply(copy.deepcopy(plan), reviewed(TEMPLATES, found, AMD64, owner=owner).operations)
    assert terms_of(changed) == [{"matchExpressions": [expression(ARCH, "amd64"), expression(OS, "linux")]}]
    compared = ("containers", "initContainers", "tolerations")
    assert all(plan["spec"].get(key) == changed["spec"].get(key) for key in compared) == stays


@pytest.mark.parametrize(
    ("secrets", "namespace", "problems"),
    [("s", "shop", [Problem.DENIED]), ("s", "", []), ("", "shop", [])],
    ids=["its own secrets", "secrets of another namespace", "none"],
)
def test_an_author_is_told_of_a_denied_image_where_its_secrets_were_tried(
    secrets: str, namespace: str, problems: list[Problem]
) -> None:
    """An object without a namespace names secrets of wherever its pods will be; a ServiceAccount may bring some."""
    document = job(**({"imagePullSecrets": [{"name": secrets}]} if secrets else {}))
    document["metadata"] |= {"namespace": namespace} if namespace else {}
    found = reviewed(TEMPLATES, template_of(document), AMD64, Unknown(Cause.DENIED, "the registry says no"))
    assert [each.problem for each in found.problems] == problems


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
    containers = [{"image": each} for each in (image, "other:1")[: len(facts)]]
    found = msgspec.structs.replace(template("DaemonSet", containers=containers), path=(place,))
    kinds = {NodeKind(parse_platform("linux/arm64"), (), ()): 3}
    [problem] = reviewed(Templates(POLICY, ADMISSION), found, *facts, kinds=kinds).problems
    assert len(problem.line) <= 256
    assert shown.format(image) in problem.line
