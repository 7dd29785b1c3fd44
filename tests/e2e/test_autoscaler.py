"""Whether an autoscaler buys the nodes on which pods run: a real Karpenter, which reads what the webhook writes.

Its nodes are fake: pods are bound to them, and do not start. Each test has a control plane of its own, in a network
namespace, since Karpenter listens on all addresses.
"""

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AbstractAsyncContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest

from testbed.api_client import ApiClient
from testbed.autoscaler.instance_types import AMD64_CHEAPER, ARM64_CHEAPER
from testbed.autoscaler.karpenter import Karpenter, running_karpenter
from testbed.autoscaler.node_pools import documented_pools
from testbed.binaries import Binaries, find_karpenter
from testbed.control_plane import LocalCluster
from testbed.eventually import eventually
from testbed.network_namespace import NamespaceMissing, own_network
from testbed.objects import pod, workload
from testbed.shipped_files import Mode
from tests.e2e.policies import until_held
from tests.e2e.running import find_or_skip, skip
from tests.e2e.world import World

pytestmark = pytest.mark.e2e

POOLS = documented_pools()
OPEN, ARM64, AMD64 = POOLS["general"], POOLS["arm64"], POOLS["amd64"]
WAYS = {"open": [OPEN], "tainted": [ARM64, AMD64], "mixed": [OPEN, ARM64]}
OF_A_KIND = 20
REPLICA_SETS = "replicaset-controller"
CONSOLIDATED_SECONDS = 120.0  # usually it takes 35


@pytest.fixture(scope="session")
def karpenter_programs(pytestconfig: pytest.Config) -> Path:
    """The folder with Karpenter and its CRDs. A first build takes minutes and says so on the terminal."""
    return find_or_skip(pytestconfig, find_karpenter)


@contextmanager
def entering_network() -> Iterator[None]:
    """Moves the test into a network namespace; skips it, or fails it, where none can be made."""
    with ExitStack() as leaving:
        try:
            leaving.enter_context(own_network())
        except NamespaceMissing as exc:
            why = str(exc)
        else:
            yield
            return
    skip(why)


@pytest.fixture
def control_plane(karpenter_programs: Path, binaries: Binaries) -> Iterator[LocalCluster]:
    """A control plane in a network namespace, in which this test's own servers listen as well."""
    with entering_network(), LocalCluster(binaries) as cluster:
        yield cluster


class Autoscaled:
    def __init__(self, programs: Path, cluster: LocalCluster, api: ApiClient, folder: Path) -> None:
        self._arguments = programs, api, cluster.kubeconfig, folder

    def running(self, prices: Mapping[str, float]) -> AbstractAsyncContextManager[Karpenter]:
        return running_karpenter(*self._arguments, prices)


@pytest.fixture
def autoscaled(karpenter_programs: Path, control_plane: LocalCluster, api: ApiClient, tmp_path: Path) -> Autoscaled:
    return Autoscaled(karpenter_programs, control_plane, api, tmp_path)


@pytest.mark.parametrize(
    ("way", "mode"),
    [("open", Mode.WEBHOOK), ("tainted", Mode.SECOND), pytest.param("mixed", Mode.DEFAULT, marks=pytest.mark.slow)],
)
async def test_the_right_nodes_are_bought_and_no_others(
    world: World, autoscaled: Autoscaled, way: str, mode: Mode
) -> None:
    """60 pods of three kinds wait, and there is not one node. arm64 is 20 % cheaper."""
    service = await world.start_service("admission.node_affinity=required", mode=mode)
    await world.register_webhook(service, mode=Mode.SECOND if mode is Mode.SECOND else Mode.WEBHOOK)
    where, count = await world.namespace(second=mode is Mode.SECOND), 3 * OF_A_KIND
    async with autoscaled.running(ARM64_CHEAPER) as karpenter:
        await karpenter.create_pools(*WAYS[way])
        for kind in ("amd", "arm", "multi"):
            await world.create_pods(where, OF_A_KIND, getattr(world.images, kind), prefix=kind, cpu="40m")
        started = time.monotonic()
        with world.scheduler(mode, None if mode is Mode.WEBHOOK else service):
            placed = await world.wait_all_bound(where, count)
            seconds = time.monotonic() - started
        await world.assert_placed_rightly(f"Karpenter, {way} pool, {mode}", where, count)
        bought = Counter(karpenter.bought.values())
        world.figure(f"Karpenter, {way} pool, {mode}: {count} pods bound in {seconds:.1f} s on {_words(bought)}")
        assert set(karpenter.bought) == set(placed.values())  # no node without a pod was ever there
        assert set(bought) == {"amd64", "arm64"}


