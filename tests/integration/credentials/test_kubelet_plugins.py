"""Credential-provider plugins as the kubelet runs them: real programs, and the kubelet's configuration file."""

import asyncio
import json
import os
import select
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from structlog.testing import capture_logs

from extender.credentials.kubelet_plugins import read_plugins
from extender.credentials.programs import run_program
from extender.credentials.providers import CredentialsUnavailable
from extender.errors import ConfigError
from extender.images.reference import parse_reference
from extender.watched_files import RELOADS, FileSetting
from testbed.clock import Clock
from testbed.eventually import eventually
from testbed.recorded_program import Program
from tests.integration.credentials.conftest import V1, FileKeyring, answer, plugin, write

APP = parse_reference("123456789012.dkr.ecr.eu-central-1.amazonaws.com/team/app:1")


class Kubelet:
    """A folder with the plugin `ecr`, the configuration that names plugins, and the time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = Clock()
        self.program = Program(folder / "ecr", answer())

    def keyring(self, path: str) -> FileKeyring:
        read = partial(read_plugins, path, str(self.folder))
        return FileKeyring(FileSetting.CREDENTIAL_PROVIDERS, path, read, self.clock)

    def load(self, *plugins: dict[str, Any]) -> FileKeyring:
        return self.keyring(write(self.folder, *plugins))


@pytest.fixture
def kubelet(tmp_path: Path) -> Kubelet:
    return Kubelet(tmp_path)


async def test_plugin_is_asked_as_the_kubelet_asks_it(kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch) -> None:
    """The repository in a v1 request on standard input, with its arguments, and its variables on top of ours."""
    monkeypatch.setenv("OF_OURS", "kept")
    monkeypatch.setenv("AWS_PROFILE", "ours")
    fields: dict[str, Any] = {"args": ["get-credentials", "-v=3"], "env": [{"name": "AWS_PROFILE", "value": "theirs"}]}
    found = await kubelet.load(plugin(**fields)).load(APP)
    assert [(item.username, item.password) for item in found] == [("AWS", "hunter2")]
    (call,) = kubelet.program.calls
    assert json.loads(call["question"]) == {
        "kind": "CredentialProviderRequest", "apiVersion": V1, "image": APP.repository,
    }  # fmt: skip
    assert call["arguments"] == ["get-credentials", "-v=3"]
    assert {name: call["environment"][name] for name in ("OF_OURS", "AWS_PROFILE")} == {
        "OF_OURS": "kept",
        "AWS_PROFILE": "theirs",
    }


async def test_images_that_do_not_match_are_not_asked_about(kubelet: Kubelet) -> None:
    """`matchImages` are globs label by label, as in a pull secret, with one port and the beginning of a path."""
    ring = kubelet.load(plugin(matchImages=["*.dkr.ecr.*.amazonaws.com", "registry.example.com:5000/team"]))
    for image in (
        "redis", "a.b.dkr.ecr.eu-central-1.amazonaws.com/app", "dkr.ecr.eu.amazonaws.com/app",
        "registry.example.com/team/app", "registry.example.com:6000/team/app", "registry.example.com:5000/app",
    ):  # fmt: skip
        assert [item.username for item in await ring.load(parse_reference(image))] == []
    assert kubelet.program.calls == []


@pytest.mark.parametrize(
    ("said", "default", "seconds"),
    [
        pytest.param("1h", "5m", 3600.0, id="the-answers-own"),
        pytest.param(None, "5m30s", 330.0, id="the-default"),
        pytest.param("1.5h", "0s", 5400.0, id="fraction"),
    ],
)
async def test_answer_is_kept_for_its_cache_duration(
    kubelet: Kubelet, said: str | None, default: str, seconds: float
) -> None:
    """Null is the default of the configuration; the program runs again when it is over."""
    kubelet.program.rewrite(answer(cacheDuration=said))
    ring = kubelet.load(plugin(defaultCacheDuration=default))
    await ring.load(APP)
    kubelet.clock.advance(seconds - 0.01)
    await ring.load(APP)
    assert len(kubelet.program.calls) == 1
    kubelet.clock.advance(0.01)
    await ring.load(APP)
    assert len(kubelet.program.calls) == 2


@pytest.mark.parametrize(
    ("body", "why"),
    [
        pytest.param('print("hunter2"); sys.exit(7)', "ecr ended with status 7", id="status"),
        pytest.param('print("hunter2")', "ecr gave no CredentialProviderResponse", id="no-json"),
        pytest.param(answer(kind="Pod"), "ecr gave no CredentialProviderResponse", id="kind"),
        pytest.param(answer(cacheKeyType="Cluster"), "ecr gave no CredentialProviderResponse", id="cache-key-type"),
        pytest.param(answer(cacheDuration="soon"), "ecr gave no CredentialProviderResponse", id="duration"),
        pytest.param(answer(apiVersion="v2"), f"ecr speaks another version than {V1}", id="version"),
        pytest.param('sys.stdout.write("hunter2" * (1 << 20))', "ecr answered more than 1048576 bytes", id="endless"),
    ],
)
async def test_a_plugin_that_fails_has_no_credentials(kubelet: Kubelet, body: str, why: str) -> None:
    kubelet.program.rewrite(body)
    with capture_logs() as lines:
        found = await kubelet.load(plugin()).load(APP)
    assert [item.username for item in found] == []
    assert [(line["event"], line["why"]) for line in lines] == [("provider.failed", why)]
    assert "hunter2" not in str(lines)


@pytest.mark.parametrize(
    "program",
    [
        "import subprocess; subprocess.run(['sh', '-c', '{script}'])",
        "import subprocess; subprocess.Popen(['sh', '-c', '{script}'], start_new_session=True); time.sleep(1000)",
    ],
    ids=["with-all-it-started", "but-what-left-the-group"],
)
async def test_a_program_that_hangs_is_ended(tmp_path: Path, program: str) -> None:
    """At the deadline, which comes here as soon as its child runs. One that keeps the output open holds up nobody."""
    pipe = tmp_path / "pid"
    os.mkfifo(pipe)
    path = str(Program(tmp_path / "ecr", program.format(script=f"echo $$ > {pipe}; exec sleep 1000")).path)
    run = asyncio.create_task(run_program(path, [], b"{}", environment={}))
    child = int(await asyncio.to_thread(pipe.read_text))
    ended = os.pidfd_open(child)  # readable once the process has ended
    run.cancel()
    async with asyncio.timeout(30):
        with pytest.raises(asyncio.CancelledError):
            await run
    if "new_session" in program:
        os.kill(child, signal.SIGKILL)
    readable, _, _ = await asyncio.to_thread(select.select, [ended], [], [], 30)
    os.close(ended)
    assert readable


async def test_a_program_answers_whole_and_leaves_no_pipe_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when it is ended because it hangs."""
    echo, hanging = tmp_path / "echo", tmp_path / "hanging"
    for path, script in ((echo, "exec cat"), (hanging, "sleep 1000 & exec sleep 1000")):
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
    assert await run_program(str(echo), [], b"x" * 50_000, environment={}) == b"x" * 50_000
    open_before = len(list(Path("/proc/self/fd").iterdir()))
    monkeypatch.setattr("extender.credentials.programs._TIMEOUT_SECONDS", 0.05)
    with pytest.raises(CredentialsUnavailable, match=r"hanging has not answered within 0\.05 s"):
        await run_program(str(hanging), [], b"x" * (1 << 20), environment={})
    await eventually(lambda: len(list(Path("/proc/self/fd").iterdir())) <= open_before)


