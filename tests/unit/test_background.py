"""What is told of a task that should run as long as the service, and ends by itself."""

import asyncio

import pytest
import structlog

from extender.background import background_problem, in_background
from testbed.eventually import eventually


async def end() -> None:
    """Returns."""


async def fail() -> None:
    raise OSError("no space left on device")


async def fail_together() -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(fail())


async def cancel() -> None:
    raise asyncio.CancelledError


async def go_on() -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("work", "why"),
    [
        (end, "it returned"),
        (fail, "OSError: no space left on device"),
        (fail_together, "OSError: no space left on device"),
        (cancel, "CancelledError"),
    ],
)
async def test_work_that_ends_by_itself_is_told_of(work: type, why: str) -> None:
    """By an event and liveness, which names it and the cause; others go on."""
    with structlog.testing.capture_logs() as logs:
        async with in_background(go_on(), "others"), in_background(work(), "files"):
            assert await eventually(background_problem) == f"files: {why}"
    assert [(each["event"], each["log_level"], each["task"], each["why"]) for each in logs] == [
        ("background.ended", "error", "files", why)
    ]


async def test_work_that_is_ended_with_its_context_is_no_error() -> None:
    """Nor is what has ended of a context that is left: another service of this process begins well."""
    with structlog.testing.capture_logs() as logs:
        async with in_background(go_on()):
            await asyncio.sleep(0)
            assert not background_problem()
    assert logs == []
    async with in_background(fail()):
        assert (await eventually(background_problem)).startswith("fail: ")
    assert not background_problem()


async def test_no_work_runs_nothing() -> None:
    """As where the settings switch it off."""
    before = len(asyncio.all_tasks())
    async with in_background(None, "canaries"):
        assert len(asyncio.all_tasks()) == before
        assert not background_problem()
