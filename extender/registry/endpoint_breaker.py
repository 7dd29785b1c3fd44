"""The circuit breakers of mirrors: which endpoint is not asked for a while, for images of which registry.

A breaker belongs to an endpoint and the registry that it is asked for, since a registry that hangs makes a mirror hang
for its own images alone. A 429 belongs to the credential beside. A registry without mirrors has no breaker here.
"""

from collections.abc import Callable

import msgspec
import structlog

from extender.credentials.keyring import CredentialId
from extender.errors import RegistryThrottled, RegistryUnavailable
from extender.registry.endpoint import Endpoint
from extender.tables import LruTable

log = structlog.get_logger()

_FIRST_SECONDS, _MOST_SECONDS, _MOST_DOUBLINGS = 10.0, 300.0, 10
_MOST_BREAKERS = 1024  # with a mirror for all registries, every host that images name makes one

Key = tuple[str, str, CredentialId | None]


class _Breaker(msgspec.Struct):
    """Open until a time; then one attempt at a time is made, each of which opens it for as long as it may take."""

    failures: int
    opened_at: float
    open_until: float
    probe_began_at: float | None = None


class EndpointBreakers:
    """The breakers of endpoints that failed. Every other endpoint counts as one that has not failed."""

    def __init__(
        self,
        *,
        probe_seconds: float,
        clock: Callable[[], float],
        random: Callable[[], float],
        size: int = _MOST_BREAKERS,
    ) -> None:
        """Keeps at most `size` breakers. `clock` gives monotonic seconds, `random` numbers up to 1.

        An attempt that has no outcome after `probe_seconds` keeps nobody else from trying.
        """
        self._probe_seconds = probe_seconds
        self._clock = clock
        self._random = random
        self._rows: LruTable[Key, _Breaker] = LruTable(size)

    def admit(self, endpoint: Endpoint, credential_id: CredentialId) -> float:
        """Returns when the attempt that the caller may make now began.

        Raises:
            RegistryThrottled: the endpoint has told this credential to come back later.
            RegistryUnavailable: the endpoint has failed lately for images of this registry.
        """
        now = self._clock()
        rows = [(key, self._rows.get(key)) for key in _keys(endpoint, credential_id)]
        for key, row in rows:
            if row and now < row.open_until:
                words = f"{endpoint.name} has failed lately, and is asked again in {row.open_until - now:.0f} s"
                raise RegistryThrottled(words, row.open_until - now) if key[2] else RegistryUnavailable(words)
        for _, row in rows:
            if row:
                row.open_until, row.probe_began_at = now + self._probe_seconds, now
        return now

    def record_success(self, endpoint: Endpoint, credential_id: CredentialId, began_at: float) -> None:
        """Records that the endpoint has answered, which closes what opened before the attempt began."""
        for key in _keys(endpoint, credential_id):
            self._close(key, began_at)

    def record_failure(
        self,
        endpoint: Endpoint,
        credential_id: CredentialId,
        began_at: float,
        error: RegistryThrottled | RegistryUnavailable,
    ) -> None:
        """Records that the endpoint has failed the attempt. A 429 without a time backs off like any other failure."""
        of_endpoint, of_account = _keys(endpoint, credential_id)
        stated = None
        key = of_endpoint
        if isinstance(error, RegistryThrottled):
            self._close(of_endpoint, began_at)
            key, stated = of_account, error.retry_after_seconds
        row = self._rows.get(key)
        if row and began_at < row.opened_at and stated is None:
            return  # one of several under way when it opened
        failures = row.failures + 1 if row else 1
        seconds = self._seconds(failures, stated)
        now = self._clock()
        self._rows.put(key, _Breaker(failures, now, now + seconds))
        log.info("mirror.rested", registry=str(endpoint.root), of=endpoint.mirror_of, seconds=round(seconds, 1),
                 why=str(error))  # fmt: skip

    def release(self, endpoint: Endpoint, credential_id: CredentialId, began_at: float) -> None:
        """Lets others try at once if the attempt was the one that others waited for, and ended without an outcome."""
        for row in map(self._rows.get, _keys(endpoint, credential_id)):
            if row and row.probe_began_at == began_at:
                row.open_until = self._clock()

    def _close(self, key: Key, began_at: float) -> None:
        row = self._rows.get(key)
        if row and began_at >= row.opened_at:
            self._rows.remove(key)

    def _seconds(self, failures: int, stated: float | None) -> float:
        """The wait after so many failures in a row, a little shorter or, where one is stated, longer by chance."""
        if stated is not None:
            return stated * (1 + 0.1 * self._random())
        doubled = _FIRST_SECONDS * 2.0 ** min(failures - 1, _MOST_DOUBLINGS)
        return min(doubled, _MOST_SECONDS) * (1 - 0.2 * self._random())


def _keys(endpoint: Endpoint, credential_id: CredentialId) -> tuple[Key, Key]:
    """Returns the keys of the endpoint's breaker and of its credential's."""
    root = str(endpoint.root)
    return (root, endpoint.mirror_of, None), (root, endpoint.mirror_of, credential_id)
