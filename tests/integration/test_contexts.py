"""Which cluster and which namespace commands look at: those of kubectl, by kubectl's options."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from extender.cluster.views import NAMESPACES, NODES, PODS
from testbed.embedded_registry import EmbeddedRegistry
from testbed.forked_commands import run
from tests.integration.cluster.api_server import ApiServer, namespace, node, pod, serve_api, write_contexts

SPEC = {"containers": [{"name": "c", "image": "127.0.0.1:1/web:1"}]}


class Clusters:
    """A kubeconfig with the contexts `here`, the current one, and `there`, whose namespaces are `home` and `away`."""

    def __init__(self, kubeconfig: Path, here: ApiServer, there: ApiServer, registry: str) -> None:
        self.kubeconfig = str(kubeconfig)
        self.here = here
        self.there = there
        self.registry = ("--set", f"registry.plain_http=[{registry}]", "--set", f"registry.allow=[{registry}]")


@pytest.fixture
async def clusters(tmp_path: Path) -> AsyncIterator[Clusters]:
    async with EmbeddedRegistry() as registry, serve_api() as here, serve_api() as there:
        registry.add_index("web", "1.0", ["linux/amd64"])
        contexts = {"here": (here, "home"), "there": (there, "away")}
        for name, (api, _) in contexts.items():
            api.put(NODES.path, node(f"node-{name}", "arm64"))
            for each in ("home", "away", "default"):
                api.put(NAMESPACES.path, namespace(each))
                made = pod(f"in-{each}", f"{registry.host}/web:1.0", f"node-{name}", "Running")
                made["metadata"]["namespace"] = each
                api.put(PODS, made)
        file = write_contexts(tmp_path, contexts)
        yield Clusters(file, here, there, registry.host)


@pytest.mark.parametrize(
    ("options", "seen"),
    [
        ((), {"home", "away", "default"}),
        (("--context", "there"), {"home", "away", "default"}),
        (("--context", "there", "-n", "home"), {"home"}),
        (("-A",), {"home", "away", "default"}),
    ],
)
async def test_audit_looks_at_all_namespaces_or_at_one(
    clusters: Clusters, options: tuple[str, ...], seen: set[str]
) -> None:
    given = ("--kubeconfig", clusters.kubeconfig, *options, *clusters.registry, "--set=cache.url='memory:'")
    code, out, err = await run("audit", "-o", "json", *given)
    assert (code, err.count("\n")) == (0, 1)
    assert err.startswith("settings: the defaults")
    report = json.loads(out)
    assert {each["namespace"] for each in report["workloads"]} == seen
    wrong = {each["workloads"][0] for each in report["findings"] if each["rule"] == "runs-on-wrong-platform"}
    assert wrong == {f"{each}/Pod/in-{each}" for each in seen}
    asked, other = (clusters.there, clusters.here) if "there" in options else (clusters.here, clusters.there)
    assert asked.requests
    assert not other.requests


@pytest.mark.parametrize(
    ("options", "name", "at"),
    [
        ((), "in-home", "home/in-home, bound to node-here"),
        (("--context", "there"), "in-away", "away/in-away, bound to node-there"),
        (("--namespace=default",), "in-default", "default/in-default, bound to node-here"),
    ],
)
async def test_explain_looks_where_kubectl_would(
    clusters: Clusters, options: tuple[str, ...], name: str, at: str
) -> None:
    given = (*options, *clusters.registry)
    code, out, err = await run("explain", name, *given, environment={"KUBECONFIG": clusters.kubeconfig})
    assert (code, err.count("\n")) == (1, 1)
    assert err.startswith("settings: the defaults")
    assert out.startswith(f"Pod {at}\n")


async def test_manifests_without_a_namespace_are_of_the_contexts(clusters: Clusters) -> None:
    """As `kubectl apply -f` creates them."""
    manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": SPEC}
    given = ("explain", "-f", "-", "--kubeconfig", clusters.kubeconfig, *clusters.registry)
    for options, at in (((), "home"), (("--context=there",), "away"), (("-n", "default"), "default")):
        _, out, _ = await run(*given, *options, stdin=json.dumps(manifest))
        assert out.startswith(f"Pod {at}/p\n")


async def test_audit_takes_a_namespace_for_manifests_that_name_none() -> None:
    documents: list[dict[str, Any]] = [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", **named}, "spec": SPEC}
        for named in ({}, {"namespace": "own"})
    ]
    _, out, _ = await run(
        "audit", "-f", "-", "-n", "shop", "-o", "json", "--set=cache.url='memory:'", stdin=yaml.safe_dump_all(documents)
    )
    assert [each["namespace"] for each in json.loads(out)["workloads"]] == ["own", "shop"]


async def test_fix_takes_a_namespace_for_manifests_that_name_none() -> None:
    """Whose annotation then says that they are left alone."""
    annotated = {"name": "shop", "annotations": {"multiarch-extender.io/mode": "ignore"}}
    template = {"metadata": {"name": "p"}, "spec": SPEC}
    documents: list[dict[str, Any]] = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": annotated},
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "p"}, "spec": {"template": template}},
    ]
    given = ("fix", "-f", "-", "--set=registry.allow=[127.0.0.1:1]")
    assert (await run(*given, stdin=yaml.safe_dump_all(documents)))[0] == 1
    assert await run(*given, "-n", "shop", stdin=yaml.safe_dump_all(documents)) == (0, "", "")


async def test_the_version_is_told_as_kubectl_tells_its_own() -> None:
    told = await asyncio.gather(run("version"), run("--version"))
    assert told[0] == told[1]
    assert told[0][1].startswith("multiarch-extender 0.")
