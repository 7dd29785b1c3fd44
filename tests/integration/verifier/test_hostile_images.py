"""Images that are made to harm whoever looks inside, in a real registry."""

import asyncio
import json

import pytest

from testbed.debian_registry import DebianRegistry
from testbed.forked_commands import asking, run
from testbed.hostile_layers import KINDS, hostile_image


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
async def test_a_hostile_image_ends_within_its_bounds(debian_registry: DebianRegistry, kind: str) -> None:
    """The command lives, and says why nothing is known."""
    digest = debian_registry.push("verifier/hostile", "1", await asyncio.to_thread(hostile_image, kind))
    image, wanted = f"{debian_registry.host}/verifier/hostile@{digest}", ("--require", "linux/arm64")
    look = ("inspect", image, "--verify", "-o", "json", *wanted, *asking(debian_registry.host))
    code, out, err = await run(*look)
    (found,) = json.loads(out)[0]["inside"]
    assert (code, found["state"], KINDS[kind].why in found["detail"]) == (0, "claimed", True), (found, err)
