"""The fetcher's own process: what it does while nothing is asked, and when it ends by itself."""

import contextlib
import threading
import time

import msgspec
import pytest

from extender.fetcher import bounds, fetcher_process
from extender.fetcher.messages import Ping


class Ended(Exception):
    """Instead of the end of this process, or of the watch, which has no other end."""


class Asked(threading.Event):
    """Is set for so many looks."""

    def __init__(self, looks: int) -> None:
        super().__init__()
        self.left = looks

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is None, "nothing else ends its rest"
        if not self.left:
            raise Ended
        self.left -= 1
        return True


@pytest.mark.parametrize("looks", [0, 3])
def test_memory_is_watched_while_something_is_asked(monkeypatch: pytest.MonkeyPatch, looks: int) -> None:
    """A fetcher that has nothing to do does not wake up for it."""
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    with pytest.raises(Ended):
        bounds._watch(1 << 40, Asked(looks))  # noqa: SLF001
    assert len(slept) == looks


async def test_fetcher_that_does_not_read_its_files_again_ends_at_the_next_ping(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def end(status: int) -> None:
        raise Ended(status)

    monkeypatch.setattr(fetcher_process, "_end", end)
    monkeypatch.setattr(fetcher_process, "background_problem", lambda: "registry-files: it returned")
    async with contextlib.AsyncExitStack() as stack:
        server = fetcher_process._Server(stack)  # noqa: SLF001 - what the process runs
        with pytest.raises(Ended):
            server.receive(msgspec.msgpack.encode(Ping(1)))
