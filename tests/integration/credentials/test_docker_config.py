"""A Docker configuration with its credential helpers, which are real programs on the PATH."""

import json
import os
from functools import partial
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from extender.credentials.docker_config import read_docker_config
from extender.errors import ConfigError
from extender.images.reference import parse_reference
from extender.watched_files import FileSetting
from testbed.clock import Clock
from testbed.recorded_program import Program
from tests.integration.credentials.conftest import FileKeyring

APP = parse_reference("quay.io/team/app:1")
HUB = parse_reference("redis")
FOUND = 'print(json.dumps({"ServerURL": question, "Username": "helped", "Secret": "hunter2"}))'
NOT_FOUND = 'print("credentials not found in native keychain"); sys.exit(1)'


@pytest.fixture
def helper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return Program(tmp_path / "docker-credential-test", FOUND)


def write(folder: Path, **document: object) -> str:
    path = folder / "config.json"
    path.write_text(json.dumps(document))
    return str(path)


def keyring_of(path: str) -> FileKeyring:
    return FileKeyring(FileSetting.DOCKER_CONFIG, path, partial(read_docker_config, path), Clock())


def load(folder: Path, **document: object) -> FileKeyring:
    return keyring_of(write(folder, **document))


async def test_helper_of_a_registry_is_asked_by_its_host(tmp_path: Path, helper: Program) -> None:
    """`get` with the server's address on standard input; its login comes before those in the file."""
    keyring = load(tmp_path, credHelpers={"quay.io": "test"}, auths={"quay.io": {"username": "ann", "password": "p"}})
    assert [item.username for item in await keyring.load(APP)] == ["helped", "ann"]
    assert [item.username for item in await keyring.load(HUB)] == []
    assert [(call["arguments"], call["question"]) for call in helper.calls] == [(["get"], "quay.io")]


@pytest.mark.parametrize("server", ["https://index.docker.io/v1/", "index.docker.io", "docker.io"])
async def test_hub_is_asked_for_by_its_old_name(tmp_path: Path, helper: Program, server: str) -> None:
    """Under which Docker has always kept its login, however the configuration names it."""
    keyring = load(tmp_path, credHelpers={server: "test"})
    assert [item.username for item in await keyring.load(HUB)] == ["helped"]
    assert [call["question"] for call in helper.calls] == ["https://index.docker.io/v1/"]


async def test_store_is_asked_for_every_other_registry(tmp_path: Path, helper: Program) -> None:
    """`credHelpers` overrides `credsStore` for its registry, even with a helper that is not there."""
    keyring = load(tmp_path, credsStore="test", credHelpers={"quay.io": "absent"})
    with capture_logs() as lines:
        assert [item.username for item in await keyring.load(APP)] == []
    assert lines[0]["why"] == "docker-credential-absent cannot be started: No such file or directory"
    assert [item.username for item in await keyring.load(HUB)] == ["helped"]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        pytest.param(NOT_FOUND, None, id="has-none"),
        pytest.param('print("hunter2"); sys.exit(3)', "docker-credential-test ended with status 3", id="fails"),
        pytest.param(
            'print(json.dumps({"Username": "<token>", "Secret": "hunter2"}))',
            "docker-credential-test gave an identity token for quay.io",
            id="identity-token",
        ),
    ],
)
async def test_helper_without_a_login_is_passed_over(
    tmp_path: Path, helper: Program, body: str, why: str | None
) -> None:
    """The logins in the file still count; the log has why, unless there simply is none, and no word of the helper's."""
    helper.rewrite(body)
    keyring = load(tmp_path, credsStore="test", auths={"quay.io": {"username": "ann", "password": "p"}})
    with capture_logs() as lines:
        assert [item.username for item in await keyring.load(APP)] == ["ann"]
    assert [line["why"][: len(why or "")] for line in lines] == ([why] if why else [])
    assert "hunter2" not in str(lines)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        pytest.param(None, "cannot be read: No such file", id="missing"),
        pytest.param('{"credHelpers": ["hunter2"]}', "name no helpers", id="helpers"),
        pytest.param('{"credsStore": "../../bin/sh"}', "is no name of a credential helper", id="path"),
    ],
)
def test_unusable_docker_configuration_is_the_operators_error(
    tmp_path: Path, content: str | None, complaint: str
) -> None:
    """The message names setting, path and what is wrong, and no secret."""
    path = tmp_path / "config.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=complaint) as caught:
        keyring_of(str(path))
    assert str(caught.value).startswith(f"registry.docker_config: {path}")
    assert "hunter2" not in str(caught.value)


async def test_a_change_of_logins_does_not_run_helpers_again(tmp_path: Path, helper: Program) -> None:
    """What they answered is kept for its minute, unless the file names others."""
    document: dict[str, object] = {"credHelpers": {"quay.io": "test"}}
    keyring = keyring_of(write(tmp_path, **document))
    await keyring.load(APP)
    write(tmp_path, **document, auths={"quay.io": {"username": "ann", "password": "p"}})
    assert [item.username for item in await keyring.load(APP)] == ["helped", "ann"]
    assert len(helper.calls) == 1
    write(tmp_path, credHelpers={"ghcr.io": "test"})
    assert [item.username for item in await keyring.load(APP)] == []
    write(tmp_path, **document)
    assert [item.username for item in await keyring.load(APP)] == ["helped"]
    assert len(helper.calls) == 2
