"""The exit code of every command: 0 for yes, 1 for no, 2 for no answer."""

import asyncio
import json
import re
import shlex
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml
from aiohttp import web

from extender.cli.fix import FixedFile, write_fixed
from extender.cluster.views import NAMESPACES, NODES, PODS
from extender.errors import ConfigError
from testbed.embedded_registry import EmbeddedRegistry
from testbed.forked_commands import COMMAND, MEMORY, asking, run
from tests.integration.cluster.api_server import ApiServer, Refusal, namespace, node, pod, serve_api, write_kubeconfig
from tools.docs.pages import page

POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}}
OF_CLUSTERS = {"audit": (), "doctor": (), "explain": ("web",), "ungate": ()}
"""The commands that look at a cluster, with what they need besides."""
OF_MANIFESTS = ("audit", "explain", "fix")
OF_SETTINGS = {
    "audit": ("-f", "-"), "config": (), "explain": ("web",), "fix": ("-f", "-"), "inspect": ("web",),
    "serve": (),
}  # fmt: skip
FULLY = "explain"
"""The command that is run in every way that something cannot be used, the others in two: they read by the same code."""
ANSWERS_NOT = (2, "")
BOMB = "containers: &a {x: y}\n" + "".join(f"{at}: &a {{<<: [*a, *a]}}\n" for at in range(30))


class World:
    """A cluster of one arm64 node, and a registry with `web` for arm64 and `legacy` for amd64 alone."""

    def __init__(self, api: ApiServer, folder: Path, host: str) -> None:
        self.api = api
        self.host = host
        self.kubeconfig = str(write_kubeconfig(api, folder))
        self.settings = (*asking(host), MEMORY)

    async def code(self, command: str, *arguments: str, stdin: str = "") -> int:
        """The exit code; whatever it is, no command ends by accident."""
        code, _, err = await run(command, *arguments, stdin=stdin)
        assert "Traceback" not in err
        return code

    def manifest(self, image: str) -> str:
        template = {"spec": {"containers": [{"name": "c", "image": f"{self.host}/{image}:1"}]}}
        named = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": image}}
        return json.dumps({**named, "spec": {"template": template}})


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with EmbeddedRegistry() as registry, serve_api() as api:
        registry.add_index("web", "1", ["linux/amd64", "linux/arm64"])
        registry.add_index("legacy", "1", ["linux/amd64"])
        api.put(NODES.path, node("arm", "arm64"))
        api.put(NAMESPACES.path, namespace("default"))
        for name in ("web", "legacy"):
            api.put(PODS, pod(name, f"{registry.host}/{name}:1", "arm", "Running"))
        yield World(api, tmp_path, registry.host)


@pytest.mark.parametrize(
    ("arguments", "yes", "no"),
    [
        (("audit", "-f", "-", "--require", "linux/arm64"), "web", "legacy"),
        (("fix", "-f", "-", "--check", "--node-affinity=none", "--set=admission.tolerations=[]"), "web", "absent"),
        (("explain", "-f", "-", "--set=cluster=none"), "web", "absent"),
        (("inspect", "{image}", "--require", "linux/arm64"), "web", "legacy"),
        (("inspect", "{image}"), "legacy", "absent"),
    ],
    ids=["audit", "fix", "explain", "inspect --require", "inspect"],
)
async def test_yes_is_0_and_no_is_1(world: World, arguments: tuple[str, ...], yes: str, no: str) -> None:
    codes = [
        await world.code(
            *(word.format(image=f"{world.host}/{image}:1") for word in arguments),
            *world.settings,
            stdin=world.manifest(image),
        )
        for image in (yes, no)
    ]
    assert codes == [0, 1]


@pytest.mark.parametrize(
    "words",
    ["web", "pod/web", "pods/web", "po web", "pod web", "deployment.apps/web", "deployments.apps web", "deploy web",
     "deployment.v1.apps/web", "Deployment/web"],
)  # fmt: skip
async def test_a_workload_is_named_as_kubectl_takes_and_prints_it(world: World, words: str) -> None:
    where = "/apis/apps/v1/namespaces/default/deployments"
    world.api.put(where, json.loads(world.manifest("web")))
    given = (*world.settings, "--kubeconfig", world.kubeconfig, "-o", "json")
    code, out, err = await run("explain", *words.split(), *given)
    kind = "Deployment" if "deploy" in words.lower() else "Pod"
    assert (code, err, [(each["kind"], each["name"]) for each in json.loads(out)]) == (0, "", [(kind, "web")])


