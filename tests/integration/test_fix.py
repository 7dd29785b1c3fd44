"""`fix` as a user runs it: diffs, checks, files and standard input."""

import asyncio
import json
import re
import shlex
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed.demo.story import fill_registry
from testbed.embedded_registry import EmbeddedRegistry
from testbed.forked_commands import COMMAND, MEMORY, asking, run
from testbed.objects import kept_to
from tests.integration.cluster.api_server import node, serve_api, write_kubeconfig


class Fix:
    """The command with the registry's settings."""

    def __init__(self, registry: EmbeddedRegistry) -> None:
        self.host = registry.host
        self.options = asking(registry.host)

    async def __call__(self, *arguments: str, stdin: str = "") -> tuple[int, str, str]:
        """Its exit code, standard output and standard error."""
        return await run("fix", *arguments, *self.options, stdin=stdin)

    def manifest(self, image: str, kind: str = "DaemonSet") -> str:
        """A manifest of one container, with comments."""
        return textwrap.dedent(f"""\
            # {kind} of {image}
            apiVersion: apps/v1
            kind: {kind}
            metadata:
              name: {image}  # its name
              namespace: shop
            spec:
              template:
                spec:
                  containers:
                    - name: main
                      image: {self.host}/shop/{image}:1.0
            """)


@pytest.fixture
async def fix() -> AsyncIterator[Fix]:
    """The command, and the demonstration's images: web, legacy (amd64 alone), edge (arm64 alone)."""
    async with EmbeddedRegistry() as registry:
        fill_registry(registry)
        yield Fix(registry)


def specs_of(text: str) -> list[dict[str, Any]]:
    """The pods' specs of a stream of workloads."""
    return [document["spec"]["template"]["spec"] for document in yaml.safe_load_all(text) if document]


def architectures_of(spec: dict[str, Any]) -> list[str]:
    """What nodeSelector or required affinity allows."""
    return kept_to(spec, "kubernetes.io/arch")


@pytest.mark.parametrize("is_linked", [False, True])
async def test_a_disk_that_is_full_leaves_the_manifest_as_it_was(fix: Fix, tmp_path: Path, *, is_linked: bool) -> None:
    """And nothing beside it. With room its mode stays, and a link to it."""
    folder = tmp_path / "manifests"
    folder.mkdir()
    file = folder / "real.yaml"
    text = f"# {'x' * 4000}\n{fix.manifest('legacy')}"
    file.write_text(text)
    file.chmod(0o640)
    named = folder / "link.yaml" if is_linked else file
    if is_linked:
        named.symlink_to(file.name)
    command = [*COMMAND, "fix", "-f", str(named), "--write", *fix.options]
    full = ["bash", "-c", f"ulimit -f 2; exec {shlex.join(command)}"]
    process = await asyncio.create_subprocess_exec(*full, stderr=asyncio.subprocess.PIPE)
    _, err = await asyncio.wait_for(process.communicate(), 60)
    assert (process.returncode, err.decode()) == (2, f"error: {named}: it cannot be written: File too large\n")
    assert file.read_text() == text
    assert len(list(folder.iterdir())) == 1 + is_linked
    assert (await fix("-f", str(named), "--write"))[0] == 0
    assert "kubernetes.io/arch" in file.read_text()
    assert (file.stat().st_mode & 0o777, named.is_symlink()) == (0o640, is_linked)
    assert len(list(folder.iterdir())) == 1 + is_linked


async def test_a_diff_is_printed_and_nothing_is_changed(fix: Fix, tmp_path: Path) -> None:
    """Only lines that are added, under the file's name."""
    file = tmp_path / "agent.yaml"
    file.write_text(fix.manifest("legacy"))
    code, out, err = await fix("-f", str(file))
    lines = out.splitlines()
    assert (code, err) == (0, "")
    assert lines[:2] == [f"--- a/{file}", f"+++ b/{file}"]
    assert "- key: kubernetes.io/arch" in [line.removeprefix("+").strip() for line in lines]
    assert not [line for line in lines[2:] if line.startswith("-")]
    assert file.read_text() == fix.manifest("legacy")


