"""What a pod's author reads: annotations, conditions and events as `kubectl describe pod` shows them, a file a story.

`UPDATE_STORIES=1` writes the files again.
"""

import os
import re
from pathlib import Path

import pytest

from testbed.control_plane import LocalCluster
from testbed.eventually import eventually
from testbed.objects import KubernetesObject, pod
from testbed.shipped_files import Mode
from tests.e2e.gates import observed, start_controller, start_holding
from tests.e2e.load import leaning_to
from tests.e2e.policies import applied_policies, until_held
from tests.e2e.world import World

pytestmark = pytest.mark.e2e

STORIES = Path(__file__).parent / "gate_stories"
ADDED = "multiarch-extender.io/added"
NODE = "node.kubernetes.io/"
OURS = ("WaitingForImagePlatforms", "ImagePlatformsKnown", "ImagePlatformsUnresolved")
_IMAGE = re.compile(r"127\.0\.0\.1:\d+/[a-z0-9/-]*?app-\d+:1\.0")


async def description(world: World, where: str, name: str) -> str:
    """What tells of images in the description of the pod, with one name for all of them.

    The scheduler's own events are left out, which tell how many nodes there are.
    """
    found = await world.api.get("Pod", name, where)
    uid = found["metadata"]["uid"]
    events = await world.api.list("Event", where)
    ours = [each for each in events if each["involvedObject"]["uid"] == uid and each["reason"] in OURS]
    annotations = {key: text for key, text in found["metadata"]["annotations"].items() if key != ADDED}
    tolerations = [each["key"] for each in found["spec"]["tolerations"] if not each["key"].startswith(NODE)]
    gates = [gate["name"] for gate in found["spec"].get("schedulingGates") or ()]
    lines = [
        *_section("Labels", [f"{key}={text}" for key, text in found["metadata"].get("labels", {}).items()]),
        *_section("Annotations", [f"{key}: {text}" for key, text in annotations.items()]),
        *_section("Scheduling gates", gates),
        *_section("Required node affinity", _terms(found)),
        *_section("Tolerations", tolerations),
        *_section("Events", [f"{each['type']}  {each['reason']}  {each['message']}" for each in _in_order(ours)]),
    ]
    return _IMAGE.sub("registry.example.com/app:1.0", "\n".join(lines)) + "\n"


def _section(title: str, lines: list[str]) -> list[str]:
    return [f"{title}:", *(f"  {line}" for line in lines or ["<none>"])]


def _in_order(events: list[KubernetesObject]) -> list[KubernetesObject]:
    return sorted(events, key=lambda each: OURS.index(each["reason"]))


def _terms(found: KubernetesObject) -> list[str]:
    affinity = found["spec"].get("affinity", {}).get("nodeAffinity", {})
    terms = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms", [])
    return [
        " and ".join(
            f"{each['key']} {each['operator']} {','.join(each.get('values', []))}".rstrip()
            for each in term["matchExpressions"]
        )
        for term in terms
    ]


async def check_story(world: World, where: str, name: str, story: str) -> None:
    """Compares the pod's description with the story's file."""
    text = await description(world, where, name)
    path = STORIES / f"{story}.txt"
    if os.environ.get("UPDATE_STORIES"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


async def test_held_pod_and_its_release(world: World) -> None:
    """Its image is pushed later."""
    await world.create_nodes("arm64", 1)
    await start_holding(world)
    where, late = await world.namespace(), world.images.unpushed()
    await world.create_pods(where, 1, late, prefix="late", spec=leaning_to("amd64"))
    await world.api.wait_for_event("late-0", "WaitingForImagePlatforms", where)
    await check_story(world, where, "late-0", "held")
    world.images.push(late, "arm64")
    await world.api.wait_for_event("late-0", "ImagePlatformsKnown", where)
    await check_story(world, where, "late-0", "let-go")


async def test_pod_whose_time_is_over(world: World) -> None:
    """Its image never comes."""
    await start_holding(world, "admission.gate.limit_seconds=3")
    where, never = await world.namespace(), world.images.unpushed()
    await world.create_pods(where, 1, never, prefix="never")
    await world.api.wait_for_event("never-0", "ImagePlatformsUnresolved", where)
    await check_story(world, where, "never-0", "let-go-after-the-limit")


async def test_held_pod_that_no_node_can_run(world: World) -> None:
    """It is known to be impossible only when its second image has been pushed."""
    await start_holding(world)
    where, late = await world.namespace(), world.images.unpushed()
    await world.api.create(pod("both", world.images.amd, late, namespace=where))
    async with observed(world, where) as releases:
        world.images.push(late, "arm64")
        await releases.are(1)
    await world.api.wait_for_event("both", "ImagePlatformsUnresolved", where)
    await check_story(world, where, "both", "impossible")


async def test_pod_that_contradicts_its_image_at_creation(world: World) -> None:
    """No event of ours: the webhook writes none, and the annotation tells."""
    await start_holding(world)
    where, selector = await world.namespace(), {"nodeSelector": {"kubernetes.io/arch": "arm64"}}
    manifest = pod("selector", world.images.amd, namespace=where, spec=selector)
    # Until its image is in memory.
    await eventually(lambda: world.review(manifest), lambda found: not found["spec"].get("schedulingGates"))
    await world.api.create(manifest)
    await check_story(world, where, "selector", "contradicting-selector")


async def test_pod_that_is_let_through(world: World) -> None:
    """Nobody lets pods go, so it is not held."""
    account = await world.account(Mode.SECOND)
    service = await world.start_service("admission.unknown=gate", f"cluster={account}", mode=Mode.WEBHOOK)
    await world.register_webhook(service)
    where, never = await world.namespace(), world.images.unpushed()
    await world.create_pods(where, 1, never, prefix="passed")
    await check_story(world, where, "passed-0", "let-through")


async def test_pod_that_a_policy_holds_while_we_are_down(control_plane: LocalCluster, world: World) -> None:
    """Nothing of ours runs, and the pod says why it waits; then it is let go by a service that starts."""
    await world.create_nodes("arm64", 1)
    where = await world.namespace()
    async with applied_policies(world.api) as apply:
        await apply("own-account", "gate")
        await until_held(world.api)
        await world.create_pods(where, 1, world.images.arm, prefix="held")
        await check_story(world, where, "held-0", "held-during-an-outage")
        async with observed(world, where) as releases:
            await start_controller(world)
            await releases.are(1)
        await check_story(world, where, "held-0", "let-go-after-an-outage")
