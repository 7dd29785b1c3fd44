"""The mode `observe` of a cluster, a namespace and a pod, on the whole service."""

import pytest

from tests.integration.service.caller import changes_of, kept, pod, with_nodes
from tests.integration.service.conftest import World

MODE = "multiarch-extender.io/mode"
OBSERVING = ("placement.mode=observe", "admission.node_affinity=required")
ADMISSIONS = 'multiarch_observed_admissions_total{{outcome="{}"}}'


async def test_a_cluster_under_observe_is_changed_nowhere(world: World) -> None:
    """No patch and no refusal; what would have been is in the audit annotations and counted."""
    caller = await world.serve(*OBSERVING)
    image = world.image("arm:1")
    patched = await caller.metric(ADMISSIONS.format("patched"))
    review = await caller.review(pod(image))
    assert review["patch"] == []
    assert review["auditAnnotations"]["would-be"] == "patched"
    assert "kubernetes.io/arch" in review["auditAnnotations"]["would-add"]
    assert kept(await caller.filter(with_nodes(pod(image)))) == ["a", "b", "c", "d"]
    assert await caller.prioritize(with_nodes(pod(image))) == {}
    assert await caller.metric(ADMISSIONS.format("patched")) == patched + 1


async def test_a_pod_overrides_the_cluster_s_mode(world: World) -> None:
    """`enforce` on it has effect where the cluster only observes."""
    caller = await world.serve(*OBSERVING)
    enforced = world.pod("arm:1", annotations={MODE: "enforce"})
    review = await caller.review(enforced)
    assert changes_of(review)
    assert "would-be" not in review["auditAnnotations"]
    assert kept(await caller.filter(with_nodes(enforced))) == ["b", "d"]


@pytest.mark.parametrize("impossible", ["pend", "deny"])
async def test_what_would_be_refused_is_told_and_a_dry_run_counts_for_nothing(world: World, impossible: str) -> None:
    """An impossible pod is let through under observe, whatever enforcing does with it."""
    caller = await world.serve(*OBSERVING, f"admission.impossible={impossible}")
    outcome = {"pend": "impossible", "deny": "denied"}[impossible]
    before = await caller.metric(ADMISSIONS.format(outcome))
    for dry_run in (True, False):
        assert await caller.metric(ADMISSIONS.format(outcome)) == before
        review = await caller.review(world.pod("arm:1", "amd:1"), dryRun=dry_run)
        assert review["patch"] == []
        assert review["auditAnnotations"]["would-be"] == outcome
    assert await caller.metric(ADMISSIONS.format(outcome)) == before + 1
