"""The tokens by which a caller shows, in the path of a request, that it is the one that was told the path.

They come from a file. This process keeps hashes of them, and names in logs and errors the file and the line alone.
"""

import hashlib
import hmac
import re
from pathlib import Path

import structlog

from extender.errors import ConfigError
from extender.metrics import counter
from extender.watched_files import WatchedFiles

log = structlog.get_logger()

RELOADS = counter(
    "multiarch_admission_token_reloads_total",
    "Changes of the file of path tokens, by what became of them.",
    "outcome",
    ("loaded", "refused"),
)

# 192 bits in base64, and 128 in hexadecimal digits: out of reach for guesses over a network.
FEWEST_CHARACTERS = 32
_URL_SAFE = re.compile(rb"[A-Za-z0-9_-]+={0,2}")  # RFC 4648, section 5


class PathTokens:
    """The tokens of a file, one a line; blank lines count for nothing. Each of them is valid, so that they can rotate.

    `setting` is the file's setting, for messages.

    Raises:
        ConfigError: the file cannot be read, has no token, or has one that is too short or cannot stand in a path.
    """

    def __init__(self, setting: str, file: str) -> None:
        self._setting = setting
        self._file = file
        self.files = WatchedFiles.of_contents(
            [file], self._load, loaded=self._report_loaded, refused=self._report_refused
        )

    def accepts(self, token: str) -> bool:
        """Whether the token is one of the file's. The time this takes depends on no token's characters."""
        hashed = hashlib.sha256(token.encode(errors="replace")).digest()
        found = False
        for each in self.files.value:  # all of them, whichever is equal
            found |= hmac.compare_digest(each, hashed)
        return found

    def _report_loaded(self, hashes: tuple[bytes, ...]) -> None:
        RELOADS["loaded"].inc()
        log.info("tokens.reloaded", file=self._file, tokens=len(hashes))

    def _report_refused(self, why: str) -> None:
        RELOADS["refused"].inc()
        log.warning("tokens.refused", why=why)

    def _load(self) -> tuple[bytes, ...]:
        """The hashes of the file's tokens, without duplicates."""
        try:
            content = Path(self._file).read_bytes()
        except OSError as exc:
            raise ConfigError(f"{self._setting}: {self._file}: {exc.strerror}; give a file of tokens") from exc
        hashes = []
        for number, line in enumerate(content.splitlines(), 1):
            token = line.strip()
            if not token:
                continue
            if problem := _problem_of(token):
                raise ConfigError(f"{self._setting}: {self._file}, line {number}: the token {problem}")
            hashes.append(hashlib.sha256(token).digest())
        if not hashes:
            raise ConfigError(f"{self._setting}: {self._file} has no token; give one a line")
        return tuple(dict.fromkeys(hashes))


def _problem_of(token: bytes) -> str:
    """What is wrong with the token, in words that do not quote it; empty if nothing is."""
    if not _URL_SAFE.fullmatch(token):
        return "has a character that is not of URL-safe base64; give letters, digits, - and _ only"
    if len(token) < FEWEST_CHARACTERS:
        return f"has {len(token)} characters; give {FEWEST_CHARACTERS} or more"
    return ""
