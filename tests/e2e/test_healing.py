"""What breaks and comes back while pods are created: kube-apiserver, the watches, etcd's history, the service itself.

Every pod of the load leans to an architecture on which it does not run: whoever passes it unexamined places it wrongly.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from testbed.control_plane import LocalCluster
from testbed.eventually import eventually
from testbed.extender_process import ExtenderProcess
from testbed.objects import KubernetesObject, fake_node
from testbed.shipped_files import SECOND_SCHEDULER, Mode
from testbed.tcp_proxy import TcpProxy, open_tcp_proxy
from tests.e2e.gates import proxied_account
from tests.e2e.load import leaning_to, steady_load
from tests.e2e.world import World, refusal_of

pytestmark = pytest.mark.e2e

# As a kubelet's own node has it until all is well: no pod goes there yet.
NOT_READY = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}


async def proxied_service(world: World, proxy: TcpProxy, folder: Path) -> ExtenderProcess:
    account = await proxied_account(world, Mode.SECOND, proxy, folder)
    return await world.start_service(f"cluster={account}", "admission.node_affinity=none", admission=False)


async def restart_apiserver(cluster: LocalCluster) -> None:
    cluster.stop_apiserver(0)
    cluster.compact_etcd()
    cluster.start_apiserver()
    await asyncio.to_thread(cluster.wait_for_apiserver)


async def assert_new_nodes_are_known(world: World, service: ExtenderProcess, where: str) -> None:
    """Nodes that join now, arm64 first, are seen by the service, and pods for them alone are placed rightly."""
    label = {"example.com/joined": "now"}
    for architecture in ("arm64", "amd64"):
        await world.api.create(fake_node(f"now-{architecture}", architecture, labels=label, taints=[NOT_READY]))
        there = Counter((await world.nodes_by_architecture()).values())[architecture]
        await eventually(partial(has_nodes, service, architecture, there))
        await world.api.patch("Node", f"now-{architecture}", {"spec": {"taints": None}})
    images = {"now-amd": (world.images.amd, "arm64"), "now-arm": (world.images.arm, "amd64")}
    for prefix, (image, wrong) in images.items():
        spec = {**leaning_to(wrong), "nodeSelector": label}
        await world.create_pods(where, 3, image, prefix=prefix, scheduler=SECOND_SCHEDULER, spec=spec)


async def has_nodes(service: ExtenderProcess, architecture: str, count: int) -> bool:
    return await service.metric("multiarch_cluster_nodes", architecture=architecture) == count


def said(service: ExtenderProcess, event: str, word: str = "") -> list[str]:
    return [line for line in service.log().splitlines() if f'"{event}"' in line and word in line]


async def test_the_api_server_dies_and_history_is_compacted_while_the_service_is_cut_off(
    world: World, control_plane: LocalCluster, tmp_path: Path
) -> None:
    """Its place in the history is gone (410), so it lists anew, and learns what left, joined and changed meanwhile.

    Pods are created all the time; kube-scheduler finds the API server again by itself.
    """
    await world.create_both(4, cpu="64")
    for prefix in ("changing", "leaving"):  # before anything is placed there
        await world.create_nodes("amd64", 1, prefix=prefix, taints=[NOT_READY])
    where = await world.namespace()
    async with open_tcp_proxy(urlsplit(world.api.server).port or 443) as proxy:
        service = await proxied_service(world, proxy, tmp_path)

        async def changes_are_known() -> bool:
            return await has_nodes(service, "amd64", 4) and await has_nodes(service, "arm64", 5)

        with world.second_scheduler(service):
            async with steady_load(world, where, SECOND_SCHEDULER) as load:
                proxy.refuse()
                for name in ("leaving-0", "changing-0"):
                    await world.api.delete("Node", name)
                await world.create_nodes("arm64", 1, prefix="changing", taints=[NOT_READY])
                await restart_apiserver(control_plane)
                proxy.accept()
            await eventually(changes_are_known)
            await world.api.patch("Node", "changing-0", {"spec": {"taints": None}})
            there = {"nodeSelector": {"kubernetes.io/hostname": "changing-0"}}
            await world.create_pods(where, 3, world.images.arm, scheduler=SECOND_SCHEDULER, spec=there)
            await assert_new_nodes_are_known(world, service, where)
            await world.wait_all_bound(where, len(load) + 9)
        assert said(service, "watch.lost", "too old resource version") != []  # the words of a 410
        assert said(service, "watch.relisted", '"nodes"') != []
    await world.assert_placed_rightly("second scheduler, node_affinity: none", where, len(load) + 9)


async def test_a_node_that_joins_while_the_service_is_cut_off_takes_no_pod_until_it_is_in_view(
    world: World, tmp_path: Path
) -> None:
    """Its pods wait, told why, whatever they run on; with the next event in the cluster each gets its due."""
    await world.create_both(4, cpu="64")
    where, label = await world.namespace(), {"example.com/joined": "unseen"}
    async with open_tcp_proxy(urlsplit(world.api.server).port or 443) as proxy:
        service = await proxied_service(world, proxy, tmp_path)
        await world.warm(service, where, world.images.amd, world.images.arm)
        with world.second_scheduler(service):
            proxy.refuse()
            await world.api.create(fake_node("unseen", "arm64", labels=label))
            for prefix, image in (("amd", world.images.amd), ("arm", world.images.arm)):
                there: KubernetesObject = {"nodeSelector": label}
                await world.create_pods(where, 1, image, prefix=prefix, scheduler=SECOND_SCHEDULER, spec=there)
            for name in ("amd-0", "arm-0"):
                waiting = await world.wait_refused(where, name, "1 not in view yet")
                assert waiting["reason"] == "Unschedulable"
            proxy.accept()
            await eventually(partial(has_nodes, service, "arm64", 5))
            await world.api.patch("Node", "unseen", {"metadata": {"labels": {"example.com/changed": "yes"}}})
            assert await world.wait_all_bound(where, 1) == {"arm-0": "unseen"}
            refused = await world.wait_refused(where, "amd-0", "nodes are available")
    assert refused["reason"] == "Unschedulable"
    await world.assert_placed_rightly("second scheduler, node_affinity: none", where, 1)


async def test_the_service_is_killed_again_and_again_while_pods_are_created(world: World) -> None:
    """SIGKILL, three times: the second scheduler's pods wait for it to come back, and none is placed without it."""
    await world.create_both(4, cpu="64")
    service = await world.start_service("admission.node_affinity=none", admission=False)
    where = await world.namespace()
    with world.second_scheduler(service):
        async with steady_load(world, where, SECOND_SCHEDULER) as load:
            for _ in range(3):
                service.kill()
                await world.api.wait_for("Pod", is_waiting_for_us, where)
                await service.start()
                await world.wait_all_bound(where, len(await world.placed(where)) + 3)
    await world.assert_placed_rightly("second scheduler, node_affinity: none", where, len(load))