async def test_a_word_that_names_no_image_is_no_answer(world: World) -> None:
    """And the others are shown."""
    code, out, _ = await run("inspect", "Foo", f"{world.host}/web:1", *world.settings, "-o", "json")
    assert (code, [each["kind"] for each in json.loads(out)]) == (2, [None, "index"])


async def test_without_arguments_the_help_is_shown() -> None:
    code, out, err = await run()
    assert (code, err) == (0, "")
    assert out == (await run("--help"))[1]


async def test_an_audit_is_printed_as_yaml(world: World) -> None:
    given = ("audit", "-f", "-", *world.settings)
    found = [(await run(*given, "-o", form, stdin=world.manifest("legacy")))[1] for form in ("yaml", "json")]
    assert yaml.safe_load(found[0]) == json.loads(found[1])


async def test_yes_is_0_and_no_is_1_for_what_a_cluster_has(world: World) -> None:
    given = (*world.settings, "--kubeconfig", world.kubeconfig)
    assert await world.code("explain", "web", *given) == 0
    assert await world.code("explain", "legacy", *given) == 1
    assert await world.code("ungate", "--kubeconfig", world.kubeconfig) == 0
    world.api.remove(PODS, "legacy")
    assert await world.code("config") == 0


@pytest.mark.parametrize("command", OF_SETTINGS)
async def test_settings_that_cannot_be_used_are_2(command: str, tmp_path: Path) -> None:
    (tmp_path / "twice.yaml").write_text("log: {}\nlog: {}\n")
    files = ("/nowhere", tmp_path, tmp_path / "twice.yaml")
    ways = "--set=log.level=loud", *(f"--config={file}" for file in files), "--set=log"
    for wrong in ways if command == FULLY else ways[:2]:
        assert_no_answer(*await run(command, *OF_SETTINGS[command], wrong, stdin=json.dumps(POD)))


@pytest.mark.parametrize("command", OF_CLUSTERS)
async def test_a_cluster_that_cannot_be_read_is_2(command: str, tmp_path: Path) -> None:
    """No kubeconfig, one that is none or names no such context, nobody there, who refuses, and who talks nonsense."""
    given = OF_CLUSTERS[command]
    (tmp_path / "broken").write_text("a: [")
    (tmp_path / "bomb").write_text(BOMB)
    ways: list[tuple[str, ...]] = [("--kubeconfig", str(tmp_path / name)) for name in ("absent", "broken", "bomb")]
    async with serve_api() as api:
        kubeconfig = ("--kubeconfig", str(write_kubeconfig(api, tmp_path)))
        ways.append((*kubeconfig, "--context", "absent"))
    ways.append(kubeconfig)  # where nobody listens any more
    for way in ways if command == FULLY else ways[-2:]:
        assert_no_answer(*await run(command, *given, *way))


@pytest.mark.parametrize("command", ["explain", "ungate"])  # others tell each part
async def test_a_cluster_that_refuses_is_2(command: str, tmp_path: Path) -> None:
    async with serve_api() as api:
        api.refusals += [(kind, Refusal(403, "it is forbidden")) for kind in ("get", "list") for _ in range(20)]
        kubeconfig = str(write_kubeconfig(api, tmp_path))
        assert_no_answer(*await run(command, *OF_CLUSTERS[command], "--kubeconfig", kubeconfig))


_ITEM = '{{"items": [{{"metadata": {{"name": "a", "namespace": "b"}}, {}}}]}}'
ANSWERS = (
    "[]", '"x"', "null", "{}", "<html>", '{"metadata": []}', '{"items": [1]}', '{"items": [{}]}', '{"spec": 1}',
    '{"metadata": {"annotations": [1]}}', '{"imagePullSecrets": 1, "spec": {"containers": [{"name": "c"}]}}',
    _ITEM.format('"spec": []'), _ITEM.format('"imagePullSecrets": [1], "spec": {"template": {}}'),
    _ITEM.format('"spec": {"selector": 1, "template": {"spec": {"containers": [{"args": 1}]}}}'),
)  # fmt: skip
"""Of whoever is no API server, or of a proxy in front of one."""
ASKING = ("audit --no-newer", "audit --installed-in b", "explain web", "explain -f -", "ungate -n b", "doctor -v")


@pytest.mark.parametrize(
    "command", [pytest.param(each, marks=() if each.startswith("audit") else pytest.mark.slow) for each in ASKING]
)
async def test_an_answer_that_is_no_object_ends_no_command_by_accident(command: str, tmp_path: Path) -> None:
    answers: list[str] = []

    async def answer(_: web.BaseRequest) -> web.Response:
        return web.Response(text=answers[-1], content_type="application/json")

    runner = web.ServerRunner(web.Server(answer))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    api = ApiServer()
    api.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    given = (*command.split(), "--kubeconfig", str(write_kubeconfig(api, tmp_path)))
    if command.startswith("audit"):
        given = (*given, MEMORY)
    for text in ANSWERS:
        answers.append(text)
        code, _, err = await run(*given, stdin=json.dumps(POD))
        assert (code in (0, 1, 2), "Traceback" in err) == (True, False), (text, err)
    await runner.cleanup()


