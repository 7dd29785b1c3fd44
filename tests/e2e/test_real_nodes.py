"""Real nodes on this machine: they come and go in seconds, say what they should, and leave nothing behind."""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from testbed.api_client import ApiClient
from testbed.control_plane import LocalCluster
from testbed.nodes.cgroups import PREFIX, Cgroup, hierarchies
from testbed.nodes.configuration import TUNABLES
from testbed.nodes.images import build_hello_index
from testbed.nodes.node import RealNode
from testbed.nodes.programs import NodePrograms
from testbed.objects import pod
from testbed.processes import ProcessFailed
from tests.e2e.running import BOTH, Outcome, RealImages, observe, open_nodes
from tests.e2e.world import World

pytestmark = pytest.mark.e2e

END_SECONDS = 20.0
OF_NODES = ("/run/containerd", "/run/netns", "/var/lib/kubelet", "/var/lib/containerd", "/var/log/pods", "/etc/cni")
"""Where kubelet and containerd keep files on a machine of their own."""


class Machine(NamedTuple):
    """What a node could leave behind on the machine, or change there."""

    mounts: frozenset[str]
    cgroups: frozenset[str]
    tunables: tuple[str, ...]
    interfaces: frozenset[str]
    files: tuple[bool, ...]
    folders: frozenset[str]


def machine() -> Machine:
    """The machine as it is now, without what other processes make on it."""
    return Machine(
        mounts=frozenset(Path("/proc/self/mountinfo").read_text().splitlines()),
        cgroups=cgroups_of(os.getpid()),
        tunables=tuple(Path("/proc/sys", name).read_text() for name in (*TUNABLES, "net/ipv4/ip_forward")),
        interfaces=frozenset(path.name for path in Path("/sys/class/net").iterdir()),
        files=tuple(Path(path).exists() for path in OF_NODES),
        folders=frozenset(path.name for path in Path(tempfile.gettempdir()).glob("multiarch-node-*")),
    )


def cgroups_of(process: int) -> frozenset[str]:
    """The cgroups of nodes that this process has made."""
    return frozenset(str(path) for root in hierarchies() for path in root.glob(f"{PREFIX}-{process}-*"))


def processes_in(namespace: int) -> list[str]:
    """The commands of the processes of that PID namespace."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "ns" / "pid").stat().st_ino == namespace:
                found.append((process / "comm").read_text().strip())
        except OSError:  # it has just ended
            continue
    return found


async def test_nodes_run_pods_and_leave_nothing_behind(
    control_plane: LocalCluster,
    api: ApiClient,
    world: World,
    node_programs: NodePrograms,
    real_images: RealImages,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The machine's settings and mounts stay while they run; their processes, cgroups and files go with them."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before, started = machine(), time.monotonic()
    async with open_nodes(control_plane, api, node_programs, real_images) as nodes:
        ready = time.monotonic()
        assert await world.nodes_by_architecture() == {name: name for name in BOTH}
        where = await world.namespace()
        await api.create_all(
            pod(f"on-{name}", real_images.multi, namespace=where, spec={"nodeName": name}) for name in nodes
        )
        seen = await observe(api, where, 2)
        namespaces = [node.pid_namespace() for node in nodes.values()]
        running = [processes_in(namespace) for namespace in namespaces]
        contained = [node.cgroup.processes() for node in nodes.values()]
        assert machine().tunables == before.tunables
        assert machine().mounts == before.mounts
        stopping = time.monotonic()
    stopped = time.monotonic()
    world.figure(f"two real nodes: Ready after {ready - started:.1f} s, gone after {stopped - stopping:.1f} s")
    assert {name: each.outcome for name, each in seen.items()} == dict.fromkeys(seen, Outcome.RUNS)
    assert {name: each.text for name, each in seen.items()} == {
        "on-amd64": "hello from linux/amd64\n",
        "on-arm64": "hello from linux/arm64\n",
    }
    assert all(any(command.startswith("kubelet") for command in commands) for commands in running)
    assert [len(each) for each in contained] == [2, 2]  # the pod's program, and its pause
    assert [processes_in(namespace) for namespace in namespaces] == [[], []]
    assert not any(Path(f"/proc/{process}").exists() for each in contained for process in each)
    assert machine() == before
    assert await api.list("Node") == []


OWNER = """
import asyncio, sys
from pathlib import Path
from testbed.api_client import connect
from testbed.nodes.node import RealNode
from testbed.nodes.programs import find_node_programs

async def main(kubeconfig, pause):
    async with connect(kubeconfig) as api, RealNode("killed", find_node_programs(), api, kubeconfig, pause) as node:
        print(node.pid_namespace(), flush=True)
        await asyncio.sleep(600)

asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
"""


async def test_a_node_ends_with_the_process_that_runs_it(
    control_plane: LocalCluster, api: ApiClient, node_programs: NodePrograms, real_images: RealImages, tmp_path: Path
) -> None:
    """Killed, it cannot clean up: the kernel ends the node's processes, and the next node removes the cgroup."""
    command = [sys.executable, "-c", OWNER, str(control_plane.kubeconfig), real_images.pause]
    owner = await asyncio.create_subprocess_exec(
        *command, stdout=subprocess.PIPE, env={**os.environ, "TMPDIR": str(tmp_path)}
    )
    try:
        assert owner.stdout is not None
        async with asyncio.timeout(60):
            namespace = int(await owner.stdout.readline())
        assert len(processes_in(namespace)) > 2
    finally:
        owner.kill()
        await owner.wait()
    async with asyncio.timeout(END_SECONDS):
        assert cgroups_of(owner.pid) != frozenset()
        while processes_in(namespace) != []:
            await asyncio.sleep(0.1)
    with Cgroup("next"):
        pass
    assert cgroups_of(owner.pid) == frozenset()


async def test_a_node_that_cannot_start_says_why(
    control_plane: LocalCluster, api: ApiClient, node_programs: NodePrograms, real_images: RealImages
) -> None:
    """With the ends of both logs, as soon as it has ended, and without a cgroup left."""
    broken = node_programs._replace(kubelet=Path("/bin/false"))
    with pytest.raises(ProcessFailed, match=r"(?s)broken has ended.*kubelet\.log.*containerd\.log.*level=info"):
        await RealNode("broken", broken, api, control_plane.kubeconfig, real_images.pause).start()
    assert cgroups_of(os.getpid()) == frozenset()


async def test_an_image_id_may_name_another_repository(
    control_plane: LocalCluster, api: ApiClient, world: World, node_programs: NodePrograms, real_images: RealImages
) -> None:
    """containerd knows an image by its configuration, and reports the first name under which the node has it."""
    image = build_hello_index(BOTH, real_images.hello)
    first, mirrored = real_images.push("zoo/app", image), real_images.push("aaa/mirror", image)
    where = await world.namespace()
    async with RealNode("amd64", node_programs, api, control_plane.kubeconfig, real_images.pause) as node:
        reported = []
        for count, reference in enumerate((first, mirrored, first), 1):
            name = f"pod-{count}"
            await api.create(pod(name, reference, namespace=where, cpu="10m", spec={"nodeName": node.name}))
            await observe(api, where, count)
            [status] = (await api.get("Pod", name, where))["status"]["containerStatuses"]
            reported.append(status["imageID"].rpartition("@"))
    host = real_images.registry.host
    assert [name for name, _, _ in reported] == [f"{host}/zoo/app", f"{host}/aaa/mirror", f"{host}/aaa/mirror"]
    assert {digest for _, _, digest in reported} == {image.digest}