def is_waiting_for_us(found: KubernetesObject) -> bool:
    return "connection refused" in refusal_of(found).get("message", "")


async def test_what_got_node_affinity_needs_us_no_more(world: World) -> None:
    """The default scheduler lives through our end, by design: every node passes, and only earlier affinity holds.

    Pods that lean to where they do not run: created before, and scheduled while the service is gone; created meanwhile,
    which go wrong; created and scheduled after.
    """
    await world.create_both(4, cpu="64")
    service = await world.start_service("admission.node_affinity=required", mode=Mode.DEFAULT)
    await world.register_webhook(service, {"matchLabels": {"example.com/webhook": "yes"}})
    guarded, missed = [await world.namespace(labels={"example.com/webhook": "yes"}) for _ in range(2)]
    held: KubernetesObject = {"schedulingGates": [{"name": "example.com/hold"}]}
    with world.default_scheduler(service):
        names = await add_wrongly_leaning(world, guarded, "held", 20, held)
        service.kill()
        for name in names:
            await world.api.patch("Pod", name, {"spec": {"schedulingGates": None}}, guarded)
        await add_wrongly_leaning(world, missed, "meanwhile", 20)
        await world.wait_all_bound(guarded, 20)
        await world.wait_all_bound(missed, 20)
        await service.start()
        await add_wrongly_leaning(world, guarded, "after", 20)
        await world.wait_all_bound(guarded, 40)
    assert len(await world.misplaced(missed)) == 20
    await world.assert_placed_rightly("default scheduler, node_affinity: required", guarded, 40)


async def add_wrongly_leaning(
    world: World, where: str, prefix: str, count: int, spec: Mapping[str, Any] | None = None
) -> list[str]:
    """The names of so many pods, half of them amd64-only and half arm64-only, that lean to the other architecture."""
    names = []
    for image, wrong in ((world.images.amd, "arm64"), (world.images.arm, "amd64")):
        leaning = {**leaning_to(wrong), **(spec or {})}
        names += await world.create_pods(where, count // 2, image, prefix=f"{prefix}-not-{wrong}", spec=leaning)
    return names
