"""The watch of a fetcher's memory: it looks while something is asked, and rests otherwise."""

import threading
import time

import pytest

from extender.fetcher import bounds


class Ended(Exception):
    """Ends the watch, which has no other end."""


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
        bounds._watch(1 << 40, (), Asked(looks))  # noqa: SLF001
    assert len(slept) == looks
