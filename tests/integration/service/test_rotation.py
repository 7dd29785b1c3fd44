"""Files that change while the service runs: logins and keys."""

import base64
import json
from pathlib import Path

import pytest

from testbed.eventually import eventually
from testbed.faulty_registry import GuardedRegistry
from tests.integration.service.caller import AMD64, ARM64, Caller, kept, pod, with_nodes
from tests.integration.service.conftest import StartService

pytestmark = pytest.mark.usefixtures("simulated_time")

CHECK_SECONDS = "extender.fetcher.sources.FILE_CHECK_SECONDS"
LOADED = 'multiarch_file_reloads_total{outcome="loaded",setting="registry.docker_config"}'
REFUSED = 'multiarch_file_reloads_total{outcome="refused",setting="registry.docker_config"}'


def replace_by(path: Path, text: str) -> None:
    """Gives the file another content in one step, so that no check sees it empty."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


def change_login(registry: GuardedRegistry, login: str) -> None:
    registry.logins = {login}
    registry.valid.clear()


def write_login(path: Path, host: str, login: str) -> None:
    auth = base64.b64encode(login.encode()).decode()
    replace_by(path, json.dumps({"auths": {host: {"auth": auth}}}))


async def answer(caller: Caller, image: str) -> str:
    result = await caller.filter(with_nodes(pod(image)))
    return result["Error"] or "".join(kept(result))


async def until(caller: Caller, image: str, wanted: str) -> None:
    await eventually(lambda: answer(caller, image), lambda found: found == wanted)


async def test_a_denied_lookup_is_answered_after_the_password_has_changed(
    start_service: StartService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The registry's password first and the file later: the denial of the old password holds nothing up."""
    monkeypatch.setattr(CHECK_SECONDS, 0.01)
    config = tmp_path / "config.json"
    async with GuardedRegistry("ann:old") as registry:
        registry.add_manifest("amd", "1", AMD64)
        registry.add_manifest("arm", "1", ARM64)
        write_login(config, registry.host, "ann:old")
        caller = await start_service(
            f"registry.docker_config={config}", "scheduler.unknown=retry", plain_http=registry.host
        )
        loaded, refused = await caller.metric(LOADED), await caller.metric(REFUSED)
        assert await answer(caller, f"{registry.host}/amd:1") == "ac"
        change_login(registry, "ann:new")
        for _ in range(2):
            assert "denied" in await answer(caller, f"{registry.host}/arm:1")
        replace_by(config, '{"auths": {"')  # half written
        await eventually(lambda: caller.metric(REFUSED), lambda found: found != refused)
        assert await answer(caller, f"{registry.host}/amd:1") == "ac"
        write_login(config, registry.host, "ann:new")
        await until(caller, f"{registry.host}/arm:1", "bd")
        # A file that changes between its stamp and its reading is read once more by the next check.
        assert await caller.metric(LOADED) - loaded in (1, 2)
        assert await caller.metric(REFUSED) == refused + 1


async def test_a_denial_reads_a_file_that_has_changed_at_once(
    start_service: StartService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for the next check; and what the old password had shown must be shown again."""
    monkeypatch.setattr(CHECK_SECONDS, 3600.0)
    config = tmp_path / "config.json"
    async with GuardedRegistry("ann:old") as registry:
        registry.add_manifest("amd", "1", AMD64)
        registry.add_manifest("arm", "1", ARM64)
        write_login(config, registry.host, "ann:old")
        caller = await start_service(
            f"registry.docker_config={config}", "scheduler.unknown=retry", plain_http=registry.host
        )
        assert await answer(caller, f"{registry.host}/amd:1") == "ac"
        change_login(registry, "ann:new")
        write_login(config, registry.host, "ann:new")
        assert await answer(caller, f"{registry.host}/arm:1") == "bd"
        before = registry.requests["HEAD manifests"] + registry.requests["GET manifests"]
        assert await answer(caller, f"{registry.host}/amd:1") == "ac"
        assert registry.requests["HEAD manifests"] + registry.requests["GET manifests"] > before
