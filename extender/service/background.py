"""Tasks that run beside the listeners for as long as a context, and what is told of one that ends by itself."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine

import structlog

from extender.server.operations import CheckResult

log = structlog.get_logger()

FILE_CHECK_SECONDS = 5.0
"""How often files with certificates, credentials and the like are checked for changes."""

_ENDED: dict[asyncio.Task[None], str] = {}  # why each task has ended whose context goes on


@contextlib.asynccontextmanager
async def in_background(work: Coroutine[None, None, None] | None, name: str = "") -> AsyncIterator[None]:
    """Runs `work` beside the context's body and cancels it at the end; None is no work.

    Work that ends before its context is an error, which is logged, and fails `check_background`. `name` is
    for people; empty takes that of the function.
    """
    if work is None:
        yield
        return
    task = asyncio.create_task(work, name=name or getattr(work, "__qualname__", ""))
    task.add_done_callback(_report)
    try:
        yield
    finally:
        task.remove_done_callback(_report)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        _ENDED.pop(task, None)


def check_background() -> CheckResult:
    """Fails if a task has ended that should still run; the detail names it and the cause."""
    why = "; ".join(f"{task.get_name()}: {why}" for task, why in _ENDED.items())
    return CheckResult(ok=not why, detail=why)


def _report(task: asyncio.Task[None]) -> None:
    exc = asyncio.CancelledError() if task.cancelled() else task.exception()
    cause = exc
    while isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[0]
    _ENDED[task] = why = f"{type(cause).__name__}: {cause}".removesuffix(": ") if cause else "it returned"
    log.error("background.ended", task=task.get_name(), why=why, exc_info=exc)
