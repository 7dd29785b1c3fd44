"""What a pod costs that is refused again and again, in a cluster so large that kube-scheduler looks at a sample only.

The sample differs from try to try, and so do the counts in the pod's condition: each change of the condition is an
update of the pod, and an extender's refusal is tried again after any event, such an update included.
"""

import asyncio
import random
from collections import Counter
from contextlib import aclosing, suppress

import pytest

from testbed.objects import fake_node, pod
from testbed.shipped_files import SECOND_SCHEDULER
from tests.e2e.world import World

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

NODES_OF_A_KIND = 500
WINDOW_SECONDS = 60.0
MOST = 12  # backoffs of 1, 2, 4, 8, 10, 10, … s end after 1, 3, 7, 15, 25, 35, 45 and 55 s
REFUSED = {"example.com/refused": "true"}


async def add_full_cluster(world: World) -> None:
    """500 amd64 nodes, each taken whole by a pod, and 500 arm64 nodes with nothing on them.

    They come in a mixed order, in which kube-scheduler keeps them: so each sample has them in other numbers.
    """
    where = await world.namespace()
    nodes = [f"{kind}-{index}" for kind in ("amd64", "arm64") for index in range(NODES_OF_A_KIND)]
    random.Random(36).shuffle(nodes)
    await world.api.create_all(fake_node(name, name.partition("-")[0], cpu="1") for name in nodes)
    await world.api.create_all(
        pod(f"on-{name}", world.images.amd, namespace=where, cpu="1", spec={"nodeName": name})
        for name in nodes
        if name.startswith("amd64")
    )


async def count_patches(world: World, since: str) -> Counter[str]:
    """How often each refused pod is changed in the window; nobody but its scheduler does that, to its status."""
    changes: Counter[str] = Counter()
    selectors = {"labelSelector": "example.com/refused", "resourceVersion": since}
    with suppress(TimeoutError):
        async with asyncio.timeout(WINDOW_SECONDS), aclosing(world.api.watch("Pod", **selectors)) as events:
            async for change, found in events:
                changes[found["metadata"]["name"]] += change == "MODIFIED"
    return changes


@pytest.mark.parametrize("affinity", ["none", "required"])
async def test_refused_pods_do_not_spin(world: World, affinity: str) -> None:
    """In a minute one costs the second scheduler's backoffs and no more; with affinity no call at all.

    One has an image that runs on no node; of the other amd64 nodes are full, and arm64 nodes have room.
    """
    await add_full_cluster(world)
    service = await world.start_service("admission.node_affinity=required")
    if affinity == "required":
        await world.register_webhook(service)
    where = await world.namespace(second=True)
    images = {"nowhere": world.images.fresh("s390x"), "full": world.images.fresh("amd64")}
    with world.second_scheduler(service):
        before = await world.api.request("GET", "/api/v1/pods?limit=1")
        await world.api.create_all(
            pod(why, image, namespace=where, labels=REFUSED, spec={"schedulerName": SECOND_SCHEDULER})
            for why, image in images.items()
        )
        patches = await count_patches(world, before["metadata"]["resourceVersion"])
    calls = await service.filter_calls()
    world.figure(f"refused pods, node_affinity: {affinity}: {calls} filter calls, {dict(patches)} status patches")
    assert set(patches) == set(images)
    assert max(patches.values()) <= MOST
    assert calls == 0 if affinity == "required" else 0 < calls <= len(images) * MOST
    assert await world.placed(where) == {}
