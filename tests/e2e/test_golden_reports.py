"""`explain` and `audit` of the golden workloads: 300 pods on a real control plane, and the manifests of the same.

`tests/data/audit/golden.yaml` has a row for each workload, with what must be found and why.

What `explain` says is held against what kube-scheduler and the webhook said of the same pods.
"""

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
RULES = {"selector": "selector-blocks", "affinity": "affinity-blocks", "taint": "taint-not-tolerated"}
BY_NAME = {row["name"]: row for row in ROWS}
WORDS = {True: "yes", False: "no", "unknown": "unknown"}
Found = dict[str, Any]
Answers = dict[str, tuple[str, list[str]]]


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DebianRegistry]:
    with open_registry(tmp_path_factory.mktemp("registry")) as opened:
        yield opened


def reaching(registry: DebianRegistry) -> tuple[str, ...]:
    return f"registry.plain_http=['{registry.host}']", f"registry.allow=['*', '{registry.host}']"


def row_of(pod: str) -> Found:
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
    blockers = row.get("blockers", {})
    return {
        platform: (WORDS[answer], sorted(blockers.get(platform, ())))
        for platform, answer in zip(TARGETS, row["answers"], strict=True)
        if platform in platforms
    }


async def explain_each(world: World, registry: DebianRegistry, where: str, pods: Iterable[str]) -> dict[str, Found]:
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


# --- the cluster and its manifests


async def test_audit_and_explain_say_of_the_cluster_and_its_manifests_what_the_golden_file_does(
    world: World, registry: DebianRegistry, tmp_path: Path
) -> None:
    """Every row of the golden file, and no workload besides; the same of manifests, but for what only a cluster has."""
    populated = await populate(world.api, registry.host)
    file = tmp_path / "all.yaml"
    file.write_text(yaml.safe_dump_all(populated.written))
    await audit_the_cluster(world, registry, populated)
    found = await run_command(world, "audit", "-f", str(file), "-o", "json", "--set=cluster=none", host=registry.host)
    assert found.code == 0, found.errors
    report = msgspec.json.decode(found.output, type=Found)
    assert report["targets"] == list(TARGETS[:2])
    for row in ROWS:
        if row["kind"] in VERSIONS:
            assert audited(report, row)[1] == audit_answers(row, has_nodes=False), row["why"]
    unneeded = [each["subject"] for each in report["findings"] if each["rule"] == "constraint-not-needed"]
    assert unneeded == [f"{populated.namespace}/Deployment/pinned"]
    options = ("-f", str(file), "--relax", "--check", "--allow-unknown", "--set=cluster=none")
    found = await run_command(world, "fix", *options, host=registry.host)
    assert (found.code, found.output.count("\n")) == (1, 1)
    assert (
        f"Deployment {populated.namespace}/pinned does not need nodeSelector kubernetes.io/arch=amd64" in found.output
    )
    skipped = [line.partition(f"{populated.namespace}/")[2].partition(" ")[0] for line in found.errors.splitlines()]
    assert skipped == ["asking", "amd-agent"]
    await explain_manifests(world, registry, populated.namespace, file)


async def audit_the_cluster(world: World, registry: DebianRegistry, populated: Written) -> None:
    where = populated.namespace
    for row in ROWS:
        if row["kind"] == "DaemonSet":  # which its controller would write
            path = f"/apis/apps/v1/namespaces/{where}/daemonsets/{row['name']}/status"
            counts = ("currentNumberScheduled", "desiredNumberScheduled", "numberMisscheduled", "numberReady")
            body = {"status": dict.fromkeys(counts, row["pods"])}
            await world.api.request("PATCH", path, body, content_type="application/merge-patch+json")
    found = await run_command(world, "audit", "-n", where, "-o", "json", host=registry.host)
    assert found.code == 0, found.errors
    report = msgspec.json.decode(found.output, type=Found)
    assert (report["targets"], report["problems"]) == (list(TARGETS), [])
    assert {(each["kind"], each["name"]) for each in report["workloads"]} == {
        (row["kind"], row["name"]) for row in ROWS
    }
    for row in ROWS:
        workload, answers = audited(report, row)
        assert answers == audit_answers(row, has_nodes=True), row["why"]
        assert workload["weight"]["pods"] == row["pods"], row["why"]
    check_findings(report, where)
    check_images(report, registry.host)
    pools = {pool["platform"]: (pool["nodes"], pool["cpu_cores"]) for pool in report["nodes"]}
    assert pools == dict.fromkeys(TARGETS, (2, 16.0))


def audited(report: Found, row: Found) -> tuple[Found, Answers]:
    """The workload of the row as the report has it, and its answers as `audit_answers` has them."""
    [found] = [each for each in report["workloads"] if (each["kind"], each["name"]) == (row["kind"], row["name"])]
    return found, {
        each["platform"]: (each["answer"], sorted(blocker["rule"] for blocker in each["blockers"]))
        for each in found["platforms"]
    }


def audit_answers(row: Found, *, has_nodes: bool) -> Answers:
    """The answer for each platform, and the rules of its blockers."""
    answers = [WORDS[each] for each in row["answers"]]
    blockers = {platform: sorted(rules) for platform, rules in row.get("blockers", {}).items()}
    if not has_nodes:
        answers = answers[:2] if "without_nodes" not in row else [WORDS[each] for each in row["without_nodes"]]
        blockers = {} if "without_nodes" in row else blockers
    return {platform: (answer, blockers.get(platform, [])) for platform, answer in zip(TARGETS, answers, strict=False)}


def check_findings(report: Found, where: str) -> None:
    """The findings about DaemonSets are those of the rows, and no others."""
    stated = {
        (f"{where}/DaemonSet/{row['name']}", *f"{finding} ".split(" ")[:2])
        for row in ROWS
        for finding in row.get("findings", ())
    }
    told = {
        (each["workloads"][0], each["rule"], each["platform"])
        for each in report["findings"]
        if each["rule"].startswith("daemonset")
    }
    assert told == stated
    torn = [each["subject"] for each in report["findings"] if each["rule"] == "no-common-platform"]
    assert torn == [f"{where}/Deployment/torn"]


def check_images(report: Found, host: str) -> None:
    images = {each["reference"]: each for each in report["images"]}
    amd = images[f"{host}/shop/amd:1.0"]
    assert amd["digest"].startswith("sha256:")
    assert amd["lacks"] == ["linux/arm64", "linux/s390x"]
    newer = {each["platform"]: (each["tag"], each["why"]) for each in amd["newer"]}
    assert newer["linux/arm64"] == ("1.2", "")
    assert newer["linux/s390x"][0] is None
    assert "1.11, does not run there either" in newer["linux/s390x"][1]
    uses = {each["workload"].rpartition("/")[2]: each for each in amd["used_by"]}
    assert uses["injected"]["is_injected"]
    assert uses["starting"]["used_as"] == "init container"
    # every row but `ignored` that names it, each weighed once
    rows = [
        row
        for row in ROWS
        if "amd" in str(row.get("pod_images", row["images"])) + str(row.get("spec", {}).get("initContainers", ""))
    ]
    assert amd["blocks"]["pods"] == sum(row["pods"] for row in rows if row["name"] != "ignored")
    assert images[f"{host}/shop/missing:1.0"]["cause"] == "missing"
    assert images[f"{host}/shop/artifact:1.0"]["cause"] == "artifact"


async def explain_manifests(world: World, registry: DebianRegistry, where: str, file: Path) -> None:
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
