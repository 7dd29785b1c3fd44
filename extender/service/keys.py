"""The key of credential ids of one process, from `cache.key_file` or at random.

A new key takes a restart: the ids of all credentials in memory would change with it.
"""

import hashlib
import secrets
from pathlib import Path

import msgspec

from extender.errors import ConfigError
from extender.watched_files import FileSetting, WatchedFiles, report_refused

KEY_BYTES = 32


class Keys(msgspec.Struct, frozen=True):
    """A key of 32 bytes, which is never shown."""

    credential_ids: bytes

    def __repr__(self) -> str:
        """Shows nothing."""
        return "Keys()"

    def __rich_repr__(self) -> list[tuple[str, str]]:
        """As `__repr__`: msgspec's own would show the keys in a pretty-printer."""
        return []


def random_keys() -> Keys:
    """Returns the keys of a process whose credential ids nothing else needs to know."""
    return Keys(secrets.token_bytes(KEY_BYTES))


def load_keys(file: str) -> Keys:
    """Returns the keys that the file's content gives.

    Raises:
        ConfigError: the file cannot be read, or has less than 32 bytes.
    """
    try:
        content = Path(file).read_bytes()
    except OSError as exc:
        raise ConfigError(f"cache.key_file: {file}: {exc.strerror}; give a file of random bytes") from exc
    if len(content) < KEY_BYTES:
        raise ConfigError(f"cache.key_file: {file} holds {len(content)} bytes; {KEY_BYTES} or more are needed")
    return Keys(hashlib.sha256(content).digest())


def watch_keys(file: str) -> WatchedFiles[Keys]:
    """Returns the keys of the file, and watches it to tell that a new key takes a restart. Raises as `load_keys`."""

    def tell(keys: Keys) -> None:
        if keys != used:
            report_refused(FileSetting.KEY, f"cache.key_file: {file} has changed; restart to use the new key")

    files = WatchedFiles.of_contents(
        [file],
        lambda: load_keys(file),
        loaded=tell,
        refused=lambda why: report_refused(FileSetting.KEY, why),
        name=FileSetting.KEY.value,
    )
    used = files.value
    return files
