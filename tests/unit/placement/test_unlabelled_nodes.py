"""Nodes whose labels do not state their platform: node affinity keeps pods off them, which is said at creation."""

from typing import Any

import pytest

from extender.images.platform import Platform, parse_platform
from extender.kubernetes.core_v1 import Node
from extender.placement.facts import RunsOn, images_of
from extender.placement.mutation import Mutation, Mutator
from extender.placement.nodes import ClusterNodes, is_labelled
from extender.placement.planning import UNLABELLED
from extender.placement.policy import Overrides, Policy
from tests.builders import AMD64 as AMD64_IMAGE
from tests.builders import ARCH, LEVEL, MULTI, OS, created, decoded, pod
from tests.unit.placement.json_patch import apply
from tests.unit.placement.mutating import settings

AMD64, ARM64, S390X = (parse_platform(f"linux/{name}") for name in ("amd64", "arm64", "s390x"))


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


def mutated(cluster: ClusterNodes, *facts: RunsOn) -> Mutation:
    decoded = created(pod(len(facts)))
    return Mutator(Policy(), settings("required")).mutate(decoded, images_of(decoded), facts, Overrides(), cluster)


@pytest.mark.parametrize("unlabelled", [AMD64, None])
def test_a_pod_that_is_kept_off_a_node_without_labels_gets_a_warning(unlabelled: Platform | None) -> None:
    """Affinity names the platform all the same, and the reason names the image alone."""
    mutation = mutated(ClusterNodes(frozenset({AMD64, ARM64}), frozenset({unlabelled})), AMD64_IMAGE)
    assert mutation.warnings == (UNLABELLED,)
    assert mutation.reason == "image app-0:1 is built only for linux/amd64"
    stored: Any = apply(pod(), mutation.patch)
    assert stored["spec"]["nodeSelector"] == {ARCH: "amd64"}


@pytest.mark.parametrize(
    ("platforms", "unlabelled", "facts"),
    [({AMD64, ARM64}, {ARM64}, [AMD64_IMAGE]), ({AMD64, ARM64}, {AMD64}, [MULTI]), ({AMD64, S390X}, {S390X}, [MULTI])],
    ids=["its images do not run there", "nothing is written", "other images"],
)
def test_no_other_pod_does(platforms: set[Platform], unlabelled: set[Platform], facts: list[RunsOn]) -> None:
    """It loses nothing."""
    assert not mutated(ClusterNodes(frozenset(platforms), frozenset(unlabelled)), *facts).warnings
