"""The commands as a user runs them: processes, exit codes, what goes to which stream."""

import asyncio
import compileall
import inspect
import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
import trustme
import yaml
from aiohttp import web

import extender
from extender.cli.main import COMMANDS, commands
from testbed.demo.story import SCENES, arguments_of, fill_registry, pod_of
from testbed.embedded_registry import EmbeddedRegistry
from testbed.eventually import eventually
from testbed.faulty_registry import GuardedRegistry, HoldingRegistry
from testbed.forked_commands import COMMAND, asking, run
from testbed.hostile_layers import AMD64_ELF
from testbed.images import join_index, make_image
from testbed.packed_layers import Put, gzipped

IN_FLIGHT = 200
DEMO = (sys.executable, "-m", "testbed.demo")


@pytest.fixture
async def registry() -> AsyncIterator[EmbeddedRegistry]:
    async with EmbeddedRegistry() as opened:
        fill_registry(opened)
        yield opened


@pytest.fixture
def without_sources(tmp_path: Path) -> dict[str, str]:
    """The environment of a process that finds the package compiled and none of its sources, as in the plugin."""
    copy = tmp_path / "extender"
    shutil.copytree(Path(extender.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    assert compileall.compile_dir(copy, legacy=True, quiet=2)
    for source in copy.rglob("*.py"):
        source.unlink()
    return {"PYTHONPATH": os.fspath(tmp_path), "PYTHONSAFEPATH": "1"}


@pytest.mark.slow  # all of the package is compiled
def test_a_mistyped_setting_is_refused_without_sources_too(without_sources: dict[str, str]) -> None:
    """What a setting means is no text that is read from a source file: the plugin has none."""
    done = subprocess.run(
        [*COMMAND, "config", "--set", "scheduler.wait_seconds=soon"],
        env={**os.environ, "COLUMNS": "200", **without_sources}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert "scheduler.wait_seconds: 'soon' is wrong" in done.stderr
    assert "Longest time that filter calls for one pod wait" in done.stderr


async def test_demo_shows_what_is_true_and_can_be_played_with() -> None:
    """`--keep` prints each outlet's answers and curl lines that work, and Ctrl-C ends it with exit code 0."""
    process = await asyncio.create_subprocess_exec(
        *DEMO, "--keep", stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "COLUMNS": "200"},
        limit=1 << 20,
    )  # fmt: skip
    assert process.stdout
    calls: dict[str, bytes] = {}
    shown = ""
    async with asyncio.timeout(60):
        while "readyz" not in (line := (await process.stdout.readline()).decode()):
            shown += line
            if line.startswith("curl -s "):
                url, document = line.removeprefix("curl -s ").split(" -d ", 1)
                calls[url] = document.strip().strip("'").encode()
    async with aiohttp.ClientSession() as session:
        for url, body in calls.items():
            async with session.post(url, data=body) as response:
                assert response.status == 200
        async with session.get(line.removeprefix("curl -s ").strip()) as response:
            assert response.status == 200
    assert len(calls) == 2
    for words in (
        "architectures required: none",
        "architectures required: amd64",
        "is built only for linux/amd64",
        "tolerations added: kubernetes.io/arch, arch",
        "arm-1 10, arm-2 10",
        "(0 requests to the registry)",
    ):
        assert words in shown
    process.send_signal(signal.SIGINT)
    _, complaint = await asyncio.wait_for(process.communicate(), 30)
    assert (process.returncode, complaint) == (0, b"")


async def test_inspect_prints_documented_json(registry: EmbeddedRegistry) -> None:
    """One object per image, in the order asked, each with the documented keys."""
    images = [f"{registry.host}/shop/{name}:1.0" for name in ("web", "legacy", "missing")]
    code, out, err = await run("inspect", *images, "-o", "json", "--require", "linux/arm64", *asking(registry.host))
    web, legacy, missing = json.loads(out)
    assert code == 1
    assert f"{images[1]} does not run on linux/arm64" in err
    keys = ["reference", "canonical", "digest", "media_type", "kind", "platforms", "skipped", "unknown", "endpoints"]
    assert list(web) == [*keys, "inside"]
    assert [item["platform"] for item in web["platforms"]] == ["linux/amd64", "linux/arm64"]
    assert (web["reference"], web["kind"], web["unknown"]) == (images[0], "index", None)
    assert all(item["digest"].startswith("sha256:") and item["size_bytes"] > 0 for item in web["platforms"])
    assert (legacy["kind"], [item["platform"] for item in legacy["platforms"]]) == ("manifest", ["linux/amd64"])
    assert (missing["digest"], missing["platforms"], missing["unknown"]["cause"]) == (None, [], "missing")


async def test_what_a_person_names_may_be_on_his_own_machine(registry: EmbeddedRegistry) -> None:
    """With TLS, or without where the server does not speak it; whatever the settings allow."""
    only = "--set=registry.allow=[ghcr.io]"
    for host in (registry.host, registry.host.replace("127.0.0.1", "localhost")):
        assert (await run("inspect", f"{host}/shop/web:1.0", only))[0] == 0
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(tls)
    async with EmbeddedRegistry(tls=tls) as secure:
        _, out, _ = await run("inspect", f"{secure.host}/shop/web:1.0", only)
    assert "its registry's certificate is not trusted" in out


@pytest.mark.parametrize("name", ["hang", "fail"])
async def test_inspect_says_at_once_what_a_registry_that_gives_no_answer_did(name: str) -> None:
    class Failing(EmbeddedRegistry):
        async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
            if name == "hang":
                await asyncio.Event().wait()
            return web.Response(status=503)

    async with Failing() as failing:
        host = failing.host
        code, out, _ = await run("inspect", f"{host}/app:1", "--set=registry.timeout_seconds=0.2")
    said = {"hang": "did not answer within 0.2 s", "fail": "answered 503"}[name]
    assert code == 1
    assert f"asked http://{host}/v2/app/manifests/1: {host} {said}" in out


async def test_help_has_each_paragraph_on_one_line_and_a_bare_command_prints_it() -> None:
    wide = {"COLUMNS": "1000"}
    for name in COMMANDS:
        code, out, _ = await run(name, "-h", environment=wide)
        assert code == 0
        for part in inspect.cleandoc(commands([name])[name].__doc__ or "").split("\n\n"):
            assert " ".join(part.split()) in [line.strip() for line in out.splitlines()]
    code, out, err = await run(environment=wide)
    assert (code, err) == (0, "")
    assert all(f" {name} " in out for name in COMMANDS)


async def test_inspect_shows_whom_nodes_ask(registry: EmbeddedRegistry, tmp_path: Path) -> None:
    """Each endpoint in order, with what it answered; those behind the one that has the image are not needed."""
    tables = f'[[registry]]\nprefix = "up.example"\nlocation = "{registry.host}"\n'
    mirrors = [f"{registry.host}/nothing", "blocked.example", f"{registry.host}"]
    tables += "".join(f'[[registry.mirror]]\nlocation = "{mirror}"\n' for mirror in mirrors)
    (tmp_path / "registries.conf").write_text(tables + '[[registry]]\nlocation = "blocked.example"\nblocked = true\n')
    given = ("up.example/shop/web:1.0", "--set", f"registry.mirrors={tmp_path}/registries.conf")
    code, out, _ = await run("inspect", *given, "-o", "json", *asking(registry.host))
    answered = [(each["url"], each["answered"]) for each in json.loads(out)[0]["endpoints"]]
    base, rest = f"http://{registry.host}/v2", "shop/web/manifests/1.0"
    assert (code, answered) == (0, [
        (f"{base}/nothing/{rest}", f"{registry.host} has no nothing/shop/web:1.0"),
        (f"https://blocked.example/v2/{rest}", "blocked.example is not asked: registries.conf blocks it"),
        (f"{base}/{rest}", "it has the image"),
        (f"{base}/{rest}", "it has the image"),
    ])  # fmt: skip
    code, out, _ = await run("inspect", *given, "-v", *asking(registry.host))
    assert f"asked {base}/{rest}: it has the image" in out


@pytest.mark.parametrize("command", ["config", "serve", "inspect x", "config --check /dev/null"])
async def test_no_login_of_a_setting_is_printed(command: str) -> None:
    """Wherever it was written, and whatever else is wrong."""
    given = [f"--set={each}" for each in ("admission.listen=", "scheduler.listen=nowhere", "operations.listen=")]
    for setting in (
        "cache=redis://u:hush@h", "cache=redis:u:hush@h", "cache=u:hush@h", "cache.url=[redis://u:hush@h]",
        "cache.url:redis://u:hush@h", "cache.url:u:hush@h", "cache.size=redis://u:hush@h", "cache.ur=redis://u:hush@h",
        "cache.url=redis:u:hush@h", "cache.url=redis://h?password=hush", "cache.url=redis://h?a=hush", "redis:u:hush@h",
        "cache.url=hush@h", "cache.url=u:p@hush@h", "cache.url=redis://h?password=a@hush", "cache.url=redis://h#hush",
        "cache.url={a: hush}", "registry.mirrors=https://u:hush@m", "log.level=https://u:p hush@m",
        "registry.timeout_seconds=redis://h?password=hush", "cluster=https://u:hush@k",
    ):  # fmt: skip
        _, out, err = await run(*command.split(), "--set", setting, *given)
        assert out + err
        assert "hush" not in out + err, setting


async def test_what_is_answered_for_one_tag_is_not_said_of_another(registry: EmbeddedRegistry) -> None:
    """Of the same repository, in whatever order they are named; an image that is named twice has it twice."""
    has, lacks = f"{registry.host}/shop/web:1.0", f"{registry.host}/shop/web:none"
    for images in ([has, lacks], [lacks, has], [has, lacks, has]):
        _, out, _ = await run("inspect", *images, "-o", "json", *asking(registry.host))
        found = [[answer["answered"] for answer in each["endpoints"]] for each in json.loads(out)]
        said = {has: ["it has the image"], lacks: [f"{registry.host} has no shop/web:none"]}
        assert found == [said[each] for each in images]


async def test_inspect_searches_for_a_name_without_a_registry_as_cri_o(
    registry: EmbeddedRegistry, tmp_path: Path
) -> None:
    """In the registries of its files, and not in Docker Hub; a name that CRI-O refuses is asked of nobody."""
    file = tmp_path / "registries.conf"
    file.write_text(f'unqualified-search-registries = ["{registry.host}"]\n')
    given = ("shop/web:1.0", "-o", "json", "--set", f"registry.mirrors={file}", *asking(registry.host))
    code, out, _ = await run("inspect", *given)
    [found] = json.loads(out)
    url = f"http://{registry.host}/v2/shop/web/manifests/1.0"
    assert (code, found["kind"], [each["url"] for each in found["endpoints"]]) == (0, "index", [url])
    file.write_text(f'unqualified-search-registries = ["{registry.host}", "docker.io"]\n')
    code, out, _ = await run("inspect", *given)
    [refused] = json.loads(out)
    assert (code, refused["endpoints"]) == (1, [])
    assert refused["unknown"]["cause"] == "not-allowed"


async def test_inspect_looks_inside(registry: EmbeddedRegistry) -> None:
    """An image without files stays claimed, with the reason; a look costs as much as it says."""
    image = f"{registry.host}/shop/web:1.0"
    look = ("inspect", image, "--verify", *asking(registry.host))
    code, out, err = await run(*look, "--require", "linux/arm64", "-o", "json")
    assert (code, err) == (0, "")
    (found,) = json.loads(out)[0]["inside"]
    claimed = ("linux/arm64", "claimed", "it names no program to start")
    assert (found["platform"], found["state"], found["detail"]) == claimed
    code, out, _ = await run(*look)
    assert (code, out.count("it names no program to start")) == (0, 2)
    layers = [gzipped([Put("app", AMD64_ELF)])]
    lying = join_index(
        [(each, make_image(each, layers, Entrypoint=["/app"])) for each in ("linux/amd64", "linux/arm64")]
    )
    registry.add("shop/lying", "1", lying)
    image = f"{registry.host}/shop/lying:1"
    code, out, err = await run("inspect", image, "--verify", "-o", "json", *asking(registry.host))
    states = [(each["platform"], each["state"]) for each in json.loads(out)[0]["inside"]]
    assert (code, states) == (1, [("linux/amd64", "verified"), ("linux/arm64", "refuted")])
    assert f"{image} claims linux/arm64, but its /app is for x86-64" in err


async def test_inspect_goes_by_the_program_of_a_single_manifest(registry: EmbeddedRegistry) -> None:
    """Nodes look at no platform of it: its configuration is wrong, and it runs where its program does."""
    image = f"{registry.host}/shop/wrong:1"
    registry.add("shop/wrong", "1", make_image("linux/arm64", [gzipped([Put("app", AMD64_ELF)])], Entrypoint=["/app"]))
    look = ("inspect", image, "--verify", "-o", "json", *asking(registry.host))
    lie = f"{image} claims linux/arm64, but its /app is for x86-64"
    for required, said in (((), lie), (("--require", "linux/arm64"), lie), (("--require", "linux/amd64"), "")):
        code, out, err = await run(*look, *required)
        states = [(each["platform"], each["state"]) for each in json.loads(out)[0]["inside"]]
        assert (code, states) == (1 if said else 0, [("linux/arm64", "refuted"), ("linux/amd64", "verified")])
        assert said in err
        assert err if said else not err


async def test_inspect_verifies_with_the_credential_that_opens_the_image(tmp_path: Path) -> None:
    """A registry that knows nothing of an image for the first login has it for the next."""
    layers = [gzipped([Put("app", AMD64_ELF)])]
    async with GuardedRegistry("narrow:p", "wide:p") as registry:

        async def hide(request: web.BaseRequest) -> web.StreamResponse | None:
            token = request.headers["Authorization"].removeprefix("Bearer token-")
            hides = registry.desk[int(token) - 1][1] == "narrow:p"
            return web.Response(status=404) if hides else None

        registry.fault = hide
        registry.add("shop/app", "1", make_image("linux/amd64", layers, Entrypoint=["/app"]))
        logins = {f"{registry.host}/shop": {"username": "narrow", "password": "p"},
                  registry.host: {"username": "wide", "password": "p"}}  # fmt: skip
        (tmp_path / "config.json").write_text(json.dumps({"auths": logins}))
        settings = (*asking(registry.host), "--set", f"registry.docker_config={tmp_path / 'config.json'}")
        code, out, err = await run("inspect", f"{registry.host}/shop/app:1", "--verify", "-o", "json", *settings)
        (found,) = json.loads(out)[0]["inside"]
        assert (code, found["state"], err) == (0, "verified", "")


async def test_config_prints_and_checks(tmp_path: Path) -> None:
    """`--check` says whether `serve` would start, `--values-only` without files; names that are not known are valid."""
    code, out, _ = await run("config", "--set", "scheduler.wait_seconds=0.5")
    assert (code, yaml.safe_load(out)["scheduler"]["wait_seconds"]) == (0, 0.5)
    code, out, _ = await run("config", "--set", "cache.url=redis://ann:secret@cache")
    assert yaml.safe_load(out)["cache"]["url"] == "redis://ann:***@cache"
    file = tmp_path / "config.yaml"
    absent = tmp_path / "absent"
    file.write_text(f"{{admission: {{listen: ''}}, cluster: {absent}}}\n")
    assert await run("config", "--check", str(file), "--values-only") == (0, f"{file} is right\n", "")
    code, _, err = await run("config", "--check", str(file))
    assert code == 2
    assert f"error: cluster: cannot use the kubeconfig {absent}: there is no such file; name" in err
    assert (await run("config", "--check", str(file), "--set", "cluster=none"))[0] == 0
    file.write_text("admission: {listen: 0.0.0.0:8443}\n")
    code, _, err = await run("config", "--check", str(file))
    assert code == 2
    assert "admission.tls.certificate" in err
    file.write_text("{admission: {listen: ''}, cluster: none, placement: {preference: {arm46: 10}}}\n")
    problem = "error: placement.preference: 'arm46': no node has the architecture 'arm46'; is it 'arm64'?\n"
    for command in (("config", "--check"), ("config", "--config"), ("serve", "--config"), ("inspect", "x", "--config")):
        assert await run(*command, str(file)) == (2, "", problem)
    file.write_text("{admission: {listen: ''}, cluster: none, placement: {preference_by: filter, preference: {}}}\n")
    code, out, err = await run("config", "--check", str(file))
    assert (code, out) == (0, f"{file} is right\n")
    assert err.startswith("warning: placement.preference_by: filter leaves no node out")


NO_CLUSTER = [
    f"--set={setting}" for setting in (
        "scheduler.listen=127.0.0.1:0", "operations.listen=127.0.0.1:0", "admission.listen=", "cluster=none",
        "cache.url=memory:",
    )
]  # fmt: skip


@asynccontextmanager
async def serving(*options: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, dict[str, str]]]:
    """`serve` on free ports without a cluster, and its addresses; told to stop at the end if it has not."""
    process = await asyncio.create_subprocess_exec(*COMMAND, "serve", *NO_CLUSTER, *options, stderr=subprocess.PIPE)
    assert process.stderr
    addresses: dict[str, str] = {}
    try:
        async with asyncio.timeout(30):
            while "operations" not in addresses:
                event = json.loads(await process.stderr.readline())
                if event["event"] == "listener.opened":
                    addresses[event["listener"]] = f"http://{event['address']}"
        yield process, addresses
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(process.communicate(), 30)


async def test_file_of_registries_that_cannot_be_used_ends_serve() -> None:
    """The process that asks registries opens it; the exit code and the words are as for any other file.

    Nobody has been told that the service is there, so it does not linger for callers.
    """
    wrong = "log.level=error", "registry.ca_files=['/nonexistent.pem']", "shutdown.grace_seconds=300"
    async with asyncio.timeout(60):  # a quarter of the grace would be lingered
        code, out, err = await run("serve", *NO_CLUSTER, *(f"--set={each}" for each in wrong))
    assert (code, out) == (2, "")
    assert "error: registry.ca_files: /nonexistent.pem holds no certificates" in err
    assert "Traceback" not in err


async def get(session: aiohttp.ClientSession, url: str) -> tuple[int, str]:
    async with session.get(url) as response:
        return response.status, await response.text()


async def test_sigterm_loses_no_request_in_flight() -> None:
    """200 filter calls that wait for one lookup are all answered after SIGTERM, and the exit code is 0."""
    connector = aiohttp.TCPConnector(limit=IN_FLIGHT + 1)
    async with HoldingRegistry() as held, aiohttp.ClientSession(connector=connector) as session:
        fill_registry(held)
        body = json.dumps(arguments_of(pod_of(SCENES[1], held.host))).encode()
        seconds = "--set=scheduler.wait_seconds=20", "--set=shutdown.grace_seconds=8"
        async with serving(*asking(held.host), *seconds) as (process, at):

            async def ask() -> tuple[int, dict[str, object]]:
                async with session.post(f"{at['scheduler']}/scheduler/filter", data=body) as response:
                    return response.status, await response.json(content_type=None)

            async def shared() -> float:
                _, metrics = await get(session, f"{at['operations']}/metrics")
                [series] = re.findall(r'^multiarch_lookups_total\{result="shared"\} (.*)$', metrics, re.MULTILINE)
                return float(series)

            calls = [asyncio.create_task(ask()) for _ in range(IN_FLIGHT)]
            await eventually(shared, lambda found: found >= IN_FLIGHT - 1)
            process.send_signal(signal.SIGTERM)
            await eventually(lambda: get(session, f"{at['operations']}/readyz"), lambda found: found[0] == 503)
            held.released.set()
            answers = await asyncio.wait_for(asyncio.gather(*calls), 30)
            assert [status for status, _ in answers] == [200] * IN_FLIGHT
            assert all(answer["FailedAndUnresolvableNodes"] and not answer["Error"] for _, answer in answers)
            assert process.stderr
            await asyncio.wait_for(process.stderr.read(), 30)
            assert await asyncio.wait_for(process.wait(), 30) == 0


MANIFEST = """
apiVersion: apps/v1
kind: Deployment
metadata: {{name: web, namespace: shop}}
spec:
  template:
    spec:
      containers:
      - {{name: app, image: "{image}"}}
---
kind: ConfigMap
"""


async def test_explain_needs_no_cluster_for_manifests(registry: EmbeddedRegistry, tmp_path: Path) -> None:
    """It prints the answer for a plain node of each usual architecture, and exits 1 only if none takes the pod."""
    file = tmp_path / "web.yaml"
    file.write_text(MANIFEST.format(image=f"{registry.host}/shop/web:1.0"))
    arguments = ("explain", "-f", str(file), *asking(registry.host), "--set", "cluster=none")
    code, out, err = await run(*arguments)
    assert (code, err) == (0, "")
    assert "Deployment shop/web\n" in out
    code, out, _ = await run(*arguments, "-o", "json")
    [told] = json.loads(out)
    assert {each["platform"]: each["answer"] for each in told["nodes"]} == {"linux/amd64": "yes", "linux/arm64": "yes"}
    assert told["schema"] == "multiarch-extender.io/explanation/v1"
    [same] = yaml.safe_load((await run(*arguments, "-o", "yaml"))[1])
    assert same["nodes"] == told["nodes"]
