"""What `explain` finds out about the pod that it is to explain."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from extender.cli.explain_target import ExplainTarget, has_waited
from extender.cli.manifest_files import Manifests, SourcedObject
from extender.service.endpoints import PENDING_LIMIT_SECONDS

NOW = datetime(2026, 11, 29, 0, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("created", "spec", "expected"),
    [
        ("2026-11-28T00:30:00Z", {}, True),
        ("2026-11-28T00:30:00Z", {"schedulingGates": []}, True),
        ("2026-11-28T00:30:00Z", {"schedulingGates": [{"name": "example.com/wait"}]}, False),
        ((NOW - timedelta(seconds=PENDING_LIMIT_SECONDS)).isoformat(), {}, False),
        (None, {}, False),
        ("soon", {}, False),
        ("2026-11-28", {}, False),
    ],
)
def test_a_pod_has_waited_if_the_scheduler_has_had_it_for_longer_than_an_image_may_be_pending(
    created: str | None, spec: dict[str, Any], expected: bool
) -> None:
    """The service counts from when it was first asked about the pod, which is soon after its creation."""
    assert has_waited({"metadata": {"name": "p", "creationTimestamp": created}, "spec": spec}, NOW) is expected


@pytest.mark.parametrize("metadata", [None, [], ["x"], "x", 7, {"name": None}])
async def test_an_object_whose_metadata_is_none_is_explained(metadata: object) -> None:
    """Manifests are validated by nobody before they come here."""
    spec = {"template": {"spec": {"containers": [{"name": "c", "image": "app:1"}]}}}
    manifest = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}
    manifests = Manifests(objects=[SourcedObject(manifest, "f")])
    for name, found in (("", [("Deployment", "", "default")]), ("Deployment/web", [])):
        subjects = await ExplainTarget.parse(name, "", manifests).find(None)
        assert [(each.kind, each.name, each.namespace) for each in subjects] == found
