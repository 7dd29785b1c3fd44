"""What the commands show of texts that a tenant, a registry or the author of a manifest has written."""

import json
from pathlib import Path
from typing import Any

import pytest

from extender.cli.audit_writers import WRITERS
from extender.cluster.views import NAMESPACES, NODES, PODS
from testbed.embedded_registry import EmbeddedRegistry
from testbed.forked_commands import asking, run
from tests.integration.cluster.api_server import Refusal, namespace, node, pod, serve_api, write_kubeconfig

HOSTILE = "127.0.0.1:1/\x1b]8;;http://127.0.0.1/\x07\x9b31m\u202ea\u200b\n[red]node arm is fine[/]\r\u2028"
OFFLINE = ("--set", "cluster=none", "--set", "registry.allow=[127.0.0.1:1]")


def hostile_deployment() -> dict[str, Any]:
    """A workload whose author has written such a text wherever one can be."""
    metadata = {"name": "web" + HOSTILE, "namespace": "shop" + HOSTILE, "annotations": {"a": HOSTILE}}
    container = {"name": "c" + HOSTILE, "image": HOSTILE}
    spec = {
        "containers": [container], "nodeSelector": {HOSTILE: HOSTILE}, "schedulingGates": [{"name": HOSTILE}],
        "tolerations": [{"key": HOSTILE, "operator": "Exists"}],
    }  # fmt: skip
    template = {"metadata": {**metadata, "labels": {"a": HOSTILE}}, "spec": spec}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": {"template": template}}


def assert_is_shown(*texts: str) -> None:
    for text in texts:
        for line in text.split("\n"):
            assert line.isprintable()
            assert not line.lstrip().startswith("[red]")
    assert "]8;;http://127.0.0.1/" in "".join(texts)


@pytest.mark.parametrize(
    "arguments",
    [
        ("explain", "-f", "-", *OFFLINE),
        *(
            ("audit", "-f", "-", "-o", form, "--require", "linux/arm64", *OFFLINE)
            for form in WRITERS
            if form not in "json sarif"
        ),
        ("fix", "-f", "-", *OFFLINE),
        ("fix", "-f", "-", "--check", *OFFLINE),
        ("inspect", HOSTILE, "-v", *OFFLINE),
        ("inspect", HOSTILE, "-o", "yaml", *OFFLINE),
        ("explain", "-f", "-", "-o", "yaml", *OFFLINE),
        ("explain", HOSTILE, "-f", "-", *OFFLINE),
        ("config", "--set", f"registry.docker_config={HOSTILE}"),
        ("config", "--config", HOSTILE),
        ("audit", "--kubeconfig", HOSTILE),
        ("ungate", "--kubeconfig", HOSTILE),
        ("inspect", f"--{HOSTILE}"),
        ("inspect", "a", "-o", HOSTILE),
        (HOSTILE,),
    ],
    ids=lambda arguments: " ".join(arguments[:5])[:30].encode("unicode_escape").decode(),
)
async def test_a_hostile_text_is_shown_as_the_characters_it_has(arguments: tuple[str, ...]) -> None:
    _, out, err = await run(*arguments, stdin=json.dumps(hostile_deployment()))
    assert_is_shown(out, err)


@pytest.mark.parametrize("arguments", [("explain", "-o", "json"), ("audit", "-o", "json"), ("audit", "-o", "sarif")])
async def test_json_has_the_text_itself(arguments: tuple[str, ...]) -> None:
    _, out, err = await run(*arguments, "-f", "-", *OFFLINE, stdin=json.dumps(hostile_deployment()))
    assert err == ""
    assert HOSTILE in _texts_of(json.loads(out))


def _texts_of(value: object) -> str:
    if isinstance(value, dict):
        return "".join(map(_texts_of, [*value.keys(), *value.values()]))
    return "".join(map(_texts_of, value)) if isinstance(value, list) else str(value)


async def test_a_hostile_cluster_is_shown_as_the_characters_it_has(tmp_path: Path) -> None:
    """Names of nodes, messages of containers and refusals of the API server are texts of others too."""
    async with EmbeddedRegistry() as registry, serve_api() as api:
        registry.add_index("web", "1.0", ["linux/amd64"])
        arm = node("arm", "arm64")
        arm["metadata"]["labels"]["kubernetes.io/arch"] = HOSTILE
        api.put(NODES.path, arm)
        api.put(NAMESPACES.path, namespace("default"))
        running = pod("web", f"{registry.host}/web:1.0", "arm", "Running")
        running["status"]["containerStatuses"] = [{
            "name": "app", "image": HOSTILE, "imageID": HOSTILE, "ready": False, "restartCount": 3,
            "state": {"waiting": {"reason": "ErrImagePull", "message": HOSTILE}},
        }]  # fmt: skip
        running["metadata"]["labels"] = {"multiarch-extender.io/gated": "true"}
        api.put(PODS, running)
        options = ("--kubeconfig", str(write_kubeconfig(api, tmp_path)), *asking(registry.host))
        api.refusals.append(("list", Refusal(403, HOSTILE)))
        shown = [await run("audit", "-A", *options), await run("explain", "web", *options)]
    assert_is_shown(*(text for _, out, err in shown for text in (out, err)))


async def test_an_error_about_a_text_of_others_is_one_line() -> None:
    """Its author ends no line and begins none."""
    for field in ("nodeSelector", "tolerations", "schedulingGates", "affinity"):
        deployment = hostile_deployment()
        deployment["spec"]["template"]["spec"][field] = HOSTILE
        code, out, err = await run("explain", "-f", "-", *OFFLINE, stdin=json.dumps(deployment))
        assert code == 2
        assert_is_shown(out, err)
        assert len(err.splitlines()) == 1
