"""`audit` as a user runs it, on the rendered output of five charts, with images in a real registry."""

import asyncio
import contextlib
import json
import os
import pty
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from aiohttp import web

from extender.cluster.views import NAMESPACES, NODES
from extender.reports.audit_report import Audit
from testbed import forked_commands
from testbed.debian_package import ProgramMissing
from testbed.debian_registry import DebianRegistry
from testbed.embedded_registry import EmbeddedRegistry
from testbed.eventually import eventually
from testbed.faulty_registry import GuardedRegistry, HoldingRegistry
from testbed.forked_commands import MEMORY, asking
from testbed.images import build_artifact, build_index, build_manifest
from testbed.npm_package import SARIF_SCHEMA, find_npm_file
from tests.integration.cluster.api_server import WEBHOOKS, node, serve_api, write_kubeconfig

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
    "Pod/bare-": ("an invalid reference, beside a container whose image comes later: it is not judged",),
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


def command(host: str, *arguments: str, cache: str = MEMORY) -> list[str]:
    return ["audit", *arguments, *asking(host), cache]


async def run(line: list[str], text: str = "") -> tuple[int, str, str]:
    """The exit code, standard output and standard error of a command that reads `text`."""
    return await forked_commands.run(*line, stdin=text, environment={"COLUMNS": "80"})


async def report_of(host: str, *arguments: str) -> dict[str, Any]:
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
    assert answers == {name: tuple(said) for name, (*said, _) in GOLDEN.items()}
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
    assert "Pod/bare- is partly given: container b gets an image later" in err.splitlines()
    assert f"not read: {charts}/stateful.yaml, document 2: StatefulSet wrong: " in err
    _, _, err = await run(command(host, "-f", str(charts), *gate, "--allow-unread"))
    assert "partly given" not in err
    assert "not read" not in err


async def test_a_gate_passes_what_its_namespace_opts_out(debian_registry: DebianRegistry) -> None:
    """As `fix` and `explain` do: the annotation of a Namespace among the manifests is the default of its workloads."""
    host = debian_registry.host
    debian_registry.push("shop/amd", "1.0", build_manifest(AMD))
    annotations = "annotations: {multiarch-extender.io/mode: ignore}"
    workload = (
        "---\napiVersion: v1\nkind: Pod\nmetadata: {name: web, namespace: old}\n"
        f"spec: {{containers: [{{name: web, image: '{host}/shop/amd:1.0'}}]}}\n"
    )
    namespace = "---\napiVersion: v1\nkind: Namespace\nmetadata: {name: old, ANNOTATIONS}\n"
    for text, code in ((workload, 1), (workload + namespace.replace("ANNOTATIONS", annotations), 0)):
        gate = command(host, "-f", "-", "--require", ARM, "--no-newer")
        assert (await run(gate, text))[0] == code
        explained = ["explain", "-f", "-", *asking(host), "--set=cluster=none", "-o", "json"]
        [explanation] = json.loads((await run(explained, text))[1])
        assert explanation["mode"] == ("enforce" if code else "ignore")


WORKFLOW = """\
apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {name: train}
spec: {templates: [{name: workers, container: {image: amd}}]}
"""
NOT_READ = (
    "not read: standard input, document 1: Workflow train names an image at spec.templates[0].container, which is no "
    "pod template"
)
NOTHING = "nothing was audited: there is no workload; --allow-unread lets that pass"


@pytest.mark.parametrize(("text", "complaints"), [("---\n", [NOTHING]), (WORKFLOW, [NOT_READ, NOTHING])])
async def test_a_gate_fails_for_what_it_did_not_see(text: str, complaints: list[str]) -> None:
    """And passes with `--allow-unread`; without a gate the report tells."""
    for arguments, code, lines in (
        (("--require", ARM), 1, complaints),
        (("--require", ARM, "--allow-unread"), 0, []),
        ((), 0, []),
    ):
        found, out, err = await run(command("127.0.0.1:1", "-f", "-", "-o", "json", *arguments), text)
        assert (found, err.splitlines()) == (code, lines)
        assert len(json.loads(out)["problems"]) == len(complaints) - 1


