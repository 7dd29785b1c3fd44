"""What is told of a task that should run as long as the service, and ends by itself."""

import asyncio
from collections.abc import Coroutine

import pytest
import structlog

from extender.background import background_problem, in_background, own_background
from testbed.eventually import eventually


async def go_on() -> None:
    await asyncio.Event().wait()


async def end(with_error: BaseException | None = None) -> None:
    if with_error:
        raise with_error


FULL = OSError("no space left on device")


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (None, "it returned"),
        (FULL, "OSError: no space left on device"),
        (ExceptionGroup("of two tasks", [FULL, ValueError()]), "OSError: no space left on device"),
        (asyncio.CancelledError(), "CancelledError"),
    ],
)
async def test_work_that_ends_by_itself_is_told_of(error: BaseException | None, why: str) -> None:
    """By an event and liveness, which names it and the cause; others go on."""
    with structlog.testing.capture_logs() as logs:
        async with in_background(go_on(), "others"), in_background(end(error), "files"):
            assert await eventually(background_problem) == f"files: {why}"
    assert [(each["event"], each["log_level"], each["task"], each["why"]) for each in logs] == [
        ("background.ended", "error", "files", why)
    ]


async def test_work_that_is_ended_with_its_context_is_no_error() -> None:
    """Nor is what has ended of a context that is left, nor no work, as where the settings switch it off."""
    with structlog.testing.capture_logs() as logs:
        async with in_background(go_on()):
            await asyncio.sleep(0)
            assert not background_problem()
    assert logs == []
    async with in_background(end(FULL)):
        assert (await eventually(background_problem)).startswith("end: ")
    assert not background_problem()
    async with in_background(None):
        assert not background_problem()


async def test_services_of_one_process_are_told_of_their_own_tasks_alone() -> None:
    """Each runs in a context of its own, as its tasks do."""
    problems: dict[str, str] = {}

    async def serve(name: str, work: Coroutine[None, None, None]) -> None:
        problem = own_background()
        async with in_background(work, name):
            await asyncio.sleep(0.01)
            problems[name] = problem()

    await asyncio.gather(serve("well", go_on()), serve("ill", end(None)))
    assert problems == {"well": "", "ill": "ill: it returned"}
    assert not background_problem()
