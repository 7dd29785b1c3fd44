"""What a restarted service still knows."""

import json
from pathlib import Path

from testbed.embedded_registry import EmbeddedRegistry
from testbed.faulty_registry import GuardedRegistry
from tests.integration.service.caller import AMD64, kept, pod, with_nodes
from tests.integration.service.conftest import StartService, running_service


async def test_what_a_login_has_opened_is_forgotten_with_the_login(tmp_path: Path) -> None:
    """The store has it still, and nobody is told of it any more."""
    (tmp_path / "key").write_bytes(bytes(range(32)))
    config = tmp_path / "config.json"
    settings = [
        f"cache.url='sqlite:///{tmp_path}/images.sqlite'",
        f"cache.key_file={tmp_path}/key",
        f"registry.docker_config={config}",
    ]
    async with GuardedRegistry("ann:secret") as registry:
        registry.add_manifest("amd", "1", AMD64)
        request = with_nodes(pod(f"{registry.host}/amd:1"))
        login = {"username": "ann", "password": "secret"}
        told: list[str] = []
        for auths in ({registry.host: login}, {"quay.io": login}, {registry.host: login}):
            config.write_text(json.dumps({"auths": auths}))
            async with running_service(*settings, registries=[registry.host]) as caller:
                told.append(" ".join(kept(await caller.filter(request))))
    assert told == ["a c", "a b c d", "a c"]


async def test_store_that_cannot_be_used_costs_nothing_but_memory(
    start_service: StartService, registry: EmbeddedRegistry, tmp_path: Path
) -> None:
    """A folder where the file should be: the service starts, answers, and counts that the store failed."""
    registry.add_manifest("amd", "1", AMD64)
    caller = await start_service(f"cache.url='sqlite:///{tmp_path}'", plain_http=registry.host)
    assert kept(await caller.filter(with_nodes(pod(f"{registry.host}/amd:1")))) == ["a", "c"]
