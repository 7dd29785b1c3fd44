"""Nodes whose labels do not state their platform: node affinity keeps pods off them, which is said at creation."""

import pytest

from extender.images.platform import Platform, parse_platform
from extender.kubernetes.core_v1 import Node
from extender.placement.facts import RunsOn
from extender.placement.nodes import ClusterNodes, is_labelled
from extender.placement.planning import UNLABELLED
from tests.builders import AMD64 as AMD64_IMAGE
from tests.builders import ARCH, LEVEL, MULTI, OS, decoded, pod
from tests.unit.placement.json_patch import apply
from tests.unit.placement.mutating import mutate, settings

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


@pytest.mark.parametrize(
    ("platforms", "unlabelled", "fact", "is_warned"),
    [
        pytest.param({AMD64, ARM64}, AMD64, AMD64_IMAGE, True, id="its images run there"),
        pytest.param({AMD64, ARM64}, None, AMD64_IMAGE, True, id="a node that states nothing"),
        pytest.param({AMD64, ARM64}, ARM64, AMD64_IMAGE, False, id="its images do not run there"),
        pytest.param({AMD64, ARM64}, AMD64, MULTI, False, id="nothing is written"),
        pytest.param({AMD64, S390X}, S390X, MULTI, False, id="other images"),
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
