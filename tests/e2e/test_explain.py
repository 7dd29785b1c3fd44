"""`explain` on a real cluster: it says what kube-scheduler's event says, or the annotation where affinity decides."""

from typing import Any

import msgspec
import pytest

from testbed.shipped_files import Mode
from tests.e2e.pod_makers import deployment
from tests.e2e.world import World, run_command

pytestmark = pytest.mark.e2e

REASON = "multiarch-extender.io/reason"
ARM_TAINT = {"key": "kubernetes.io/arch", "value": "arm64", "effect": "NoSchedule"}


def answers(told: dict[str, Any]) -> dict[str, list[str]]:
    """The answers for nodes of each platform."""
    found: dict[str, list[str]] = {}
    for kind in told["nodes"]:
        found.setdefault(kind["platform"], []).append(kind["answer"])
    return found


async def test_the_words_are_the_event_s(world: World) -> None:
    """A pod that the scheduler verbs refuse: each word of ours in the event is in the explanation."""
    await world.create_nodes("arm64", 2)
    await world.create_nodes("s390x", 1)
    service = await world.start_service(admission=False)
    where = await world.namespace()
    with world.second_scheduler(service):
        await world.create_pods(where, 1, world.images.multi, world.images.amd, scheduler="multiarch-scheduler")
        refusal = await world.wait_refused(where, "pod-0", "is built only for")
        event = await world.api.wait_for_event("pod-0", namespace=where, containing="is built only for")
    found = await run_command(world, "explain", "pod-0", "-n", where, "-o", "json")
    assert found.code == 1, found.errors
    [told] = found.told
    words = {kind["words"] for kind in told["nodes"]}
    assert words == {f"image {world.images.amd} is built only for linux/amd64"}
    # kube-scheduler writes `0/3 nodes are available: 3 WORDS.`, then what preemption found
    assert f": 3 {words.pop()}." in refusal["message"]
    assert f": 3 {told['refusal']}." in event
    assert answers(told) == {"linux/arm64": ["no"], "linux/s390x": ["no"]}
    assert [image["platforms"] for image in told["images"]] == [["linux/amd64", "linux/arm64"], ["linux/amd64"]]
    assert {image["credential"] for image in told["images"]} == {"anonymous"}


async def test_where_affinity_decides_the_words_are_the_annotation_s(world: World) -> None:
    """The event then says only that the node's affinity does not match."""
    await world.create_nodes("arm64", 2)
    service = await world.start_service("admission.node_affinity=required", mode=Mode.WEBHOOK)
    await world.register_webhook(service)
    where = await world.namespace()
    with world.default_scheduler(None):
        await world.create_pods(where, 1, world.images.amd)
        refusal = await world.wait_refused(where, "pod-0", "didn't match Pod's node affinity/selector")
    assert "built only" not in refusal["message"]
    annotation = (await world.api.get("Pod", "pod-0", where))["metadata"]["annotations"][REASON]
    setting = "--set=admission.node_affinity=required"
    [told] = (await run_command(world, "explain", "pod-0", "-n", where, "-o", "json", setting)).told
    [kind] = told["nodes"]
    assert kind["answer"] == "no"
    assert [each["rule"] for each in kind["obstacles"]] == ["selector"]
    assert kind["words"] == told["annotation"] == annotation
    assert told["webhook"]["patch"] == []  # a second pass changes nothing
    assert "kubernetes.io/arch" in told["added"]


async def test_a_workload_is_explained_as_its_pods_will_be_created(world: World) -> None:
    """With the toleration and affinity that the webhook would write, which a dry run of the real one confirms."""
    await world.create_nodes("arm64", 1, taints=[ARM_TAINT])
    await world.create_nodes("amd64", 1)
    await world.create_nodes("s390x", 1)
    service = await world.start_service("admission.node_affinity=required", mode=Mode.WEBHOOK)
    await world.register_webhook(service)
    where = await world.namespace()
    spec = {"containers": [{"name": "c", "image": world.images.multi}]}
    await world.api.create(deployment("web", where, spec))
    setting = "--set=admission.node_affinity=required"
    live = await run_command(world, "explain", "deploy/web", "-n", where, "-o", "json", setting)
    assert live.code == 0, live.errors
    [told] = live.told
    assert answers(told) == {"linux/amd64": ["yes"], "linux/arm64": ["yes"], "linux/s390x": ["no"]}
    manifest = msgspec.json.encode(deployment("web", where, spec)).decode()
    from_file = await run_command(world, "explain", "-f", "-", "-o", "json", setting, stdin=manifest)
    assert from_file.told[0]["nodes"] == told["nodes"]
    assert from_file.told[0]["webhook"] == told["webhook"]
    created = await world.review(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": where}, "spec": spec}
    )
    written = [each["value"] for each in told["webhook"]["patch"] if each["path"].startswith("/spec/affinity")]
    assert written == [created["spec"]["affinity"]]
    shown = await run_command(world, "explain", "deploy/web", "-n", where, setting)
    assert "tolerates kubernetes.io/arch=arm64:NoSchedule" in shown.output
    assert "+    nodeAffinity:" in shown.output


async def test_taints_selectors_and_unknown_images_are_told_apart(world: World) -> None:
    """Each with what would change it; a pod on no node is exit code 1."""
    await world.create_nodes("arm64", 1, taints=[ARM_TAINT])
    await world.create_nodes("amd64", 1)
    where = await world.namespace()
    await world.create_pods(where, 1, world.images.multi, prefix="tainted", spec={"nodeSelector": {"zone": "b"}})
    await world.create_pods(where, 1, world.images.unpushed(), prefix="missing")
    tainted = await run_command(world, "explain", "tainted-0", "-n", where, "-o", "json")
    assert tainted.code == 1
    [told] = tainted.told
    assert {kind["images"] for kind in told["nodes"]} == {"yes"}
    assert answers(told) == {"linux/amd64": ["no"], "linux/arm64": ["no"]}
    assert "linux/arm64: tolerate the taint kubernetes.io/arch=arm64:NoSchedule" in told["remedies"]
    missing = await run_command(world, "explain", "missing-0", "-n", where, "-o", "json")
    assert missing.code == 1
    [told] = missing.told
    assert answers(told) == {"linux/amd64": ["unknown"], "linux/arm64": ["no"]}
    assert told["images"][0]["cause"] == "missing"


async def test_what_cannot_be_explained_is_an_error(world: World) -> None:
    """Exit code 2, one line, with what would be right."""
    where = await world.namespace()
    absent = await run_command(world, "explain", "absent", "-n", where)
    assert (absent.code, absent.output) == (2, "")
    assert "HTTP 404" in absent.errors
    unknown = await run_command(world, "explain", "service/web", "-n", where)
    assert unknown.code == 2
    assert "'service' is no kind with pods" in unknown.errors
    nothing = await run_command(world, "explain", "-f", "-", stdin="kind: ConfigMap\n")
    assert nothing.code == 2
