"""`explain` and `audit` of the golden workloads: every pod on a real control plane, and the manifests of the same.

What `explain` says is held against what kube-scheduler and the webhook said of the same pods.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from extender.cli.explain import explain_all
from extender.cli.explain_target import ExplainTarget
from extender.cli.options import opened_client
from extender.config.reading import read_config
from testbed.api_client import ApiClient
from testbed.debian_registry import DebianRegistry
from testbed.eventually import eventually
from testbed.objects import KubernetesObject
from testbed.shipped_files import SECOND_SCHEDULER, Mode
from tests.e2e.golden import ROWS, TARGETS, VERSIONS, Written, open_registry, populate, workload
from tests.e2e.world import World, refusal_of, run_command

pytestmark = pytest.mark.e2e

REASON = "multiarch-extender.io/reason"
OF_CONTAINERS = {"runs-on-wrong-platform", "exec-format-error", "pull-refused", "tag-lost-platform"}
RULES = {"selector": "selector-blocks", "affinity": "affinity-blocks", "taint": "taint-not-tolerated"}
BY_NAME = {row["name"]: row for row in ROWS}
Found = dict[str, Any]
Answers = dict[str, tuple[str, list[str]]]


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DebianRegistry]:
    """The registry of the golden rows."""
    with open_registry(tmp_path_factory.mktemp("registry")) as opened:
        yield opened


def reaching(registry: DebianRegistry) -> tuple[str, ...]:
    """The settings that reach the registry."""
    return f"registry.plain_http=['{registry.host}']", f"registry.allow=['*', '{registry.host}']"


def row_of(pod: str) -> Found:
    """The row of a pod of `populate`."""
    return BY_NAME[pod if pod in BY_NAME else pod.rsplit("-", 2)[0]]


def answers_of(told: Found) -> Answers:
    """The answer for each kind of node, and the rules of what is in the way, in the golden file's words."""
    images = {each["platform"]: each["lacking"] for each in told["nodes"]}
    unknown = [each for each in told["images"] if each["state"] in ("pending", "unknown")]
    return {
        kind["platform"]: (
            kind["answer"],
            sorted(
                ["image-lacks-platform"] * len(images.get(kind["platform"], ()))
                + ["image-unknown"] * len(unknown)
                + [RULES[each["rule"]] for each in kind["obstacles"]]
            ),
        )
        for kind in told["nodes"]
    }


def golden_answers(row: Found, platforms: Iterable[str] = TARGETS) -> Answers:
    """What `answers_of` must give for the pods of the row."""
    words = {True: "yes", False: "no", "unknown": "unknown"}
    blockers = row.get("blockers", {})
    return {
        platform: (words[answer], sorted(blockers.get(platform, ())))
        for platform, answer in zip(TARGETS, row["answers"], strict=True)
        if platform in platforms
    }


async def explain_each(world: World, registry: DebianRegistry, where: str, pods: Iterable[str]) -> dict[str, Found]:
    """The explanation of each pod, as `explain NAME -o json` has it."""
    settings = read_config(None, [*reaching(registry), f"cluster={world.cluster.kubeconfig}"])
    async with opened_client(settings) as client:
        subjects = [each for name in pods for each in await ExplainTarget("", name, where, None).find(client)]
        found = await explain_all(subjects, settings, client)
    return {each.name: msgspec.to_builtins(each) for each in found}


async def settled(api: ApiClient, where: str, count: int) -> dict[str, KubernetesObject]:
    """The pods by name, once kube-scheduler has bound or refused each of them: those of missing images after 30 s."""

    def are_settled(pods: list[KubernetesObject]) -> bool:
        settled = [
            each for each in pods if each["spec"].get("nodeName") or refusal_of(each).get("reason") == "Unschedulable"
        ]
        return len(settled) == count

    pods = await eventually(lambda: api.list("Pod", where), are_settled)
    return {each["metadata"]["name"]: each for each in pods}