async def test_a_list_of_images_is_a_source(debian_registry: DebianRegistry, charts: Path) -> None:
    """One a line; comments and blank lines are left out, and an image that is twice there is one."""
    host = debian_registry.host
    text = f"# ours\n{host}/shop/amd:1.0\n\n{host}/shop/multi:1.0\n{host}/shop/amd:1.0\n"
    code, out, _ = await run(command(host, "--images", "-", "-o", "json", "--require", ARM), text)
    assert code == 1
    assert [each["name"] for each in json.loads(out)["workloads"]] == [f"{host}/shop/amd:1.0", f"{host}/shop/multi:1.0"]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
async def test_a_list_may_have_counts_comments_and_a_mark(
    debian_registry: DebianRegistry, charts: Path, tmp_path: Path, encoding: str
) -> None:
    """As `sort | uniq -c` and Windows' shell write it."""
    host, file = debian_registry.host, tmp_path / "images.txt"
    lines = [f"      4 {host}/shop/amd:1.0", f"     12\t{host}/shop/multi:1.0 # ours", "      3 ", "   1 # none", ""]
    file.write_bytes("\r\n".join(["# of the cluster", *lines]).encode(encoding))
    report = await report_of(host, "--images", str(file))
    assert [each["name"] for each in report["workloads"]] == [f"{host}/shop/amd:1.0", f"{host}/shop/multi:1.0"]
    assert all(each["state"] == "known" for each in report["images"])
    file.write_text("# none\n")
    assert await run(command(host, "--images", str(file))) == (2, "", f"error: --images {file}: it has no images\n")


async def test_what_the_webhook_gives_is_said_by_its_selectors(debian_registry: DebianRegistry, tmp_path: Path) -> None:
    """Of a namespace that the installed one leaves out, nothing; without a webhook, of none that is always left out."""
    image = f"{debian_registry.host}/shop/multi:1.0"
    debian_registry.push("shop/multi", "1.0", build_index([AMD, ARM]))
    toleration = {"key": "kubernetes.io/arch", "value": "arm64", "effect": "NoSchedule"}
    spec = {"containers": [{"name": "web", "image": image}], "tolerations": [toleration]}
    selector = {"matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["shop"]}]}
    rule = {"apiGroups": [""], "resources": ["pods"], "operations": ["CREATE"]}
    webhook = {"rules": [rule], "namespaceSelector": selector}
    configuration = {"metadata": {"name": "it", "labels": {"app.kubernetes.io/name": "multiarch-extender"}}}
    async with serve_api() as api:
        kubeconfig = write_kubeconfig(api, tmp_path)
        for name in ("shop", "kube-system"):
            labels = {"kubernetes.io/metadata.name": name}
            api.put(NAMESPACES.path, {"metadata": {"name": name, "labels": labels}})
            metadata = {"name": f"of-{name}", "namespace": name}
            api.put("/apis/apps/v1/deployments", {"metadata": metadata, "spec": {"template": {"spec": spec}}})
        line = command(debian_registry.host, "-A", "-o", "json", "--kubeconfig", str(kubeconfig))
        for webhooks, said in (([], "shop"), ([webhook], "kube-system")):
            if webhooks:
                api.put(WEBHOOKS, {**configuration, "webhooks": webhooks})
            code, out, _ = await run(line)
            findings = [each for each in json.loads(out)["findings"] if each["rule"] == "constraint-not-needed"]
            assert (code, [each["workloads"] for each in findings]) == (0, [[f"{said}/Deployment/of-{said}"]])


async def test_explain_judges_pods_as_the_webhook_has_them_only_where_it_is_called(
    debian_registry: DebianRegistry, tmp_path: Path
) -> None:
    """Elsewhere they get no toleration, so that a tainted node stays closed."""
    image = f"{debian_registry.host}/shop/multi:1.0"
    debian_registry.push("shop/multi", "1.0", build_index([AMD, ARM]))
    spec = {"containers": [{"name": "web", "image": image}]}
    pool = node("arm", "arm64")
    pool["spec"] = {"taints": [{"key": "kubernetes.io/arch", "value": "arm64", "effect": "NoSchedule"}]}
    async with serve_api() as api:
        api.put(NODES.path, pool)
        options = (
            "--kubeconfig",
            str(write_kubeconfig(api, tmp_path)),
            "--context=x",
            *asking(debian_registry.host),
        )
        for namespace, answer in (("shop", "yes"), ("kube-system", "no")):
            metadata = {"name": "web", "namespace": namespace}
            deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata}
            text = json.dumps({**deployment, "spec": {"template": {"spec": spec}}})
            line = ["explain", "-f", "-", "-o", "json", "--set=admission.listen=127.0.0.1:1", *options]
            _, out, err = await run(line, text)
            assert out, err
            assert [each["answer"] for each in json.loads(out)[0]["nodes"]] == [answer], err


