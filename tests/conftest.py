"""The checks that apply to every test."""

import asyncio
import gc
import inspect
import os
from collections.abc import AsyncIterator, Iterator

import pytest
from hypothesis import settings

import extender.logs  # noqa: F401 - which has structlog write tracebacks without rich: rich takes half a second for each

_TURNS = 10  # of the event loop, within which a cancelled task may end
_SLOW_SECONDS = 1800

# A deadline for an example would fail on a busy machine. In a pipeline, which sets CI, examples are the same each time.
# `make nightly` has more of them.
settings.register_profile(
    "suite",
    deadline=None,
    derandomize="CI" in os.environ,
    max_examples=int(os.environ.get("EXAMPLES", "30")),
)
settings.load_profile("suite")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Gives the tests marked slow more time."""
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(_SLOW_SECONDS))


def pytest_collection_finish() -> None:
    """Exempts the modules and tests that are loaded by now from later collections of garbage.

    They are a quarter of a million objects, which every full collection would go through.
    """
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One process more than there are processors for this one, for `-n auto`: tests also wait."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return usable + 1


@pytest.fixture(scope="session")
def no_system_authorities() -> Iterator[None]:
    """Makes OpenSSL's default authorities none (SSL_CERT_FILE), here and in processes that tests start.

    No server of a test has a certificate of theirs, and reading them takes 25 ms for each TLS context.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", os.devnull)
        yield


@pytest.fixture(autouse=True)
def _every_async_test_is_watched(request: pytest.FixtureRequest) -> None:
    """Uses `no_task_left_running` for async tests.

    It is set up before a test's own fixtures, so it checks after their end.
    """
    if inspect.iscoroutinefunction(getattr(request, "function", None)):
        request.getfixturevalue("no_task_left_running")


@pytest.fixture
async def no_task_left_running() -> AsyncIterator[None]:
    """Fails a test that leaves a task running, which would be cancelled at a random point or outlive what it uses."""
    before = asyncio.all_tasks()
    yield
    for _ in range(_TURNS):
        await asyncio.sleep(0)
    left = asyncio.all_tasks() - before - {asyncio.current_task()}
    if left:
        pytest.fail(f"tasks are still running: {sorted(map(repr, left))}", pytrace=False)
