"""`audit` as a user runs it, on the rendered output of five charts, with images in a real registry."""

import asyncio
import contextlib
import csv
import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal
from xml.etree import ElementTree

import msgspec
import pytest
import yaml

from benchmarks.far_registry import far_registry
from extender.demo.images import build_artifact, build_index, build_manifest
from extender.reports.audit import Audit
from testbed.debian_registry import DebianRegistry

CHARTS = Path(__file__).parents[1] / "data/audit/charts"
SCHEMA = Path(__file__).parents[2] / "docs/schemas/audit-v1.json"
AMD, ARM = "linux/amd64", "linux/arm64"

# Each workload of the charts: its answers for amd64 and arm64, and why.
GOLDEN = {
    "Deployment/web": ("yes", "no", "its sidecar, behind a merge key, is amd64-only"),
    "Pod/web-test": ("yes", "no", "a test hook is a pod like any other"),
    "WebApp/shop": ("no", "yes", "a custom resource with a pod template, of an arm64 image"),
    "Job/operator-install-crds": ("yes", "no", "an install hook blocks the installation"),
    "system/Deployment/operator": ("yes", "yes", "an item of a List"),
    "DaemonSet/agent": ("yes", "no", "amd64-only"),
    "DaemonSet/agent-windows": ("no", "no", "Windows images run on no Linux node, and its selector says so"),
    "CronJob/nightly": ("yes", "no", "an image volume that is an index for amd64 constrains, and an artifact does not"),
    "CronJob/paused": ("unknown", "unknown", "suspended, and its image is missing"),
    "data/StatefulSet/store": ("unknown", "no", "its affinity forbids arm64; what is never pulled is not known"),
    "Pod/bare-": ("unknown", "unknown", "an invalid reference, and a container without an image"),
}


@pytest.fixture
def charts(debian_registry: DebianRegistry, tmp_path: Path) -> Path:
    """A folder with the charts' output, whose images the registry has."""
    multi = debian_registry.push("shop/multi", "1.0", build_index([AMD, ARM]))
    for tag, image in (("1.0", build_manifest(AMD)), ("1.1", build_manifest(AMD)), ("1.2", build_index([AMD, ARM]))):
        debian_registry.push("shop/amd", tag, image)
    debian_registry.push("shop/amdindex", "1.0", build_index([AMD]))
    debian_registry.push("shop/arm", "1.0", build_manifest(ARM))
    debian_registry.push("shop/windows", "1.0", build_index(["windows/amd64"]))
    debian_registry.push("shop/artifact", "1.0", build_artifact())
    folder = tmp_path / "charts"
    folder.mkdir()
    for file in CHARTS.glob("*.yaml"):
        text = file.read_text().replace("REGISTRY", debian_registry.host).replace("MULTI", multi)
        (folder / file.name).write_text(text)
    return folder


def command(host: str, *arguments: str, cache: str = "memory:") -> list[str]:
    """The command line that audits with this registry."""
    allowed = ("--set", f"registry.plain_http=['{host}']", "--set", f"registry.allow=['*', '{host}']")
    return [sys.executable, "-m", "extender", "audit", *arguments, *allowed, "--set", f"cache.url='{cache}'"]


async def run(line: list[str], text: str = "") -> tuple[int, str, str]:
    """The exit code, standard output and standard error of a command that reads `text`."""
    process = await asyncio.create_subprocess_exec(
        *line,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "COLUMNS": "80"},
    )
    out, err = await asyncio.wait_for(process.communicate(text.encode()), 60)
    return process.returncode or 0, out.decode(), err.decode()


async def report_of(host: str, *arguments: str) -> dict[str, Any]:
    """The report as JSON, from a run without complaint."""
    code, out, err = await run(command(host, *arguments, "-o", "json"))
    assert (code, err) == (0, "")
    found: dict[str, Any] = json.loads(out)
    return found