async def test_files_and_folders_are_changed_once(fix: Fix, tmp_path: Path) -> None:
    """`--write` twice gives the same bytes; a file without templates is not written; comments stay."""
    folder = tmp_path / "chart" / "deep"
    folder.mkdir(parents=True)
    files = {name: folder / f"{name}.yaml" for name in ("legacy", "web")}
    for name, file in files.items():
        file.write_text(fix.manifest(name, "Deployment"))
    (folder / "notes.txt").write_text("kind: Deployment: no manifest")
    assert await fix("-f", str(tmp_path), "--write") == (0, "", "")
    first = {name: file.read_bytes() for name, file in files.items()}
    assert await fix("-f", str(tmp_path), "--write") == (0, "", "")
    assert first == {name: file.read_bytes() for name, file in files.items()}
    [legacy], [web] = (specs_of(files[name].read_text()) for name in ("legacy", "web"))
    assert (architectures_of(legacy), architectures_of(web)) == (["amd64"], [])
    assert "tolerations" not in legacy
    assert [item["key"] for item in web["tolerations"]] == ["kubernetes.io/arch", "arch"]
    assert files["legacy"].read_text().startswith("# Deployment of legacy\n")
    assert "  name: legacy  # its name\n" in files["legacy"].read_text()


async def test_a_folders_json_is_changed_and_a_folder_of_nothing_is_wrong(fix: Fix, tmp_path: Path) -> None:
    """A check in CI over the wrong folder, or over manifests in JSON, does not pass by looking at nothing."""
    file = tmp_path / "legacy.json"
    file.write_text(json.dumps(yaml.safe_load(fix.manifest("legacy")), indent=2) + "\n")
    code, out, _ = await fix("-f", str(tmp_path), "--check")
    assert (code, out.count(f"{file}:1: DaemonSet shop/legacy lacks node affinity")) == (1, 1)
    assert await fix("-f", str(tmp_path), "--write") == (0, "", "")
    assert architectures_of(json.loads(file.read_text())["spec"]["template"]["spec"]) == ["amd64"]
    assert await fix("-f", str(tmp_path), "--check") == (0, "", "")
    (tmp_path / "empty.yaml").mkdir()
    code, out, err = await fix("-f", str(tmp_path / "empty.yaml"), "--check")
    assert (code, out) == (2, "")
    assert "the folder has no file that ends in .yaml, .yml, .json" in err


async def test_check_is_one_line_a_change_and_exit_1(fix: Fix, tmp_path: Path) -> None:
    """And exit 0 without a line once the files are fixed."""
    file = tmp_path / "all.yaml"
    file.write_text("---\n".join([fix.manifest("legacy"), "kind: Service\n", fix.manifest("edge", "StatefulSet")]))
    code, out, err = await fix("-f", str(file), "--check")
    affinity = "lacks node affinity kubernetes.io/arch In [{}]"
    tolerations = "toleration kubernetes.io/arch=arm64:NoSchedule, toleration arch=arm64:NoSchedule"
    assert (code, err) == (1, "")
    assert out.splitlines() == [
        f"{file}:1: DaemonSet shop/legacy {affinity.format('amd64')}",
        f"{file}:16: StatefulSet shop/edge {affinity.format('arm64')}, {tolerations}",
    ]
    await fix("-f", str(file), "--write")
    assert await fix("-f", str(file), "--check") == (0, "", "")


async def test_what_is_not_known_is_left_and_said(fix: Fix) -> None:
    """Exit 1, or 0 with `--allow-unknown`, or if its namespace opts out; the other documents are fixed either way."""
    missing = fix.manifest("missing")
    stream = missing + "---\n" + fix.manifest("legacy")
    code, out, err = await fix("-f", "-", "--write", stdin=stream)
    assert code == 1
    said = f"-:1: DaemonSet shop/missing is left as it is: image {fix.host}/shop/missing:1.0 is not known"
    assert err.startswith(said)
    assert out.startswith(missing)
    assert architectures_of(specs_of(out)[1]) == ["amd64"]
    assert (await fix("-f", "-", "--write", "--allow-unknown", stdin=stream))[:2] == (0, out)
    namespace = "kind: Namespace\nmetadata: {name: shop, annotations: {multiarch-extender.io/mode: ignore}}\n---\n"
    assert await fix("-f", "-", "--write", stdin=namespace + missing) == (0, namespace + missing, "")


async def test_the_modes_of_affinity(fix: Fix) -> None:
    """Required where the settings say none; the settings' own otherwise; the option over both."""
    both = ["--set", "admission.node_affinity=both"]
    for arguments, of_web, of_legacy in (
        ([], [], ["required"]),
        (both, ["preferred"], ["required"]),
        ([*both, "--node-affinity", "preferred"], ["preferred"], []),
        (["--node-affinity", "none"], [], []),
    ):
        for image, kinds in (("web", of_web), ("legacy", of_legacy)):
            _, out, _ = await fix("-f", "-", "--write", *arguments, stdin=fix.manifest(image, "Deployment"))
            [spec] = specs_of(out)
            found = spec.get("affinity", {}).get("nodeAffinity", {})
            assert [name.partition("DuringScheduling")[0] for name in found] == kinds


