"""The key of credential ids of one process, from `cache.key_file` or at random.

It is read at the start only: the ids of all credentials in memory would change with it.
"""

import hashlib
from collections.abc import Callable

from extender.errors import ConfigError
from extender.regular_files import read_file

KEY_BYTES = 32


def credential_key(file: str, token_bytes: Callable[[int], bytes]) -> bytes:
    """32 bytes by the content of the file; without a file those of a process whose ids nothing else needs to know.

    Raises:
        ConfigError: the file cannot be read, or has less than 32 bytes.
    """
    if not file:
        return token_bytes(KEY_BYTES)
    try:
        content = read_file(file)
    except OSError as exc:
        raise ConfigError(f"cache.key_file: {file}: {exc.strerror}; give a file of random bytes") from exc
    if len(content) < KEY_BYTES:
        raise ConfigError(f"cache.key_file: {file} holds {len(content)} bytes; {KEY_BYTES} or more are needed")
    return hashlib.sha256(content).digest()
