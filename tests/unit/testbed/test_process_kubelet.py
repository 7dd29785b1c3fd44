"""The stand-in for kubelets: whose pods it runs, and where a container's files are."""

from pathlib import Path

import pytest

from testbed.objects import KubernetesObject, pod
from testbed.process_kubelet import is_ours, localize

MOUNTS = {
    "/etc/multiarch-extender": Path("/run/pod/configuration"),
    "/etc/multiarch-extender-tls": Path("/run/pod/certificate"),
    "/tmp": Path("/run/pod/identity"),
}


def serving(*images: str, args: tuple[str, ...] = ("serve",)) -> KubernetesObject:
    """A pod with a container for each image, with these arguments."""
    made = pod("webhook", *images)
    for container in made["spec"]["containers"]:
        container["args"] = list(args)
    return made


@pytest.mark.parametrize(
    "image",
    [
        "multiarch-extender",
        "127.0.0.1:5000/multiarch-extender:0.1.0",
        "registry.example.com/team/multiarch-extender@sha256:00",
    ],
)
def test_the_service_is_known_by_its_image_in_any_registry(image: str) -> None:
    """By the last part of the path."""
    assert is_ours(serving(image))


@pytest.mark.parametrize(
    "other",
    [
        serving("multiarch-extender-tools:1"),
        serving("not-multiarch-extender:1"),
        serving("multiarch-extender/tools:1"),
        serving("multiarch-extender:1", args=("config",)),
        serving("multiarch-extender:1", "multiarch-extender:1"),
        pod("web", "multiarch-extender:1"),
    ],
    ids=["longer", "prefixed", "above", "command", "two", "no-arguments"],
)
def test_no_other_pod_is_run(other: KubernetesObject) -> None:
    """Another image, another command, and a pod with a second container, which would be missing."""
    assert not is_ours(other)


@pytest.mark.parametrize(
    ("text", "localized"),
    [
        ("--config=/etc/multiarch-extender/config.yaml", "--config=/run/pod/configuration/config.yaml"),
        ("key: /etc/multiarch-extender-tls/tls.key", "key: /run/pod/certificate/tls.key"),
        ("/tmp", "/run/pod/identity"),
        ("/var/tmp/a /tmpfs /etc/multiarch-extender.d", "/var/tmp/a /tmpfs /etc/multiarch-extender.d"),
    ],
)
def test_paths_of_mounts_lead_to_our_folders(text: str, localized: str) -> None:
    """And no path that only looks like one."""
    assert localize(text, MOUNTS) == localized


def test_without_mounts_a_text_stays() -> None:
    """It names no folder of ours."""
    assert localize("/tmp", {}) == "/tmp"
