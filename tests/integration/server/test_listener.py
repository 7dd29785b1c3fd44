"""Which addresses a listener takes."""

from collections.abc import AsyncIterator

import aiohttp
import pytest

from extender.errors import ConfigError
from extender.server.http import Listener, open_listener
from extender.server.operations import CheckResult, Operations

SERVICE = Operations({"ping": CheckResult}, {})


@pytest.fixture
async def everywhere() -> AsyncIterator[Listener]:
    """A listener on a free port of every address."""
    opened = open_listener("admission", SERVICE, "", 0)
    yield opened
    await opened.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
async def test_empty_host_is_every_address_of_both_families(everywhere: Listener, host: str) -> None:
    """One port answers on IPv4 and on IPv6, and the listener's address names it."""
    host_shown, _, port = everywhere.address.rpartition(":")
    assert host_shown == "[::]"
    async with aiohttp.ClientSession() as session, session.get(f"http://{host}:{port}/livez") as response:
        assert await response.text() == "ok\n"


async def test_port_that_is_taken_is_refused_with_its_address(everywhere: Listener) -> None:
    """The error names the setting and the address, also if that has no host."""
    port = int(everywhere.address.rpartition(":")[2])
    with pytest.raises(ConfigError, match=rf"operations\.listen: cannot listen on :{port}"):
        open_listener("operations", SERVICE, "", port)
