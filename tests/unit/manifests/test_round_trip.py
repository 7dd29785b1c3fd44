"""Properties of edits over many shapes of manifests: only lines are added, and the value is what the patch gives."""

import copy
import difflib
import io
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from extender.images.platform import Platform
from extender.manifests.editing import read_document
from extender.manifests.fixing import ManifestStream
from extender.placement.affinity import AffinityMode
from extender.placement.facts import ImageFact, PodImage, RunsOn
from extender.placement.planning import AdmissionPolicy
from extender.placement.policy import Policy
from extender.placement.template_changes import TemplateMutator
from extender.placement.tolerations import TolerationRule

RULE = TolerationRule(
    key="arch", operator="Equal", value="arm64", effect="NoSchedule", platforms=("linux/amd64", "linux/arm64")
)
MUTATOR = TemplateMutator(
    Policy(preference={"arm64": 10}), AdmissionPolicy(tolerations=(RULE,), node_affinity=AffinityMode.BOTH)
)
PLATFORMS = {
    "multi": frozenset({Platform("linux", "amd64"), Platform("linux", "arm64")}),
    "amd": frozenset({Platform("linux", "amd64")}),
}

COMMENTS = st.lists(st.sampled_from(["# note", "#", "    # deep", "", "# key: value", "# - item"]), max_size=2)
ZONE: dict[str, Any] = {"key": "zone", "operator": "In", "values": ["a"]}
AFFINITIES = st.sampled_from(
    [
        None,
        {"podAntiAffinity": {}},
        {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchExpressions": [ZONE]}, {"matchFields": [{**ZONE, "key": "metadata.name"}]}]}}},
        {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": 1, "preference": {"matchExpressions": [ZONE]}}]}},
    ]
)  # fmt: skip


@st.composite
def manifests(draw: st.DrawFn) -> str:
    """A Deployment or DaemonSet in block style, with comments between its lines and lists indented in one way."""
    spec: dict[str, Any] = {
        "containers": [
            {"name": "one", "image": draw(st.sampled_from(list(PLATFORMS)))} for _ in range(draw(st.integers(1, 2)))
        ]
    }
    if affinity := draw(AFFINITIES):
        spec["affinity"] = copy.deepcopy(affinity)
    if draw(st.booleans()):
        spec["tolerations"] = draw(st.sampled_from([[{"key": "own"}], [], None]))
    if draw(st.booleans()):
        spec["nodeSelector"] = {"zone": "a"}
    keys = draw(st.permutations(list(spec)))
    kind = draw(st.sampled_from(["Deployment", "DaemonSet"]))
    template = {"metadata": {"labels": {"app": "web"}}, "spec": {key: spec[key] for key in keys}}
    yaml = YAML()
    if draw(st.booleans()):
        yaml.indent(mapping=2, sequence=4, offset=2)
    made = io.StringIO()
    document = {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": "web"}, "spec": {"template": template}}
    yaml.dump(document, made)
    lines = []
    for line in made.getvalue().splitlines():
        indent = " " * (len(line) - len(line.lstrip()))
        lines += [indent + comment if comment else "" for comment in draw(COMMENTS)]
        lines.append(line + draw(st.sampled_from(["", "  # beside"])))
    tail = draw(COMMENTS)
    return "\n".join([*lines, *tail, ""])


def facts_of(images: list[PodImage]) -> list[ImageFact]:
    """The facts of images that are named for their platforms."""
    return [RunsOn(PLATFORMS[image.reference]) for image in images]


def fixed(text: str) -> str:
    """The text as `fix` gives it."""
    return ManifestStream(text, MUTATOR).fix(lambda images: facts_of(list(images)))[0]


@settings(max_examples=20, deadline=None)
@given(manifests())
def test_every_line_stays_and_new_ones_are_between_them(text: str) -> None:
    """Comments, blank lines and order stay; only an empty list or a null gives its line for lines of its own."""
    after = fixed(text)
    lines = [line[2:] for line in difflib.ndiff(text.splitlines(), after.splitlines()) if line.startswith("- ")]
    assert all(line.split("#")[0].strip() in ("tolerations: []", "tolerations:") for line in lines), (lines, after)
    comments = [line.strip() for line in text.splitlines() if line.strip().startswith("#")]
    assert [line.strip() for line in after.splitlines() if line.strip().startswith("#")] == comments


@settings(max_examples=20, deadline=None)
@given(manifests())
def test_a_second_pass_changes_nothing(text: str) -> None:
    """And the value is the same but for nodeSelector, affinity and tolerations."""
    after = fixed(text)
    assert fixed(after) == after
    before_value, after_value = read_document(text), read_document(after)
    for value in (before_value, after_value):
        spec: Any = value["spec"]["template"]["spec"]  # type: ignore[call-overload,index]  # the shape of `manifests`
        spec.pop("affinity", None)
        spec.pop("nodeSelector", None)
        spec.pop("tolerations", None)
    assert before_value == after_value