async def test_charts_give_the_golden_answers(debian_registry: DebianRegistry, charts: Path) -> None:
    """CRDs, hooks, empty documents, anchors, Windows, image volumes, init containers and sidecars."""
    report = await report_of(debian_registry.host, "-f", str(charts))
    answers = {
        "/".join(filter(None, (each["namespace"], each["kind"], each["name"]))): tuple(
            platform["answer"] for platform in each["platforms"]
        )
        for each in report["workloads"]
    }
    assert answers == {name: (amd, arm) for name, (amd, arm, _) in GOLDEN.items()}
    [problem] = report["problems"]
    assert problem.startswith(f"{charts}/stateful.yaml, document 2: StatefulSet wrong: ")
    assert "$.spec.nodeSelector" in problem


async def test_the_work_plan_names_weights_and_the_first_newer_tag(
    debian_registry: DebianRegistry, charts: Path
) -> None:
    """What a build of one image alone would set free, and which release has it already."""
    host = debian_registry.host
    report = await report_of(host, "-f", str(charts), "--own", f"{host}/shop/amd")
    images = {each["reference"]: each for each in report["images"]}
    amd = images[f"{host}/shop/amd:1.0"]
    assert amd["newer"] == [{"platform": ARM, "tag": "1.2", "why": ""}]
    assert (amd["owner"], images[f"{host}/shop/multi:1.0"]["owner"]) == ("own", "vendor")
    # web: 3 pods of 1 core beside a sidecar of 500m; agent 200m by its limit; the hooks request nothing
    assert amd["blocks"] == amd["unblocks"] == {
        "workloads": 4, "pods": 6, "cpu_cores": 4.7, "memory_bytes": 3 * (1152 << 20) + (256 << 20)
    }  # fmt: skip
    weights = {each["name"]: each["weight"] for each in report["workloads"]}
    assert weights["store"]["cpu_cores"] == 20  # what the pod itself requests, not its containers
    assert weights["nightly"]["pods"] == 4
    assert weights["paused"] == {"workloads": 1, "pods": 0, "cpu_cores": 0, "memory_bytes": 0}
    store = next(each for each in report["workloads"] if each["name"] == "store")
    assert [blocker["rule"] for blocker in store["platforms"][1]["blockers"]] == ["image-unknown", "affinity-blocks"]


async def test_require_is_a_gate_and_baseline_lets_old_blockers_pass(
    debian_registry: DebianRegistry, charts: Path, tmp_path: Path
) -> None:
    """One line a blocker and exit 1; with a baseline only for what is new."""
    host = debian_registry.host
    gate = ("--require", ARM, "--no-newer")
    code, _, err = await run(command(host, "-f", str(charts / "agents.yaml"), *gate))
    lines = err.splitlines()
    assert code == 1
    assert lines == [
        f"image {host}/shop/amd:1.0 does not run on {ARM}: it is built only for {AMD}",
        f"image {host}/shop/windows:1.0 does not run on {ARM}: it is built only for windows/amd64",
    ]
    code, out, _ = await run(command(host, "-f", str(charts / "agents.yaml"), "--require", ARM, "-o", "json"))
    assert code == 1
    (tmp_path / "baseline.json").write_text(out)
    baseline = ("--baseline", str(tmp_path / "baseline.json"))
    code, _, err = await run(command(host, "-f", str(charts / "agents.yaml"), *gate, *baseline))
    assert (code, err) == (0, "")
    code, _, err = await run(command(host, "-f", str(charts), *gate, *baseline))
    assert code == 1
    assert f"image {host}/shop/amdindex:1.0 does not run on {ARM}" in err
    assert f"image {host}/shop/amd:1.0 does not run on" not in err
    assert f"image {host}/shop/missing:1.0 is not known" in err


