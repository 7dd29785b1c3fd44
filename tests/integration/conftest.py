"""Servers for integration tests, and a machine whose proxies do not stand between.

For tests of any room that want a real registry (skipped with one line where Debian's package cannot be had):

- `debian_registry`: one without TLS or login, shared by the whole run. Push under a repository of your own:
  `debian_registry.push("my-test/app", "1", build_index(["linux/amd64"]))`, then ask `debian_registry.host`.
- `start_debian_registry(http=…, auth=…)`: another one, for this test alone, with sections of its configuration.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.integration.debian_registry import DebianRegistry, RegistryMissing, find_program

StartRegistry = Callable[..., DebianRegistry]


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests speak to loopback only."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture(scope="session")
def registry_program() -> Path:
    """The docker-registry program, or a skip."""
    try:
        return find_program()
    except RegistryMissing as exc:
        pytest.skip(str(exc))


@pytest.fixture(scope="session")
def debian_registry(registry_program: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DebianRegistry]:
    """A real registry on loopback, open to everybody, for the whole run."""
    with DebianRegistry(registry_program, tmp_path_factory.mktemp("registry")) as registry:
        yield registry


@pytest.fixture
def start_debian_registry(registry_program: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartRegistry]:
    """Starts real registries that end with the test; `http` and `auth` as in `DebianRegistry`."""
    with ExitStack() as stack:

        def start(*, http: dict[str, Any] | None = None, auth: dict[str, Any] | None = None) -> DebianRegistry:
            folder = tmp_path_factory.mktemp("registry")
            return stack.enter_context(DebianRegistry(registry_program, folder, http=http, auth=auth))

        yield start
