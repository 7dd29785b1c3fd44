"""Every command of the pages, typed against installations that helm makes as the pages say, and one without helm.

A command fails the test that names an object, a namespace, an option, a label or a file that there is not. A page says
of a block that cannot run here why, in a comment before it: `<!-- not run: needs docker -->`.
"""

import asyncio
import os
import re
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import yaml

from extender import __version__
from testbed.binaries import KUBECTL, build
from testbed.objects import KubernetesObject, pod
from testbed.playground import ENVIRONMENT
from tests.e2e.running import find_or_skip
from tests.e2e.world import Tally
from tools.docs.commands import Block, blocks_of_commands
from tools.docs.pages import PROJECT
from tools.docs.quickstart_walk import ClusterTerminal, Shell

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("test_quickstart.py")]  # both write build/cluster.env

STORIES: Mapping[str, Sequence[str]] = {
    "webhook": (
        "docs/how-to/install-with-helm.md",
        "docs/modes/webhook-only.md",
        "docs/how-to/doctor.md",
        "docs/how-to/observe.md",
        "docs/how-to/read-a-refusal.md",
        "docs/how-to/audit.md",
        "docs/how-to/from-hand-written.md",
        "docs/how-to/fix.md",
        "docs/how-to/check-manifests-in-ci.md",
        "docs/how-to/prefer-an-architecture.md",
        "docs/how-to/private-registries.md",
        "docs/how-to/make-images-multi-arch.md",
        "docs/registries.md",
        "docs/security.md",
        "docs/how-to/add-first-arm64-nodes.md",
        "docs/how-to/hold-until-known.md",
        "docs/runbooks.md",
        "docs/command-line.md#inspect",
        "docs/command-line.md#ungate",
        "docs/how-to/upgrade.md",
        "docs/how-to/uninstall.md#with-helm",
        "docs/how-to/uninstall.md#check",
    ),
    "policy": (
        "docs/modes/policy-only.md",
        "docs/how-to/uninstall.md#without-the-image",
    ),
    "second scheduler": ("docs/modes/second-scheduler.md", "docs/how-to/uninstall.md#with-helm"),
    "default scheduler": ("docs/modes/default-scheduler.md", "docs/how-to/uninstall.md#with-helm"),
    "without Helm": (
        "docs/how-to/install-without-helm.md",
        "docs/how-to/certificates.md",
        "docs/how-to/hold-until-known.md#without-helm",
        "docs/how-to/uninstall.md#without-helm",
        "docs/how-to/uninstall.md#check",
    ),
}
"""Pages, and parts of pages, in the order in which somebody reads them. A page is its parts that no story names."""

ELSEWHERE = {
    "README.md#try-it": "tests/integration/test_documentation.py",
    "CONTRIBUTING.md#set-up": "the Makefile's own target, before any test",
    "docs/quickstart.md#see-it-decide": "tests/integration/test_documentation.py",
    "docs/quickstart.md#install-it-with-helm": "tests/e2e/test_quickstart.py",
    "docs/modes/policy-only.md#without-helm": "tests/e2e/test_policy_only_page.py",
    "docs/how-to/verify-a-release.md#verify-a-release": "tests/e2e/test_release_rehearsal.py",
}
"""What other tests type."""

_ANSWERS_NO = re.compile(r"multiarch-extender (?:audit .*--require|fix .*--check|inspect .*--require)")
"""Commands whose exit code 1 is an answer; 2 is wrong usage, and no answer."""

_FINDS_NOTHING = re.compile(r"service-name=kubernetes$|reason=DaemonPodCannotRun$")
"""Commands that find nothing here: an API server on loopback is in no EndpointSlice, and no pod of a DaemonSet runs."""

_NOTHING_LEFT = re.compile(r"^No resources found$|^ +namespace/multiarch-extender .*$", re.MULTILINE)

_LOOKS_UP_ALONE = re.compile(r"multiarch-extender (?:fix|inspect|audit|explain)")
"""Commands that have to be told how this registry is asked."""

