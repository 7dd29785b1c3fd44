"""Failed lookups: the failure that a pod's author is shown, and for how long it holds before the next attempt.

A failure says nothing about the image itself, so it never replaces known content.
"""

from collections.abc import Callable, Iterable
from typing import TypeVar

import msgspec

from extender.circuit_breaker import Backoff
from extender.credentials.keyring import CredentialId
from extender.errors import (
    AddressRefused,
    CertificateUntrusted,
    EndpointUnavailable,
    HostDenied,
    InnerAddress,
    InvalidManifest,
    InvalidReference,
    ManifestNotFound,
    NameUnresolved,
    PrivateAddress,
    RegistryDenied,
    RegistryNotAllowed,
    RegistryNotAsked,
    RegistryRefusedImage,
    RegistryThrottled,
    RegistryWithoutTls,
    UnsupportedManifest,
)
from extender.images.content import Cause, Failure
from extender.images.reference import PackedDigest
from extender.resolver.image_cache import Target
from extender.tables import ShareTable, declare_cache, text_cost

T = TypeVar("T")

# Constant sentences, so that no address reaches the pod's author, and of a registry's texts only why it refuses.
_SENTENCES = {
    Cause.MISSING: "its registry has no such image",
    Cause.DENIED: "its registry gives access with none of the credentials at hand",
    Cause.REFUSED: "its registry refuses to give it out, by a rule of its own",
    Cause.NOT_ALLOWED: "the nodes' files for registries have nobody ask for it",
    Cause.THROTTLED: "its registry has been asked too often and wants us to wait",
    Cause.UNAVAILABLE: "its registry cannot be reached or gives no proper answer",
    Cause.INVALID: "its registry's answer is no valid manifest",
    Cause.UNSUPPORTED: "no platform can be learned from a manifest of its kind",
    Cause.INVALID_REFERENCE: "its name is no image reference that can be pulled",
}
_SETTINGS: dict[type[BaseException], str] = {
    RegistryNotAllowed: "registry.allow does not name its registry",
    HostDenied: "registry.deny names its registry, or a host to which that leads",
    InnerAddress: "its registry, or a host to which that leads, is at an address that registry.allow has to name",
    PrivateAddress: "its registry, or a host to which that leads, is private, and registry.private_addresses is false",
    RegistryWithoutTls: "its registry does not speak TLS with us; registry.plain_http names those of plain HTTP",
    CertificateUntrusted: "its registry's certificate is not trusted; registry.ca_files gives its authority",
}
"""What a setting of the operator's can change. It names no host, as that may be one to which the registry leads."""
ENDED = Failure(Cause.LOOKING_UP, "its lookup was ended before it came to anything")
DENIED = Failure(Cause.DENIED, _SENTENCES[Cause.DENIED])
THROTTLED = Failure(Cause.THROTTLED, _SENTENCES[Cause.THROTTLED])
UNAVAILABLE = Failure(Cause.UNAVAILABLE, _SENTENCES[Cause.UNAVAILABLE])
PARTLY_ASKED = Failure(Cause.UNAVAILABLE, "a mirror or registry that may have it cannot be reached or gives no answer")
UNREAD = Failure(Cause.UNAVAILABLE, "a pull secret or provider that may have credentials for it cannot be read now")
_CAUSES: dict[type[BaseException], Cause] = {
    ManifestNotFound: Cause.MISSING,
    RegistryDenied: Cause.DENIED,
    RegistryRefusedImage: Cause.REFUSED,
    AddressRefused: Cause.NOT_ALLOWED,
    RegistryThrottled: Cause.THROTTLED,
    InvalidManifest: Cause.INVALID,
    UnsupportedManifest: Cause.UNSUPPORTED,
    InvalidReference: Cause.INVALID_REFERENCE,
}

# A corrected secret has a new credential id, and therefore no failures.
_LIFETIMES_SECONDS = {
    Cause.DENIED: 300.0,
    Cause.REFUSED: 300.0,
    Cause.NOT_ALLOWED: 300.0,
    Cause.INVALID: 3600.0,
    Cause.UNSUPPORTED: 3600.0,
    Cause.INVALID_REFERENCE: 3600.0,
}
BACKOFF = Backoff(first_seconds=10.0, max_seconds=300.0)
_RETRY_AFTER_SECONDS = 30.0
_NOT_ASKED_SECONDS = 2.0  # no host is to blame, and none is asked: a fetcher is back within seconds
# A tag is often pushed after its pod is created, and a pod is pending for half a minute: so the first retries are soon.
_SOON_MISSING_SECONDS, _SOON_TIMES, _MISSING_SECONDS = 5.0, 12, 60.0

# Causes after which the next credential is tried, as the kubelet does; the one that tells most stands last. "No such
# image" is one, since some registries answer so when a login has no access. So is *unavailable* where one of several
# endpoints has answered.
_TELLING = (Cause.DENIED, Cause.MISSING, Cause.REFUSED, Cause.UNAVAILABLE)


FEWEST_FAILURES = 1_000
_FAILURES = declare_cache("resolver.failures.failures", key="repository, tag or digest, credential id", most_mb=3)


