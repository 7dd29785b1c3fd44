"""docs/modes/policy-only.md without Helm, to the letter: its commands are typed, and held pods are let go.

The Deployment's pods are processes of this machine (`testbed/process_kubelet.py`); all else is as users get it.
"""

import os
import re
from pathlib import Path

import pytest

from testbed.api_client import ApiClient
from testbed.cluster_provider import running_scheduler
from testbed.control_plane import LocalCluster
from testbed.embedded_registry import EmbeddedRegistry
from testbed.eventually import eventually
from testbed.objects import fake_node, kept_to, pod
from testbed.playground import CONTROLLERS
from testbed.process_kubelet import open_process_kubelet
from tests.e2e.policies import GATE, gates_of, has_mutating_policies, until_free, until_held
from tools.docs.commands import blocks_of_commands
from tools.docs.pages import PROJECT, page
from tools.docs.quickstart import steps_of
from tools.docs.quickstart_walk import Shell

pytestmark = pytest.mark.e2e

MANIFEST = Path("deploy/manifests/policy.yaml")
UNINSTALL = "docs/how-to/uninstall.md#without-helm"


async def test_what_the_page_says_without_helm_holds_pods_and_lets_them_go(
    control_plane: LocalCluster, api: ApiClient, controller_manager: Path, kubectl: Path, tmp_path: Path
) -> None:
    """Applied as it is but for the registry's settings, which go into the ConfigMap; then taken away again."""
    if not await has_mutating_policies(api):
        pytest.skip("Kubernetes serves MutatingAdmissionPolicy from 1.36 on")
    found = re.search(r"^## Without Helm\n(.*?)^## ", page("modes/policy-only.md"), re.DOTALL | re.MULTILINE)
    assert found
    apply, rollout, look = steps_of(found[1])
    environment = {"KUBECONFIG": str(control_plane.kubeconfig), "PATH": f"{kubectl.parent}:{os.environ['PATH']}"}
    await api.create_all([fake_node("amd64", "amd64"), fake_node("arm64", "arm64")])
    async with (
        EmbeddedRegistry() as registry,
        open_process_kubelet(api, control_plane.kubeconfig, tmp_path),
        Shell({**os.environ, **environment}) as shell,
    ):
        with control_plane.running_controllers(controller_manager, *CONTROLLERS), running_scheduler(control_plane):
            registry.add_manifest("team/old", "1", "linux/amd64")
            await type_(shell, f"cd {checkout_with(registry.host, tmp_path / 'checkout')}")
            try:
                await type_(shell, apply.command)
                await type_(shell, rollout.command)
                await until_held(api)
                assert GATE["name"] in await type_(shell, look.command)
                for name, image in (("known", "old"), ("late", "late")):
                    assert gates_of(await api.create(pod(name, f"{registry.host}/team/{image}:1"))) == [GATE]
                await until_ungated(api, "known", "amd64")
                registry.add_manifest("team/late", "1", "linux/arm64")
                await until_ungated(api, "late", "arm64")
            finally:
                uninstall = [each for each in blocks_of_commands() if each.place == UNINSTALL]
                policies, (file, *roles), _ = (block.commands for block in uninstall)
                for command in (*policies, file.replace("webhook.yaml", MANIFEST.name), *roles):
                    await type_(shell, command)
    await until_free(api)


def checkout_with(registry: str, folder: Path) -> Path:
    """A folder with the manifest, whose service asks that registry on loopback without TLS."""
    text = (PROJECT / MANIFEST).read_text()
    section = f"    registry:\n      plain_http: ['{registry}']\n      allow: ['*', '{registry}']\n"
    assert text.count("    registry:\n") == 1
    (folder / MANIFEST).parent.mkdir(parents=True)
    (folder / MANIFEST).write_text(text.replace("    registry:\n", section))
    return folder


async def type_(shell: Shell, command: str) -> str:
    code, printed = await shell.type(command)
    assert code == 0, f"{command}\n{printed}"
    return printed


async def until_ungated(api: ApiClient, name: str, architecture: str) -> None:
    found = await eventually(lambda: api.get("Pod", name), lambda found: not gates_of(found))
    assert kept_to(found["spec"], "kubernetes.io/arch") == [architecture]
