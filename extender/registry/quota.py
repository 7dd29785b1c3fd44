"""The quotas of registries: how many requests each still allows, and when lookups leave the rest to the nodes.

Reads the RateLimit headers (Docker Hub's `76;w=21600`, and plain numbers as in the IETF's drafts). Sends no request.
"""

import re
from collections.abc import Callable, Mapping

import msgspec
import structlog
from yarl import URL

from extender.credentials.keyring import CredentialId
from extender.errors import QuotaReserved
from extender.images.reference import HUB
from extender.registry_metrics import QUOTA_LIMIT, QUOTA_NAMES, QUOTA_REMAINING, WITHHELD
from extender.tables import LruTable

log = structlog.get_logger()

_NUMBER = re.compile(r"\s*([0-9]{1,15})")
_WINDOW = re.compile(r";\s*w\s*=\s*([0-9]{1,15})")
_WINDOW_SECONDS = 60.0  # if the registry states none
_MOST_WAIT_SECONDS = 300.0
_RESERVE = 0.1  # of the limit, for the nodes: ten of the hundred pulls that Docker Hub allows an address
_OLD_SECONDS = 60.0
_MOST_READINGS = 1024


class _Reading(msgspec.Struct, frozen=True):
    """What a registry stated last."""

    limit: int
    remaining: int
    window_seconds: float
    at: float

    @property
    def is_low(self) -> bool:
        return self.remaining <= self.limit * _RESERVE


class Quotas:
    """The quotas that registries stated last, by origin and credential: each account and address has its own."""

    def __init__(self, *, clock: Callable[[], float], random: Callable[[], float]) -> None:
        """`clock` gives monotonic seconds, `random` numbers from 0 up to 1."""
        self._clock = clock
        self._random = random
        self._readings: LruTable[tuple[URL, CredentialId], _Reading] = LruTable(_MOST_READINGS)

    def note(self, name: str, origin: URL, credential_id: CredentialId, headers: Mapping[str, str]) -> None:
        """Records the quota in a response's headers; without them there is no limit. `name` is the registry's name."""
        key = (origin, credential_id)
        before, reading = self._readings.get(key), self._read(headers)
        if reading is None:
            self._readings.remove(key)
            if name == HUB:  # as for accounts that pay: it has answered, and states none
                self._readings.put(key, _Reading(0, 1, _WINDOW_SECONDS, self._clock()))
            return
        self._readings.put(key, reading)
        QUOTA_LIMIT[_label(name)].set(reading.limit)
        QUOTA_REMAINING[_label(name)].set(reading.remaining)
        if reading.is_low and not (before and before.is_low):
            log.warning("quota.ran_low", registry=name, limit=reading.limit, remaining=reading.remaining)

    def is_reserved(self, origin: URL, credential_id: CredentialId) -> bool:
        """Whether the rest of the quota is left to the nodes. Ignores a reading older than its window."""
        reading = self._readings.get((origin, credential_id))
        return reading is not None and reading.is_low and self._age_seconds(reading) < reading.window_seconds

    def is_old(self, name: str, origin: URL, credential_id: CredentialId) -> bool:
        """Whether there is a quota of which nothing was heard lately; `name` is the registry's name.

        Registries besides Docker Hub have none before they have stated one.
        """
        reading = self._readings.get((origin, credential_id))
        return name == HUB if reading is None else self._age_seconds(reading) >= _OLD_SECONDS

    def reservation_error(self, name: str, origin: URL, credential_id: CredentialId) -> QuotaReserved:
        """Counts a request that is not sent and returns its error, with a wait of at most six minutes."""
        WITHHELD[_label(name)].inc()
        reading = self._readings.get((origin, credential_id))
        window_seconds = reading.window_seconds if reading else _WINDOW_SECONDS
        seconds = min(window_seconds, _MOST_WAIT_SECONDS) * (1 + 0.2 * self._random())
        return QuotaReserved(f"{name} allows few more requests, which are left to nodes", seconds)

    def _read(self, headers: Mapping[str, str]) -> _Reading | None:
        """Returns the reading of the headers; None if they do not state the remaining requests.

        A missing limit is read as 0, so that nothing is reserved.
        """
        remaining = headers.get("RateLimit-Remaining", "")
        limit = headers.get("RateLimit-Limit", "")
        left, most = _NUMBER.match(remaining), _NUMBER.match(limit)
        if left is None:
            return None
        window = _WINDOW.search(remaining) or _WINDOW.search(limit)
        stated = window[1] if window else headers.get("RateLimit-Reset", "")
        seconds = float(stated) if re.fullmatch(r"[0-9]{1,15}", stated) else _WINDOW_SECONDS
        limit_stated = int(most[1]) if most else 0
        return _Reading(limit_stated, int(left[1]), max(seconds, 1.0), self._clock())

    def _age_seconds(self, reading: _Reading) -> float:
        return self._clock() - reading.at


def _label(name: str) -> str:
    return name if name in QUOTA_NAMES else "other"
