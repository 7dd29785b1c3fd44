"""The page on uninstalling names everything that the code makes, and in an order that leaves no pod behind."""

import re

import pytest

from extender.config.tree import Config
from extender.placement.annotations import ANNOTATIONS, Writer
from extender.placement.gate import GATED_LABEL
from testbed.chart import POLICIES
from tests.unit.deploy.test_manifests import load
from tests.unit.docs.pages import PROJECT, page

PAGE = page("how-to/uninstall.md")
_IDENTITY = Config().admission.self_managed
MADE = (("Lease", Config().admission.gate.lease), ("Lease", _IDENTITY.secret), ("Secret", _IDENTITY.secret))


@pytest.mark.parametrize(("kind", "name"), MADE)
def test_each_object_that_the_service_makes_has_its_command(kind: str, name: str) -> None:
    """No manifest contains it, so deleting manifests does not delete it."""
    assert re.search(
        rf"^\| {kind} `{name}`.*kubectl -n multiarch-extender delete {kind.lower()} {name}`", PAGE, re.MULTILINE
    )
    manifests = "\n".join(path.read_text() for path in (PROJECT / "deploy/manifests").glob("*.yaml"))
    assert not re.search(rf"^  name: {name}$", manifests, re.MULTILINE)


def test_the_schedulers_lease_is_named() -> None:
    """It is that of the file for the second scheduler."""
    (configuration,) = load("scheduler/second-scheduler.yaml")
    lease = configuration["leaderElection"]["resourceName"]
    assert f"delete lease {lease}`" in PAGE


def test_what_is_written_on_pods_is_named() -> None:
    """The label by which held pods are found, and the annotations that stay."""
    assert f"-l {GATED_LABEL}=true" in PAGE
    for annotation in ANNOTATIONS:
        if annotation.writers == (Writer.SERVICE,):
            assert annotation.key in PAGE, annotation.key


def test_policies_are_found_by_a_part_of_their_names() -> None:
    """The last command of the page greps for it."""
    for path in POLICIES.iterdir():
        assert "\n  name: multiarch-extender-" in path.read_text()


def test_policies_go_first_and_pods_are_let_go_last() -> None:
    """A policy would hold new pods after the last one was let go."""
    steps = [
        "multiarch-extender policies | kubectl delete",
        "What the table below names",
        "multiarch-extender ungate -A",
    ]
    positions = [PAGE.index(step) for step in steps]
    assert positions == sorted(positions)