async def test_explain_says_of_each_pod_what_the_scheduler_did(world: World, registry: DebianRegistry) -> None:
    """Each of 300: the golden answers, the words of its event, and a node that was not said to refuse it."""
    service = await world.start_service(*reaching(registry), admission=False)
    where, _, _ = await populate(world.api, registry.host, {"schedulerName": SECOND_SCHEDULER}, cpu="64")
    with world.second_scheduler(service):
        pods = await settled(world.api, where, 300)
        events = await world.api.list("Event", where)
    architectures = await world.nodes_by_architecture()
    explained = await explain_each(world, registry, where, pods)
    said: dict[str, set[str]] = defaultdict(set)
    for event in events:
        if event["reason"] == "FailedScheduling":
            said[event["involvedObject"]["name"]].add(event["message"])
    refused = 0
    for name, pod in pods.items():
        row, told = row_of(name), explained[name]
        if told["skipped"]:
            assert "multiarch-extender.io/mode" in str(row.get("annotations")), row["why"]
            continue
        assert answers_of(told) == golden_answers(row), row["why"]
        if node := pod["spec"].get("nodeName"):
            answer, _ = answers_of(told)[f"linux/{architectures[node]}"]
            assert answer != "no", row["why"]
            continue
        refused += 1
        # nodes that kube-scheduler itself refuses are not shown to us
        ours = sum(kind["nodes"] for kind in told["nodes"] if kind["words"] and not kind["obstacles"])
        messages = {refusal_of(pod)["message"], *said[name]}
        assert any(text.startswith("0/6 nodes are available: ") for text in messages), row["why"]
        assert any(f"{ours} {told['refusal']}" in text for text in messages), (messages, told["refusal"])
    assert refused == sum(row["pods"] for row in ROWS if not any(row["answers"]) and row["name"] != "ignored")


async def test_explain_says_of_each_manifest_what_the_golden_file_does(
    world: World, registry: DebianRegistry, tmp_path: Path
) -> None:
    """With the cluster's nodes, and without a cluster."""
    where, written, _ = await populate(world.api, registry.host)
    file = tmp_path / "all.yaml"
    file.write_text(yaml.safe_dump_all(written))
    # without what the webhook would add, which keeps pods off the same nodes once more
    none = "--set=admission.node_affinity=none"
    arguments = ("explain", "-n", where, "-f", str(file), "-o", "json", none)
    live = await run_command(world, *arguments, host=registry.host)
    without = await run_command(world, *arguments, "--set=cluster=none", host=registry.host)
    for found, platforms in ((live, TARGETS), (without, TARGETS[:2])):
        assert found.code == 1, found.errors  # some run nowhere
        by_name = {each["name"]: each for each in found.told}
        assert by_name.keys() == {row["name"] for row in ROWS if row["kind"] in VERSIONS}
        for name, told in by_name.items():
            if told["skipped"]:
                assert BY_NAME[name]["answers"] == []
            elif "pod_images" not in BY_NAME[name]:  # which no manifest shows
                assert answers_of(told) == golden_answers(BY_NAME[name], platforms), BY_NAME[name]["why"]


async def test_explain_has_the_annotation_of_the_webhook(
    world: World, registry: DebianRegistry, tmp_path: Path
) -> None:
    """The real one writes it into a pod of each row; and what it adds is the patch that `explain` shows."""
    service = await world.start_service(*reaching(registry), "admission.node_affinity=required", mode=Mode.WEBHOOK)
    await world.register_webhook(service)
    where = await world.namespace()
    pods = [workload("Pod", row["name"], where, row, registry.host, {}) for row in ROWS]
    for pod, row in zip(pods, ROWS, strict=True):
        pod["metadata"]["annotations"] = row.get("annotations", {})
    created = {each["metadata"]["name"]: each for each in [await world.review(pod) for pod in pods]}
    file = tmp_path / "pods.yaml"
    file.write_text(yaml.safe_dump_all(pods))
    setting = "--set=admission.node_affinity=required"
    found = await run_command(world, "explain", "-n", where, "-f", str(file), "-o", "json", setting, host=registry.host)
    explained = {each["name"]: each for each in found.told}
    reasons = {name: each["metadata"].get("annotations", {}).get(REASON, "") for name, each in created.items()}
    assert {name: told["annotation"] for name, told in explained.items()} == reasons
    assert sum(map(bool, reasons.values())) >= 2
    for name, told in explained.items():
        wanted = [each["value"] for each in told["webhook"]["patch"] if each["path"] == "/spec/affinity"]
        assert wanted in ([], [created[name]["spec"].get("affinity")]), BY_NAME[name]["why"]


