"""When the authority and the certificate of a webhook are replaced, and by what.

Nothing is taken away before its successor is known to all: replicas and API servers have `SETTLE` for each step.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from extender.certificates.authority import (
    KeyPair,
    expires_at,
    is_issued_by,
    issue_certificate,
    issued_at,
    make_authority,
    names_of,
    renew_at,
)
from extender.certificates.managed_identity import AUTHORITY_NAME, ManagedIdentity

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
