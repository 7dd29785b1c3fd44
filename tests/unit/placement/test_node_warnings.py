"""What an author is told of nodes: that a pod names one of another platform, or is kept off those without labels."""

from typing import Any

import pytest

from extender.images.platform import Platform, parse_platform
from extender.kubernetes.core_v1 import Node, NodeMeta, NodeName
from extender.kubernetes.reported_v1 import ReportedNode
from extender.placement.facts import ImageFact, RunsOn
from extender.placement.node_kinds import HOST_NAME
from extender.placement.nodes import ClusterNodes, is_labelled
from extender.placement.pinned_nodes import names_of_node
from extender.placement.planning import UNLABELLED
from extender.placement.template_problems import Problem
from extender.placement.templates import Templates
from tests.builders import AMD64, ARCH, LEVEL, MULTI, OS, decoded, expression, pod, with_terms
from tests.unit.placement.json_patch import apply
from tests.unit.placement.mutating import POLICY, mutate, settings
from tests.unit.placement.template_reviews import job, reviewed, template_of

NODES: dict[NodeName, Platform | None] = {
    NodeName("amd"): parse_platform("linux/amd64"),
    NodeName("arm"): parse_platform("linux/arm64"),
    NodeName("other-arm"): parse_platform("linux/arm64"),
    NodeName("silent"): None,
}
CLUSTER = ClusterNodes(frozenset(filter(None, NODES.values())), by_name=NODES)
FIELD, LABEL = "matchFields", "matchExpressions"


def selector(name: str) -> dict[str, Any]:
    return {"nodeSelector": {HOST_NAME: name}}


def terms(*names: tuple[str, str]) -> dict[str, Any]:
    keys = {FIELD: "metadata.name", LABEL: HOST_NAME}
    return {"affinity": with_terms(*({kind: [expression(keys[kind], name)]} if name else {} for kind, name in names))}


RIGHT, WRONG_ARM = "", "node arm, which is linux/arm64"


@pytest.mark.parametrize(
    ("spec", "fact", "nodes"),
    [
        pytest.param(selector("arm"), AMD64, WRONG_ARM, id="nodeSelector"),
        pytest.param(terms((LABEL, "arm")), AMD64, WRONG_ARM, id="label"),
        pytest.param(
            terms((FIELD, "arm"), (LABEL, "other-arm")), AMD64, "node arm (and 1 more), which is linux/arm64", id="both"
        ),
        pytest.param(terms((FIELD, "arm"), (LABEL, "")), AMD64, WRONG_ARM, id="beside a term that matches nothing"),
        pytest.param(selector("amd"), AMD64, RIGHT, id="right node"),
        pytest.param(selector("arm"), MULTI, RIGHT, id="right image"),
        pytest.param(selector("unseen"), AMD64, RIGHT, id="not in view"),
        pytest.param(selector("silent"), AMD64, RIGHT, id="states no platform"),
        pytest.param(terms((LABEL, "arm"), (LABEL, "amd")), AMD64, RIGHT, id="another node"),
        pytest.param({"nodeSelector": {"disk": "ssd"}}, AMD64, RIGHT, id="names none"),
    ],
)
def test_a_pod_that_names_a_node_of_another_platform_is_warned_of(
    spec: dict[str, Any], fact: ImageFact, nodes: str
) -> None:
    expected = f"this pod asks for {nodes}: image app-0:1 is built only for linux/amd64"
    for cluster, is_warned in ((CLUSTER, bool(nodes)), (ClusterNodes(CLUSTER.platforms), False)):
        mutation = mutate(pod(**spec), fact, admission=settings("required"), cluster=cluster)
        assert mutation.warnings == ((expected,) if is_warned else ())


def test_the_author_of_a_template_is_told_too() -> None:
    """Pods of a controller are created where nobody reads warnings."""
    templates = Templates(POLICY, settings("required"))
    [problem] = reviewed(templates, template_of(job(**selector("arm"))), AMD64, cluster=CLUSTER).problems
    assert (problem.problem, problem.line) == (
        Problem.WRONG_NODES,
        "spec.template: image app:1 runs on linux/amd64 only, but its pods ask for node arm, which is linux/arm64",
    )


def test_a_node_is_asked_for_by_its_name_and_by_its_label() -> None:
    """Which differ where a cloud gives a node its name."""
    node = ReportedNode(metadata=NodeMeta("arm", {HOST_NAME: "arm.example.com"}))
    assert names_of_node(node) == ("arm", "arm.example.com")


ON_AMD64, ON_ARM64, ON_S390X = (parse_platform(f"linux/{name}") for name in ("amd64", "arm64", "s390x"))


@pytest.mark.parametrize(
    ("labels", "stated"),
    [
        ({OS: "linux", ARCH: "amd64"}, True),
        ({OS: "linux", ARCH: "amd64", LEVEL: "v3"}, True),
        ({OS: "linux", ARCH: "amd64", LEVEL: "amd64-v3"}, True),
        ({OS: "linux", ARCH: "amd64", LEVEL: "x86-64-v3"}, False),
        ({OS: "linux", ARCH: "x86_64"}, False),
        ({OS: "linux"}, False),
        ({f"beta.{OS}": "linux", f"beta.{ARCH}": "amd64"}, False),
        ({}, False),
    ],
)
def test_labels_state_a_platform_in_the_words_of_affinity(labels: dict[str, str], stated: bool) -> None:
    """What the kubelet says of itself does not count."""
    info = {"operatingSystem": "linux", "architecture": "amd64"}
    assert is_labelled(decoded({"metadata": {"labels": labels}, "status": {"nodeInfo": info}}, Node)) is stated
    assert not is_labelled(Node())


@pytest.mark.parametrize(
    ("platforms", "unlabelled", "fact", "is_warned"),
    [
        pytest.param({ON_AMD64, ON_ARM64}, ON_AMD64, AMD64, True, id="its images run there"),
        pytest.param({ON_AMD64, ON_ARM64}, None, AMD64, True, id="a node that states nothing"),
        pytest.param({ON_AMD64, ON_ARM64}, ON_ARM64, AMD64, False, id="its images do not run there"),
        pytest.param({ON_AMD64, ON_ARM64}, ON_AMD64, MULTI, False, id="nothing is written"),
        pytest.param({ON_AMD64, ON_S390X}, ON_S390X, MULTI, False, id="other images"),
    ],
)
def test_a_pod_that_is_kept_off_a_node_without_labels_gets_a_warning(
    platforms: set[Platform], unlabelled: Platform | None, fact: RunsOn, is_warned: bool
) -> None:
    """Affinity names the platform all the same, and the reason names the image alone; no other pod loses anything."""
    cluster = ClusterNodes(frozenset(platforms), frozenset({unlabelled}))
    mutation = mutate(pod(), fact, admission=settings("required"), cluster=cluster)
    assert mutation.warnings == ((UNLABELLED,) if is_warned else ())
    if is_warned:
        assert mutation.reason == "image app-0:1 is built only for linux/amd64"
        assert apply(pod(), mutation.patch)["spec"]["nodeSelector"] == {ARCH: "amd64"}