async def test_json_is_what_the_published_schema_says(debian_registry: DebianRegistry, charts: Path) -> None:
    """`--schema` prints the file that is published, and the report has its fields and no others."""
    import jsonschema  # it takes a second, which collecting this file should not

    code, out, _ = await run(command(debian_registry.host, "--schema"))
    assert code == 0
    assert json.loads(out) == json.loads(SCHEMA.read_text())
    report = await report_of(debian_registry.host, "-f", str(charts))
    schema = json.loads(out)
    jsonschema.Draft202012Validator.check_schema(schema)
    for definition in schema["$defs"].values():
        if definition.get("type") == "object":
            definition["additionalProperties"] = False  # the published schema lets later versions add some
    validator = jsonschema.Draft202012Validator(schema)
    assert [f"{error.json_path}: {error.message}" for error in validator.iter_errors(report)] == []
    assert not validator.is_valid({key: value for key, value in report.items() if key != "findings"})


async def test_sarif_is_as_its_published_schema_says(
    debian_registry: DebianRegistry, charts: Path, tmp_path: Path
) -> None:
    """OASIS's schema, which allows no property of our own: of charts, a list, and a workload that is not judged."""
    import jsonschema

    try:
        schema = find_npm_file(SARIF_SCHEMA)
    except ProgramMissing as exc:
        pytest.skip(str(exc))
    validator = jsonschema.Draft7Validator(json.loads(schema.read_text()))
    image = f"{debian_registry.host}/shop/amd:1.0"
    (tmp_path / "images.txt").write_text(f'{image}\n<&>"\n')
    metadata = {"name": "p", "annotations": {"multiarch-extender.io/mode": "ignore"}}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [{"image": image}]}}
    (tmp_path / "pod.yaml").write_text(yaml.safe_dump(pod))
    for source in (("--images", tmp_path / "images.txt"), ("-f", tmp_path / "pod.yaml"), ("-f", charts)):
        code, out, _ = await run(command(debian_registry.host, *map(str, source), "-o", "sarif"))
        assert code == 0
        assert [error.message for error in validator.iter_errors(json.loads(out))] == []
        assert not validator.is_valid(json.loads(out) | {"version": "2.0.0"})


async def test_sarif_names_rules_and_files(debian_registry: DebianRegistry, charts: Path) -> None:
    """Rules that exist under their index, locations in the manifests, and a fingerprint for each finding."""
    _, out, _ = await run(command(debian_registry.host, "-f", str(charts), "-o", "sarif"))
    [found] = json.loads(out)["runs"]
    rules, results = found["tool"]["driver"]["rules"], found["results"]
    assert len({rule["id"] for rule in rules}) == len(rules)
    assert all(rules[result["ruleIndex"]]["id"] == result["ruleId"] for result in results)
    places = [each.get("physicalLocation") for result in results for each in result["locations"]]
    files = {each["artifactLocation"]["uri"] for each in places if each}
    assert files == {str(file) for file in charts.iterdir()}
    assert len({result["partialFingerprints"]["multiarchExtender/v1"] for result in results}) == len(results)


