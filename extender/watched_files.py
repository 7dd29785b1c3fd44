"""Files that are read again when they change: what they hold, kept current, and what became of each change.

A change that cannot be used keeps the old value: a file may be in the middle of a change, be gone for a moment, or be
wrong. It is tried again at each check, and reported once. Files are read in a thread, and reports are made on the event
loop.
"""

import asyncio
import enum
import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import structlog

from extender.errors import ConfigError
from extender.metrics import counters

log = structlog.get_logger()

T = TypeVar("T")
Stamps: TypeAlias = dict[Path, bytes | None]
"""A hash of the content of each file; None for what is no file that can be read."""


class FileSetting(enum.StrEnum):
    """The settings whose files are read again; `tls` is that of any listener."""

    CA_FILES = "registry.ca_files"
    DOCKER_CONFIG = "registry.docker_config"
    CREDENTIAL_PROVIDERS = "registry.credential_providers.config"
    STORE = "cache.url"
    TLS = "tls"
    MIRRORS = "registry.mirrors"


RELOADS = counters(
    "multiarch_file_reloads_total",
    "Changes of files with certificates, credentials, keys or mirrors, by the setting.",
    ("setting", tuple(setting.value for setting in FileSetting)),
    ("outcome", ("loaded", "refused")),
)


def stamp_of(path: Path) -> bytes | None:
    """The stamp of one file."""
    try:
        return hashlib.sha256(path.read_bytes()).digest() if path.is_file() else None
    except (OSError, ValueError):  # a path with a NUL names no file
        return None


class _Refusal(NamedTuple):
    why: str
    stamps: Stamps


class WatchedFiles(Generic[T]):
    """The value that some files hold, kept current by `watch`: that of the last reading that succeeded."""

    def __init__(
        self,
        setting: FileSetting,
        paths: Callable[[], Iterable[Path]],
        read: Callable[[Stamps], T],
        *,
        listener: str = "",
    ) -> None:
        """Reads the files. Raises ConfigError if that fails, whatever `read` raises.

        `paths` names the files as they are now. `read` gives the value, or raises ConfigError without any secret; to
        what it is given it adds the stamp of each other file that it reads, from before that. Both run in a thread.
        `listener` is the one whose certificate the files hold, under whose name changes are logged.
        """
        self._setting, self._paths, self._read, self._listener = setting, paths, read, listener
        self._stamps = self._present()
        try:
            self.value = read(self._stamps)
        except ConfigError:
            raise
        except Exception as exc:
            raise ConfigError(f"{setting.value}: {_failed(exc)}") from exc
        self._refused: _Refusal | None = None
        self._checks = 0
        self._checking = asyncio.Lock()

    @classmethod
    def of(
        cls, setting: FileSetting, paths: Iterable[str | Path], load: Callable[[], T], *, listener: str = ""
    ) -> "WatchedFiles[T]":
        """Files whose paths stay the same."""
        files = tuple(map(Path, paths))
        return cls(setting, lambda: files, lambda _: load(), listener=listener)

    def reload_if_changed(self) -> bool:
        """Uses the files' present content; returns whether it differs. Blocks."""
        return self._conclude(self._attempt())

    async def refresh(self) -> None:
        """As `reload_if_changed`, in a thread. Callers that wait for their turn share a check."""
        before = self._checks
        async with self._checking:
            if self._checks > before:  # a check has begun and ended since the call
                return
            self._checks += 1
            self._conclude(await asyncio.to_thread(self._attempt))

    async def watch(self, every_seconds: float) -> None:
        """Calls `refresh` every `every_seconds` until cancelled."""
        while True:
            await asyncio.sleep(every_seconds)
            await self.refresh()

    def _present(self, others: Iterable[Path] = ()) -> Stamps:
        return {path: stamp_of(path) for path in (*self._paths(), *others)}

    def _attempt(self) -> tuple[T, Stamps] | _Refusal | None:
        """What the files hold now, or why that cannot be used; None if nothing has changed. Changes nothing itself."""
        present = self._present(self._stamps)
        if present == self._stamps:
            return None
        stamps = self._present()
        try:
            return self._read(stamps), stamps
        except ConfigError as exc:
            return _Refusal(str(exc), present)
        except Exception as exc:  # noqa: BLE001 - no content of a file may end the watch; a message may quote it
            return _Refusal(_failed(exc), present)

    def _conclude(self, outcome: tuple[T, Stamps] | _Refusal | None) -> bool:
        before, self._refused = self._refused, outcome if isinstance(outcome, _Refusal) else None
        if outcome is None:
            return False
        if isinstance(outcome, _Refusal):
            if outcome != before:
                self._report_refused(outcome.why)
            return False
        self.value, self._stamps = outcome
        self._report_loaded()
        return True

    def _report_loaded(self) -> None:
        RELOADS[self._setting]["loaded"].inc()
        if self._listener:
            log.info("tls.reloaded", listener=self._listener)
        else:
            log.info("file.reloaded", setting=self._setting.value)

    def _report_refused(self, why: str) -> None:
        RELOADS[self._setting]["refused"].inc()
        if self._listener:
            log.warning("tls.refused", listener=self._listener, why=why)
        else:
            log.warning("file.refused", setting=self._setting.value, why=why)


class FileWatcher:
    """All files that one service reads again when they change."""

    def __init__(self) -> None:
        self._files: list[WatchedFiles[Any]] = []

    def add(self, files: WatchedFiles[Any]) -> None:
        """Has the files watched by `run`, which must not have been called yet."""
        self._files.append(files)

    async def run(self, every_seconds: float) -> None:
        """Checks all files every `every_seconds` until cancelled; one that hangs holds up no other."""
        endless = asyncio.Event().wait()  # where there is no file to check
        await asyncio.gather(endless, *(files.watch(every_seconds) for files in self._files))


def _failed(exc: Exception) -> str:
    return f"reading it failed with {type(exc).__name__}"
