"""The operator's credentials together: real files, a real program, and a stand-in of a cloud."""

import base64
import json
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from aiohttp import web

from extender.credential_sources import Cloud
from extender.credentials.keyring import ANONYMOUS, Keyring
from extender.credentials.operator_keyring import open_operator_keyring
from extender.errors import ConfigError
from extender.images.reference import parse_reference
from extender.watched_files import FileWatcher
from tests.integration.credentials.programs import Program

HOST = "123456789012.dkr.ecr.eu-central-1.amazonaws.com"
APP = parse_reference(f"{HOST}/team/app:1")


def opened(
    *, docker: str = "", plugins: str = "", folder: str = "", clouds: Sequence[Cloud] = (), **environment: str
) -> AbstractAsyncContextManager[Keyring]:
    """The keyring of these settings."""
    return open_operator_keyring(
        docker_config=docker,
        plugin_config=plugins,
        plugin_dir=folder,
        clouds=clouds,
        environment=environment,
        key=b"k" * 32,
        clock=lambda: 1000.0,
        wall_clock=lambda: 1000.0,
        watcher=FileWatcher(),
    )


async def test_files_come_before_plugins_and_plugins_before_clouds(tmp_path: Path) -> None:
    """Anonymous is the last of all; each is asked once for all images of a registry."""
    (tmp_path / "config.json").write_text(json.dumps({"auths": {HOST: {"username": "file", "password": "p"}}}))
    provider = {
        "name": "plugin",
        "matchImages": [HOST],
        "defaultCacheDuration": "1h",
        "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
    }
    document = {"apiVersion": "kubelet.config.k8s.io/v1", "kind": "CredentialProviderConfig", "providers": [provider]}
    (tmp_path / "providers.json").write_text(json.dumps(document))
    answer = {
        "kind": "CredentialProviderResponse",
        "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
        "cacheKeyType": "Registry",
        "auth": {HOST: {"username": "plugin", "password": "p"}},
    }
    program = Program(tmp_path / "plugin", f"print({json.dumps(json.dumps(answer))})")

    async def authorize(_request: web.BaseRequest) -> web.StreamResponse:
        token = base64.b64encode(b"cloud:p").decode()
        return web.json_response({"authorizationData": [{"authorizationToken": token, "expiresAt": 50_000}]})

    runner = web.ServerRunner(web.Server(authorize), shutdown_timeout=0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    settings = opened(
        docker=str(tmp_path / "config.json"),
        plugins=str(tmp_path / "providers.json"),
        folder=str(tmp_path),
        clouds=[Cloud.ECR],
        AWS_ACCESS_KEY_ID="a",
        AWS_SECRET_ACCESS_KEY="b",
        AWS_ENDPOINT_URL_ECR=f"http://127.0.0.1:{runner.addresses[0][1]}",
    )
    async with settings as keyring:
        assert keyring.is_due(APP)
        for reference in (APP, parse_reference(f"{HOST}/team/other:1")):
            found = await keyring.load(reference)
            assert [credential.username for credential in found] == ["file", "plugin", "cloud", ""]
            assert keyring.credential_ids_for(reference) == tuple(credential.id for credential in found)
        assert not keyring.is_due(APP)
    await runner.cleanup()
    assert len(program.calls) == 1


async def test_without_settings_all_lookups_are_anonymous() -> None:
    """And no cloud is asked, whatever the environment holds."""
    async with opened(AWS_ACCESS_KEY_ID="a") as keyring:
        assert await keyring.load(APP) == (ANONYMOUS,)
        assert not keyring.is_due(APP)
        assert keyring.tenant == ""


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"docker": "/absent"}, "registry.docker_config: /absent cannot be read"),
        ({"plugins": "/absent", "folder": "/absent"}, "registry.credential_providers.config: /absent cannot be read"),
        ({"plugins": "/absent"}, "config and bin_dir are needed together"),
        ({"folder": "/absent"}, "config and bin_dir are needed together"),
    ],
)
async def test_files_that_cannot_be_used_are_the_operators_error(settings: dict[str, str], complaint: str) -> None:
    """At start."""
    with pytest.raises(ConfigError, match=complaint):
        async with opened(**settings):  # type: ignore[arg-type]  # of the paths alone
            pass
