"""The fetcher's own process: when it ends by itself."""

import contextlib

import msgspec
import pytest

from extender.fetcher import fetcher_process
from extender.fetcher.messages import Ping


class ProcessEnded(Exception):
    """Instead of the end of this process."""


async def test_fetcher_that_does_not_read_its_files_again_ends_at_the_next_ping(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The service then runs another one, which reads them."""

    def end(status: int) -> None:
        raise ProcessEnded(status)

    monkeypatch.setattr(fetcher_process, "_end", end)
    monkeypatch.setattr(fetcher_process, "background_problem", lambda: "registry-files: it returned")
    async with contextlib.AsyncExitStack() as stack:
        server = fetcher_process._Server(stack)  # noqa: SLF001 - what the process runs
        with pytest.raises(ProcessEnded):
            server.receive(msgspec.msgpack.encode(Ping(1)))