@pytest.mark.parametrize(
    ("affinity", "of_multi_arch"), [("required", "amd64"), pytest.param("both", "arm64", marks=pytest.mark.slow)]
)
async def test_what_the_setting_makes_of_a_dearer_arm64(
    world: World, autoscaled: Autoscaled, affinity: str, of_multi_arch: str
) -> None:
    """amd64 is 20 % cheaper: the cheapest node is bought, or the preferred one; none of a wrong platform.

    For pods that are held nothing is bought, until it is known that their image is for arm64 alone.
    """
    service = await world.start_service(
        f"admission.node_affinity={affinity}", "admission.unknown=gate", mode=Mode.WEBHOOK
    )
    await world.register_webhook(service)
    where, late = await world.namespace(), world.images.unpushed()
    async with autoscaled.running(AMD64_CHEAPER) as karpenter:
        await karpenter.create_pools(OPEN)
        await until_held(world.api)
        with world.default_scheduler(None):
            await world.create_pods(where, 6, late, prefix="late", cpu="1")
            await world.create_pods(where, 6, world.images.multi, prefix="multi", cpu="1")
            await world.wait_all_bound(where, 6)
            assert set(karpenter.bought.values()) == {of_multi_arch}  # it has looked at the held ones too
            await world.create_pods(where, 6, world.images.amd, prefix="amd", cpu="1")
            await world.wait_all_bound(where, 12)
            assert set(karpenter.bought.values()) == {of_multi_arch, "amd64"}
            world.images.push(late, "arm64")
            await world.wait_all_bound(where, 18)
        assert set(karpenter.bought.values()) == {"amd64", "arm64"}
    await world.assert_placed_rightly(f"Karpenter, amd64 20 % cheaper, {affinity}", where, 18)


async def moves(world: World, where: str, wanted: Counter[str]) -> bool:
    try:
        await eventually(lambda: world.count_placed(where), lambda found: found == wanted)
    except TimeoutError:
        return False
    return True


@pytest.mark.slow
async def test_consolidation_leaves_pods_where_they_run(
    world: World, autoscaled: Autoscaled, control_plane: LocalCluster, controller_manager: Path
) -> None:
    """A cheaper arm64 pool comes: the multi-arch workload moves to it, and the amd64-only one beside it stays.

    Each fills most of a node of 8 CPUs, so that they share none.
    """
    service = await world.start_service(mode=Mode.WEBHOOK)
    await world.register_webhook(service)
    where = await world.namespace()
    async with autoscaled.running(ARM64_CHEAPER) as karpenter:
        await karpenter.create_pools(AMD64)
        with world.default_scheduler(None), control_plane.running_controllers(controller_manager, REPLICA_SETS):
            before: dict[str, str] = {}
            for kind in ("amd", "multi"):
                of_kind = pod(kind, getattr(world.images, kind), namespace=where, cpu="1200m")
                await world.api.create(workload("ReplicaSet", of_kind, replicas=6))
                before = await world.wait_all_bound(where, len(before) + 6)
            assert set(karpenter.bought.values()) == {"amd64"}
            await karpenter.create_pools(ARM64)
            started = time.monotonic()
            async with asyncio.timeout(CONSOLIDATED_SECONDS):
                # Karpenter remembers for minutes that nothing was to be done, until a pool changes.
                for renewed in itertools.count():
                    for pool in (AMD64, ARM64):
                        await karpenter.consolidate(pool, f"{1 + renewed % 2}s")
                    if await moves(world, where, Counter(amd64=6, arm64=6)):
                        break
            seconds = time.monotonic() - started
            after = await world.placed(where)
    amd = {name for name in before if name.startswith("amd")}
    assert {name: after.get(name) for name in amd} == {name: before[name] for name in amd}
    assert await world.misplaced(where) == []
    world.figure(f"Karpenter's consolidation: multi-arch pods moved to arm64 after {seconds:.0f} s, amd64-only stayed")


def _words(counts: Mapping[str, int]) -> str:
    return " and ".join(f"{count} {name}" for name, count in sorted(counts.items()))
