"""Lookups that failed: what a person is told, and for how long the failure holds before anyone asks again.

Knows errors and lifetimes. A failure is no fact about the image, so it never replaces one.
"""

from collections.abc import Callable, Iterable

import msgspec

from extender.circuit_breaker import Backoff
from extender.credentials.keyring import CredentialId
from extender.errors import (
    AddressRefused,
    InvalidManifest,
    InvalidReference,
    ManifestNotFound,
    RegistryDenied,
    RegistryThrottled,
    UnsupportedManifest,
)
from extender.images.content import Cause, Failure
from extender.images.digest import PackedDigest
from extender.resolver.references import Target
from extender.tables import LruTable, declare_cache

# Constant sentences: nothing a registry wrote, and no address, reaches the pod's author through them.
_SENTENCES = {
    Cause.MISSING: "its registry has no such image",
    Cause.DENIED: "its registry gives access with none of the credentials at hand",
    Cause.NOT_ALLOWED: "the operator's rules keep us from its registry, or from where that registry leads",
    Cause.THROTTLED: "its registry has been asked too often and wants us to wait",
    Cause.UNAVAILABLE: "its registry cannot be reached or gives no proper answer",
    Cause.INVALID: "its registry's answer is no valid manifest",
    Cause.UNSUPPORTED: "no platform can be learned from a manifest of its kind",
    Cause.INVALID_REFERENCE: "its name is no image reference that can be pulled",
}
DENIED = Failure(Cause.DENIED, _SENTENCES[Cause.DENIED])
UNAVAILABLE = Failure(Cause.UNAVAILABLE, _SENTENCES[Cause.UNAVAILABLE])
_CAUSES: dict[type[BaseException], Cause] = {
    ManifestNotFound: Cause.MISSING,
    RegistryDenied: Cause.DENIED,
    AddressRefused: Cause.NOT_ALLOWED,
    RegistryThrottled: Cause.THROTTLED,
    InvalidManifest: Cause.INVALID,
    UnsupportedManifest: Cause.UNSUPPORTED,
    InvalidReference: Cause.INVALID_REFERENCE,
}

# A secret that is mended has a new credential id, and so no failures.
_LIFETIMES_SECONDS = {
    Cause.DENIED: 300.0,
    Cause.NOT_ALLOWED: 300.0,
    Cause.INVALID: 3600.0,
    Cause.UNSUPPORTED: 3600.0,
    Cause.INVALID_REFERENCE: 3600.0,
}
BACKOFF = Backoff(first_seconds=10.0, max_seconds=300.0)
_RETRY_AFTER_SECONDS = 30.0
# Tags are pushed after their pods quite often, and a pod is pending for half a minute: so at first we ask again soon.
_SOON_MISSING_SECONDS, _SOON_TIMES, _MISSING_SECONDS = 5.0, 12, 60.0

# What another credential may turn out differently. Like the kubelet we go on after "no such image" too, since some
# registries say so of what a login may not see.
NEXT_CREDENTIAL = frozenset({Cause.DENIED, Cause.MISSING})


FEWEST_FAILURES = 1_000
_FAILURES = declare_cache(
    "resolver.failures.failures",
    key="repository, tag or digest, credential id",
    lifetime=f"{_SOON_MISSING_SECONDS:g} s to {max(_LIFETIMES_SECONDS.values()):g} s",
    bound=f"a tenth of `cache.size`, {FEWEST_FAILURES:,} at least",
    invalidated_by="a lookup that succeeds",
)


class _Row(msgspec.Struct, frozen=True):
    failure: Failure
    until: float
    in_a_row: int


class Failures:
    """The last failure of each (repository, tag or digest, credential), of at most `size`."""

    def __init__(self, size: int, clock: Callable[[], float], random: Callable[[], float]) -> None:
        self._rows: LruTable[tuple[str, PackedDigest, CredentialId], _Row] = _FAILURES.lru_table(size)
        self._clock = clock
        self._random = random

    def __len__(self) -> int:
        """How many lookups last ended in failure, whether or not that still holds."""
        return len(self._rows)

    def current(self, target: Target, credential_id: CredentialId) -> Failure | None:
        """The failure while it holds, then None: it is time to ask again."""
        row = self._rows.peek((target.repository, target.name, credential_id))
        return row.failure if row and self._clock() < row.until else None

    def remember(self, target: Target, credential_id: CredentialId, error: Exception) -> Failure:
        """The failure that `error` means. It holds from now on; unavailability holds longer each time in a row."""
        key = (target.repository, target.name, credential_id)
        failure = failure_of(error)
        before = self._rows.peek(key)
        in_a_row = 1 + (before.in_a_row if before and before.failure == failure else 0)
        self._rows.put(key, _Row(failure, self._clock() + lifetime_seconds(error, in_a_row, self._random), in_a_row))
        return failure

    def forget(self, target: Target, credential_id: CredentialId) -> None:
        """The lookup succeeded: the next failure is the first in a row."""
        self._rows.remove((target.repository, target.name, credential_id))


def failure_of(error: Exception) -> Failure:
    """What the pod's author is told of `error`; whatever is not known here makes the registry unavailable."""
    cause = next((_CAUSES[kind] for kind in type(error).__mro__ if kind in _CAUSES), Cause.UNAVAILABLE)
    return Failure(cause, _SENTENCES[cause])


def lifetime_seconds(error: Exception, in_a_row: int, random: Callable[[], float]) -> float:
    """How long the failure holds that `error` means, when it is the `in_a_row`-th of its kind, counted from 1.

    Unavailable and throttled: as `Backoff` says, 10 s doubling to 300 s, or what the registry has named. Missing: 5 s,
    and 60 s from the thirteenth on.
    """
    cause = failure_of(error).cause
    if cause is Cause.MISSING:
        return _SOON_MISSING_SECONDS if in_a_row <= _SOON_TIMES else _MISSING_SECONDS
    fixed = _LIFETIMES_SECONDS.get(cause)
    return BACKOFF.seconds(in_a_row, random, retry_after_seconds(error)) if fixed is None else fixed


def retry_after_seconds(error: Exception) -> float | None:
    """How long a throttling registry wants us to wait, 30 s where it named no time; None if it does not throttle."""
    if not isinstance(error, RegistryThrottled):
        return None
    return _RETRY_AFTER_SECONDS if error.retry_after_seconds is None else error.retry_after_seconds


def summary(failures: Iterable[Failure | None]) -> Failure | None:
    """What the failures of a row of credentials, in order, come to; None if one that counts has none.

    The first that no other credential could turn out differently, else *missing* if any says so (a login that is let
    in knows best), else *denied*.
    """
    result = DENIED
    for failure in failures:
        if failure is None or failure.cause not in NEXT_CREDENTIAL:
            return failure
        if failure.cause is Cause.MISSING:
            result = failure
    return result