async def test_the_nodes_of_a_cluster_that_is_named_decide(fix: Fix, tmp_path: Path) -> None:
    """Without one they are amd64 and arm64, whatever cluster there may be."""
    written = fix.manifest("web", "Deployment")
    async with serve_api() as api:
        for name, system in (("a", "linux"), ("b", "windows")):
            made = node(name)
            made["status"]["nodeInfo"]["operatingSystem"] = system
            api.put("/api/v1/nodes", made)
        kubeconfig = str(write_kubeconfig(api, tmp_path))
        _, out, err = await fix("-f", "-", "--write", "--kubeconfig", kubeconfig, stdin=written)
        assert (kept_to(specs_of(out)[0], "kubernetes.io/os"), err) == (["linux"], "")
        _, out, _ = await fix("-f", "-", "--write", "--set", f"cluster={kubeconfig}", stdin=written)
        assert "affinity" not in specs_of(out)[0]
    code, _, err = await fix("-f", "-", "--check", "--kubeconfig", kubeconfig, stdin=written)
    assert (code, "nodes cannot be read" in err or "kubeconfig" in err) == (2, True)


@pytest.mark.parametrize("arguments", [["fix", "--write"], ["explain"], ["audit"]])
async def test_no_setting_comes_from_a_manifest(fix: Fix, tmp_path: Path, arguments: list[str]) -> None:
    """A pull request's author writes manifests, and with settings could have programs run that these name."""
    (tmp_path / "plugin").write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    (tmp_path / "plugin").chmod(0o755)
    provider = {"name": "plugin", "defaultCacheDuration": "1s"}
    api_version = "credentialprovider.kubelet.k8s.io/v1"
    providers = {
        "apiVersion": "kubelet.config.k8s.io/v1", "kind": "CredentialProviderConfig",
        "providers": [{**provider, "apiVersion": api_version, "matchImages": [fix.host]}],
    }  # fmt: skip
    (tmp_path / "providers.yaml").write_text(yaml.safe_dump(providers))
    data = {
        "registry.credential_providers.config": f"{tmp_path}/providers.yaml",
        "registry.credential_providers.bin_dir": str(tmp_path),
    }
    settings = [part for key, value in data.items() for part in ("--set", f"{key}={value}")]
    manifests = {
        "apiVersion": "config.kubernetes.io/v1", "kind": "ResourceList",
        "items": [yaml.safe_load(fix.manifest("legacy"))],
        "functionConfig": {"apiVersion": "v1", "kind": "ConfigMap", "data": data},
    }  # fmt: skip
    command = (*arguments, "-f", "-", *fix.options, "--set=cluster=none", MEMORY)
    _, out, err = await run(*command, stdin=yaml.safe_dump(manifests))
    assert "legacy" in out + err
    assert not (tmp_path / "ran").exists()
    await run(*command, *settings, stdin=yaml.safe_dump(manifests))
    assert (tmp_path / "ran").exists()


async def test_a_broken_template_is_named_and_the_rest_is_fixed(fix: Fix) -> None:
    """Tolerations that are no list: no API server would take it."""
    broken = fix.manifest("web").replace("containers:\n", "tolerations: text\n      containers:\n")
    code, out, err = await fix("-f", "-", "--write", stdin=broken + "---\n" + fix.manifest("legacy"))
    assert code == 1
    assert "DaemonSet shop/web: its pod template cannot be read" in err
    assert architectures_of(specs_of(out)[1]) == ["amd64"]


async def test_what_is_not_whole_is_left_and_said(fix: Fix) -> None:
    """A container that gets its image later, an object whose images nobody reads, and policies: exit 0."""
    partly = fix.manifest("legacy") + "        - name: istio\n          image: auto\n"
    policy = "apiVersion: kyverno.io/v1\nkind: ClusterPolicy\nmetadata: {name: it}\nspec: {containers: [{image: a}]}\n"
    cluster = "apiVersion: postgresql.cnpg.io/v1\nkind: Cluster\nmetadata: {name: db}\nspec: {imageName: a/b:1}\n"
    stream = f"{partly}---\n{policy}---\n{cluster}"
    code, out, err = await fix("-f", "-", "--write", stdin=stream)
    assert (code, out) == (0, stream)
    assert err.splitlines() == [
        "-: line 21: Cluster db is not read: it names an image at spec, which is no pod template",
        (
            "-:1: DaemonSet shop/legacy is left as it is, partly given: "
            "at spec.template, container istio gets an image later"
        ),
    ]


