"""Whether pods run where they are placed: two real nodes, of which one says arm64, and images that really run."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from testbed.extender_process import ExtenderProcess
from testbed.nodes.programs import NodePrograms
from testbed.shipped_files import Mode
from testbed.tcp_proxy import open_tcp_proxy
from tests.e2e.gates import start_controller
from tests.e2e.policies import applied_policies, until_held
from tests.e2e.running import PODS, RealImages, failing, open_nodes, run_pods
from tests.e2e.world import SCHEDULER_NAMES, World

pytestmark = pytest.mark.e2e

LABELS = {Mode.SECOND: "second scheduler", Mode.DEFAULT: "default scheduler"}
REGISTRY_SECONDS = 2.0


@pytest.mark.parametrize("mode", LABELS)
async def test_every_pod_runs_where_the_scheduler_asks(
    world: World, node_programs: NodePrograms, real_images: RealImages, mode: Mode, rounds: int
) -> None:
    """By the second scheduler's verbs alone, and by the default scheduler's with the webhook: 32 of 32, no restart."""
    affinity = "none" if mode is Mode.SECOND else "required"
    service = await world.start_service(f"admission.node_affinity={affinity}", *real_images.settings, mode=mode)
    await world.register_webhook(service, mode=Mode.SECOND if mode is Mode.SECOND else Mode.WEBHOOK)
    with world.scheduler(mode, service):
        for _ in range(rounds):
            where = await world.namespace(second=mode is Mode.SECOND)
            async with open_nodes(world.cluster, world.api, node_programs, real_images):
                seen = await run_pods(world, real_images, where, SCHEDULER_NAMES[mode])
                await world.api.delete_all("Pod", where)
            assert (failing(seen), len(seen)) == ([], PODS)
    world.figure(f"real nodes, {LABELS[mode]}: {rounds * PODS} of {rounds * PODS} pods run, none was started twice")
    assert await service.filter_calls() > 0


@asynccontextmanager
async def far_away(images: RealImages, folder: Path) -> AsyncIterator[list[str]]:
    """Settings with which the service reaches the registry through a proxy whose every answer takes two seconds."""
    host = images.registry.host
    async with open_tcp_proxy(int(host.rpartition(":")[2]), answer_seconds=REGISTRY_SECONDS) as proxy:
        (folder / host).mkdir(parents=True)
        (folder / host / "hosts.toml").write_text(f'server = "http://127.0.0.1:{proxy.port}"\n')
        hosts = f"registry.allow=['*', '{host}', '127.0.0.1:{proxy.port}']"
        yield [f"registry.plain_http=['{host}']", hosts, f"registry.mirrors={folder}"]


@asynccontextmanager
async def holding(world: World, way: str, settings: Sequence[str]) -> AsyncIterator[ExtenderProcess]:
    """The service, with the policy or the webhook by which new pods are held."""
    async with AsyncExitStack() as stack:
        if way == "policy only":
            service = await start_controller(world, *settings)
            apply = await stack.enter_async_context(applied_policies(world.api))
            await apply("own-account", "gate")
        else:
            quick = f"admission.wait_seconds={REGISTRY_SECONDS / 10}"
            service = await world.start_service("admission.unknown=gate", quick, *settings, mode=Mode.WEBHOOK)
            await world.register_webhook(service)
        await until_held(world.api)
        yield service


@pytest.mark.parametrize("way", ["policy only", "webhook only"])
async def test_every_pod_runs_that_was_held(
    world: World, node_programs: NodePrograms, real_images: RealImages, rounds: int, way: str, tmp_path: Path
) -> None:
    """The service does not know the images of a round, so every pod is held; it runs on the node it was let go for."""
    async with far_away(real_images, tmp_path / "hosts") as away, holding(world, way, away) as service:
        for number in range(rounds):
            where, images = await world.namespace(), real_images.under(f"{way.split(maxsplit=1)[0]}-{number}")
            async with open_nodes(world.cluster, world.api, node_programs, images):
                with world.default_scheduler(None):
                    seen = await run_pods(world, images, where)
                await world.api.delete_all("Pod", where)  # else the nodes of the next round run them again
            assert (failing(seen), len(seen)) == ([], PODS)
        assert await service.metric("multiarch_gates_removals_total", outcome="known") == rounds * PODS
        assert way != "webhook only" or await service.filter_calls() == 0
    world.figure(f"real nodes, {way}, registry 2 s away: {rounds * PODS} pods held, and run without a restart")