@pytest.mark.parametrize("command", ["audit", "explain web", "ungate", "ungate --dry-run"])
async def test_a_namespace_that_is_not_there_is_1(world: World, command: str) -> None:
    """An empty table would say that all is well in it."""
    given = () if command.startswith("ungate") else world.settings
    known = ("--kubeconfig", world.kubeconfig)
    code, out, err = await run(*command.split(), "-n", "nope", *known, *given)
    assert (code, out, err) == (1, "", "error: no such namespace: nope\n")
    assert_no_answer(*await run(*command.split(), "-n", "../pods", *known, *given))
    world.api.denied.add("/api/v1/namespaces/nope")  # who may not see it is told what may be seen
    assert "no such namespace" not in (await run(*command.split(), "-n", "nope", *known, *given))[2]


@pytest.mark.parametrize(
    ("redirected", "said"),
    [
        (">/dev/full", "error: standard output cannot be written: No space left on device\n"),
        (">&-", "error: standard output is closed\n"),
    ],
)
@pytest.mark.parametrize("command", ["config", "--help", "version", "audit --schema"])
async def test_a_standard_output_that_takes_nothing_is_2(command: str, redirected: str, said: str) -> None:
    line = f"exec {shlex.join(COMMAND)} {command} {redirected}"
    process = await asyncio.create_subprocess_shell(line, stderr=asyncio.subprocess.PIPE)
    _, err = await asyncio.wait_for(process.communicate(), 60)
    assert (process.returncode, err.decode()) == (2, said)


async def test_manifests_need_no_cluster(world: World) -> None:
    """Whatever the current context is; one that is named is asked."""
    context = ("--kubeconfig", world.kubeconfig)
    given = ("explain", "-f", "-", *world.settings)
    await world.api.stop()
    code, _, err = await run(*given, stdin=world.manifest("web"), environment={"KUBECONFIG": world.kubeconfig})
    assert (code, err) == (0, "")
    assert_no_answer(*await run(*given, *context, stdin=world.manifest("web")))


def assert_no_answer(code: int, out: str, err: str) -> None:
    assert (code, out) == ANSWERS_NOT
    assert err.startswith("error: ")
    assert "Traceback" not in err


