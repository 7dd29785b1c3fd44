"""Failed lookups: for how long each holds before the next attempt.

A failure says nothing about the image itself, so it never replaces known content.
"""

from collections.abc import Callable, Sequence

import msgspec

from extender.circuit_breaker import FORGOTTEN_SECONDS, Backoff
from extender.credentials.keyring import CredentialId
from extender.images.content import Cause, Failure
from extender.images.reference import PackedDigest
from extender.resolver.image_cache import Target
from extender.tables import ShareTable, text_cost

# A corrected secret has a new credential id, and therefore no failures.
_LIFETIMES_SECONDS = {
    Cause.DENIED: 300.0,
    Cause.REFUSED: 300.0,
    Cause.NOT_ALLOWED: 300.0,
    Cause.INVALID: 3600.0,
    Cause.UNSUPPORTED: 3600.0,
    Cause.INVALID_REFERENCE: 3600.0,
}
_BACKOFF = Backoff(first_seconds=10.0, max_seconds=300.0)
# A tag is often pushed after its pod is created, and a pod is pending for half a minute: so the first retries are soon.
_SOON_MISSING_SECONDS, _SOON_TIMES, _MISSING_SECONDS = 5.0, 12, 60.0

FEWEST_FAILURES = 1_000
"""How many are kept in a small cache; 10,000 take 3 MB at most."""
_Key = tuple[str, PackedDigest, int]


class _Row(msgspec.Struct, frozen=True, gc=False):
    failure: Failure
    until: float
    in_a_row: int
    owner: str


class Failures:
    """The last failure of each (repository, tag or digest, credential ids), for at most `size` of them.

    A tenant whose names keep failing evicts its own failures before those of others.
    """

    def __init__(self, size: int, clock: Callable[[], float], random: Callable[[], float]) -> None:
        self._rows: ShareTable[_Key, _Row] = ShareTable(
            size, owner_of=lambda _, row: row.owner, cost_of=lambda key, _: text_cost(key[0], key[1])
        )
        self._clock = clock
        self._random = random

    def __len__(self) -> int:
        """How many failures are kept, including those that no longer hold."""
        return len(self._rows)

    def get(self, target: Target, credential_ids: Sequence[CredentialId]) -> Failure | None:
        """The failure while it holds; None if there is none or a retry is due."""
        row = self._rows.get(_key_of(target, credential_ids))
        return row.failure if row and self._clock() < row.until else None

    def put(
        self,
        target: Target,
        credential_ids: Sequence[CredentialId],
        failure: Failure,
        retry_after: float | None = None,
        owner: str = "",
    ) -> None:
        """Records the failure, which holds from now on: until `retry_after` if that is known, else by its cause.

        `owner` is the tenant whose lookup failed.
        """
        key, now = _key_of(target, credential_ids), self._clock()
        before = self._rows.get(key)
        in_a_row = 1
        if before and before.failure == failure and now - before.until < FORGOTTEN_SECONDS:
            in_a_row += before.in_a_row
        until = now + hold_seconds(failure, in_a_row, self._random, retry_after)
        self._rows.put(key, _Row(failure, until, in_a_row, owner))

    def remove(self, target: Target, credential_ids: Sequence[CredentialId]) -> None:
        """Removes the failure after a success, so that the next one is the first in a row."""
        self._rows.remove(_key_of(target, credential_ids))


def _key_of(target: Target, credential_ids: Sequence[CredentialId]) -> _Key:
    return target.repository, target.name, hash(tuple(credential_ids))  # of which a pod may have a thousand


def hold_seconds(
    failure: Failure, in_a_row: int, random: Callable[[], float], retry_after: float | None = None
) -> float:
    """How long the failure holds when it is the `in_a_row`-th equal one, counted from 1.

    Without a time that is known, *missing* holds for 5 s, and for 60 s from the thirteenth on. Other causes have
    constant lifetimes, and the rest follows `Backoff`: 10 s doubling to 300 s.
    """
    if retry_after is None and failure.cause is Cause.MISSING:
        return _SOON_MISSING_SECONDS if in_a_row <= _SOON_TIMES else _MISSING_SECONDS
    fixed = None if retry_after is not None else _LIFETIMES_SECONDS.get(failure.cause)
    return _BACKOFF.seconds(in_a_row, random, retry_after) if fixed is None else fixed
