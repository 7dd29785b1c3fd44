"""The operator's word about an image: what verbs and webhook make of it, without a request to a registry."""

import pytest

from tests.integration.service.caller import AMD64, kept, victims, with_nodes
from tests.integration.service.conftest import HOLDING, World

pytestmark = pytest.mark.usefixtures("simulated_time")


async def test_it_stands_in_place_of_what_the_registry_says_at_every_verb_and_in_the_webhook(world: World) -> None:
    """The image has both platforms in its registry, and by the operator's word one."""
    rule = f"[{{match: '{world.image('multi:*')}', platforms: [{AMD64}]}}]"
    caller = await world.serve(f"placement.images={rule}", "admission.node_affinity=required")
    created = world.pod("multi:1")
    answer = await caller.filter(with_nodes(created))
    assert kept(answer) == ["a", "c"]
    said = f"image {world.image('multi:1')} runs only on {AMD64} (operator's setting)"
    assert answer["FailedAndUnresolvableNodes"] == {"b": said, "d": said}
    assert await caller.prioritize(with_nodes(created)) == {}
    assert sorted(await caller.preempt(victims(created))) == ["a", "c"]
    patch = (await caller.review(created))["patch"]
    assert "'amd64'" in str(patch)
    assert "arm64" not in str(patch)
    mounted = world.pod()
    mounted["spec"]["volumes"] = [{"name": "v", "image": {"reference": world.image("multi:1")}}]
    assert kept(await caller.filter(with_nodes(mounted))) == ["a", "c"]
    assert world.registry.requests == {}


async def test_an_image_that_is_never_known_is_left_to_the_setting_for_unknown_ones(world: World) -> None:
    """No pod waits for it, is held for it, or has it looked up."""
    never = f"placement.images=[{{match: '{world.image('arm:*')}', platforms: []}}]"
    created = world.pod("arm:1")
    passing = await world.serve(never, "scheduler.pending=retry")
    assert kept(await passing.filter(with_nodes(created))) == ["a", "b", "c", "d"]
    assert await passing.prioritize(with_nodes(created)) == {}
    assuming = await world.serve(never, "scheduler.unknown=assume")
    assert kept(await assuming.filter(with_nodes(created))) == ["a", "c"]
    holding = await world.serve(never, *(each for each in HOLDING if not each.startswith("admission.unknown")))
    assert (await holding.review(created))["patch"][0]["path"] == "/metadata/annotations"
    assert world.registry.requests == {}
