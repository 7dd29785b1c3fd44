"""What the service has opened before anybody can call it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from extender.config.reading import load_config
from extender.config.registry_section import RegistryConfig
from extender.errors import ConfigError
from extender.fetcher.fetcher_client import open_fetcher
from extender.fetcher.sources import LocalSources, open_local_sources
from extender.service.cluster_view import ClusterView
from extender.service.compose import SERVES, open_service
from testbed.eventually import eventually
from testbed.machines import running_machine
from tests.integration.service.conftest import running_service

SETTINGS = ("admission.listen=", "shutdown.grace_seconds=0.2", "cache.url='memory:'")


@pytest.mark.usefixtures("simulated_time")
@pytest.mark.parametrize("is_refused", [False, True])
async def test_nobody_can_call_before_the_files_for_registries_have_been_read(is_refused: bool) -> None:
    """Otherwise a rolling update would take a replica for ready that then ends."""
    outcome = asyncio.get_running_loop().create_future()
    config = load_config(None, [*SETTINGS, "scheduler.listen=127.0.0.1:0", "operations.listen=127.0.0.1:0"])
    asked = asyncio.Event()

    class Reading(LocalSources):
        async def check(self) -> None:
            asked.set()
            await outcome

    @contextlib.asynccontextmanager
    async def reading(settings: RegistryConfig, id_key: bytes, /) -> AsyncIterator[LocalSources]:
        async with open_local_sources(settings, id_key, machine=running_machine()) as sources:
            sources.__class__ = Reading
            yield sources

    async def serve() -> None:
        async with open_service(config, ClusterView(None), reading, running_machine()):
            pass

    with capture_logs() as logs:
        serving = asyncio.create_task(serve())
        await eventually(asked.is_set)
        assert "listener.opened" not in [each["event"] for each in logs]
        if is_refused:
            outcome.set_exception(ConfigError("no"))
            with pytest.raises(ConfigError):
                await serving
        else:
            outcome.set_result(None)
            await serving
    opened = [each["listener"] for each in logs if each["event"] == "listener.opened"]
    assert opened == ([] if is_refused else ["scheduler", "operations"])


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        (("admission.listen=",), {"scheduler"}),
        (("admission.listen=127.0.0.1:0", "admission.tls=null", "scheduler.listen="), {"webhook"}),
        (("admission.listen=127.0.0.1:0", "admission.tls=null"), {"webhook", "scheduler"}),
    ],
)
async def test_metrics_say_what_a_replica_is_there_for(settings: tuple[str, ...], parts: set[str]) -> None:
    """By which alerts tell that a part is gone while others run."""
    async with running_service(*settings) as caller:
        served = {part: await caller.metric(f'multiarch_serves{{part="{part}"}}') for part in SERVES}
    assert {part for part, value in served.items() if value} == parts


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


@pytest.mark.parametrize("what", ["rewrite", "registry.ca_files"])
async def test_files_that_cannot_be_read_are_refused_with_the_reason(tmp_path: Path, what: str) -> None:
    """By the process that asks registries, and by the check of the settings alike."""
    mirrors = tmp_path / "registries.yaml"
    mirrors.write_text("mirrors: {a.io: {endpoint: [m.io], rewrite: {'(': b}}}")
    settings = {
        "rewrite": RegistryConfig(timeout_seconds=1, mirrors=str(mirrors)),
        "registry.ca_files": RegistryConfig(timeout_seconds=1, ca_files=("a\0b",)),
    }[what]
    with pytest.raises(ConfigError) as here:
        async with open_local_sources(settings, machine=running_machine()):
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
