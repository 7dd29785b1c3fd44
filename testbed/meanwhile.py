"""Runs something beside a block of a test."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any


@asynccontextmanager
async def meanwhile(*works: Coroutine[Any, Any, object]) -> AsyncIterator[None]:
    """Runs these until the block ends, and cancels them then. Raises what one of them has raised by itself."""
    tasks = [asyncio.create_task(each) for each in works]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    for each in ended:
        if isinstance(each, Exception):
            raise each