@pytest.mark.parametrize("command", OF_MANIFESTS)
async def test_manifests_that_cannot_be_read_are_2(command: str, tmp_path: Path) -> None:
    """An empty file too, and a folder of such: whatever was to write it has failed."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "empty.yaml").touch()
    (tmp_path / "none").mkdir()
    (tmp_path / "cut.yaml").write_text("a: [")
    (tmp_path / "bomb.yaml").write_text(BOMB)
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    ways = "folder/empty.yaml", "cut.yaml", "folder", "none", "bomb.yaml", "binary.yaml", "absent.yaml"
    for name in ways if command == FULLY else ways[:2]:
        assert_no_answer(*await run(command, "-f", str(tmp_path / name), "--set=cluster=none"))
    said = "error: -f -: standard input is empty; see whether the command that wrote it failed\n"
    assert await run(command, "-f", "-", "--set=cluster=none") == (*ANSWERS_NOT, said)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("audit -A -f x.yaml", "give only one of -A, -f and --images"),
        ("audit -f /nowhere/x.yaml", "-f /nowhere/x.yaml: No such file or directory; give a file or folder"),
        ("audit -f - --require linux/amd64/v46", "no node has the variant 'v46' of amd64"),
        ("audit --images -", "--images -: it is empty; see whether the command that wrote it failed"),
        ("audit -f - -o pdf", "-o pdf is no format; give one of table, wide"),
        ("audit -n shop -A", "--namespace and --all-namespaces exclude each other"),
        ("audit -f - --require arm64", "--require: 'arm64' is no platform"),
        ("audit -f - --require linux/arm46", "no node has the architecture 'arm46'; is it 'arm64'?"),
        ("audit -f - --baseline /nowhere", "--baseline /nowhere: No such file or directory; give the output of"),
        ("audit --config /dev/null --installed-in b", "--config and --installed-in exclude each other"),
        ("audit --kubeconfig /nowhere", "name a kubeconfig with --kubeconfig, or manifests with -f"),
        ("explain", "nothing to explain; give a pod, KIND/NAME or -f FILE"),
        ("explain web --set=cluster=none", "give -f FILE"),
        ("explain configmap/web", "'configmap' is no kind with pods that is known here"),
        ("explain deploy web more", "deploy web more: give one pod, KIND/NAME or KIND NAME"),
        ("explain deployment.extensions/web", "'deployment.extensions' is no kind with pods that is known here"),
        ("config --check nope.yaml", "nope.yaml: No such file or directory; --check takes a readable YAML file"),
        ("config --config nope.yaml", "nope.yaml: No such file or directory; --config takes a readable YAML file"),
        ("fix", "Missing option"),
        ("fix -f - --check --write", "--check and --write exclude each other"),
        ("fix -f - --require linux/arm64", "error: "),
        ("fix -f - --relax --node-affinity required", "error: "),
        ("inspect", "Missing argument"),
        ("inspect debian --set=registry.docker_config=/nonexistent", "/nonexistent"),
        ("serve --set=cluster=none", "admission.tls.certificate"),
        ("ungate -A -n x", "error: "),
        ("ungate -A --dry-run --first-delete=MutatingAdmissionPolicyBinding/hold", "error: "),
        ("ungate -A --lenient --first-delete=Pod/a", "error: "),
        ("ungate -A --first-delete=MutatingWebhookConfiguration/../pods", "error: "),
        ("ungate -A --first-delete=MutatingWebhookConfiguration", "error: "),
    ],
)
async def test_wrong_usage_is_2_and_says_what_would_be_right(line: str, said: str) -> None:
    code, out, err = await run(*line.split())
    assert (code, out) == ANSWERS_NOT
    assert said in err.replace('"', "'")
    assert "Traceback" not in err


async def test_an_object_among_others_that_kubernetes_does_not_take_is_2(world: World) -> None:
    """The others are explained, and its wrong key is named."""
    wrong = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "wrong", "annotations": {"on": True}},
             "spec": {"containers": [{"name": "c", "image": "x"}]}}  # fmt: skip
    given = ("explain", "-f", "-", "--set=cluster=none", *world.settings, "-o", "json")
    code, out, err = await run(*given, stdin=f"{world.manifest('web')}\n---\n{json.dumps(wrong)}")
    assert (code, [each["name"] for each in json.loads(out)]) == (2, ["web"])
    assert err.splitlines()[-1].endswith("Expected `str`, got `bool` - at `$.metadata.annotations[on]`")
    code, out, err = await run(*given, stdin=json.dumps(wrong))
    assert (code, out) == ANSWERS_NOT
    assert err.startswith("error: standard input, document 1: Pod default/wrong is not as Kubernetes takes it: ")


@pytest.mark.parametrize("image", ["web", "legacy"])
async def test_a_file_among_others_that_cannot_be_read_is_2(world: World, image: str, tmp_path: Path) -> None:
    """The others count: what they block is said beside it. --allow-unread lets it pass, and so does a baseline."""
    (tmp_path / "cut.yaml").write_text("a: [")
    (tmp_path / "right.yaml").write_text(world.manifest(image))
    given = ("-f", str(tmp_path), *world.settings)
    gate, blocks = ("--require", "linux/arm64"), image == "legacy"
    for arguments, code, lines in (
        (("audit", *given), 2, ["not read: -f "]),
        (("audit", *given, "--allow-unread"), 0, []),
        (("audit", *given, *gate), 2, ["not read: -f ", *["image "] * blocks]),
        (("audit", *given, *gate, "--allow-unread"), int(blocks), ["image "] * blocks),
        (("explain", *given, "--set=cluster=none"), 2, ["-f "]),
        (("fix", *given, "--node-affinity=none", "--set=admission.tolerations=[]"), 2, ["-f "]),
    ):
        found, _, err = await run(*arguments)
        said = [line for line in err.splitlines() if "looked up" not in line]
        assert (found, [line.startswith(begin) for line, begin in zip(said, lines, strict=True)]) == (
            code, [True] * len(lines)
        )  # fmt: skip
    _, baseline, _ = await run("audit", *given, "-o", "json")
    (tmp_path / "baseline").write_text(baseline)
    assert await world.code("audit", *given, *gate, "--baseline", str(tmp_path / "baseline")) == 0


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """As any other that cannot be used."""
    with pytest.raises(ConfigError, match="it cannot be written: Is a directory"):
        write_fixed(FixedFile(str(tmp_path), "a", "b", []))


def test_the_page_lists_the_codes() -> None:
    """These three, and no other."""
    assert re.findall(r"^- ([0-9]): .", page("command-line.md"), re.MULTILINE) == ["0", "1", "2"]
