"""The level label in the words that keep a pod to its images' platforms: an autoscaler buys what filter accepts."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from extender.images.platform import Platform, parse_platform
from extender.kubernetes.core_v1 import CreatedPod, CreatedSpec
from extender.kubernetes.reported_v1 import ReportedNode
from extender.placement.facts import Fit, RunsOn, fit, images_of
from extender.placement.mutation import AdmissionOutcome, Mutation, Mutator
from extender.placement.node_match import demands_of, obstacles
from extender.placement.nodes import ClusterNodes, platform_of_node
from extender.placement.policy import Overrides, Policy
from tests.unit.placement.json_patch import apply
from tests.unit.placement.mutating import pod, settings

LEVEL = "multiarch-extender.io/level"
POLICY = Policy()
PLAIN = ("linux/amd64", "linux/arm64", "linux/arm/v7", "windows/amd64", "linux/s390x")


def mutated(facts: Sequence[RunsOn], cluster: frozenset[Platform], policy: Policy = POLICY) -> tuple[Any, Mutation]:
    """The spec of a pod of these images after the webhook, and the mutation."""
    document = pod(len(facts))
    created = msgspec.json.decode(msgspec.json.encode(document), type=CreatedPod)
    mutation = Mutator(policy, settings("required", rules=())).mutate(
        created, images_of(created), facts, Overrides(), ClusterNodes(cluster)
    )
    stored: Any = apply(document, mutation.patch)
    return stored["spec"], mutation


def node(platform: str, level: str = "") -> ReportedNode:
    """A node as a kubelet registers it, with the label."""
    os, architecture = platform.split("/")[:2]
    labels = {"kubernetes.io/os": os, "kubernetes.io/arch": architecture} | ({LEVEL: level} if level else {})
    info = {"operatingSystem": os, "architecture": architecture}
    return msgspec.convert({"metadata": {"name": "n", "labels": labels}, "status": {"nodeInfo": info}}, ReportedNode)


NODES = [
    *(node(platform) for platform in PLAIN),
    *(node("linux/amd64", level) for level in ("v1", "v2", "v3", "amd64-v3", "v4", "amd64-v4", "arm64-v9", "fast")),
    *(node("linux/arm64", level) for level in ("v8", "v8.2", "v9", "arm64-v9", "arm64-v9.3", "v3")),
    *(node("linux/arm/v7", level) for level in ("v6", "arm-v6", "v8")),
]
IMAGES = [
    ["linux/amd64/v3"], ["linux/amd64/v2", "linux/arm64"], ["linux/amd64", "linux/amd64/v3"], ["linux/arm64/v9"],
    ["linux/amd64/v3", "linux/arm64/v8.2", "linux/arm/v7"], ["linux/amd64/v4", "windows/amd64"], ["linux/arm/v8"],
    ["linux/amd64", "linux/arm64", "linux/arm/v7"], ["linux/amd64/v5", "linux/s390x"],
]  # fmt: skip


@pytest.mark.parametrize("others", IMAGES, ids=lambda texts: "+".join(text[6:] for text in texts))
@pytest.mark.parametrize("texts", IMAGES, ids=lambda texts: "+".join(text[6:] for text in texts))
def test_the_words_allow_the_nodes_that_filter_keeps(texts: list[str], others: list[str]) -> None:
    """For each node of a cluster, of every level; and of a cluster that has them all, no other."""
    facts = [RunsOn(frozenset(map(parse_platform, each))) for each in (texts, others)]
    platforms = [platform_of_node(each) for each in NODES]
    cluster = frozenset(each for each in platforms if each)
    spec, _ = mutated(facts, cluster)
    demands = demands_of(msgspec.json.decode(msgspec.json.encode(spec), type=CreatedSpec))
    for each, platform in zip(NODES, platforms, strict=True):
        assert platform is not None
        kept = fit(facts, platform, POLICY.compatibility) is Fit.YES
        assert (not obstacles(demands, each)) is kept, (platform, spec)


def test_the_words_name_the_label_in_both_documented_ways() -> None:
    """Also without a cluster, as in `fix`."""
    spec, mutation = mutated([RunsOn(frozenset({parse_platform("linux/amd64/v3")}))], frozenset())
    [term] = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term["matchExpressions"] == [
        {"key": "kubernetes.io/arch", "operator": "In", "values": ["amd64"]},
        {"key": "kubernetes.io/os", "operator": "In", "values": ["linux"]},
        {"key": LEVEL, "operator": "In", "values": ["v3", "amd64-v3", "v4", "amd64-v4"]},
    ]
    assert mutation.reason == "image app-0:1 is built only for linux/amd64/v3"


def test_a_level_that_no_label_can_state_is_no_platform() -> None:
    """Filter refuses every node of it; the pod waits with its reason."""
    _, mutation = mutated([RunsOn(frozenset({parse_platform("linux/riscv64/rva22")}))], frozenset())
    assert mutation.outcome is AdmissionOutcome.IMPOSSIBLE
