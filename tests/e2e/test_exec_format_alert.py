"""The alert about programs of another architecture, on real nodes: pods that die of it, and of other things.

Its rule looks back over a shorter time here. The series are those of kube-state-metrics (testbed/pod_state_metrics.py).
"""

import re
from collections.abc import Sequence
from pathlib import Path

import aiohttp
import pytest

from testbed.chart import CHART
from testbed.debian_prometheus import DebianPrometheus, label_values
from testbed.eventually import eventually
from testbed.nodes.programs import NodePrograms
from testbed.objects import KubernetesObject, pod
from testbed.pod_state_metrics import open_pod_state_metrics
from tests.e2e.running import RealImages, open_nodes
from tests.e2e.world import World

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

WINDOW = "100s"
TOLD_SECONDS = 280.0
OWNER_UID = "1b4e28ba-2fa1-11d2-883f-0016d3cca427"
ALERT = 'ALERTS{alertname="MultiarchExecFormatError",alertstate="firing"}'


def replica(name: str, image: str, where: str, node: str, ends: Sequence[int] = ()) -> KubernetesObject:
    """A pod on that node, of the owner of its name before the dash; it ends after so many seconds with such a code."""
    made = pod(name, image, namespace=where, cpu="10m", spec={"nodeName": node})
    made["spec"]["containers"][0] |= {"args": [str(each) for each in ends]} if ends else {}
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "uid": OWNER_UID, "name": name.partition("-")[0]}
    made["metadata"]["ownerReferences"] = [{**owner, "controller": True}]
    return made


async def test_pods_that_die_of_it_are_told_from_those_that_die_of_something_else(
    world: World, node_programs: NodePrograms, real_images: RealImages, prometheus: Path, tmp_path: Path
) -> None:
    """With runc 1.1, which ends such a container with 1: of a workload that runs nowhere nothing can be said.

    Two that die of something else look the same: one that ends with 1 at once while its sibling runs, and one that ends
    with 255 at once.
    """
    images, where = real_images, await world.namespace()
    of_it = {
        "split-amd64": (images.amd, "amd64", ()),  # runs
        "split-arm64": (images.amd, "arm64", ()),
        "other-arm64": (images.arm, "arm64", ()),  # runs
        "other-amd64": (images.arm, "amd64", ()),
        "nowhere-1": (images.amd, "arm64", ()),
        "nowhere-2": (images.amd, "arm64", ()),
    }
    of_something_else = {
        "setting-1": (images.multi, "amd64", (0, 1)),
        "setting-2": (images.multi, "arm64", (0, 1)),
        "late-1": (images.multi, "amd64", (20, 1)),
        "late-2": (images.multi, "arm64", ()),  # runs
        "later-1": (images.multi, "amd64", (20, 255)),
        "done-1": (images.multi, "amd64", (0, 0)),
        "done-2": (images.multi, "arm64", ()),  # runs
        "killed-1": (images.multi, "amd64", (0, 137)),
        "killed-2": (images.multi, "arm64", ()),  # runs
        "pull-1": (images.arm_index, "amd64", ()),
        "pull-2": (images.arm_index, "arm64", ()),  # runs
        "port-1": (images.multi, "amd64", (0, 1)),
        "port-2": (images.multi, "arm64", ()),  # runs
        "minus-1": (images.multi, "amd64", (0, 255)),
    }
    rules = tmp_path / "rules.yaml"
    text = re.sub(r"    for: \d+[ms]\n", "", (CHART / "files" / "rules.yaml").read_text())
    rules.write_text(text.replace("[30m]", f"[{WINDOW}]").replace("[5m]", f"[{WINDOW}]"))
    async with (
        open_nodes(world.cluster, world.api, node_programs, images),
        open_pod_state_metrics(world.api) as target,
        aiohttp.ClientSession() as session,
    ):
        await world.api.create_all(
            replica(name, image, where, node, ends)
            for name, (image, node, ends) in {**of_it, **of_something_else}.items()
        )
        with DebianPrometheus(prometheus, tmp_path, target, rules, interval="1s") as server:
            expected = {"split-arm64", "other-amd64", "port-1", "minus-1"}
            told = await eventually(
                lambda: label_values(session, server, ALERT, "pod"),
                lambda found: expected <= set(found),
                seconds=TOLD_SECONDS,
            )
        await world.api.delete_all("Pod", where)
    assert set(told) == expected
    dying = [name for name in of_it if name not in ("split-amd64", "other-arm64")]
    world.figure(
        f"exec format alert, runc 1.1: {len(expected & set(dying))} of {len(dying)} pods that die of it are told, "
        f"and {len(expected - set(dying))} of 9 that fail otherwise"
    )
