"""Waits until something is so: the one loop of tests that asks again and again."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import TypeVar, cast, overload

T = TypeVar("T")

USUAL_SECONDS = 120.0
"""Longer than anything takes on a busy machine; only what takes longer on an idle one says how long."""

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS, _GROWTH = 0.001, 0.1, 1.5


@overload
async def eventually(
    ask: Callable[[], Awaitable[T]],
    is_so: Callable[[T], object] = bool,
    *,
    seconds: float = USUAL_SECONDS,
    despite: type[Exception] | tuple[type[Exception], ...] = (),
) -> T: ...
@overload
async def eventually(
    ask: Callable[[], T],
    is_so: Callable[[T], object] = bool,
    *,
    seconds: float = USUAL_SECONDS,
    despite: type[Exception] | tuple[type[Exception], ...] = (),
) -> T: ...
async def eventually(
    ask: Callable[[], object],
    is_so: Callable[[T], object] = bool,
    *,
    seconds: float = USUAL_SECONDS,
    despite: type[Exception] | tuple[type[Exception], ...] = (),
) -> T:
    """Returns what `ask` returns, or resolves to, once `is_so` holds of it; asks again after errors of `despite`.

    Raises TimeoutError, with the last answer, if that is not so within `seconds`.
    """
    last: object = "no answer"
    pause = _FIRST_PAUSE_SECONDS
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            while True:
                try:
                    last = ask()
                    last = await last if inspect.isawaitable(last) else last
                    if is_so(cast("T", last)):
                        return cast("T", last)
                except despite as exc:
                    last = exc
                await asyncio.sleep(pause)
                pause = min(pause * _GROWTH, _LONGEST_PAUSE_SECONDS)
    except TimeoutError as exc:
        if not limit.expired():
            raise  # by `ask`
        raise TimeoutError(f"after {seconds:g} s still {last!r}") from exc
