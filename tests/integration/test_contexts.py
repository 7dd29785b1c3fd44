"""Which cluster and which namespace commands look at: those of kubectl, by kubectl's options."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from extender.cluster.views import NAMESPACES, NODES, PODS
from testbed.embedded_registry import EmbeddedRegistry
from testbed.forked_commands import MEMORY, asking, run
from tests.integration.cluster.api_server import (
    WORKLOADS,
    ApiServer,
    namespace,
    node,
    pod,
    serve_api,
    write_contexts,
    write_kubeconfig,
)

SPEC = {"containers": [{"name": "c", "image": "127.0.0.1:1/web:1"}]}


class Clusters:
    """A kubeconfig with the contexts `here`, the current one, and `there`, whose namespaces are `home` and `away`."""

    def __init__(self, kubeconfig: Path, here: ApiServer, there: ApiServer, registry: str) -> None:
        self.kubeconfig = str(kubeconfig)
        self.here = here
        self.there = there
        self.registry = asking(registry)


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
    given = ("--kubeconfig", clusters.kubeconfig, *options, *clusters.registry, MEMORY)
    code, out, err = await run("audit", "-o", "json", *given)
    assert (code, err) == (0, "")
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
    assert (code, err) == (1, "")
    assert out.startswith(f"Pod {at}\n")


@pytest.mark.parametrize("command", ["audit --no-newer", "explain in-home", "ungate -A", "doctor"])
async def test_in_a_pod_with_a_kubeconfig_its_cluster_is_meant(clusters: Clusters, command: str) -> None:
    """As kubectl has it: the pod's own is for where there is none."""
    inside = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "1", "KUBECONFIG": clusters.kubeconfig}
    await run(*command.split(), *(() if command in ("ungate -A", "doctor") else clusters.registry), environment=inside)
    assert clusters.here.requests


async def test_manifests_without_a_namespace_are_of_the_contexts(clusters: Clusters) -> None:
    """As `kubectl apply -f` creates them."""
    manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": SPEC}
    given = ("explain", "-f", "-", "--kubeconfig", clusters.kubeconfig, *clusters.registry)
    for options, at in (((), "home"), (("--context=there",), "away"), (("-n", "default"), "default")):
        _, out, _ = await run(*given, *options, stdin=json.dumps(manifest))
        assert out.startswith(f"Pod {at}/p\n")


async def test_audit_and_fix_take_a_namespace_for_manifests_that_name_none() -> None:
    """Whose annotation then says that they are left alone."""
    annotated = {"name": "shop", "annotations": {"multiarch-extender.io/mode": "ignore"}}
    documents: list[dict[str, Any]] = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": annotated},
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "p"},
            "spec": {"template": {"spec": SPEC}},
        },
    ]
    stream = yaml.safe_dump_all(documents)
    _, out, _ = await run("audit", "-f", "-", "-n", "shop", "-o", "json", MEMORY, stdin=stream)
    assert [each["namespace"] for each in json.loads(out)["workloads"]] == ["shop"]
    given = ("fix", "-f", "-", "--set=registry.allow=[127.0.0.1:1]")
    assert (await run(*given, stdin=stream))[0] == 1
    assert await run(*given, "-n", "shop", stdin=stream) == (0, "", "")


INSTALLED = {"app.kubernetes.io/name": "multiarch-extender"}
SHOP_SECRETS = "/api/v1/namespaces/shop/secrets"


class LoginRegistry(EmbeddedRegistry):
    """Wants a login, and notes those that it is sent."""

    def __init__(self) -> None:
        super().__init__()
        self.logins: set[str] = set()

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if login := request.headers.get("Authorization", ""):
            self.logins.add(login)
            return await super().answer(request)
        return web.Response(status=401, headers={"WWW-Authenticate": 'Basic realm="x"'})


def put_installation(api: ApiServer, where: str, settings: Mapping[str, Any]) -> None:
    """A Deployment with the labels of the chart's, and its settings."""
    container = {"name": "extender", "args": ["serve", "--config=/config/config.yaml"]}
    template = {"spec": {"containers": [container], "volumes": [{"name": "c", "configMap": {"name": "settings"}}]}}
    made = {"metadata": {"name": f"extender-{where}", "namespace": where, "labels": INSTALLED},
            "spec": {"selector": {}, "template": template}}  # fmt: skip
    api.put(WORKLOADS[0], made)
    config_map = {"metadata": {"name": "settings"}, "data": {"config.yaml": yaml.safe_dump(settings)}}
    api.put(f"/api/v1/namespaces/{where}/configmaps", config_map)


@pytest.mark.parametrize("command", ["audit --no-newer", "explain in-shop -n shop", "doctor"])
async def test_a_tenants_look_alike_sends_no_login_anywhere(command: str, tmp_path: Path) -> None:
    """Its settings would have a pull secret of others sent without TLS to an address of this machine.

    Who asks without it and may not read that secret is told so.
    """
    async with LoginRegistry() as registry, serve_api() as api:
        registry.add_index("web", "1.0", ["linux/amd64"])
        login = {"auths": {registry.host: {"username": "u", "password": "p"}}}
        secret = {"metadata": {"name": "pull"}, "type": "kubernetes.io/dockerconfigjson",
                  "data": {".dockerconfigjson": base64.b64encode(json.dumps(login).encode()).decode()}}  # fmt: skip
        made = pod("in-shop", f"{registry.host}/web:1.0", "node", "Running")
        made["metadata"]["namespace"] = "shop"
        made["spec"]["imagePullSecrets"] = [{"name": "pull"}]
        api.put(NODES.path, node("node"))
        api.put(NAMESPACES.path, namespace("shop"))
        api.put(PODS, made)
        api.put(SHOP_SECRETS, secret)
        opening = {"registry": {"plain_http": [registry.host], "allow": ["*", registry.host], "pull_secrets": True}}
        for where in ("ours", "tenant"):
            put_installation(api, where, opening)
        given = ("--kubeconfig", str(write_kubeconfig(api, tmp_path)))
        for more in ((), ("--installed-in=ours",), ("--installed-in=tenant",)):
            before = len(api.requests)
            await run(*command.split(), *given, *more)
            maps = {each.path for each in api.requests[before:] if "configmaps" in each.path}
            named = [each.rpartition("=")[2] for each in more]
            assert maps == {f"/api/v1/namespaces/{each}/configmaps/settings" for each in named}
            assert registry.requests.total() == 0
        if command == "doctor":
            return
        await run(*command.split(), *given, *asking(registry.host))
        assert len(registry.logins) == 1
        registry.logins.clear()
        api.denied.add(f"{SHOP_SECRETS}/pull")
        _, out, err = await run(*command.split(), *given, *asking(registry.host))
        assert registry.logins == set()
        denied = "pull secrets of namespace shop (pull), so what only these open is denied: namespaces/shop/"
        assert denied in out + err
        assert "not read" in (out + err).lower()


async def test_the_version_is_told_as_kubectl_tells_its_own() -> None:
    told = await asyncio.gather(run("version"), run("--version"))
    assert told[0] == told[1]
    assert told[0][1].startswith("multiarch-extender 0.")