class FarRegistry(EmbeddedRegistry):
    """Has a number of images, and takes a while for each answer."""

    def fill(self, file: Path, images: int) -> list[str]:
        """The command that audits so many images, all listed in the file."""
        for index in range(images):
            self.add_index(f"team/app-{index}", "1.0", [AMD])
        file.write_text("".join(f"{self.host}/team/app-{index}:1.0\n" for index in range(images)))
        return ["--images", str(file), "-o", "json", "--no-newer"]

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        await asyncio.sleep(0.05)
        return await super().answer(request)


async def test_a_terminal_shows_how_far_the_lookups_are(tmp_path: Path) -> None:
    """A bar on standard error with the number of images; the report on standard output has nothing of it."""
    ours, theirs = pty.openpty()
    async with FarRegistry() as registry:
        line = command(registry.host, *registry.fill(tmp_path / "images.txt", 100))
        terminal = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
        process = await asyncio.create_subprocess_exec(
            *forked_commands.COMMAND, *line, stdout=subprocess.PIPE, stderr=theirs, env=terminal
        )
        os.close(theirs)
        out, shown = await asyncio.gather(process.communicate(), asyncio.to_thread(_read_terminal, ours))
    assert process.returncode == 0
    assert len(json.loads(out[0])["images"]) == 100
    assert "Looking up" in shown
    assert re.search(r"[1-9]\d*/100", shown)


async def test_an_interrupted_audit_names_no_cache_where_nothing_is_kept(tmp_path: Path) -> None:
    images = tmp_path / "images.txt"
    async with HoldingRegistry() as registry:
        images.write_text(f"{registry.host}/slow:1")
        line = command(registry.host, "--images", str(images))
        process = await asyncio.create_subprocess_exec(
            *forked_commands.COMMAND, *line, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        await registry.reached.wait()
        process.send_signal(signal.SIGINT)
        out, err = await asyncio.wait_for(process.communicate(), 60)
        registry.released.set()
    assert (process.returncode, err) == (1, b"interrupted: the report is partial\n")
    assert out.endswith(b"partial: it was interrupted\n")


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
    cache = f"--set=cache.url=sqlite:///{tmp_path}/cache.sqlite"
    async with FarRegistry() as registry:
        line = command(registry.host, *registry.fill(tmp_path / "images.txt", 300), cache=cache)
        process = await asyncio.create_subprocess_exec(
            *forked_commands.COMMAND, *line, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        await eventually(lambda: registry.requests["GET manifests"] >= 40)
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
        assert registry.requests["GET manifests"] <= 300 - len(known)


async def test_what_the_operators_login_opened_is_known_to_the_next_audit(tmp_path: Path) -> None:
    """With a key file private images are kept too, under the same id of the login in each run."""
    (tmp_path / "key").write_bytes(bytes(range(32)))
    async with GuardedRegistry("ann:secret") as registry:
        registry.add_manifest("app", "1", AMD)
        auths = {registry.host: {"username": "ann", "password": "secret"}}
        (tmp_path / "config.json").write_text(json.dumps({"auths": auths}))
        (tmp_path / "images.txt").write_text(f"{registry.host}/app:1\n")
        line = command(
            registry.host, "--images", str(tmp_path / "images.txt"), "--no-newer", "-o", "json",
            f"--set=registry.docker_config={tmp_path}/config.json", f"--set=cache.key_file={tmp_path}/key",
            cache=f"--set=cache.url=sqlite:///{tmp_path}/cache.sqlite",
        )  # fmt: skip
        asked = []
        for _ in range(2):
            code, out, complaint = await run(line)
            assert (code, complaint) == (0, "")
            assert [image["state"] for image in json.loads(out)["images"]] == ["known"]
            asked.append(registry.requests.total() > 0)
            registry.forget()
    assert asked == [True, False]
