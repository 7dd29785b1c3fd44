"""Liveness: every task that should run as long as the service fails it by ending, whatever it is for."""

import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from extender.background import background_problem
from extender.config.registry_section import RegistryConfig
from extender.fetcher.fetcher_client import FetcherClient, open_fetcher
from extender.fetcher.sources import open_local_sources
from extender.machine import THIS_MACHINE
from extender.resolver.persistence import Persistence
from extender.server.http import Listener
from extender.watched_files import FileWatcher, WatchedFiles
from testbed.certificates import Authority
from testbed.eventually import eventually
from tests.integration.service.caller import with_nodes
from tests.integration.service.conftest import World

Work = Callable[..., object]


async def end_at_once(*_: object) -> None:
    """Work that returns."""


def fail(*_: object) -> None:
    raise RuntimeError("a defect")


async def accept_no_reviews(listener: Listener, listening: socket.socket) -> None:
    if listener.name != "admission":
        await accept(listener, listening)


accept = Listener._accept  # noqa: SLF001


@pytest.mark.usefixtures("simulated_time")
@pytest.mark.parametrize(
    ("owner", "method", "instead", "why"),
    [
        # Weeks later, one would have ended.
        (WatchedFiles, "_report_loaded", fail, "tls-admission: RuntimeError: a defect"),
        (Listener, "_accept", accept_no_reviews, "listener-admission: it returned"),
        (Persistence, "_write_behind", end_at_once, "store: it returned"),  # denials are not shared any more either
    ],
)
async def test_what_stops_working_ends_the_process(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: type, method: str, instead: Work, why: str
) -> None:
    """Liveness fails with the name and the cause, so that the kubelet starts the service again."""
    monkeypatch.setattr(owner, method, instead)
    served = Authority(tmp_path).issue("127.0.0.1")
    settings = [f"cache.url='sqlite:///{tmp_path}/store.db'"]
    if owner is WatchedFiles:
        settings.append(f"admission.tls={{certificate: {served.certificate}, key: {served.key}}}")
    caller = await world.serve(*settings)
    if owner is WatchedFiles:
        Authority(tmp_path).issue("127.0.0.1")
    else:
        await caller.filter(with_nodes(world.pod("amd:1")))

    async def live() -> tuple[int, str]:
        async with caller.session.get(f"{caller.service.operations_url}/livez") as response:
            return response.status, await response.text()

    _, said = await eventually(live, lambda found: found[0] == 503)
    assert f"[-]background failed: {why}" in said


@pytest.mark.parametrize(
    ("owner", "method", "opened", "name"),
    [
        (FetcherClient, "keep_running", open_fetcher, "fetcher"),
        (FileWatcher, "run", partial(open_local_sources, machine=THIS_MACHINE), "registry-files"),
    ],
)
async def test_what_asks_registries_is_told_of(
    owner: type, method: str, opened: Work, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody opens another fetcher, or reads registries' files again."""
    monkeypatch.setattr(owner, method, end_at_once)
    async with opened(RegistryConfig(timeout_seconds=1.0)):  # type: ignore[attr-defined] # of either
        assert await eventually(background_problem) == f"{name}: it returned"
    assert background_problem() == ""