async def test_patches_are_named_and_not_changed(fix: Fix, tmp_path: Path) -> None:
    """A file that a kustomization names, and a document with a directive, as an item of a List too."""
    (tmp_path / "patch.yaml").write_text(fix.manifest("legacy"))
    (tmp_path / "kustomization.yaml").write_text("resources: [web.yaml]\npatches: [{path: patch.yaml}]\n")
    deleted = fix.manifest("legacy") + "        - $patch: delete\n          name: old\n"
    listed = yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": [yaml.safe_load(deleted)]})
    (tmp_path / "web.yaml").write_text(f"{fix.manifest('web')}---\n{deleted}---\n{listed}")
    code, out, err = await fix("-f", str(tmp_path), "--check", "--node-affinity=none", "--set=admission.tolerations=[]")
    assert (code, out) == (0, "")
    code, out, err = await fix("-f", str(tmp_path), "--write", "--node-affinity=required")
    assert (tmp_path / "patch.yaml").read_text() == fix.manifest("legacy")
    assert (tmp_path / "web.yaml").read_text().endswith(f"---\n{deleted}---\n{listed}")
    assert sorted(err.splitlines()) == [
        f"{tmp_path}/patch.yaml is a patch that {tmp_path}/kustomization.yaml names, and no object",
        f"{tmp_path}/web.yaml: line 14: DaemonSet legacy is a patch, and no object",
        f"{tmp_path}/web.yaml: line 29: DaemonSet legacy is a patch, and no object",
    ]


async def test_containers_that_are_no_template_are_left_as_they_are(fix: Fix) -> None:
    """Nobody knows whether their type has such fields; OpenKruise's has not."""
    text = (
        "apiVersion: apps.kruise.io/v1alpha1\nkind: SidecarSet\nmetadata: {name: logs}\nspec:\n"
        f"  containers:\n    - {{name: logs, image: '{fix.host}/shop/legacy:1.0'}}\n"
    )
    code, out, err = await fix("-f", "-", "--write", stdin=text)
    assert (code, out) == (1, text)
    assert "SidecarSet logs: its pods at spec need" in err
    assert "which cannot be written there" in err


async def test_what_kubectl_refuses_is_not_fixed(fix: Fix) -> None:
    """Behind a mark of the byte order there is another first key. Comments alone are no manifests."""
    code, out, err = await fix("-f", "-", "--write", stdin=f"---\n\ufeff{fix.manifest('legacy').partition(chr(10))[2]}")
    assert (code, out) == (2, "")
    assert "line 2: a byte-order mark stands before a key" in err
    code, out, err = await fix("-f", "-", "--write", stdin="# nothing\n")
    assert (code, out, err) == (2, "", "error: -f -: standard input has no objects\n")
    flow = fix.manifest("legacy") + "          args: [--listen=:, http://x:]\n"
    assert (await fix("-f", "-", "--write", stdin=flow))[0] == 0


async def test_a_key_that_is_there_twice_is_told_and_written_below_by_nobody(fix: Fix) -> None:
    """What another map has twice is no obstacle; where two affinities stand, which one counts is the author's."""
    elsewhere = fix.manifest("legacy").replace("metadata:", "metadata: {}\nmetadata:", 1)
    code, out, err = await fix("-f", "-", "--write", stdin=elsewhere)
    assert (code, architectures_of(specs_of(out)[0])) == (0, ["amd64"])
    assert "the key 'metadata' is there a second time; the last counts" in err
    twice = fix.manifest("legacy").replace(
        "      containers:\n",
        "      affinity: {podAffinity: {}}\n      affinity: {podAntiAffinity: {}}\n      containers:\n",
    )
    code, out, err = await fix("-f", "-", "--write", stdin=twice)
    assert (code, out) == (1, twice)
    assert "it is left as it is: the key 'affinity' to write below is there a second time" in err


