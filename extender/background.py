"""Tasks that run until their owner ends them, and what liveness says of one that ends by itself."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextvars import Context, ContextVar
from functools import partial

import structlog

log = structlog.get_logger()

FILE_CHECK_SECONDS = 5.0
"""How often files with certificates, credentials and the like are checked for changes."""

_Ended = dict[asyncio.Task[None], str]  # why each task has ended that its owner has not
_OF_PROCESS: _Ended = {}
_ENDED: ContextVar[_Ended] = ContextVar("_ENDED")


@contextlib.asynccontextmanager
async def in_background(work: Coroutine[None, None, None] | None, name: str = "") -> AsyncIterator[None]:
    """Runs `work` beside the context's body and cancels it at the end; None is no work.

    Work that ends before its context is an error, which is logged, and fails liveness. `name` is for people; empty
    takes that of the function.
    """
    if work is None:
        yield
        return
    task = start_background(work, name)
    try:
        yield
    finally:
        await end_background(task)


def start_background(
    work: Coroutine[None, None, None], name: str = "", context: Context | None = None
) -> asyncio.Task[None]:
    """As `in_background`, until the task is ended by `end_background`. `context` is that of the task."""
    task = asyncio.get_running_loop().create_task(work, name=name or getattr(work, "__qualname__", ""), context=context)
    task.add_done_callback(_report)
    return task


async def end_background(*tasks: asyncio.Task[None]) -> None:
    """Cancels the tasks, and returns once they have ended."""
    for task in tasks:
        task.remove_done_callback(_report)
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for task in tasks:
        _ENDED.get(_OF_PROCESS).pop(task, None)


@contextlib.contextmanager
def outlive_defects(event: str, **fields: object) -> Iterator[None]:
    """Logs an exception that the body raises, with its traceback, and goes on behind the body.

    So it does where something that the body has waited for was cancelled, and not this task itself.
    """
    try:
        yield
    except (Exception, asyncio.CancelledError):
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        log.exception(event, **fields)


def background_problem() -> str:
    """Names the tasks that have ended and should still run, and why; empty if there are none."""
    return _problem_of(_ENDED.get(_OF_PROCESS))


def own_background() -> Callable[[], str]:
    """Returns a `background_problem` of the tasks alone that are started in this context from now on."""
    ended: _Ended = {}
    _ENDED.set(ended)
    return partial(_problem_of, ended)


def _problem_of(ended: _Ended) -> str:
    return "; ".join(f"{task.get_name()}: {why}" for task, why in ended.items())


def _report(task: asyncio.Task[None]) -> None:
    exc = asyncio.CancelledError() if task.cancelled() else task.exception()
    cause = exc
    while isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[0]
    why = f"{type(cause).__name__}: {cause}".removesuffix(": ") if cause else "it returned"
    _ENDED.get(_OF_PROCESS)[task] = why
    log.error("background.ended", task=task.get_name(), why=why, exc_info=exc)
