"""Tasks that run beside the listeners for as long as a context, and how often they check files."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine

FILE_CHECK_SECONDS = 5.0
"""How often files with certificates, credentials and the like are checked for changes."""


@contextlib.asynccontextmanager
async def in_background(work: Coroutine[None, None, None]) -> AsyncIterator[None]:
    """Runs `work` beside the context's body and cancels it at the end."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
