"""Files that are read again when they change."""

import asyncio
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from structlog.typing import EventDict

from extender.background import in_background
from extender.errors import ConfigError
from extender.watched_files import RELOADS, FileSetting, WatchedFiles
from testbed.eventually import eventually


class Recorder:
    """A file whose content must be a number, and what is logged of its changes."""

    def __init__(self, path: Path, lines: list[EventDict]) -> None:
        self.path = path
        self.lines = lines

    @property
    def loaded(self) -> int:
        return sum(line["event"] == "file.reloaded" for line in self.lines)

    @property
    def refused(self) -> list[str]:
        return [line["why"] for line in self.lines if line["event"] == "file.refused"]

    def load(self) -> int:
        try:
            text = self.path.read_text()
        except OSError as exc:
            raise ConfigError("unreadable") from exc
        if text == "crash":
            raise RuntimeError(text)
        if not text.isdigit():
            raise ConfigError(f"{text} is no number")
        return int(text)

    def watched(self) -> WatchedFiles[int]:
        return WatchedFiles.of(FileSetting.STORE, [self.path], self.load)


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    (tmp_path / "number").write_text("1")
    with capture_logs() as lines:
        yield Recorder(tmp_path / "number", lines)


@pytest.mark.parametrize("text", ["", "half", "crash", None], ids=["empty", "half", "crash", "gone"])
def test_a_change_that_cannot_be_used_is_reported_once(recorder: Recorder, text: str | None) -> None:
    """The old value stays, and the whole file is used once when it is there."""
    files, counts = recorder.watched(), RELOADS[FileSetting.STORE]
    before = counts["refused"].value, counts["loaded"].value
    if text is None:
        recorder.path.unlink()
    else:
        recorder.path.write_text(text)
    for _ in range(3):
        assert not files.reload_if_changed()
    assert (files.value, len(recorder.refused), recorder.loaded) == (1, 1, 0)
    recorder.path.write_text("2")
    assert files.reload_if_changed()
    assert not files.reload_if_changed()
    assert (files.value, recorder.loaded) == (2, 1)
    assert (counts["refused"].value, counts["loaded"].value) == (before[0] + 1, before[1] + 1)


def test_each_change_that_cannot_be_used_is_reported(recorder: Recorder) -> None:
    """Also one like an earlier one, if the file was usable in between; going back to the old content is no change."""
    files = recorder.watched()
    for text in ("a", "b", "1", "b", "crash"):
        recorder.path.write_text(text)
        files.reload_if_changed()
    of_ours = "reading it failed with RuntimeError"  # without its message, which may quote a secret
    assert recorder.refused == ["a is no number", "b is no number", "b is no number", of_ours]
    assert (files.value, recorder.loaded) == (1, 0)


def test_the_first_reading_raises(recorder: Recorder) -> None:
    """At the start there is no old value."""
    recorder.path.write_text("half")
    with pytest.raises(ConfigError, match="half is no number"):
        recorder.watched()
    recorder.path.unlink()
    with pytest.raises(ConfigError, match="unreadable"):
        recorder.watched()


def test_a_change_in_the_middle_of_a_reading_is_seen_by_the_next_check(recorder: Recorder) -> None:
    """The stamp is older than the value."""

    def load() -> int:
        found = int(recorder.path.read_text())
        recorder.path.write_text("3")
        return found

    recorder.load = load  # type: ignore[method-assign]  # the file changes right after it was read
    files = recorder.watched()
    assert files.value == 1
    assert files.reload_if_changed()
    assert files.value == 3


def test_a_mounted_secret_that_is_swapped_is_read_again(tmp_path: Path) -> None:
    """The kubelet links files into a hidden folder, and swaps the link; for a moment there may be neither."""
    for version in ("1", "2"):
        (tmp_path / f"..{version}").mkdir()
        (tmp_path / f"..{version}" / "number").write_text(version)
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "number").symlink_to("..data/number")
    files = Recorder(tmp_path / "number", []).watched()
    (tmp_path / "..data").unlink()
    assert not files.reload_if_changed()
    assert files.value == 1
    (tmp_path / "..data").symlink_to("..2")
    assert files.reload_if_changed()
    assert files.value == 2


async def test_the_watch_outlives_whatever_the_file_holds(recorder: Recorder) -> None:
    """It reports on the event loop, where counts are added to."""
    threads = set[int]()

    def note(_logger: object, _method: str, line: EventDict) -> EventDict:
        threads.add(threading.get_ident())
        return line

    files = recorder.watched()
    with capture_logs([note]):
        async with in_background(files.watch(0.001)):
            recorder.path.write_text("crash")
            await eventually(lambda: threads)
            recorder.path.write_text("2")
            await eventually(lambda: files.value == 2)
    assert threads == {threading.get_ident()}


async def test_callers_that_wait_share_a_check(recorder: Recorder) -> None:
    """Many denials at once read the file twice at most, since one check may have begun before the change."""
    checks = 0

    def paths() -> Iterable[Path]:
        nonlocal checks
        checks += 1
        return [recorder.path]

    files = WatchedFiles(FileSetting.STORE, paths, lambda _: recorder.load())
    recorder.path.write_text("2")
    checks = 0
    await asyncio.gather(*(files.refresh() for _ in range(100)))
    assert (files.value, recorder.loaded) == (2, 1)
    assert checks <= 3  # one that finds the change and stamps the files again, and one that finds none