async def test_manifests_come_from_standard_input_too(debian_registry: DebianRegistry, charts: Path) -> None:
    """As `helm template … | multiarch-extender audit -f -`; an empty input has nothing to complain of."""
    text = (charts / "web.yaml").read_text()
    code, out, err = await run(command(debian_registry.host, "-f", "-", "-o", "csv"), text)
    assert (code, err) == (0, "")
    rows = list(csv.DictReader(out.splitlines()))
    assert {(row["kind"], row["platform"], row["answer"]) for row in rows} == {
        ("Deployment", AMD, "yes"), ("Deployment", ARM, "no"), ("Pod", AMD, "yes"), ("Pod", ARM, "no")
    }  # fmt: skip
    assert rows[0]["source"] == "standard input, document 2"
    code, out, err = await run(command(debian_registry.host, "-f", "-", "-o", "json", "--require", ARM), "---\n")
    assert (code, err, json.loads(out)["workloads"]) == (0, "", [])


async def test_a_list_of_images_is_a_source(debian_registry: DebianRegistry, charts: Path) -> None:
    """One a line; comments and blank lines are left out, and an image that is twice there is one."""
    host = debian_registry.host
    text = f"# ours\n{host}/shop/amd:1.0\n\n{host}/shop/multi:1.0\n{host}/shop/amd:1.0\n"
    code, out, _ = await run(command(host, "--images", "-", "-o", "json", "--require", ARM), text)
    assert code == 1
    assert [each["name"] for each in json.loads(out)["workloads"]] == [f"{host}/shop/amd:1.0", f"{host}/shop/multi:1.0"]


@pytest.mark.parametrize("form", ["table", "markdown", "yaml"])
async def test_each_form_for_people_names_the_blocker(
    debian_registry: DebianRegistry, charts: Path, form: Literal["table", "markdown", "yaml"]
) -> None:
    """With its remedy, without colours or bars."""
    code, out, err = await run(command(debian_registry.host, "-f", str(charts), "-o", form))
    assert (code, err) == (0, "")
    assert f"{debian_registry.host}/shop/amd:1.0" in out
    assert "1.2" in out
    assert "\x1b" not in out
    if form == "yaml":
        assert msgspec.convert(yaml.safe_load(out), Audit).schema == "multiarch-extender.io/audit/v1"


async def test_json_is_what_the_published_schema_says(debian_registry: DebianRegistry, charts: Path) -> None:
    """`--schema` prints the file that is published, and the report has its fields and no others."""
    code, out, _ = await run(command(debian_registry.host, "--schema"))
    assert code == 0
    assert json.loads(out) == json.loads(SCHEMA.read_text())
    report = await report_of(debian_registry.host, "-f", str(charts))
    definitions = json.loads(out)["$defs"]
    _assert_valid(report, definitions["Audit"], definitions, "$")


