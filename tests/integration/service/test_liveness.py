"""Liveness: every task that should run as long as the service fails it by ending, whatever it is for."""

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import trustme

from extender.background import background_problem
from extender.config.registry_section import RegistryConfig
from extender.fetcher.fetcher_client import FetcherClient, open_fetcher
from extender.fetcher.sources import open_local_sources
from extender.resolver.persistence import Persistence
from extender.server.http import Listener
from extender.server.tls import TlsFiles
from extender.watched_files import FileWatcher
from testbed.embedded_registry import EmbeddedRegistry
from testbed.eventually import eventually
from tests.integration.service.caller import AMD64, Caller, pod
from tests.integration.service.conftest import StartService


async def end_at_once(*_: object) -> None:
    """Work that returns."""


def fail(*_: object) -> None:
    """Raises what nobody has expected."""
    raise RuntimeError("a defect")


async def assert_dies(caller: Caller, why: str) -> None:
    async with asyncio.timeout(10):
        while True:
            async with caller.session.get(f"{caller.service.operations_url}/livez") as response:
                if response.status != 200:
                    assert why in await response.text()
                    return
            await asyncio.sleep(0.01)


async def test_certificates_that_are_not_read_again_end_the_process(
    start_service: StartService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it serves one that has ended, weeks later."""
    monkeypatch.setattr("extender.service.compose.FILE_CHECK_SECONDS", 0.01)
    monkeypatch.setattr(TlsFiles, "_report_loaded", fail)
    authority, certificate, key = trustme.CA(), tmp_path / "tls.crt", tmp_path / "tls.key"

    def write() -> None:
        issued = authority.issue_cert("127.0.0.1")
        certificate.write_bytes(issued.cert_chain_pems[0].bytes())
        key.write_bytes(issued.private_key_pem.bytes())

    write()
    caller = await start_service(f"admission.tls={{certificate: {certificate}, key: {key}}}")
    async with caller.session.get(f"{caller.service.operations_url}/livez") as response:
        assert response.status == 200
    write()
    await assert_dies(caller, "tls-admission: RuntimeError: a defect")


async def test_a_listener_that_stops_working_ends_the_process(
    start_service: StartService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It accepts nothing any more."""
    accept = Listener._accept  # noqa: SLF001

    async def accept_no_reviews(listener: Listener, listening: socket.socket) -> None:
        if listener.name != "admission":
            await accept(listener, listening)

    monkeypatch.setattr(Listener, "_accept", accept_no_reviews)
    await assert_dies(await start_service(), "listener-admission: it returned")


async def test_a_store_that_is_not_written_any_more_ends_the_process(
    start_service: StartService, registry: EmbeddedRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Denials are not shared any more either."""
    monkeypatch.setattr(Persistence, "_write_behind", end_at_once)
    registry.add_manifest("app", "1", AMD64)
    caller = await start_service(f"cache.url='sqlite:///{tmp_path}/store.db'", plain_http=registry.host)
    await caller.review(pod(f"{registry.host}/app:1"))
    await assert_dies(caller, "store: it returned")


async def assert_told(name: str) -> None:
    await eventually(background_problem)
    assert background_problem() == f"{name}: it returned"


@pytest.mark.parametrize(
    ("owner", "method", "opened", "name"),
    [
        (FetcherClient, "keep_running", open_fetcher, "fetcher"),
        (FileWatcher, "run", open_local_sources, "registry-files"),
    ],
)
async def test_what_asks_registries_is_told_of(
    owner: type, method: str, opened: Callable[..., object], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody opens another fetcher, or reads registries' files again."""
    monkeypatch.setattr(owner, method, end_at_once)
    async with opened(RegistryConfig(timeout_seconds=1.0)):  # type: ignore[attr-defined] # of either
        await assert_told(name)
    assert background_problem() == ""
