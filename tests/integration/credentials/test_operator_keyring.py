"""The operator's credentials together: real files, a real program, and a stand-in of a cloud."""

import asyncio
import base64
import json
import os
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from extender.credential_sources import Cloud
from extender.credentials.keyring import ANONYMOUS, NO_OPERATOR
from extender.credentials.operator_keyring import OperatorKeyring, open_operator_keyring
from extender.errors import ConfigError
from extender.images.reference import parse_reference
from extender.machine import THIS_MACHINE
from extender.watched_files import FileWatcher
from testbed.eventually import eventually
from testbed.recorded_program import Program
from tests.integration.credentials.conftest import answer, plugin, write

HOST = "123456789012.dkr.ecr.eu-central-1.amazonaws.com"
APP = parse_reference(f"{HOST}/team/app:1")


def opened(**settings: Any) -> AbstractAsyncContextManager[OperatorKeyring]:
    machine = THIS_MACHINE._replace(clock=lambda: 1000.0, wall_clock=lambda: 1000.0)
    usual: dict[str, Any] = {
        "docker_config": "", "plugin_config": "", "plugin_dir": "", "clouds": (), "environment": {},
        "id_key": b"k" * 32, "machine": machine, "watcher": FileWatcher(),
    }  # fmt: skip
    return open_operator_keyring(**usual | settings)


async def test_files_come_before_plugins_and_plugins_before_clouds(tmp_path: Path) -> None:
    """Anonymous is the last of all; each is asked once for all images of a registry."""
    (tmp_path / "config.json").write_text(json.dumps({"auths": {HOST: {"username": "file", "password": "p"}}}))
    program = Program(tmp_path / "ecr", answer(auth={HOST: {"username": "plugin", "password": "p"}}))

    async def authorize(_request: web.BaseRequest) -> web.StreamResponse:
        token = base64.b64encode(b"cloud:p").decode()
        return web.json_response({"authorizationData": [{"authorizationToken": token, "expiresAt": 50_000}]})

    runner = web.ServerRunner(web.Server(authorize), shutdown_timeout=0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    endpoint = f"http://127.0.0.1:{runner.addresses[0][1]}"
    settings = opened(
        docker_config=str(tmp_path / "config.json"),
        plugin_config=write(tmp_path, plugin()),
        plugin_dir=str(tmp_path),
        clouds=[Cloud.ECR],
        environment={"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_ENDPOINT_URL_ECR": endpoint},
    )
    async with settings as keyring:
        for reference in (APP, parse_reference(f"{HOST}/team/other:1")):
            found = await keyring.load(reference)
            assert [credential.username for credential in found] == ["file", "plugin", "cloud", ""]
    await runner.cleanup()
    assert len(program.calls) == 1


async def test_without_settings_all_lookups_are_anonymous() -> None:
    async with opened(environment={"AWS_ACCESS_KEY_ID": "a"}) as keyring:
        assert await keyring.load(APP) == (ANONYMOUS,)
        assert keyring.id == NO_OPERATOR


def write_login(path: Path, password: str) -> None:
    path.write_text(json.dumps({"auths": {HOST: {"username": "file", "password": password}}}))


async def test_the_id_changes_with_a_login_and_is_the_same_after_a_restart(tmp_path: Path) -> None:
    """So a login that was removed opens nothing any more, whatever process knows what it opened."""
    path, found = tmp_path / "config.json", []
    for password in ("one", "one", "two"):
        write_login(path, password)
        async with opened(docker_config=str(path)) as keyring:
            found.append(keyring.id)
    write_login(path, "one")
    async with opened(docker_config=str(path)) as keyring:
        assert keyring.id == found[0]
        write_login(path, "two")
        assert await keyring.refresh()
        assert keyring.id == found[2]
        assert not await keyring.refresh()
        assert [each.username for each in await keyring.load(APP)] == ["file", ""]
    async with opened(docker_config=str(path), id_key=b"another") as keyring:
        found.append(keyring.id)
    assert found[0] == found[1]
    assert len(set(found)) == 3


async def usernames(keyring: OperatorKeyring, silent: set[str]) -> list[str]:
    return [each.credential.username async for each in keyring.credentials(APP, silent)]


async def test_what_opened_a_repository_comes_first(tmp_path: Path) -> None:
    auths = {f"{HOST}/team": {"username": "team", "password": "p"}, HOST: {"username": "host", "password": "p"}}
    (tmp_path / "config.json").write_text(json.dumps({"auths": auths}))
    async with opened(docker_config=str(tmp_path / "config.json")) as keyring:
        found = [each async for each in keyring.credentials(APP, set())]
        assert [(each.credential.username, each.label) for each in found] == [
            ("team", "the operator's Docker configuration"),
            ("host", "the operator's Docker configuration"),
        ]
        keyring.note_opened(APP, found[1].credential)
        assert await usernames(keyring, set()) == ["host", "team", "host"]


async def test_a_program_that_takes_its_time_serves_the_next_lookup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One lookup waits for so long; the image is not denied meanwhile, and the program runs once."""
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    body = f"open({str(gate)!r}).read(); print(json.dumps(dict(Username='helped', Secret='p')))"
    program = Program(tmp_path / "docker-credential-slow", body)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"credsStore": "slow"}))
    async with opened(docker_config=str(path), patience_seconds=0.01) as keyring:
        silent = set[str]()
        assert await usernames(keyring, silent) == []
        assert len(silent) == 1
        assert keyring.may_change(APP)
        await asyncio.to_thread(gate.write_text, "go")
        await eventually(lambda: usernames(keyring, set()), lambda found: found == ["helped"])
        silent.clear()
        assert await usernames(keyring, silent) == ["helped"]
        assert not silent
    assert len(program.calls) == 1


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"docker_config": "/absent"}, "registry.docker_config: /absent cannot be read"),
        ({"plugin_config": "/absent", "plugin_dir": "/absent"}, "providers.config: /absent cannot be read"),
        ({"plugin_config": "/absent"}, "config and bin_dir are needed together"),
        ({"plugin_dir": "/absent"}, "config and bin_dir are needed together"),
    ],
)
async def test_files_that_cannot_be_used_are_the_operators_error(settings: dict[str, str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        async with opened(**settings):
            pass