SETTINGS = "config.yaml"

_WAITS = re.compile(r"kubectl .*\b(?:rollout status|wait)\b")

_ASKS_A_NODE = re.compile(r"kubectl .*\b(?:logs|port-forward|proxy)\b")
_NO_KUBELET = re.compile(r"dial tcp|error dialing|connection refused|no preferred addresses|address not allowed")
"""What commands say that reach a pod of a node without a kubelet, once the API server has found the pod."""

NAMESPACES, CHARTS = ("shop", "monitoring", "canary"), ("chart", "my-chart")

_HOLDS = "kubectl run held --image=YOUR/IMAGE:TAG-none --dry-run=server -o jsonpath='{.spec.schedulingGates}'"
_HELD = (
    f"for _ in $(seq 300); do {_HOLDS} | grep -q platforms && break; sleep 0.2; done",
    "kubectl run held --image=YOUR/IMAGE:TAG-none",
)
_NONE_HELD = "kubectl delete pod held --ignore-not-found"
"""A pod that is there already cannot be run, so that no answer says whether another would be held."""

PREPARED: Mapping[str, Sequence[str]] = {
    "docs/how-to/hold-until-known.md#see-what-is-held-and-why": _HELD[1:],
    "docs/modes/default-scheduler.md#install-it": (
        "kubectl label $(kubectl get nodes -o name | head -1) node-role.kubernetes.io/control-plane=",
    ),
    "docs/how-to/add-first-arm64-nodes.md#4-watch-the-first-node-join": (
        """kubectl run first --image=YOUR.REGISTRY/shop/web:1.0 --overrides='{"spec":{"nodeName":"NODE"}}'""",
    ),
    "docs/how-to/read-a-refusal.md#find-out-why-a-pod-is-not-placed": (
        "kubectl delete pod shop && kubectl run shop --image=YOUR.REGISTRY/shop/legacy:1.0",
    ),
    "docs/how-to/certificates.md#by-hand": ("kubectl delete namespace multiarch-extender --ignore-not-found",),
    "docs/how-to/uninstall.md#check": (
        "kubectl -n multiarch-extender wait --for=delete pod --all --timeout=60s || kubectl get namespaces",
    ),
    "docs/modes/policy-only.md#see-that-pods-are-held": (_NONE_HELD, *_HELD[:1]),
    "docs/modes/policy-only.md#when-the-service-is-away": (_NONE_HELD, *_HELD),
}
"""What has to be there before a block."""


class Reader:
    """Somebody who types what pages say, with their own names in place of the pages', and notes what goes wrong."""

    def __init__(self, shell: Shell, registry: str) -> None:
        self._shell, self._registry = shell, registry
        self.typed = 0
        self.problems: list[str] = []

    async def prepare(self, command: str) -> None:
        """Types what no page says; it has to succeed."""
        code, printed = await self._shell.type(fill_in(command, self._registry))
        assert code == 0, f"{command}\n{printed}"

    async def follow(self, blocks: Sequence[Block]) -> None:
        """Types the blocks' commands, each once, but for those that wait for what is before them."""
        typed: set[str] = set()
        for block in blocks:
            for prepared in PREPARED.get(block.place, ()):
                await self.prepare(prepared)
            for said in block.commands:
                if (command := fill_in(said, self._registry)) in typed and not _WAITS.search(command):
                    continue
                typed.add(command)
                began = time.monotonic()
                code, printed = await self._shell.type(command)
                self.typed += 1
                print(f"{block.place} [{time.monotonic() - began:.1f} s]\n$ {command}\n{printed}\nexit code {code}")
                if problem := problem_of(block, command, code, printed):
                    self.problems.append(f"{block.place}: {problem}: {command}\n{printed}exit code {code}")