@pytest.mark.parametrize(
    ("document", "complaint"),
    [
        pytest.param({"kind": "KubeletConfiguration"}, "kind", id="kind"),
        pytest.param({"apiVersion": "v1"}, "apiVersion must be kubelet.config.k8s.io/v1", id="api-version"),
        pytest.param({"providers": []}, "at least one provider", id="none"),
        pytest.param({"providers": [plugin(), plugin()]}, "each name only once", id="twice"),
        pytest.param({"providers": [plugin("../sh")]}, "is no name of a program", id="path"),
        pytest.param({"providers": [plugin(matchImages=[])]}, "matchImages must be one or more", id="matches-none"),
        pytest.param({"providers": [plugin(matchImages=[""])]}, "matchImages must be", id="empty-pattern"),
        pytest.param({"providers": [plugin(defaultCacheDuration="12")]}, "must be a duration", id="duration"),
        pytest.param({"providers": [plugin(apiVersion="v1")]}, f"apiVersion must be {V1}", id="protocol"),
        pytest.param(
            {"providers": [plugin(tokenAttributes={"requireServiceAccount": True})]}, "tokenAttributes", id="tokens"
        ),
    ],
)
def test_configuration_the_kubelet_refuses_is_refused(
    kubelet: Kubelet, document: dict[str, Any], complaint: str
) -> None:
    path = write(kubelet.folder, **({"providers": [plugin()]} | document))
    with pytest.raises(ConfigError, match=complaint) as caught:
        kubelet.keyring(path)
    assert str(caught.value).startswith(f"registry.credential_providers.config: {path}")


def test_configuration_may_be_yaml(kubelet: Kubelet) -> None:
    path = Path(write(kubelet.folder, plugin(tokenAttributes=None)))
    path.write_text(yaml.safe_dump(json.loads(path.read_text())))
    assert kubelet.keyring(str(path)).sources[0].serves(APP)
    for text in ("a: [", "providers: [{matchImages: [a], matchImages: [b]}]", None):
        path.unlink() if text is None else path.write_text(text)
        with pytest.raises(ConfigError, match=r"registry.credential_providers.config: .*providers.yaml"):
            kubelet.keyring(str(path))


async def test_a_changed_configuration_is_used(kubelet: Kubelet) -> None:
    """A plugin that stays as it was keeps its answers; one whose entry changed is run again; a bad file is refused."""
    path = write(kubelet.folder, plugin())
    keyring = kubelet.keyring(path)
    before = await keyring.load(APP)
    write(kubelet.folder, plugin(), plugin("other", matchImages=["elsewhere.example"]))
    assert await keyring.load(APP) == before
    assert len(kubelet.program.calls) == 1
    refused = RELOADS["registry.credential_providers.config"]["refused"].value
    for content in ("", "providers: [", "apiVersion: v1"):
        Path(path).write_text(content)
        for _ in range(2):
            assert await keyring.load(APP) == before
    assert RELOADS["registry.credential_providers.config"]["refused"].value == refused + 3
    write(kubelet.folder, plugin(args=["--another"]))
    await keyring.load(APP)
    assert [call["arguments"] for call in kubelet.program.calls] == [[], ["--another"]]


async def test_time_out_is_said(kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kubelet's minute, shortened here to none at all."""
    monkeypatch.setattr("extender.credentials.programs._TIMEOUT_SECONDS", 0.001)
    kubelet.program.rewrite("time.sleep(1000)")
    with capture_logs() as lines:
        await kubelet.load(plugin()).load(APP)
    assert [line["why"] for line in lines] == ["ecr has not answered within 0.001 s"]
