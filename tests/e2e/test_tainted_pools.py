"""Pools kept apart by a taint: the webhook's tolerations open them to the pods whose images run there, to no others."""

import msgspec
import pytest

from testbed.shipped_files import Mode
from tests.e2e.world import World

pytestmark = pytest.mark.e2e

TAINTS = {
    "gke": ("kubernetes.io/arch", "arm64"),
    "plain": ("arch", "arm64"),
    "multi": ("example.com/multi-arch", "true"),
}
BOTH = "linux/amd64", "linux/arm64"
RULES = msgspec.json.encode(
    [
        {"key": key, "value": value, "effect": "NoSchedule", "platforms": BOTH if pool == "multi" else BOTH[1:]}
        for pool, (key, value) in TAINTS.items()
    ]
).decode()
SETTINGS = "admission.node_affinity=none", f"admission.tolerations={RULES}"


async def test_a_tainted_pool_takes_the_pods_whose_images_run_there(world: World) -> None:
    """Room for one on amd64 and for four in each arm64 pool: each kind of pod fills what is open to it, and waits.

    arm64-only pods may enter the pools whose taint means arm64; the third pool is for multi-arch images.
    """
    await world.create_nodes("amd64", 1, cpu="1")
    for pool, (key, value) in TAINTS.items():
        taint = {"key": key, "value": value, "effect": "NoSchedule"}
        await world.create_nodes("arm64", 1, cpu="4", prefix=pool, taints=[taint])
    service = await world.start_service(*SETTINGS, mode=Mode.WEBHOOK)
    await world.register_webhook(service)
    where = await world.namespace()
    with world.default_scheduler(None):
        await world.create_pods(where, 1, world.images.amd, prefix="amd", cpu="1")
        await world.wait_all_bound(where, 1)
        await world.create_pods(where, 1, world.images.amd, prefix="one-more-amd", cpu="1")
        kept_out = await world.wait_refused(where, "one-more-amd-0")
        await world.create_pods(where, 8, world.images.arm, prefix="arm", cpu="1")
        await world.wait_all_bound(where, 9)
        await world.create_pods(where, 1, world.images.arm, prefix="one-more-arm", cpu="1")
        await world.wait_refused(where, "one-more-arm-0")
        await world.create_pods(where, 4, world.images.multi, prefix="multi", cpu="1")
        placed = await world.wait_all_bound(where, 13)
    pools = {kind: {node for name, node in placed.items() if name.startswith(kind)} for kind in ("amd", "arm", "multi")}
    assert pools == {"amd": {"amd64-0"}, "arm": {"gke-0", "plain-0"}, "multi": {"multi-0"}}
    assert "untolerated taint" in kept_out["message"]
