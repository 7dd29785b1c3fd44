"""Whether pods run where they are placed: two real nodes, of which one says arm64, and images that really run."""

from collections.abc import Mapping

import pytest

from testbed.nodes.programs import NodePrograms
from testbed.shipped_files import Mode
from tests.e2e.running import PODS, Outcome, RealImages, count_outcomes, failing, open_nodes, run_pods
from tests.e2e.world import SCHEDULER_NAMES, World

pytestmark = pytest.mark.e2e

LABELS = {Mode.SECOND: "second scheduler", Mode.DEFAULT: "default scheduler", Mode.WEBHOOK: "webhook only"}


@pytest.mark.slow  # a contrast, which a change of ours cannot break
async def test_without_us_pods_fail(world: World, node_programs: NodePrograms, real_images: RealImages) -> None:
    """kube-scheduler alone: pods on the wrong node crash, or their image is not pulled."""
    where = await world.namespace()
    async with open_nodes(world.cluster, world.api, node_programs, real_images):
        with world.default_scheduler(None):
            seen = await run_pods(world, real_images, where)
    outcomes = count_outcomes(seen.values())
    world.figure(f"real nodes, without us: {len(failing(seen))} of {PODS} pods fail: {_words(outcomes)}")
    assert len(failing(seen)) > 0
    assert outcomes.get(Outcome.CRASHES, 0) > 0
    assert outcomes.get(Outcome.UNSETTLED, 0) == 0
    assert [name for name in seen if name.startswith("multi") and seen[name].outcome is not Outcome.RUNS] == []
    crashed = {each.text for each in seen.values() if each.outcome is Outcome.CRASHES}
    assert crashed == {"exec /hello: exec format error\n"}


@pytest.mark.parametrize("mode", Mode)
async def test_with_us_every_pod_runs(
    world: World, node_programs: NodePrograms, real_images: RealImages, mode: Mode, rounds: int
) -> None:
    """By the second scheduler's verbs, the default scheduler and the webhook, the webhook: 32 of 32, no restart."""
    affinity = "none" if mode is Mode.SECOND else "required"
    service = await world.start_service(f"admission.node_affinity={affinity}", *real_images.settings, mode=mode)
    await world.register_webhook(service, mode=Mode.SECOND if mode is Mode.SECOND else Mode.WEBHOOK)
    ran = 0
    with world.scheduler(mode, None if mode is Mode.WEBHOOK else service):
        for _ in range(rounds):
            where = await world.namespace(second=mode is Mode.SECOND)
            async with open_nodes(world.cluster, world.api, node_programs, real_images):
                seen = await run_pods(world, real_images, where, SCHEDULER_NAMES[mode])
                await world.api.delete_all("Pod", where)
            assert failing(seen) == []
            ran += len(seen)
    world.figure(f"real nodes, {LABELS[mode]}: {ran} of {rounds * PODS} pods run, none was started twice")
    assert ran == rounds * PODS
    assert (await service.filter_calls() > 0) == (mode is not Mode.WEBHOOK)


def _words(outcomes: Mapping[Outcome, int]) -> str:
    return ", ".join(f"{count} × {outcome}" for outcome, count in outcomes.items())
