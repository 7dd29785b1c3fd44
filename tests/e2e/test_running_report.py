"""`running` on real nodes: it finds the pods whose program is for another architecture, and blames the right image."""

import asyncio
from typing import Any

import msgspec
import pytest

from testbed.nodes.images import build_hello_index
from testbed.nodes.programs import NodePrograms
from testbed.objects import fake_node, pod
from tests.e2e.running import BOTH, Observation, Outcome, RealImages, observe, open_nodes
from tests.e2e.world import World
from tests.unit.cli.commands import run

pytestmark = pytest.mark.e2e

SECONDS = 60.0


async def run_report(world: World, images: RealImages, *arguments: str) -> tuple[int, str]:
    """Runs the command against the world's cluster; returns its exit code and what it printed."""
    settings = (*images.settings, f"cluster.kubeconfig={world.cluster.kubeconfig}")
    code, output, errors = await run(
        "running", *arguments, *(f"--set={each}" for each in settings), environment={"COLUMNS": "80"}
    )
    assert code in (0, 1), errors
    return code, output


def findings(report: dict[str, Any]) -> dict[str, list[str]]:
    """The findings of each container, by pod and container, each with its certainty."""
    return {
        f"{each['pod']}/{each['container']}": [f"{one['kind']} {one['certainty']}" for one in each["findings"]]
        for each in report["containers"]
    }


async def report_between_starts(world: World, images: RealImages, where: str) -> tuple[int, str]:
    """The report in JSON, made while no container is being started again.

    A container whose program the kernel refuses is `running` for a moment, in which nothing says that it fails.
    """
    async with asyncio.timeout(SECONDS):
        while True:
            for failing in ("crash", "two"):
                await world.api.wait_for("Pod", is_settled, where, fieldSelector=f"metadata.name={failing}")
            code, output = await run_report(world, images, "-n", where, "-o", "json")
            containers = msgspec.json.decode(output)["containers"]
            if not any(each["state"] == "running" and each["restarts"] for each in containers):
                return code, output


async def test_crashed_pods_are_found_and_blamed_on_their_image(
    world: World, node_programs: NodePrograms, real_images: RealImages
) -> None:
    """A crash loop, a refused pull, a crash of an image that claims the platform, and pods that run or have ended."""
    images, where = real_images, await world.namespace()
    placed = {
        "crash": ("arm64", images.amd, {}),
        "pull": ("amd64", images.arm_index, {}),
        "fine-amd64": ("amd64", images.multi, {}),
        "fine-arm64": ("arm64", images.multi, {}),
        "never": ("arm64", images.amd, {"restartPolicy": "Never"}),
    }
    async with open_nodes(world.cluster, world.api, node_programs, images):
        await world.api.create_all(
            pod(name, image, namespace=where, cpu="10m", spec={"nodeName": node, **spec})
            for name, (node, image, spec) in placed.items()
        )
        two = pod("two", images.multi, images.amd, namespace=where, cpu="10m", spec={"nodeName": "arm64"})
        await world.api.create(two)
        seen = await observe(world.api, where, len(placed) + 1)
        code, output = await report_between_starts(world, images, where)
        shown = (await run_report(world, images, "-n", where))[1]
    outcomes = {name: each.outcome for name, each in seen.items() if name != "two"}
    assert outcomes == {
        "crash": Outcome.CRASHES,
        "pull": Outcome.REFUSED,
        "fine-amd64": Outcome.RUNS,
        "fine-arm64": Outcome.RUNS,
        "never": Outcome.CRASHES,
    }, texts(seen)
    report = msgspec.json.decode(output, type=dict[str, Any])
    names = {each["name"]: each for each in two["spec"]["containers"]}
    assert findings(report) == {
        "crash/container-0": ["crashes known"],
        "pull/container-0": ["pull-refused known"],
        "fine-amd64/container-0": [],
        "fine-arm64/container-0": [],
        **{f"two/{name}": ["crashes known"] if each["image"] == images.amd else [] for name, each in names.items()},
    }
    assert code == 1
    [crash] = [each for each in report["containers"] if each["pod"] == "crash"]
    assert crash["platform"] == "linux/arm64"
    assert crash["platforms"] == ["linux/amd64"]
    assert f"image {images.amd} is built only for linux/amd64, and the node is linux/arm64" in shown
    chosen = {each["pod"]: each["chosen"] for each in report["containers"] if each["pod"].startswith("fine")}
    assert len(set(chosen.values())) == 2  # one manifest for each platform
    assert all(each.startswith("sha256:") for each in chosen.values())


async def test_a_cluster_without_faults_is_exit_code_0(
    world: World, node_programs: NodePrograms, real_images: RealImages
) -> None:
    """Until the tag loses the platform, or a node's labels contradict its kubelet."""
    where = await world.namespace()
    moving = real_images.reference("moving")
    registry, hello = real_images.registry, real_images.hello
    real_images.push("moving", build_hello_index(BOTH, hello))
    async with open_nodes(world.cluster, world.api, node_programs, real_images):
        await world.api.create(pod("p", moving, namespace=where, cpu="10m", spec={"nodeName": "arm64"}))
        await observe(world.api, where, 1)
        assert (await run_report(world, real_images, "-n", where))[0] == 0
        registry.push("moving", "1", build_hello_index(["amd64"], hello))
        code, output = await run_report(world, real_images, "-n", where, "-o", "json")
        assert code == 1
        report = msgspec.json.decode(output, type=dict[str, Any])
        assert list(findings(report).values()) == [["lost-platform known"]]
        assert "@sha256:" in report["containers"][0]["findings"][0]["text"]
        contradictory = fake_node("odd", "amd64", labels={"kubernetes.io/arch": "arm64"})
        await world.api.create(contradictory)
        report = msgspec.json.decode((await run_report(world, real_images, "-A", "-o", "json"))[1], type=dict[str, Any])
        assert report["nodes"] == [{"node": "odd", "label": "linux/arm64", "node_info": "linux/amd64"}]


def is_settled(found: dict[str, Any]) -> bool:
    """Whether each container of the pod runs or has failed, and one of them has failed."""
    states = [each["state"] for each in found["status"].get("containerStatuses") or []]
    failed = [
        bool(state.get("terminated")) or state.get("waiting", {}).get("reason") == "CrashLoopBackOff"
        for state in states
    ]
    return any(failed) and all(
        has_failed or "running" in state for has_failed, state in zip(failed, states, strict=True)
    )


def texts(seen: dict[str, Observation]) -> dict[str, str]:
    """What each pod says, for the message of a failed assertion."""
    return {name: each.text for name, each in seen.items()}
