"""Containers on nodes of the wrong platform, as `audit` and `explain` find them on an API server."""

import json
from pathlib import Path
from typing import Any

from extender.cluster.views import NAMESPACES, NODES, PODS
from testbed.embedded_registry import EmbeddedRegistry
from testbed.forked_commands import MEMORY, asking, run
from tests.integration.cluster.api_server import namespace, node, pod, serve_api, write_kubeconfig

AMD64, ARM64 = "linux/amd64", "linux/arm64"


async def test_what_runs_on_the_wrong_platform_is_found_in_a_cluster_and_told_of_a_pod(tmp_path: Path) -> None:
    """But not finished pods, RuntimeClasses that the operator ignores, and what its author takes out."""
    async with EmbeddedRegistry() as registry, serve_api() as api:
        registry.add_index("web", "1.0", [AMD64])
        running = registry.add_index("moved", "1.0", [AMD64, ARM64])
        registry.add_index("moved", "1.0", [AMD64])
        api.put(NODES.path, node("arm", "arm64"))
        for each in (namespace("default"), namespace("old", mode="ignore")):
            api.put(NAMESPACES.path, each)
        made: dict[str, dict[str, Any]] = {
            name: pod(name, f"{registry.host}/web:1.0", "arm", "Running")
            for name in ("wrong", "wasm", "opted-out", "of-a-namespace")
        }
        made["done"] = pod("done", f"{registry.host}/web:1.0", "arm", "Succeeded")
        made["moved"] = pod("moved", f"{registry.host}/moved:1.0", "arm", "Running")
        [container] = made["moved"]["spec"]["containers"]
        made["moved"]["status"]["containerStatuses"] = [
            {"name": container["name"], "imageID": f"{registry.host}/moved@{running}", "state": {"running": {}}}
        ]
        made["wasm"]["spec"]["runtimeClassName"] = "wasm"
        made["opted-out"]["metadata"]["annotations"] = {"multiarch-extender.io/mode": "ignore"}
        made["of-a-namespace"]["metadata"]["namespace"] = "old"
        for each in made.values():
            api.put(PODS, each)
        kubeconfig = f"--kubeconfig={write_kubeconfig(api, tmp_path)}"
        given = (kubeconfig, *asking(registry.host), MEMORY, "--set=placement.runtime_classes={wasm: []}")
        _, audited, _ = await run("audit", "-o", "json", *given)
        code, gate, err = await run("audit", "--require", AMD64, *given)
        told = {name: await run("explain", name, "-o", "json", *given) for name in ("wrong", "wasm", "moved")}
    rules = ("runs-on-wrong-platform", "exec-format-error", "pull-refused", "tag-lost-platform")
    found = {each["workloads"][0]: each for each in json.loads(audited)["findings"] if each["rule"] in rules}
    assert {name: each["rule"] for name, each in found.items()} == {
        "default/Pod/wrong": "runs-on-wrong-platform", "default/Pod/moved": "tag-lost-platform",
    }  # fmt: skip
    assert found["default/Pod/wrong"]["message"] == (
        f"default/Pod/wrong, pod wrong: image {registry.host}/web:1.0 is built only for linux/amd64, and the node is "
        "linux/arm64"
    )
    assert code == 1
    for each in found.values():
        assert each["message"] in err
        assert each["message"] in " ".join(gate.split())
    faults = {name: [each["rule"] for each in json.loads(out)[0]["faults"]] for name, (_, out, _) in told.items()}
    assert faults == {"wrong": ["runs-on-wrong-platform"], "wasm": [], "moved": ["tag-lost-platform"]}
    assert [told[name][0] for name in ("wrong", "moved")] == [1, 1]