def _assert_valid(value: Any, schema: Mapping[str, Any], definitions: Mapping[str, Any], path: str) -> None:
    """Checks the keywords of JSON Schema that our schema uses, and that objects have no other properties."""
    if "$ref" in schema:
        schema = definitions[schema["$ref"].rpartition("/")[2]]
    unknown = schema.keys() - {
        "type", "properties", "required", "items", "enum", "anyOf", "default", "title", "description"
    }  # fmt: skip
    assert not unknown, (path, unknown)
    if "anyOf" in schema:
        kinds = [each.get("type") for each in schema["anyOf"]]
        assert "null" in kinds if value is None else any(kind != "null" for kind in kinds), path
        return
    if "enum" in schema:
        assert value in schema["enum"], path
        return
    types: dict[str, Any] = {
        "object": dict,
        "array": list,
        "string": str,
        "integer": int,
        "number": (int, float),
        "boolean": bool,
    }
    assert isinstance(value, types[schema["type"]]), path
    if isinstance(value, dict):
        assert value.keys() == schema["properties"].keys(), path
        for name, item in value.items():
            _assert_valid(item, schema["properties"][name], definitions, f"{path}.{name}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _assert_valid(item, schema["items"], definitions, f"{path}[{index}]")


class _Strict(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """A part of a SARIF log: only properties that SARIF 2.1.0 defines there, those without default being required."""


class _Message(_Strict):
    text: str


class _ReportingDescriptor(_Strict):
    id: str
    short_description: _Message
    help_uri: str


class _Driver(_Strict):
    name: str
    version: str
    information_uri: str
    rules: list[_ReportingDescriptor]


class _Tool(_Strict):
    driver: _Driver


class _Notification(_Strict):
    message: _Message
    level: Literal["none", "note", "warning", "error"]


class _Invocation(_Strict):
    execution_successful: bool
    tool_execution_notifications: list[_Notification]


class _ArtifactLocation(_Strict):
    uri: str


class _PhysicalLocation(_Strict):
    artifact_location: _ArtifactLocation


class _LogicalLocation(_Strict):
    fully_qualified_name: str
    kind: str


class _Location(_Strict):
    physical_location: _PhysicalLocation | None = None
    logical_locations: list[_LogicalLocation] = []
    message: _Message | None = None


class _Result(_Strict):
    rule_id: str
    rule_index: int
    level: Literal["none", "note", "warning", "error"]
    message: _Message
    locations: list[_Location]
    partial_fingerprints: dict[str, str]


class _Run(_Strict):
    tool: _Tool
    invocations: list[_Invocation]
    results: list[_Result]


class _Log(_Strict):
    version: Literal["2.1.0"]
    runs: list[_Run]
    schema: str = msgspec.field(name="$schema", default="")


async def test_sarif_is_as_its_specification_says(debian_registry: DebianRegistry, charts: Path) -> None:
    """Only properties of SARIF 2.1.0, rules that exist under their index, and locations in the manifests."""
    code, out, _ = await run(command(debian_registry.host, "-f", str(charts), "-o", "sarif"))
    assert code == 0
    [found] = msgspec.json.decode(out, type=_Log).runs
    rules = found.tool.driver.rules
    assert len({rule.id for rule in rules}) == len(rules)
    assert all(rules[result.rule_index].id == result.rule_id for result in found.results)
    files = {
        each.physical_location.artifact_location.uri
        for result in found.results
        for each in result.locations
        if each.physical_location
    }
    assert files == {str(file) for file in charts.iterdir()}
    fingerprints = [result.partial_fingerprints["multiarchExtender/v1"] for result in found.results]
    assert len(set(fingerprints)) == len(fingerprints)


# Elements of junit-10.xsd (jenkinsci/xunit-plugin) that we write: attributes that are required, and children.
JUNIT = {
    "testsuites": ((), {"testsuite"}, {"tests", "failures", "errors"}),
    "testsuite": (("name", "tests"), {"testcase"}, {"failures", "errors", "skipped", "time"}),
    "testcase": (("name", "classname"), {"failure", "error", "skipped"}, {"time"}),
    "failure": ((), set(), {"type", "message"}),
    "error": ((), set(), {"type", "message"}),
    "skipped": ((), set(), {"message"}),
}


async def test_junit_is_as_its_schema_says(debian_registry: DebianRegistry, charts: Path) -> None:
    """Elements, attributes and counts; blocked is a failure and unknown an error."""
    code, out, _ = await run(command(debian_registry.host, "-f", str(charts), "-o", "junit"))
    assert code == 0
    root = ElementTree.fromstring(out)
    for element in root.iter():
        required, children, optional = JUNIT[element.tag]
        assert set(required) <= set(element.keys()) <= {*required, *optional}
        assert {child.tag for child in element} <= children
    [suite] = root
    for name, tag in (("tests", "testcase"), ("failures", "failure"), ("errors", "error")):
        assert int(suite.get(name, "")) == len(list(suite.iter(tag))) > 0
    answers = {
        (str(case.get("classname")), str(case.get("name"))): (case[0].tag if len(case) else "passed") for case in suite
    }
    for workload, (_, arm, _) in GOLDEN.items():
        tag = {"yes": "passed", "no": "failure", "unknown": "error"}[arm]
        assert answers[workload, f"runs on {ARM}"] == tag


async def test_a_terminal_shows_how_far_the_lookups_are(tmp_path: Path) -> None:
    """A bar on standard error with the number of images; the report on standard output has nothing of it."""
    ours, theirs = pty.openpty()
    with far_registry(core=min(os.sched_getaffinity(0)), delay_seconds=0.05) as registry:
        host = registry.hosts[0]
        (tmp_path / "images.txt").write_text("".join(f"{host}/team/app-{index}:1.0\n" for index in range(100)))
        line = command(host, "--images", str(tmp_path / "images.txt"), "-o", "json", "--no-newer")
        process = await asyncio.create_subprocess_exec(
            *line, stdout=subprocess.PIPE, stderr=theirs, env={**os.environ, "TERM": "xterm", "COLUMNS": "120"}
        )
        os.close(theirs)
        out, shown = await asyncio.gather(process.communicate(), asyncio.to_thread(_read_terminal, ours))
    assert process.returncode == 0
    assert len(json.loads(out[0])["images"]) == 100
    assert "Looking up" in shown
    assert re.search(r"[1-9]\d*/100", shown)


def _read_terminal(descriptor: int) -> str:
    """What was written until the other end was closed, which a terminal reports as an error."""
    chunks = []
    with contextlib.suppress(OSError):
        while chunk := os.read(descriptor, 65536):
            chunks.append(chunk)
    os.close(descriptor)
    return b"".join(chunks).decode(errors="replace")


@pytest.mark.slow
async def test_an_interrupted_audit_leaves_a_report_and_a_cache_from_which_the_next_goes_on(tmp_path: Path) -> None:
    """Ctrl-C: a partial report, exit 1; the next run asks the registry only for what is left."""
    cache = f"sqlite:///{tmp_path}/cache.sqlite"
    with far_registry(core=min(os.sched_getaffinity(0)), delay_seconds=0.05) as registry:
        host = registry.hosts[0]
        file = tmp_path / "images.txt"
        file.write_text("".join(f"{host}/team/app-{index}:1.0\n" for index in range(300)))
        line = command(host, "--images", str(file), "-o", "json", "--no-newer", cache=cache)
        process = await asyncio.create_subprocess_exec(*line, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        async with asyncio.timeout(30):
            while registry.counts().of("GET manifests") < 40:
                await asyncio.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, err = await asyncio.wait_for(process.communicate(), 30)
        report = msgspec.json.decode(out, type=Audit)
        known = {image.reference for image in report.images if image.state == "known"}
        assert (process.returncode, report.is_partial) == (1, True)
        assert b"the next run goes on from the cache" in err
        assert 40 <= len(known) + 20 < 300
        assert {image.cause for image in report.images if image.state == "unknown"} == {"looking-up"}
        registry.forget()
        code, second, complaint = await run(line)
        assert (code, complaint) == (0, "")
        report = msgspec.json.decode(second, type=Audit)
        assert not report.is_partial
        assert {image.state for image in report.images} == {"known"}
        assert registry.counts().of("GET manifests") <= 300 - len(known)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["-A", "-f", "x.yaml"], "give only one of -n, -A, -f and --images"),
        (["-f", "/nowhere/x.yaml"], "-f /nowhere/x.yaml: No such file or directory; give a file or folder"),
        (["-f", "-", "-o", "pdf"], "-o pdf is no format; give one of table, json"),
        (["-f", "-", "--require", "arm64"], "--require: 'arm64' is no platform"),
        (["-f", "-", "--baseline", "/nowhere"], "--baseline /nowhere: No such file or directory; give the output of"),
        (["--kubeconfig", "/nowhere"], "name a kubeconfig with --kubeconfig, or manifests with -f"),
    ],
)
async def test_wrong_usage_is_told_with_what_would_be_right(arguments: list[str], complaint: str) -> None:
    """Exit code 2, and one line."""
    code, out, err = await run(command("127.0.0.1:1", *arguments), "")
    assert (code, out) == (2, "")
    assert re.search(re.escape(complaint), err.replace('"', "'")), err
