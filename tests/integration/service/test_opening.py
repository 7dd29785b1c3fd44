"""What the service has opened before anybody can call it."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from extender.config.reading import load_config
from extender.config.registry_section import RegistryConfig
from extender.errors import ConfigError
from extender.fetcher.fetcher_client import open_fetcher
from extender.fetcher.sources import LocalSources, open_local_sources
from extender.service.cluster_view import ClusterView
from extender.service.compose import open_service
from tests.integration.service.conftest import running_service

SETTINGS = ("admission.listen=", "shutdown.grace_seconds=0.2", "cache.url='memory:'")


def free_port() -> int:
    """A port of loopback that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def is_listening(port: int) -> bool:
    """Whether a connection to loopback comes about."""
    with socket.socket() as caller:
        return caller.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize("is_refused", [False, True])
async def test_nobody_can_call_before_the_files_for_registries_have_been_read(is_refused: bool) -> None:
    """Otherwise a rolling update would take a replica for ready that then ends."""
    ports, outcome = [free_port(), free_port()], asyncio.get_running_loop().create_future()
    config = load_config(
        None, [*SETTINGS, f"scheduler.listen=127.0.0.1:{ports[0]}", f"operations.listen=127.0.0.1:{ports[1]}"]
    )
    asked = asyncio.Event()

    class Reading(LocalSources):
        async def check(self) -> None:
            asked.set()
            await outcome

    @contextlib.asynccontextmanager
    async def reading(settings: RegistryConfig, id_key: bytes, /) -> AsyncIterator[LocalSources]:
        async with open_local_sources(settings, id_key) as sources:
            sources.__class__ = Reading
            yield sources

    async def serve() -> list[bool]:
        async with open_service(config, ClusterView(None), reading):
            return [is_listening(port) for port in ports]

    serving = asyncio.create_task(serve())
    await asked.wait()
    assert [is_listening(port) for port in ports] == [False, False]
    if is_refused:
        outcome.set_exception(ConfigError("no"))
        with pytest.raises(ConfigError):
            await serving
    else:
        outcome.set_result(None)
        assert await serving == [True, True]


async def test_readiness_fails_until_registries_can_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where that is not known when the service opens, since what asks them has ended first."""
    monkeypatch.setattr(LocalSources, "is_ready", False)
    async with running_service() as caller:
        address = f"{caller.service.operations_url}/readyz?verbose"
        async with caller.session.get(address) as response:
            assert (response.status, "registries" in await response.text()) == (503, True)
        monkeypatch.setattr(LocalSources, "is_ready", True)
        async with caller.session.get(address) as response:
            assert response.status == 200


def files_that_cannot_be_read(folder: Path) -> dict[str, RegistryConfig]:
    """Settings by what is wrong with the files that they name."""
    conf, yaml = folder / "registries.conf", folder / "registries.yaml"
    conf.write_text("")
    (folder / "named" / "certs.d" / "quay.io:443:old").mkdir(parents=True)
    (folder / "named" / "registries.conf").write_text("")
    yaml.write_text("mirrors: {a.io: {endpoint: [m.io], rewrite: {'(': b}}}")
    (folder / "large.yaml").write_bytes(b"# " + b"a" * (2 << 20))
    (folder / "folder.yaml").mkdir()
    (folder / "no-text.conf").write_bytes(b"\xff\xfe\x00")
    return {
        "quay.io:443:old": RegistryConfig(timeout_seconds=1, mirrors=str(folder / "named" / "registries.conf")),
        "rewrite": RegistryConfig(timeout_seconds=1, mirrors=str(yaml)),
        "large.yaml": RegistryConfig(timeout_seconds=1, mirrors=str(folder / "large.yaml")),
        "folder": RegistryConfig(timeout_seconds=1, mirrors=str(folder / "folder.yaml")),
        "no-text": RegistryConfig(timeout_seconds=1, mirrors=str(folder / "no-text.conf")),
        "registry.ca_files": RegistryConfig(timeout_seconds=1, ca_files=("a\0b",)),
        "registry.docker_config": RegistryConfig(timeout_seconds=1, docker_config="a\0b", mirrors=str(conf)),
    }


@pytest.mark.parametrize(
    "what",
    ["quay.io:443:old", "rewrite", "large.yaml", "folder", "no-text", "registry.ca_files", "registry.docker_config"],
)
async def test_files_that_cannot_be_read_are_refused_with_the_reason(tmp_path: Path, what: str) -> None:
    """By the process that asks registries, and by the check of the settings alike."""
    settings = files_that_cannot_be_read(tmp_path)[what]
    with pytest.raises(ConfigError) as here:
        async with open_local_sources(settings):
            pass
    async with open_fetcher(settings) as client:
        with pytest.raises(ConfigError) as there:
            await client.check()
        assert not client.is_ready
    assert what in str(here.value)
    assert str(there.value) == str(here.value)


async def test_whatever_goes_wrong_at_the_opening_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only what somebody has thought of. A proxy's address may hold a password, and is not quoted."""
    monkeypatch.setenv("HTTPS_PROXY", "http://ann:secret@[")
    settings = RegistryConfig(timeout_seconds=1)
    async with open_fetcher(settings) as client:
        with pytest.raises(ConfigError, match="what asks registries cannot be opened") as refused:
            await client.check()
    assert "secret" not in str(refused.value)