RELAX = Path(__file__).parents[1] / "data/relax"
KEPT = """\
DaemonSet shop/agent keeps toleration arch=arm64:NoSchedule: a DaemonSet's pods get no toleration from the webhook
Deployment shop/arm-only keeps nodeSelector kubernetes.io/arch=arm64: image HOST/shop/edge:1.0 is built only for linux/arm64
Deployment shop/legacy keeps nodeSelector kubernetes.io/arch=amd64: image HOST/shop/legacy:1.0 is built only for linux/amd64
Deployment shop/sidecar keeps nodeSelector kubernetes.io/arch=amd64: image HOST/shop/legacy:1.0 is built only for linux/amd64
Deployment shop/unknown is left as it is: image HOST/shop/missing:1.0 is not known (missing)
Deployment shop/not-in keeps node affinity kubernetes.io/arch NotIn [arm64]: its operator is NotIn
Deployment shop/either keeps node affinity kubernetes.io/arch In [amd64] or kubernetes.io/arch In [arm64]: one of its \
terms is enough, and they differ
"""  # noqa: E501
TAKEN = """\
Deployment shop/selector does not need nodeSelector kubernetes.io/arch=amd64
Deployment shop/old-label does not need nodeSelector beta.kubernetes.io/arch=amd64
StatefulSet shop/zonal does not need node affinity kubernetes.io/arch In [amd64]
Deployment shop/terms does not need node affinity kubernetes.io/arch In [amd64]
CronJob shop/nightly does not need nodeSelector kubernetes.io/arch=arm64, \
toleration kubernetes.io/arch=arm64:NoSchedule, toleration arch=arm64:NoSchedule
DaemonSet shop/agent does not need nodeSelector kubernetes.io/arch=amd64
Deployment shop/arm-only does not need toleration kubernetes.io/arch=arm64:NoSchedule
"""


def constrained(host: str) -> tuple[str, str]:
    """Twelve workloads as their authors wrote them, and without what their images do not need."""
    written, relaxed = (
        (RELAX / f"{name}.yaml").read_text().replace("REGISTRY", host) for name in ("written", "relaxed")
    )
    return written, relaxed


def lines_of(printed: str) -> str:
    """The lines without the places in front, and without what a registry said."""
    return re.sub(r"(?m)^-:\d+: |(?<=\(missing\)).*", "", printed)


async def test_constraints_that_no_image_needs_are_taken_out(fix: Fix) -> None:
    """Of twelve workloads, to the byte; each other constraint has a line that says why it stays. Twice is once."""
    written, relaxed = constrained(fix.host)
    code, out, err = await fix("-f", "-", "--relax", "--write", stdin=written)
    assert (code, out, lines_of(err)) == (1, relaxed, KEPT.replace("HOST", fix.host))
    code, out, err = await fix("-f", "-", "--relax", "--write", "--allow-unknown", stdin=relaxed)
    assert (code, out, lines_of(err)) == (0, relaxed, KEPT.replace("HOST", fix.host))


async def test_a_check_fails_for_constraints_that_no_image_needs(fix: Fix) -> None:
    """A gate of CI; it passes what stays for a reason, and all where the nodes have a platform that no image has."""
    written, relaxed = constrained(fix.host)
    options = ("-f", "-", "--relax", "--check", "--allow-unknown")
    code, out, _ = await fix(*options, stdin=written)
    assert (code, lines_of(out)) == (1, TAKEN)
    assert (await fix(*options, stdin=relaxed))[:2] == (0, "")
    wider = [f"--require=linux/{name}" for name in ("amd64", "arm64", "s390x")]
    code, out, err = await fix(*options, *wider, stdin=written)
    assert "selector keeps nodeSelector kubernetes.io/arch=amd64: image" in err
    assert "selector" not in out.replace("nodeSelector", "")


async def test_tolerations_stay_in_namespaces_that_no_webhook_is_called_for(fix: Fix) -> None:
    """By their own namespace, or the one that is given for them."""
    taint = "      tolerations: [{key: kubernetes.io/arch, value: arm64, effect: NoSchedule}]\n"
    manifest = fix.manifest("web", "Deployment").replace("      containers:", f"{taint}      containers:")
    for text, options, stays in (
        (manifest, (), False),
        (manifest.replace("namespace: shop", "namespace: kube-system"), (), True),
        (manifest.replace("  namespace: shop\n", ""), ("-n", "kube-system"), True),
    ):
        code, out, err = await fix("-f", "-", "--relax", "--write", *options, stdin=text)
        assert (code, out == text, "the webhook is not called for these pods" in err) == (0, stays, stays)


@pytest.mark.parametrize("form", ["table", "json", "markdown", "html", "sarif"])
async def test_audit_names_what_would_be_taken_out(fix: Fix, tmp_path: Path, form: str) -> None:
    """The same constraints of the same workloads, in each format."""
    file = tmp_path / "written.yaml"
    file.write_text(constrained(fix.host)[0])
    code, out, _ = await run("audit", "-f", str(file), "-o", form, "--no-newer", *fix.options)
    assert code == 0
    for line in TAKEN.splitlines():
        workload, constraints = line.split(" does not need ")
        name = f"shop/{workload.replace(' shop/', '/')}"
        asked = constraints.partition(", toleration")[0].replace("'", "&#x27;")
        assert re.search(rf"{name} [^\n{{}}]*{re.escape(asked)}", out), (name, asked)
    assert out.count("constraint-not-needed") >= len(TAKEN.splitlines())
