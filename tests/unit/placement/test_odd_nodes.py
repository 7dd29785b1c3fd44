"""Nodes whose labels do not state their platform: words that they can meet, or a warning."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from extender.images.platform import parse_platform
from extender.kubernetes.core_v1 import CreatedPod, CreatedSpec
from extender.kubernetes.reported_v1 import ReportedNode
from extender.placement.cluster_nodes import ClusterNodes, odd_nodes_of
from extender.placement.facts import Fit, RunsOn, fit, images_of
from extender.placement.mutation import AdmissionOutcome, Mutation, Mutator
from extender.placement.node_match import demands_of, obstacles
from extender.placement.nodes import platform_of_node
from extender.placement.policy import Overrides, Policy
from tests.unit.placement.json_patch import apply
from tests.unit.placement.mutating import pod, settings

LEVEL = "example.com/level"
POLICY = Policy(level_label=LEVEL)
ARCH, OS, BETA_ARCH, BETA_OS = (f"{beta}kubernetes.io/{key}" for beta in ("", "beta.") for key in ("arch", "os"))
MISLEADING = "of some nodes do not state their platform, and kube-scheduler goes by them"


def node(platform: str, labels: Mapping[str, str] | None = None) -> ReportedNode:
    """A node whose kubelet states the platform, with the usual labels unless others are given."""
    os, _, architecture = platform.partition("/")
    info = {"operatingSystem": os, "architecture": architecture} if platform else {}
    own = {OS: os, ARCH: architecture} if labels is None else labels
    return msgspec.convert({"metadata": {"name": "n", "labels": own}, "status": {"nodeInfo": info}}, ReportedNode)


def beta(platform: str) -> ReportedNode:
    """A virtual node, as some clouds make it: it has the beta labels alone."""
    os, _, architecture = platform.partition("/")
    return node(platform, {BETA_OS: os, BETA_ARCH: architecture})


def decided(nodes: list[ReportedNode], *platforms: str, **spec: Any) -> tuple[list[bool], list[bool], Mutation]:
    """For each node whether filter keeps it, whether kube-scheduler does by the words, and the mutation."""
    document = pod(**spec)
    created = msgspec.json.decode(msgspec.json.encode(document), type=CreatedPod)
    fact = RunsOn(frozenset(map(parse_platform, platforms)))
    stated = [platform_of_node(each, LEVEL) for each in nodes]
    odd = [odd_nodes_of(each, LEVEL) for each in nodes]
    cluster = ClusterNodes(frozenset(each for each in stated if each), frozenset(each for each in odd if each))
    mutation = Mutator(POLICY, settings("required")).mutate(created, images_of(created), [fact], Overrides(), cluster)
    stored: Any = apply(document, mutation.patch)
    demands = demands_of(msgspec.json.decode(msgspec.json.encode(stored["spec"]), type=CreatedSpec))
    kept = [each is None or fit([fact], each, POLICY.compatibility) is Fit.YES for each in stated]
    return kept, [not obstacles(demands, each) for each in nodes], mutation


AMD, ARM, WINDOWS = node("linux/amd64"), node("linux/arm64"), node("windows/amd64")


@pytest.mark.parametrize(
    ("nodes", "platforms"),
    [
        ([AMD, ARM, beta("linux/amd64")], ["linux/amd64"]),
        ([AMD, ARM, node("linux/amd64", {})], ["linux/amd64"]),
        ([AMD, beta("linux/amd64")], ["linux/amd64"]),
        ([beta("linux/arm64"), AMD, ARM], ["linux/arm64", "linux/s390x"]),
        ([beta("windows/amd64"), WINDOWS, AMD, ARM], ["windows/amd64"]),
        ([AMD, WINDOWS, node("linux/amd64", {OS: "linux"})], ["linux/amd64"]),
        ([AMD, ARM, node("linux/amd64", {OS: "linux", ARCH: "x86_64"})], ["linux/amd64"]),
        ([AMD, ARM, node("", {})], ["linux/amd64"]),
        ([AMD, ARM, beta("linux/arm64")], ["linux/amd64"]),
        ([AMD, ARM, node("linux/amd64", {OS: "linux", ARCH: "amd64", LEVEL: "x86-64-v3"})], ["linux/amd64/v3"]),
    ],
    ids=["beta labels", "no labels", "of one platform", "arm64", "windows", "one label", "another spelling", "nothing",
         "beta labels of a wrong one", "a level in other words"],
)  # fmt: skip
def test_the_words_are_met_by_the_nodes_that_filter_keeps(nodes: list[ReportedNode], platforms: list[str]) -> None:
    """A pod with words that no such node meets would wait for ever, though filter says yes."""
    kept, met, mutation = decided(nodes, *platforms)
    assert met == kept
    assert any(kept)
    assert not mutation.warnings


@pytest.mark.parametrize(
    "nodes",
    [
        [AMD, ARM, node("linux/amd64", {}), node("linux/arm64", {})],
        [AMD, ARM, node("linux/amd64", {OS: "linux", ARCH: "arm64"})],
        [AMD, ARM, node("linux/arm64", {OS: "linux", ARCH: "amd64"})],
    ],
    ids=["right and wrong without labels", "a right one with wrong labels", "a wrong one with right labels"],
)
def test_what_no_words_can_tell_apart_is_said(nodes: list[ReportedNode]) -> None:
    """In a warning and in the reason. The words name the platforms then: an autoscaler's nodes have labels."""
    kept, met, mutation = decided(nodes, "linux/amd64")
    assert met != kept
    assert MISLEADING in mutation.warnings[-1]
    assert mutation.reason.startswith("image app-0:1 is built only for linux/amd64; the labels ")
    assert mutation.reason.endswith(MISLEADING)


def test_a_pod_for_nodes_without_labels_is_not_impossible() -> None:
    """Its author chose the virtual nodes; the words that name platforms would contradict him."""
    absent = [{"key": ARCH, "operator": "DoesNotExist"}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": absent}]}}
    spec = {"affinity": {"nodeAffinity": required}}
    kept, met, mutation = decided([AMD, ARM, beta("linux/amd64")], "linux/amd64", **spec)
    assert (kept, met) == ([True, False, True], [False, False, True])
    assert mutation.outcome is AdmissionOutcome.UNCHANGED
    _, met, mutation = decided([AMD, ARM, beta("linux/arm64")], "linux/amd64", **spec)
    assert (met, mutation.outcome) == ([False] * 3, AdmissionOutcome.IMPOSSIBLE)
