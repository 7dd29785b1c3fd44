"""A way to let tasks run."""

import asyncio


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)
