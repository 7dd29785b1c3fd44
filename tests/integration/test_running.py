"""`running` as a user runs it, on an API server that has pods of each kind."""

import json
from pathlib import Path
from typing import Any

from extender.cluster.views import NAMESPACES, NODES, PODS
from testbed.embedded_registry import EmbeddedRegistry
from tests.integration.cluster.api_server import namespace, node, pod, serve_api, write_kubeconfig
from tests.unit.cli.commands import run

AMD64 = "linux/amd64"


async def test_finished_and_ignored_pods_raise_no_alarm(tmp_path: Path) -> None:
    """A Job that has ended, a RuntimeClass that the operator ignores, a pod and a namespace whose author opts out."""
    async with EmbeddedRegistry() as registry, serve_api() as api:
        registry.add_index("web", "1.0", [AMD64])
        api.put(NODES.path, node("arm", "arm64"))
        for each in (namespace("default"), namespace("old", mode="ignore")):
            api.put(NAMESPACES.path, each)
        made: dict[str, dict[str, Any]] = {
            name: pod(name, f"{registry.host}/web:1.0", "arm", "Running")
            for name in ("wrong", "wasm", "opted-out", "of-a-namespace")
        }
        made["done"] = pod("done", f"{registry.host}/web:1.0", "arm", "Succeeded")
        made["wasm"]["spec"]["runtimeClassName"] = "wasm"
        made["opted-out"]["metadata"]["annotations"] = {"multiarch-extender.io/mode": "ignore"}
        made["of-a-namespace"]["metadata"]["namespace"] = "old"
        for each in made.values():
            api.put(PODS, each)
        settings = (
            f"registry.plain_http=['{registry.host}']", f"registry.allow=['{registry.host}']",
            f"cluster.kubeconfig='{write_kubeconfig(api, tmp_path)}'", "placement.runtime_classes={wasm: []}",
        )  # fmt: skip
        settings_given = (argument for each in settings for argument in ("--set", each))
        code, out, err = await run("running", "-A", "-o", "json", *settings_given)
    assert (code, err.count("\n")) == (1, 1)
    assert err.startswith("settings: the defaults")
    assert [each["pod"] for each in json.loads(out)["containers"]] == ["wrong"]
