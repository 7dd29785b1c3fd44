"""Files that are read again when they change: what they hold, kept current, and what became of each change.

A change that cannot be used keeps the old value: a file may be in the middle of a change, be gone for a moment, or be
wrong. It is tried again at each check, and reported once. Files are read in a thread, and reports are made on the event
loop.
"""

import asyncio
import enum
import hashlib
from collections.abc import Callable, Hashable, Iterable
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import structlog

from extender.errors import ConfigError
from extender.metrics import counters

log = structlog.get_logger()

T = TypeVar("T")
Stamp = tuple[str, bytes | None]
"""Of a file: the path, and a hash of the content; None if it is no file that can be read."""


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


def report_loaded(setting: FileSetting) -> None:
    """Logs and counts that the setting's files changed and are used."""
    RELOADS[setting]["loaded"].inc()
    log.info("file.reloaded", setting=setting.value)


def report_refused(setting: FileSetting, why: str) -> None:
    """Logs and counts that the setting's files changed and cannot be used. `why` holds no secret."""
    RELOADS[setting]["refused"].inc()
    log.warning("file.refused", setting=setting.value, why=why)


def stamp_of(path: Path) -> Stamp:
    """Returns what another content of the file changes."""
    try:
        return str(path), hashlib.sha256(path.read_bytes()).digest() if path.is_file() else None
    except (OSError, ValueError):  # a path with a NUL names no file
        return str(path), None


class Reading(NamedTuple, Generic[T]):
    """What the files held, and a stamp of them from before they were read."""

    value: T
    stamp: Hashable


class _Refusal(NamedTuple):
    why: str
    stamp: Hashable


class WatchedFiles(Generic[T]):
    """The value that some files hold, kept current by `watch`.

    `value` is that of the last reading that succeeded, and `generation` how many changes were used.
    """

    def __init__(
        self,
        read: Callable[[], Reading[T]],
        stamp: Callable[[T], Hashable],
        *,
        loaded: Callable[[T], None],
        refused: Callable[[str], None],
        name: str = "a file of the settings",
    ) -> None:
        """Reads the files. Raises ConfigError if that fails, whatever `read` raises; `name` is that of the setting.

        `read` gives the value, or raises ConfigError. `stamp` gives the present stamp of the files behind a value; it
        changes when one of them does. Both run in a thread. `loaded` and `refused` report a change.
        """
        self._read, self._stamp = read, stamp
        self._loaded, self._refused = loaded, refused
        try:
            self.value, self._seen = read()
        except ConfigError:
            raise
        except Exception as exc:
            raise ConfigError(f"{name}: {_failed(exc)}") from exc
        self._refusal: _Refusal | None = None
        self._checks = 0
        self._checking = asyncio.Lock()
        self.generation = 0

    @classmethod
    def of_contents(
        cls,
        paths: Iterable[str | Path],
        load: Callable[[], T],
        *,
        loaded: Callable[[T], None],
        refused: Callable[[str], None],
        name: str = "a file of the settings",
    ) -> "WatchedFiles[T]":
        """Returns the value that `load` gives, or raises what it raises; loads it again when a content differs."""
        files = tuple(map(Path, paths))

        def stamps() -> Hashable:
            return tuple(map(stamp_of, files))

        def read() -> Reading[T]:
            seen = stamps()  # first, so that the next check sees a change made meanwhile
            return Reading(load(), seen)

        return cls(read, lambda _: stamps(), loaded=loaded, refused=refused, name=name)

    @classmethod
    def of_setting(cls, setting: FileSetting, paths: Iterable[str | Path], load: Callable[[], T]) -> "WatchedFiles[T]":
        """As `of_contents`, with the log events and the metric of a setting."""
        return cls.of_contents(
            paths,
            load,
            loaded=lambda _: report_loaded(setting),
            refused=lambda why: report_refused(setting, why),
            name=setting.value,
        )

    def reload_if_changed(self) -> bool:
        """Uses the files' present content; returns whether that is another. Blocks."""
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

    def _attempt(self) -> Reading[T] | _Refusal | None:
        """Returns a new reading, or why there is none; None if nothing has changed. Changes nothing itself."""
        stamp = self._stamp(self.value)
        if stamp == self._seen:
            return None
        try:
            return self._read()
        except ConfigError as exc:
            return _Refusal(str(exc), stamp)
        except Exception as exc:  # noqa: BLE001 - no content of a file may end the watch; a message may quote it
            return _Refusal(_failed(exc), stamp)

    def _conclude(self, outcome: Reading[T] | _Refusal | None) -> bool:
        before, self._refusal = self._refusal, None
        match outcome:
            case Reading():
                self.value, self._seen = outcome
                self.generation += 1
                self._loaded(outcome.value)
                return True
            case _Refusal():
                self._refusal = outcome
                if outcome != before:
                    self._refused(outcome.why)
        return False


class FileWatcher:
    """All that one service reads again when it changes."""

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
