"""Files that change while the service runs: logins and keys."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from extender.background import FILE_CHECK_SECONDS
from testbed.eventually import eventually
from testbed.faulty_registry import GuardedRegistry
from tests.integration.service.caller import AMD64, ARM64, Caller, kept, pod, with_nodes
from tests.integration.service.conftest import StartService

pytestmark = pytest.mark.usefixtures("simulated_time")

RELOADS = 'multiarch_file_reloads_total{{outcome="{}",setting="registry.docker_config"}}'


class Rotated:
    """A registry, a file with a login for it, and a service that has read the file."""

    def __init__(self, registry: GuardedRegistry, config: Path) -> None:
        self.registry = registry
        self.config = config
        self.caller: Caller
        registry.add_manifest("amd", "1", AMD64)
        registry.add_manifest("arm", "1", ARM64)

    def change_password(self) -> None:
        self.registry.logins = {"ann:new"}
        self.registry.valid.clear()

    def write(self, login: str) -> None:
        auth = base64.b64encode(login.encode()).decode()
        self.config.write_text(json.dumps({"auths": {self.registry.host: {"auth": auth}}}))

    async def answer(self, image: str) -> str:
        result = await self.caller.filter(with_nodes(pod(f"{self.registry.host}/{image}")))
        return result["Error"] or "".join(kept(result))

    async def reloads(self) -> tuple[float, float]:
        """How often the file was loaded, and refused."""
        loaded, refused = [await self.caller.metric(RELOADS.format(outcome)) for outcome in ("loaded", "refused")]
        return loaded, refused


@pytest.fixture
async def rotated(start_service: StartService, tmp_path: Path) -> AsyncIterator[Rotated]:
    async with GuardedRegistry("ann:old") as registry:
        made = Rotated(registry, tmp_path / "config.json")
        made.write("ann:old")
        settings = (f"registry.docker_config={made.config}", "scheduler.unknown=retry")
        made.caller = await start_service(*settings, plain_http=registry.host)
        assert await made.answer("amd:1") == "ac"
        yield made


async def test_a_denied_lookup_is_answered_after_the_password_has_changed(rotated: Rotated) -> None:
    """The registry's password first and the file later: the denial of the old password holds nothing up."""
    loaded, refused = await rotated.reloads()
    rotated.change_password()
    for _ in range(2):
        assert "denied" in await rotated.answer("arm:1")
    rotated.config.write_text('{"auths": {"')  # half written
    await asyncio.sleep(FILE_CHECK_SECONDS + 1)
    assert await rotated.reloads() == (loaded, refused + 1)
    assert await rotated.answer("amd:1") == "ac"
    rotated.write("ann:new")
    await asyncio.sleep(FILE_CHECK_SECONDS + 1)
    assert await rotated.reloads() == (loaded + 1, refused + 1)
    await eventually(lambda: rotated.answer("arm:1"), lambda found: found == "bd")


async def test_a_denial_reads_a_file_that_has_changed_at_once(rotated: Rotated) -> None:
    """Nobody waits for the next check; and what the old password had shown must be shown again."""
    rotated.change_password()
    rotated.write("ann:new")
    began_at = asyncio.get_running_loop().time()
    assert await rotated.answer("arm:1") == "bd"
    requests = rotated.registry.requests.total()
    assert await rotated.answer("amd:1") == "ac"
    assert rotated.registry.requests.total() > requests
    assert asyncio.get_running_loop().time() - began_at < 1
