"""What is added to pod templates, and what is left as it is."""

import contextlib
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.images.content import Cause
from extender.images.platform import Platform
from extender.kubernetes.pod_templates import PodTemplate, pod_templates
from extender.placement.additions import Additions, write_record
from extender.placement.affinity import AffinityMode
from extender.placement.facts import ImageFact, RunsOn, RuntimeClass, Unknown
from extender.placement.planning import AdmissionSettings
from extender.placement.policy import ADDED, MODE, Policy
from extender.placement.template_changes import TemplateChange, TemplateMutator
from extender.placement.tolerations import TolerationRule

AMD, ARM = Platform("linux", "amd64"), Platform("linux", "arm64")
RULE = TolerationRule(
    key="arch", operator="Equal", value="arm64", effect="NoSchedule", platforms=("linux/amd64", "linux/arm64")
)
ADMISSION = AdmissionSettings(tolerations=(RULE,), node_affinity=AffinityMode.BOTH, scheduler_name="second")
MULTI, ONLY_AMD = RunsOn(frozenset({AMD, ARM})), RunsOn(frozenset({AMD}))
NOT_KNOWN = Unknown(Cause.MISSING, "the registry has no such image")


def template(kind: str = "Deployment", /, *, annotations: Mapping[str, str] | None = None, **spec: Any) -> PodTemplate:
    """The template of a workload with one container."""
    made = {"metadata": {"annotations": dict(annotations or {})}, "spec": {"containers": [{"image": "app:1"}], **spec}}
    document = {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": "it"}, "spec": {"template": made}}
    [found] = pod_templates(document)
    return found


def change(
    found: PodTemplate,
    *facts: ImageFact,
    admission: AdmissionSettings = ADMISSION,
    namespace: dict[str, str] | None = None,
) -> TemplateChange:
    """What becomes of the template with these facts."""
    mutator = TemplateMutator(Policy(preference={"arm64": 10}), admission)
    return mutator.change(found, mutator.question(found, namespace), facts)


def test_a_deployment_gets_what_its_pods_would_get() -> None:
    """Affinity, tolerations and the scheduler's name, and no annotation."""
    found = change(template(), MULTI)
    assert [operation.path for operation in found.operations] == [
        "/spec/tolerations",
        "/spec/affinity",
        "/spec/schedulerName",
    ]
    assert found.added == (
        "node affinity kubernetes.io/arch In [amd64, arm64] and kubernetes.io/os In [linux]",
        "preferred node affinity kubernetes.io/arch In [arm64]",
        "toleration arch=arm64:NoSchedule",
        "schedulerName",
    )
    assert (found.unknown, found.warnings) == ((), ())


def test_a_daemon_set_is_kept_off_nodes_its_images_lack() -> None:
    """Required affinity and tolerations; its controller chooses the nodes, so no preference and no scheduler."""
    assert change(template("DaemonSet"), ONLY_AMD).added == (
        "nodeSelector kubernetes.io/arch=amd64, kubernetes.io/os=linux",
    )
    assert [operation.path for operation in change(template("DaemonSet"), MULTI).operations] == [
        "/spec/tolerations",
        "/spec/affinity",
    ]


def test_an_unknown_image_leaves_the_template_as_it_is() -> None:
    """Even beside one that is known; the sentence names the image and the cause."""
    found = change(template(initContainers=[{"image": "tool:2"}]), MULTI, NOT_KNOWN)
    assert found.operations == ()
    assert found.unknown == ("image tool:2 is not known (missing): the registry has no such image",)


def test_a_selector_that_allows_no_node_is_a_warning() -> None:
    """No affinity could mend it, so its author must."""
    found = change(template(nodeSelector={"kubernetes.io/arch": "arm64"}), ONLY_AMD)
    assert found.operations == ()
    assert found.warnings == (
        "nodeSelector allows no node that the images run on: image app:1 is built only for linux/amd64",
    )


def test_images_without_a_common_platform_are_a_warning() -> None:
    """The webhook would write the reason; a template gets none."""
    found = change(
        template(initContainers=[{"image": "tool:2"}]), RunsOn(frozenset({ARM})), ONLY_AMD,
        admission=AdmissionSettings(node_affinity=AffinityMode.REQUIRED),
    )  # fmt: skip
    assert found.operations == ()
    assert found.warnings[0].startswith("no platform is common to all images")


@pytest.mark.parametrize("where", ["template", "namespace"])
@pytest.mark.parametrize("mode", ["ignore", "observe"])
def test_a_template_that_opts_out_is_left_as_it_is(where: str, mode: str) -> None:
    """By its own annotation, or its namespace's."""
    own, namespace = ({MODE: mode}, None) if where == "template" else (None, {MODE: mode})
    assert change(template(annotations=own), MULTI, namespace=namespace) == TemplateChange()


@pytest.mark.parametrize("spec", [{"nodeName": "one"}, {"runtimeClassName": "wasm"}])
def test_what_no_decision_is_made_about_is_left_as_it_is(spec: dict[str, Any]) -> None:
    """A bound pod's template, and an ignored RuntimeClass."""
    mutator = TemplateMutator(Policy(runtime_classes={"wasm": RuntimeClass("wasm", frozenset())}), ADMISSION)
    assert mutator.question(template(**spec), None).images == ()


def test_a_record_of_the_webhook_is_kept_true() -> None:
    """A manifest that was read back from a pod has what the webhook added, with its record, which is narrowed."""
    mutator = TemplateMutator(Policy(), msgspec.structs.replace(ADMISSION, scheduler_name=""))
    old = Additions(tolerations=(RULE.toleration,))
    tolerations = [msgspec.to_builtins(RULE.toleration)]
    found = template(annotations={ADDED: write_record(old)}, tolerations=tolerations)
    paths = [item.path for item in mutator.change(found, mutator.question(found, None), [ONLY_AMD]).operations]
    assert any(path.startswith("/metadata/annotations") for path in paths)
    assert any(path.startswith("/spec/tolerations") for path in paths)


@pytest.mark.parametrize(
    "spec",
    [
        {"volumes": "data"},
        {"nodeSelector": ["amd64"]},
        {"tolerations": {"key": "arch"}},
        {"tolerations": ["arch"]},
        {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": []}}},
        {"schedulerName": 3},
    ],
)
def test_a_template_no_server_would_accept_is_refused(spec: dict[str, Any]) -> None:
    """A field of another type than core/v1's, before anything is decided by it."""
    mutator = TemplateMutator(Policy(), ADMISSION)
    with pytest.raises(msgspec.ValidationError, match="Expected"):
        mutator.question(template(**spec), None)


JUNK: st.SearchStrategy[object] = st.recursive(
    st.sampled_from([None, True, 0, 1.5, "", "text", [], {}]),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2),
        st.dictionaries(
            st.sampled_from(
                ["nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms", "key",
                 "preferredDuringSchedulingIgnoredDuringExecution", "matchExpressions", "values", "name", "image"]
            ),
            inner,
            max_size=2,
        ),
    ),
    max_leaves=6,
)  # fmt: skip
FIELDS = ("tolerations", "affinity", "nodeSelector", "schedulerName", "schedulingGates", "volumes", "initContainers")


@given(st.sampled_from(FIELDS), JUNK, st.sampled_from(["labels", "annotations"]), JUNK)
def test_junk_is_refused_and_nothing_else_is_raised(field: str, value: object, own: str, about: object) -> None:
    """Manifests are validated by nobody before they come here."""
    made = {"metadata": {own: about}, "spec": {"containers": [{"image": "app:1"}], field: value}}
    document = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "it"}, "template": made}
    [found] = pod_templates(document)
    mutator = TemplateMutator(Policy(), ADMISSION)
    with contextlib.suppress(msgspec.ValidationError):
        question = mutator.question(found, None)
        mutator.change(found, question, [MULTI for _ in question.images])
