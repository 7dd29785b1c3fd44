"""The operator's word about an image, as commands take it: nobody is asked about the image."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from extender.cluster.views import NAMESPACES, NODES, PODS
from testbed.embedded_registry import EmbeddedRegistry
from testbed.forked_commands import MEMORY, asking, run
from testbed.objects import kept_to
from tests.integration.cluster.api_server import namespace, node, pod, serve_api, write_kubeconfig

AMD64, ARM64 = "linux/amd64", "linux/arm64"


@pytest.fixture
async def registry() -> AsyncIterator[EmbeddedRegistry]:
    """A registry with an image of both platforms, and a newer one."""
    async with EmbeddedRegistry() as opened:
        opened.add_index("db", "1.0", [AMD64, ARM64])
        opened.add_index("db", "1.1", [AMD64, ARM64])
        yield opened


def settings(registry: EmbeddedRegistry, *platforms: str) -> tuple[str, ...]:
    rule = f"[{{match: '{registry.host}/db:*', platforms: [{', '.join(platforms)}]}}]"
    return (*asking(registry.host), MEMORY, f"--set=placement.images={rule}")


def manifest_of(image: str, folder: Path) -> str:
    spec = {"containers": [{"name": "main", "image": image}]}
    file = folder / "db.yaml"
    workload = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "db"}}
    file.write_text(yaml.safe_dump(workload | {"spec": {"template": {"spec": spec}}}))
    return str(file)


async def test_audit_fix_explain_and_inspect_go_by_it(registry: EmbeddedRegistry, tmp_path: Path) -> None:
    """Whatever the registry has; also for newer tags."""
    image, given = f"{registry.host}/db:1.0", settings(registry, AMD64)
    file = manifest_of(image, tmp_path)
    _, audited, _ = await run("audit", "-f", file, "-o", "json", *given)
    report = json.loads(audited)
    [found] = report["images"]
    assert (found["platforms"], found["lacks"], found["by_operator"]) == ([AMD64], [ARM64], True)
    assert [each["tag"] for each in found["newer"]] == [None]
    assert "placement.images" in found["newer"][0]["why"]
    said = "runs only on linux/amd64 (operator's setting)"
    assert f"image {image} does not run on {ARM64}: it {said}" in [each["message"] for each in report["findings"]]
    _, out, _ = await run("explain", "-f", file, *given)
    assert f"{AMD64}, by the operator's word (placement.images)" in out
    assert f"image {image} {said}" in out
    assert "let the operator say in placement.images" in out
    code, out, _ = await run("inspect", image, "--require", ARM64, *given)
    assert code == 1
    assert "by the operator's word" in out
    assert (await run("fix", "-f", file, "--write", *given))[0] == 0
    assert kept_to(yaml.safe_load(Path(file).read_text())["spec"]["template"]["spec"], "kubernetes.io/arch") == [
        "amd64"
    ]
    assert registry.requests == {}


async def test_an_image_that_is_never_known_is_named_as_unknown(registry: EmbeddedRegistry, tmp_path: Path) -> None:
    image, given = f"{registry.host}/db:1.0", settings(registry)
    file = manifest_of(image, tmp_path)
    _, out, _ = await run("audit", "-f", file, *given)
    assert "the operator says so, in placement.images" in out
    code, out, _ = await run("explain", "-f", file, *given)
    assert (code, "let the operator say in placement.images what it runs on" in out) == (1, True)
    assert (await run("fix", "-f", file, "--check", *given))[0] == 1
    assert (await run("inspect", image, *given))[0] == 1
    assert registry.requests == {}


async def test_a_pod_that_fails_has_it_as_remedy_and_what_its_runtime_reports_is_not_asked_for(
    registry: EmbeddedRegistry, tmp_path: Path
) -> None:
    """The pod's image claims its node's platform; by the operator's word it does not run there."""
    image = f"{registry.host}/db:1.0"
    ended = {"exitCode": 255, "reason": "Error", "message": "exec /db: exec format error",
             "startedAt": "2026-01-01T00:00:00Z", "finishedAt": "2026-01-01T00:00:00Z"}  # fmt: skip
    failing = pod("db", image, "arm", "Running")
    [container] = failing["spec"]["containers"]
    status = {
        "name": container["name"],
        "imageID": f"{registry.host}/db@sha256:{'0' * 64}",
        "state": {"terminated": ended},
    }
    failing["status"]["containerStatuses"] = [status]
    async with serve_api() as api:
        api.put(NODES.path, node("arm", "arm64"))
        api.put(NAMESPACES.path, namespace("default"))
        api.put(PODS, failing)
        given = (*asking(registry.host), MEMORY, f"--kubeconfig={write_kubeconfig(api, tmp_path)}")
        before = [await faults(command, *given) for command in ("audit", "explain")]
        registry.requests.clear()
        after = [await faults(command, *given, settings(registry, AMD64)[-1]) for command in ("audit", "explain")]
    for text in before:
        assert text.endswith("build it again, or say in placement.images what it runs on")
    for text in after:
        assert text.endswith(
            "runs only on linux/amd64 (operator's setting), and the node is linux/arm64: it fails at each start"
        )
    assert registry.requests == {}


async def faults(command: str, *given: str) -> str:
    """The one sentence about the pod's container."""
    _, out, _ = await run(command, *(("db",) if command == "explain" else ()), "-o", "json", *given)
    found: Any = json.loads(out)
    if command == "explain":
        [fault] = found[0]["faults"]
        return str(fault["text"])
    [finding] = [each for each in found["findings"] if each["rule"] == "exec-format-error"]
    return str(finding["message"])