def fill_in(command: str, registry: str) -> str:
    """Returns the command with names of this cluster in place of the page's.

    The default scheduler's pods are not ready here: they need a node of their own, whose ports are theirs.
    """
    image = f"{registry}/shop/web:1.0"
    settings = f"--set 'config.registry.plain_http={{{registry}}}' --set 'config.registry.allow={{*,{registry}}}'"
    first_pod = "$(kubectl -n multiarch-extender get pods -o name | head -1 | cut -d/ -f2)"
    for pattern, filled in (
        (r"YOUR\.REGISTRY/multiarch-extender", f"{registry}/multiarch-extender {settings}"),
        (r"YOUR/IMAGE:TAG", f"{registry}/multiarch-extender:{__version__}"),
        (r"\bdebian:12\b|\bquay\.io/prometheus/prometheus\b|\bregistry\.example\.com/team/app:[\d.]+", image),
        (r"--installed-in \S+", rf"\g<0> --set 'registry.plain_http=[{registry}]' --set 'registry.allow=[{registry}]'"),
        (rf"^(?!.* --(?:config|installed-in) )(.*{_LOOKS_UP_ALONE.pattern})", rf"\1 --config {SETTINGS}"),
        (r"--set modes\.defaultScheduler\.enabled=true", r"\g<0> --set doctor.enabled=false"),
        (r"YOUR\.REGISTRY", registry),
        (r"\b(pod|namespace) NAME\b", r"\1 shop"),
        (r"\bNODE\b", "arm64-1"),
        (r"\bPOD\b", first_pod),
    ):
        command = re.sub(pattern, filled, command)
    return command


def problem_of(block: Block, command: str, code: int, printed: str) -> str:
    """Returns what is wrong with how a command ended; empty if nothing is."""
    if block.place == "docs/how-to/uninstall.md#check":
        return "something is left" if _NOTHING_LEFT.sub("", printed).strip() else ""
    is_empty = "jsonpath" in command and ">" not in command and not printed.strip()
    if is_empty or ("No resources found" in printed and not _FINDS_NOTHING.search(command)):
        return "nothing is there"
    if code and _ASKS_A_NODE.search(command) and _NO_KUBELET.search(printed) and "NotFound" not in printed:
        return ""
    if code == 1 and _ANSWERS_NO.search(command):
        return ""
    return "failed" if code else ""


def stories() -> dict[str, list[Block]]:
    """Returns the blocks of each story. Fails for a block that is in none, and for a story of what is on no page."""
    blocks = [block for block in blocks_of_commands() if not block.why_not]
    named = {place for places in STORIES.values() for place in places}
    found = {
        story: [
            block
            for place in places
            for block in blocks
            if place == block.place or (place == block.page and block.place not in named | ELSEWHERE.keys())
        ]
        for story, places in STORIES.items()
    }
    known = {block.place for story in found.values() for block in story} | ELSEWHERE.keys()
    unknown = [block.place for block in blocks if block.place not in known]
    assert unknown == [], "in no story, and not marked as `not run` with the reason"
    empty = [place for place in named if not any(place in (block.place, block.page) for block in blocks)]
    assert empty == [], "these have no commands"
    return found


def test_every_block_of_commands_is_typed_or_says_why_not() -> None:
    """And every place that a story names has commands."""
    assert all(stories().values())


@pytest.mark.parametrize(
    ("command", "code", "printed", "problem"),
    [
        ("kubectl get pods -l a=b", 0, "No resources found", "nothing is there"),
        ("kubectl get pod a -o jsonpath='{.metadata.none}'", 0, "", "nothing is there"),
        ("kubectl logs deploy/a", 1, 'Error (NotFound): deployments.apps "a" not found', "failed"),
        ("kubectl logs deploy/a", 1, "no preferred addresses found", ""),
        ("multiarch-extender audit --require linux/arm64", 1, "image a lacks it", ""),
        ("multiarch-extender audit --required linux/arm64", 2, "No such option", "failed"),
        ("helm upgrade a deploy/helm/a", 1, "Error: release not found", "failed"),
    ],
)
def test_a_command_that_names_what_there_is_not_is_a_problem(
    command: str, code: int, printed: str, problem: str
) -> None:
    """And one that a node without a kubelet cannot answer is none, nor an answer that is no."""
    assert problem_of(Block("docs/a.md", "", (command,), ""), command, code, printed) == problem