# What a kubelet does with each image on nodes of two architectures, as real ones did (testbed/nodes): an index that
# lacks the platform is refused at the pull, and a single manifest is pulled and its program fails.
RUNS, CRASHES, REFUSED, ABSENT, STUCK = "runs", "crashes", "refused", "absent", "stuck"
KUBELET = {
    "multi": (RUNS, RUNS),
    "all": (RUNS, RUNS),
    "amd": (RUNS, REFUSED),
    "arm": (CRASHES, RUNS),
    "missing": (ABSENT, ABSENT),
    "artifact": (STUCK, STUCK),
}


def status_of(container: KubernetesObject, architecture: str, digests: dict[str, str]) -> KubernetesObject:
    """The container's status on a node of that architecture."""
    image = container["image"]
    outcome = KUBELET[image.rpartition("/")[2].partition(":")[0]][architecture == "arm64"]
    pulled = f"{image.rpartition(':')[0]}@{digests[image]}" if image in digests else ""
    now = "2026-01-01T00:00:00Z"
    ended = {"exitCode": 1, "reason": "Error", "startedAt": now, "finishedAt": now}
    state: KubernetesObject = {
        RUNS: {"running": {"startedAt": now}},
        CRASHES: {"waiting": {"reason": "CrashLoopBackOff"}},
        REFUSED: {"waiting": {"reason": "ImagePullBackOff", "message": "no match for platform in manifest"}},
        ABSENT: {"waiting": {"reason": "ErrImagePull", "message": "not found"}},
        STUCK: {"waiting": {"reason": "CreateContainerError", "message": "no command specified"}},
    }[outcome]
    return {
        "name": container["name"],
        "image": image,
        "imageID": pulled if outcome in (RUNS, CRASHES) else "",
        "ready": outcome == RUNS,
        "restartCount": 3 if outcome == CRASHES else 0,
        "state": state,
        "lastState": {"terminated": ended} if outcome == CRASHES else {},
    }


async def run_on(api: ApiClient, pod: KubernetesObject, node: str, digests: dict[str, str]) -> None:
    """Binds the pod, and reports its status as the node's kubelet would."""
    metadata, spec = pod["metadata"], pod["spec"]
    path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": metadata["name"]}}
    await api.request("POST", f"{path}/binding", {**binding, "target": {"kind": "Node", "name": node}})
    architecture = node.partition("-")[0]
    statuses = {
        f"{kind}Statuses": [status_of(each, architecture, digests) for each in spec.get(f"{kind}s", ())]
        for kind in ("container", "initContainer")
    }
    body = {"status": {"phase": "Running", **statuses}}
    await api.request("PATCH", f"{path}/status", body, content_type="application/strategic-merge-patch+json")


async def test_audit_finds_what_runs_wrongly_as_the_golden_file_says(world: World, registry: DebianRegistry) -> None:
    """Half of each row's pods on amd64 and half on arm64; the bare ones on arm64."""
    populated: Written = await populate(world.api, registry.host)
    where = populated.namespace
    pods = [each for each in (*populated.written, *populated.made) if each["kind"] == "Pod"]
    names = [f"{registry.host}/shop/{name}:1.0" for name in ("multi", "all", "amd", "arm")]
    inspected = await run_command(world, "inspect", *names, "-o", "json", host=registry.host)
    digests = {each["reference"]: each["digest"] for each in inspected.told}
    nodes = {each["metadata"]["name"]: f"{('arm64', 'amd64')[index % 2]}-0" for index, each in enumerate(pods)}
    await asyncio.gather(*(run_on(world.api, pod, nodes[pod["metadata"]["name"]], digests) for pod in pods))
    found = await run_command(world, "audit", "-n", where, "-o", "json", "--no-newer", host=registry.host)
    seen: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for each in msgspec.json.decode(found.output, type=Found)["findings"]:
        if each["rule"] in OF_CONTAINERS:
            rule, platform, workload_name, container, image = each["fingerprint"].split(":", 4)
            assert image in each["message"]
            row = workload_name.rpartition("/")[2]
            seen[row, platform.partition("/")[2]][container] = rule
    ran = {(row_of(name)["name"], node.partition("-")[0]) for name, node in nodes.items()}
    expected = {
        (row["name"], architecture): golden
        for row in ROWS
        for architecture, golden in row.get("running", {}).items()
        if (row["name"], architecture) in ran
    }
    assert seen == expected
