"""What the replicas share of a webhook's certificate, also as the data of a Secret, and when each part is replaced.

Nothing is taken away before its successor is known to all: replicas and API servers have `SETTLE` for each step.
`service/self_managed.py` reads and writes.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

import msgspec

from extender.certificates.authority import (
    InvalidCertificate,
    KeyPair,
    expires_at,
    fits,
    is_called,
    is_issued_by,
    issue_certificate,
    issued_at,
    make_authority,
    names_of,
    renew_at,
    split_bundle,
)

AUTHORITY_NAME = "multiarch-extender webhook"


class ManagedIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """What the replicas share.

    `authorities` are trusted, the newest first; it signs with `authority_key`.
    """

    authorities: tuple[bytes, ...]
    authority_key: bytes
    serving: KeyPair

    def __repr__(self) -> str:
        """Leaves the keys out, so that they reach no log or traceback."""
        return f"ManagedIdentity(serving={self.serving!r}, authorities={len(self.authorities)})"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        """As `__repr__`."""
        return [("serving", self.serving), ("authorities", len(self.authorities))]

    @property
    def bundle(self) -> bytes:
        """The authorities as PEM, for a `caBundle`."""
        return b"".join(self.authorities)


def check(identity: ManagedIdentity) -> None:
    """Raises InvalidCertificate if the parts do not fit together, or there is none of one."""
    if not identity.authorities:
        raise InvalidCertificate("there is no authority")
    if not is_called(identity.authorities[0], AUTHORITY_NAME):
        raise InvalidCertificate("the authority is not one of ours")
    if not fits(KeyPair(identity.authorities[0], identity.authority_key)):
        raise InvalidCertificate("the authority's key is that of another certificate")
    if not fits(identity.serving):
        raise InvalidCertificate("the server's key is that of another certificate")
    if not any(is_issued_by(identity.serving.certificate, authority) for authority in identity.authorities):
        raise InvalidCertificate("the server's certificate is of an authority that is not here")


# The Secret's keys. Those of the certificate are the ones of a Secret of type kubernetes.io/tls.
_CERTIFICATE, _KEY, _AUTHORITIES, _AUTHORITY_KEY = "tls.crt", "tls.key", "ca.crt", "ca.key"
_OWNER = {"owner": b"multiarch-extender"}


def to_secret_data(identity: ManagedIdentity) -> dict[str, bytes]:
    """The identity as the data of a Secret, before its base64."""
    return {
        _CERTIFICATE: identity.serving.certificate,
        _KEY: identity.serving.key,
        _AUTHORITIES: identity.bundle,
        _AUTHORITY_KEY: identity.authority_key,
        **_OWNER,
    }


def is_ours(data: Mapping[str, bytes]) -> bool:
    """Whether a Secret with this data was written by this file, however damaged it is now."""
    return _OWNER.items() <= dict(data).items()


def from_secret_data(data: Mapping[str, bytes]) -> ManagedIdentity:
    """The identity in the data of a Secret. Raises InvalidCertificate if a part is missing or cannot be read."""
    missing = {_CERTIFICATE, _KEY, _AUTHORITIES, _AUTHORITY_KEY} - data.keys()
    if missing:
        raise InvalidCertificate(f"the Secret has no {', '.join(sorted(missing))}")
    identity = ManagedIdentity(
        authorities=split_bundle(data[_AUTHORITIES]),
        authority_key=data[_AUTHORITY_KEY],
        serving=KeyPair(data[_CERTIFICATE], data[_KEY]),
    )
    check(identity)
    return identity


SETTLE = timedelta(seconds=30)
"""After this, every replica has read a change, and every API server the webhook's configuration that followed it."""


class IdentityLifetimes(msgspec.Struct, frozen=True, kw_only=True):
    """How long a new authority and certificate are good; each is replaced at two thirds of it."""

    authority: timedelta
    certificate: timedelta


def new_identity(names: Sequence[str], lifetimes: IdentityLifetimes, now: datetime) -> ManagedIdentity:
    """An identity for a server with these DNS names and IP addresses."""
    authority = make_authority(AUTHORITY_NAME, now, lifetimes.authority)
    return ManagedIdentity(
        authorities=(authority.certificate,),
        authority_key=authority.key,
        serving=issue_certificate(authority, names, now, lifetimes.certificate),
    )


def renew(
    identity: ManagedIdentity, names: Sequence[str], lifetimes: IdentityLifetimes, now: datetime
) -> ManagedIdentity:
    """The identity with the changes that are due; the same object if none is. At most one step of each kind.

    The parts fit together, as `check` makes sure.
    """
    for step in (_renew_authorities, _renew_certificate):
        identity = step(identity, names, lifetimes, now)
    return identity


def _renew_authorities(
    identity: ManagedIdentity, _names: Sequence[str], lifetimes: IdentityLifetimes, now: datetime
) -> ManagedIdentity:
    """Adds a new authority, or takes away those that the serving certificate does not need any more."""
    newest = identity.authorities[0]
    if now >= renew_at(newest):
        authority = make_authority(AUTHORITY_NAME, now, lifetimes.authority)
        return msgspec.structs.replace(
            identity,
            authorities=(authority.certificate, *identity.authorities),
            authority_key=authority.key,
        )
    is_replaced = (
        is_issued_by(identity.serving.certificate, newest) and now >= issued_at(identity.serving.certificate) + SETTLE
    )
    if len(identity.authorities) > 1 and is_replaced:
        return msgspec.structs.replace(identity, authorities=(newest,))
    return identity


def _renew_certificate(
    identity: ManagedIdentity, names: Sequence[str], lifetimes: IdentityLifetimes, now: datetime
) -> ManagedIdentity:
    """Issues a new certificate where it is due, is for other names, or is of an older authority.

    A new authority signs once it is trusted everywhere. A certificate that has ended is replaced at once: nobody
    accepts it.
    """
    present = identity.serving.certificate
    is_settled = now >= issued_at(identity.authorities[0]) + SETTLE or len(identity.authorities) == 1
    is_old = not is_issued_by(present, identity.authorities[0])
    is_due = now >= renew_at(present) or names_of(present) != frozenset(names) or is_old
    if not is_due or not (is_settled or now >= expires_at(present)):
        return identity
    authority = KeyPair(identity.authorities[0], identity.authority_key)
    serving = issue_certificate(authority, names, now, lifetimes.certificate)
    return msgspec.structs.replace(identity, serving=serving)