@pytest.fixture
def clients(pytestconfig: pytest.Config, controller_manager: Path, helm_program: Path) -> None:
    """helm, which takes long to build, and kubectl, which is built here."""
    find_or_skip(pytestconfig, lambda: build(KUBECTL))


@pytest.mark.usefixtures("clients", "binaries")
async def test_what_pages_say_can_be_typed(tally: Tally) -> None:
    """Each command ends as the page leads one to expect, in five installations one after another."""
    began = time.monotonic()
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    problems: list[str] = []
    typed = 0
    with tempfile.TemporaryDirectory() as name:  # tmp_path is too long for a socket
        folder = Path(name)
        environment |= {"TMPDIR": name, **{f"HELM_{each}_HOME": f"{name}/helm" for each in ("DATA", "CONFIG", "CACHE")}}
        async with ClusterTerminal("make cluster SERVICE=none", environment):
            for number, (story, blocks) in enumerate(stories().items()):
                async with Shell(environment) as shell:
                    reader = await at_a_desk(shell, folder / f"reader-{number}")
                    await reader.follow(blocks)
                problems += [f"{story}: {problem}" for problem in reader.problems]
                typed += reader.typed
    tally.figures.append(f"pages: {typed} commands in {time.monotonic() - began:.0f} s, {len(problems)} problems")
    assert problems == []


async def at_a_desk(shell: Shell, folder: Path) -> Reader:
    """Somebody with the cluster's kubeconfig, a checkout and files of their own, in that folder."""
    await shell.type(f"source {ENVIRONMENT}")
    _, registry = await shell.type("echo -n $REGISTRY")
    reader = Reader(shell, registry)
    await asyncio.to_thread(write_files, folder, registry)
    for command in (
        f"cd {folder}",
        "cp $KUBECONFIG kubeconfig && export KUBECONFIG=$PWD/kubeconfig",
        "kubectl config rename-context $(kubectl config current-context) staging",
        "kubectl get namespace shop || kubectl apply -f cluster/",
        f"sed -i 's#args: .fix,#& --config={folder}/{SETTINGS},#' deploy/helm-plugin/plugin.yaml",
    ):
        await reader.prepare(command)
    return reader


def write_files(folder: Path, registry: str) -> None:
    """Writes what pages take for there: the checkout's deploy, and a reader's own manifests, charts and settings."""
    shutil.copytree(PROJECT / "deploy", folder / "deploy")
    image = f"{registry}/shop/web:1.0"
    deployment = template_of("Deployment", image)
    agent = template_of("DaemonSet", f"{registry}/shop/legacy:1.0", "agent", "monitoring")
    canary = template_of("Deployment", image, where="canary")
    spaces = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": each}} for each in NAMESPACES]
    pods = [pod("web-6d4cf56db6-x7k2p", image, namespace="shop"), pod("shop", image)]
    chart = {"apiVersion": "v2", "name": "my-chart", "version": "0.1.0"}
    files = {
        "cluster/1.yaml": spaces,
        "cluster/2.yaml": [deployment, agent, canary, *pods],
        SETTINGS: [{"registry": {"plain_http": [registry], "allow": ["*", registry]}}],
        "more.yaml": [canary],
        "manifests/web.yaml": [deployment],
        "daemonsets/agent.yaml": [agent],
        **{f"{name}/Chart.yaml": [chart] for name in CHARTS},
        **{f"{name}/templates/web.yaml": [template_of("Deployment", image, where="")] for name in CHARTS},
    }
    for path, documents in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(yaml.safe_dump_all(documents))
    (folder / "images.txt").write_text(f"{image}\n")


def template_of(kind: str, image: str, name: str = "web", where: str = "shop") -> KubernetesObject:
    """A workload with a template of pods."""
    labels = {"app": name}
    containers = [{"name": "app", "image": image}]
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name, **({"namespace": where} if where else {})},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": containers}},
        },
    }