class _Row(msgspec.Struct, frozen=True, gc=False):
    failure: Failure
    until: float
    in_a_row: int
    owner: str


class Failures:
    """The last failure of each (repository, tag or digest, credential id), for at most `size` of them.

    A tenant whose names keep failing evicts its own failures before those of others.
    """

    def __init__(self, size: int, clock: Callable[[], float], random: Callable[[], float]) -> None:
        self._rows: ShareTable[tuple[str, PackedDigest, CredentialId], _Row] = ShareTable(
            _FAILURES.bound(size), owner_of=lambda _, row: row.owner, cost_of=lambda key, _: text_cost(key[0], key[1])
        )
        self._clock = clock
        self._random = random

    def __len__(self) -> int:
        """How many failures are kept, including those that no longer hold."""
        return len(self._rows)

    def current(self, target: Target, credential_id: CredentialId) -> Failure | None:
        """The failure while it holds; None if there is none or a retry is due."""
        row = self._rows.get((target.repository, target.name, credential_id))
        return row.failure if row and self._clock() < row.until else None

    def remember(self, target: Target, credential_id: CredentialId, error: Exception, owner: str = "") -> Failure:
        """Records and returns the failure for `error`, which holds from now on.

        The number of equal failures in a row determines for how long; see `lifetime_seconds`. `owner` is the tenant
        whose lookup failed.
        """
        key = (target.repository, target.name, credential_id)
        failure = failure_of(error)
        before = self._rows.get(key)
        in_a_row = 1 + (before.in_a_row if before and before.failure == failure else 0)
        until = self._clock() + lifetime_seconds(error, in_a_row, self._random)
        self._rows.put(key, _Row(failure, until, in_a_row, owner))
        return failure

    def forget(self, target: Target, credential_id: CredentialId) -> None:
        """Removes the failure after a success, so that the next one is the first in a row."""
        self._rows.remove((target.repository, target.name, credential_id))


def failure_of(error: Exception) -> Failure:
    """The failure that the pod's author is shown for `error`; *unavailable* for errors without a cause of their own."""
    cause = next((_CAUSES[kind] for kind in type(error).__mro__ if kind in _CAUSES), Cause.UNAVAILABLE)
    match error:
        case RegistryRefusedImage():
            if not error.said:
                return Failure(cause, f"{_SENTENCES[cause]} (HTTP {error.status})")
            return Failure(cause, f"its registry refuses it (HTTP {error.status}), and says: {error.said}")
        case EndpointUnavailable():
            return PARTLY_ASKED
        case NameUnresolved():
            return Failure(cause, "its registry's name does not resolve, or not in time")
        case RegistryNotAsked():
            return Failure(cause, "its registry was not asked, since no connection was free in time")
        case _:
            return Failure(cause, _SETTINGS.get(type(error), _SENTENCES[cause]))


def lifetime_seconds(error: Exception, in_a_row: int, random: Callable[[], float]) -> float:
    """How long the failure for `error` holds when it is the `in_a_row`-th equal one, counted from 1.

    *Unavailable* and *throttled* follow `Backoff`: 10 s doubling to 300 s, or the registry's Retry-After. *Missing*
    holds for 5 s, and for 60 s from the thirteenth on. What was not asked for, for want of something of ours, is asked
    for again after 2 s each time. The other causes have constant lifetimes.
    """
    if isinstance(error, RegistryNotAsked) and not isinstance(error, NameUnresolved):
        return _NOT_ASKED_SECONDS
    cause = failure_of(error).cause
    if cause is Cause.MISSING:
        return _SOON_MISSING_SECONDS if in_a_row <= _SOON_TIMES else _MISSING_SECONDS
    fixed = _LIFETIMES_SECONDS.get(cause)
    return BACKOFF.seconds(in_a_row, random, retry_after_seconds(error)) if fixed is None else fixed


def retry_after_seconds(error: Exception) -> float | None:
    """For how long the registry is not asked, by its Retry-After or since it rests; None if nobody has said that.

    After a 429 without a time it is 30 s.
    """
    stated: float | None = getattr(error, "retry_after_seconds", None)
    return _RETRY_AFTER_SECONDS if stated is None and isinstance(error, RegistryThrottled) else stated


def depends_on_credential(failure: Failure) -> bool:
    """Whether the image may be had with another credential."""
    return failure == PARTLY_ASKED or failure.cause in _TELLING[:-1]


def summary(failures: Iterable[Failure | None]) -> Failure | None:
    """The one failure for a list of credentials from the failure of each, in order; None if one has no failure.

    It is the first failure that another credential would not change. Else it is the first *unavailable*, since nobody
    knows what that endpoint has, else the first *refused*, else the first *missing*, since a login with access knows
    best. Else it is *denied*.
    """
    result = DENIED
    for failure in failures:
        if failure is None or not depends_on_credential(failure):
            return failure
        if _TELLING.index(failure.cause) > _TELLING.index(result.cause):
            result = failure
    return result


def judged(outcome: T, *, is_unread: bool) -> T | Failure:
    """The outcome for all credentials, which is `UNREAD` if the keyring may lack one that works."""
    return UNREAD if is_unread and isinstance(outcome, Failure) and depends_on_credential(outcome) else outcome
