"""Servers for integration tests, which run without the machine's proxies.

For tests of any room that need a real registry (skipped with one line if Debian's package cannot be had):

- `debian_registry`: one without TLS or login, shared by the whole run. Push to a repository of your own:
  `debian_registry.push("my-test/app", "1", build_index(["linux/amd64"]))`, then use `debian_registry.host`.
- `start_debian_registry(http=…, auth=…, proxy=…)`: another one, for this test alone, with parts of its configuration.

Likewise `start_redis(*options)` for a real Redis server.

`simulated_time` (by `pytest.mark.usefixtures`) runs an async test in simulated time.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from testbed.debian_package import ProgramMissing
from testbed.debian_redis import DebianRedis, find_redis_server
from testbed.debian_registry import DebianRegistry, find_docker_registry
from testbed.memory_network import MemoryLoop, libraries_in

StartRegistry = Callable[..., DebianRegistry]
StartRedis = Callable[..., DebianRedis]


def pytest_asyncio_loop_factories(item: pytest.Function) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Gives the tests that use `simulated_time` its event loop."""
    return {"loop": MemoryLoop if "simulated_time" in item.fixturenames else asyncio.new_event_loop}


@pytest.fixture
async def simulated_time() -> AsyncIterator[MemoryLoop]:
    """Has the test run in memory, in time that passes when there is nothing else to do.

    For tests whose other parties are in this process.
    """
    loop = asyncio.get_running_loop()
    assert isinstance(loop, MemoryLoop)
    with libraries_in(loop):
        yield loop


@pytest.fixture(autouse=True, scope="session")
def _of_loopback_alone(no_system_authorities: None) -> None:
    """For every test here."""


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes the proxy settings, since tests connect only to loopback."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port of loopback at which nobody listens, nor can: it is bound."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@pytest.fixture(scope="session")
def registry_program() -> Path:
    """The docker-registry program; skips the test if it cannot be had."""
    try:
        return find_docker_registry()
    except ProgramMissing as exc:
        pytest.skip(str(exc))


@pytest.fixture(scope="session")
def debian_registry(registry_program: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DebianRegistry]:
    """A real registry on loopback, open to everybody, for the whole run."""
    with DebianRegistry(registry_program, tmp_path_factory.mktemp("registry")) as registry:
        yield registry


@pytest.fixture
def start_debian_registry(registry_program: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartRegistry]:
    """Starts real registries that end with the test; `http`, `auth` and `proxy` as in `DebianRegistry`."""
    with ExitStack() as stack:

        def start(**sections: dict[str, Any]) -> DebianRegistry:
            folder = tmp_path_factory.mktemp("registry")
            return stack.enter_context(DebianRegistry(registry_program, folder, **sections))

        yield start


@pytest.fixture(scope="session")
def redis_program() -> Path:
    """The redis-server program; skips the test if it cannot be had."""
    try:
        return find_redis_server()
    except ProgramMissing as exc:
        pytest.skip(str(exc))


@pytest.fixture
def start_redis(redis_program: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartRedis]:
    """Starts real Redis servers that end with the test; options as on redis-server's command line."""
    with ExitStack() as stack:

        def start(*options: str, tls: bool = False) -> DebianRedis:
            return stack.enter_context(DebianRedis(redis_program, tmp_path_factory.mktemp("redis"), options, tls=tls))

        yield start
