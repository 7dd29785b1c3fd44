"""`audit` of 300 pods of every kind of owner on a real control plane, with images of every kind in a real registry.

`tests/data/audit/golden.yaml` has a row for each workload, with what must be found and why.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed.api_client import ApiClient
from testbed.control_plane import LocalCluster
from testbed.debian_registry import DebianRegistry
from tests.e2e.golden import ROWS, TARGETS, VERSIONS, open_registry, populate
from tests.unit.cli.commands import run

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DebianRegistry]:
    """The registry of the golden rows."""
    with open_registry(tmp_path_factory.mktemp("registry")) as opened:
        yield opened


async def audit(registry: DebianRegistry, *arguments: str, command: str = "audit") -> tuple[int, str, str]:
    """The exit code, standard output and standard error of the command."""
    host = registry.host
    settings = (f"registry.plain_http=['{host}']", f"registry.allow=['*', '{host}']", "cache.url='memory:'")
    return await run(command, *arguments, *(f"--set={each}" for each in settings))


def expected(row: dict[str, Any], *, has_nodes: bool) -> dict[str, tuple[str, list[str]]]:
    """The answer for each platform, and the rules of its blockers."""
    words = {True: "yes", False: "no", "unknown": "unknown"}
    answers = [words[each] for each in row["answers"]]
    blockers = {platform: sorted(rules) for platform, rules in row.get("blockers", {}).items()}
    if not has_nodes:
        answers = answers[:2] if "without_nodes" not in row else [words[each] for each in row["without_nodes"]]
        blockers = {} if "without_nodes" in row else blockers
    return {platform: (answer, blockers.get(platform, [])) for platform, answer in zip(TARGETS, answers, strict=False)}


def found_for(report: dict[str, Any], row: dict[str, Any]) -> tuple[dict[str, Any], dict[str, tuple[str, list[str]]]]:
    """The workload of the row as the report has it, and its answers as `expected` has them."""
    [found] = [each for each in report["workloads"] if (each["kind"], each["name"]) == (row["kind"], row["name"])]
    return found, {
        each["platform"]: (each["answer"], sorted(blocker["rule"] for blocker in each["blockers"]))
        for each in found["platforms"]
    }


async def test_the_live_cluster_and_its_manifests_give_the_golden_findings(
    control_plane: LocalCluster, api: ApiClient, registry: DebianRegistry, tmp_path: Path
) -> None:
    """Every row of the golden file, and no workload besides; the same of manifests, but for what only a cluster has."""
    where, written, _ = await populate(api, registry.host)
    for row in ROWS:
        if row["kind"] == "DaemonSet":  # which its controller would write
            path = f"/apis/apps/v1/namespaces/{where}/daemonsets/{row['name']}/status"
            counts = ("currentNumberScheduled", "desiredNumberScheduled", "numberMisscheduled", "numberReady")
            body = {"status": dict.fromkeys(counts, row["pods"])}
            await api.request("PATCH", path, body, content_type="application/merge-patch+json")

    code, out, err = await audit(registry, "-n", where, "--kubeconfig", str(control_plane.kubeconfig), "-o", "json")
    assert (code, err.count("\n")) == (0, 1)
    assert err.startswith("settings: the defaults")
    report = json.loads(out)
    assert report["targets"] == list(TARGETS)
    assert report["problems"] == []
    assert {(each["kind"], each["name"]) for each in report["workloads"]} == {
        (row["kind"], row["name"]) for row in ROWS
    }
    for row in ROWS:
        found, answers = found_for(report, row)
        assert answers == expected(row, has_nodes=True), row["why"]
        assert found["weight"]["pods"] == row["pods"], row["why"]
    _check_findings(report, where)
    _check_images(report, registry.host)
    pools = {pool["platform"]: (pool["nodes"], pool["cpu_cores"]) for pool in report["nodes"]}
    assert pools == dict.fromkeys(TARGETS, (2, 16.0))

    file = tmp_path / "all.yaml"
    file.write_text(yaml.safe_dump_all(written))
    code, out, err = await audit(registry, "-f", str(file), "-o", "json")
    assert (code, err) == (0, "")
    report = json.loads(out)
    assert report["targets"] == list(TARGETS[:2])
    for row in ROWS:
        if row["kind"] in VERSIONS:
            assert found_for(report, row)[1] == expected(row, has_nodes=False), row["why"]
    unneeded = [each["subject"] for each in report["findings"] if each["rule"] == "constraint-not-needed"]
    assert unneeded == [f"{where}/Deployment/pinned"]
    options = ("-f", str(file), "--relax", "--check", "--allow-unknown")
    code, out, err = await audit(registry, *options, command="fix")
    assert (code, out.count("\n")) == (1, 1)
    assert f"Deployment {where}/pinned does not need nodeSelector kubernetes.io/arch=amd64" in out
    assert [line.partition(f"{where}/")[2].partition(" ")[0] for line in err.splitlines()] == ["asking", "amd-agent"]


def _check_findings(report: dict[str, Any], where: str) -> None:
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


def _check_images(report: dict[str, Any], host: str) -> None:
    """Digests, causes, weights and the first newer tag."""
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
