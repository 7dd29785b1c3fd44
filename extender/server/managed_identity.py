"""What the webhook shows and trusts when it looks after that itself: authority, certificate and path token, and when
each of them is replaced.

Nothing is taken away before its successor is known to all: replicas and API servers have `SETTLE` for each step. This
file decides; `service/self_managed.py` reads and writes.
"""

import secrets
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

import msgspec

from extender.server.authority import (
    InvalidCertificate,
    KeyPair,
    expires_at,
    fits,
    is_issued_by,
    issue_certificate,
    make_authority,
    names_of,
    renew_at,
    split_bundle,
)

SETTLE = timedelta(seconds=30)
"""After this, every replica has read a change, and every API server the webhook's configuration that followed it."""

_AUTHORITY_NAME = "multiarch-extender webhook"
_TOKEN_BYTES = 32


class IdentityLifetimes(msgspec.Struct, frozen=True, kw_only=True):
    """How long a new authority, certificate and token are good; the first two are replaced at two thirds of it."""

    authority: timedelta
    certificate: timedelta
    token: timedelta


class ManagedIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """What the replicas share.

    `authorities` are trusted, the newest first; it signs with `authority_key`. `tokens` are accepted, the newest first.
    The times are those of the last change of each.
    """

    authorities: tuple[bytes, ...]
    authority_key: bytes
    authorities_changed_at: datetime
    serving: KeyPair
    serving_changed_at: datetime
    tokens: tuple[str, ...]
    tokens_changed_at: datetime

    def __repr__(self) -> str:
        """Leaves keys and tokens out, so that they reach no log or traceback."""
        return f"ManagedIdentity(serving={self.serving!r}, authorities={len(self.authorities)})"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        """As `__repr__`."""
        return [("serving", self.serving), ("authorities", len(self.authorities))]

    @property
    def bundle(self) -> bytes:
        """The authorities as PEM, for a `caBundle`."""
        return b"".join(self.authorities)

    def token_at(self, now: datetime) -> str:
        """The token for the webhook's configuration: the newest that every replica accepts."""
        is_settled = len(self.tokens) == 1 or now >= self.tokens_changed_at + SETTLE
        return self.tokens[0] if is_settled else self.tokens[1]


def new_identity(names: Sequence[str], lifetimes: IdentityLifetimes, now: datetime) -> ManagedIdentity:
    """An identity for a server with these DNS names and IP addresses."""
    authority = make_authority(_AUTHORITY_NAME, now, lifetimes.authority)
    return ManagedIdentity(
        authorities=(authority.certificate,),
        authority_key=authority.key,
        authorities_changed_at=now,
        serving=issue_certificate(authority, names, now, lifetimes.certificate),
        serving_changed_at=now,
        tokens=(_new_token(),),
        tokens_changed_at=now,
    )


def renew(
    identity: ManagedIdentity, names: Sequence[str], lifetimes: IdentityLifetimes, now: datetime
) -> ManagedIdentity:
    """The identity with the changes that are due; the same object if none is. At most one step of each kind.

    The parts fit together, as `check` makes sure.
    """
    for step in (_renew_authorities, _renew_certificate, _renew_tokens):
        identity = step(identity, names, lifetimes, now)
    return identity


def check(identity: ManagedIdentity) -> None:
    """Raises InvalidCertificate if the parts do not fit together, or there is none of one."""
    if not identity.authorities or not identity.tokens:
        raise InvalidCertificate("there is no authority or no token")
    if not fits(KeyPair(identity.authorities[0], identity.authority_key)):
        raise InvalidCertificate("the authority's key is that of another certificate")
    if not fits(identity.serving):
        raise InvalidCertificate("the server's key is that of another certificate")
    if not any(is_issued_by(identity.serving.certificate, authority) for authority in identity.authorities):
        raise InvalidCertificate("the server's certificate is of an authority that is not here")


def _renew_authorities(
    identity: ManagedIdentity, _names: Sequence[str], lifetimes: IdentityLifetimes, now: datetime
) -> ManagedIdentity:
    """Adds a new authority, or takes away those that the serving certificate does not need any more."""
    newest = identity.authorities[0]
    if now >= renew_at(newest):
        authority = make_authority(_AUTHORITY_NAME, now, lifetimes.authority)
        return msgspec.structs.replace(
            identity,
            authorities=(authority.certificate, *identity.authorities),
            authority_key=authority.key,
            authorities_changed_at=now,
        )
    is_replaced = is_issued_by(identity.serving.certificate, newest) and now >= identity.serving_changed_at + SETTLE
    if len(identity.authorities) > 1 and is_replaced:
        return msgspec.structs.replace(identity, authorities=(newest,), authorities_changed_at=now)
    return identity


def _renew_certificate(
    identity: ManagedIdentity, names: Sequence[str], lifetimes: IdentityLifetimes, now: datetime
) -> ManagedIdentity:
    """Issues a new certificate where it is due, is for other names, or is of an older authority.

    A new authority signs once it is trusted everywhere. A certificate that has ended is replaced at once: nobody
    accepts it.
    """
    present = identity.serving.certificate
    is_settled = now >= identity.authorities_changed_at + SETTLE or len(identity.authorities) == 1
    is_old = not is_issued_by(present, identity.authorities[0])
    is_due = now >= renew_at(present) or names_of(present) != frozenset(names) or is_old
    if not is_due or not (is_settled or now >= expires_at(present)):
        return identity
    authority = KeyPair(identity.authorities[0], identity.authority_key)
    serving = issue_certificate(authority, names, now, lifetimes.certificate)
    return msgspec.structs.replace(identity, serving=serving, serving_changed_at=now)


def _renew_tokens(
    identity: ManagedIdentity, _names: Sequence[str], lifetimes: IdentityLifetimes, now: datetime
) -> ManagedIdentity:
    """Adds a new token, or takes the older ones away once the API servers have been told the new one."""
    if len(identity.tokens) > 1 and now >= identity.tokens_changed_at + 3 * SETTLE:
        return msgspec.structs.replace(identity, tokens=identity.tokens[:1])
    if now >= identity.tokens_changed_at + max(lifetimes.token, 3 * SETTLE):
        tokens = (_new_token(), identity.tokens[0])
        return msgspec.structs.replace(identity, tokens=tokens, tokens_changed_at=now)
    return identity


def _new_token() -> str:
    """Of digits and lower-case letters: the API server takes no others in the path of a webhook's Service."""
    return secrets.token_hex(_TOKEN_BYTES)


# The Secret's keys. Those of the certificate are the ones of a Secret of type kubernetes.io/tls.
_CERTIFICATE, _KEY, _AUTHORITIES, _AUTHORITY_KEY = "tls.crt", "tls.key", "ca.crt", "ca.key"
_TOKENS, _CHANGES = "tokens", "changed-at"


class _Changes(msgspec.Struct, frozen=True):
    authorities: datetime
    serving: datetime
    tokens: datetime


def to_secret_data(identity: ManagedIdentity) -> dict[str, bytes]:
    """The identity as the data of a Secret, before its base64."""
    changes = _Changes(
        identity.authorities_changed_at.astimezone(UTC),
        identity.serving_changed_at.astimezone(UTC),
        identity.tokens_changed_at.astimezone(UTC),
    )
    return {
        _CERTIFICATE: identity.serving.certificate,
        _KEY: identity.serving.key,
        _AUTHORITIES: identity.bundle,
        _AUTHORITY_KEY: identity.authority_key,
        _TOKENS: "".join(f"{token}\n" for token in identity.tokens).encode(),
        _CHANGES: msgspec.json.encode(changes),
    }


def is_ours(data: Mapping[str, bytes]) -> bool:
    """Whether a Secret with this data was written by this file, however damaged it is now."""
    return _CHANGES in data and _AUTHORITY_KEY in data


def from_secret_data(data: Mapping[str, bytes]) -> ManagedIdentity:
    """The identity in the data of a Secret. Raises InvalidCertificate if a part is missing or cannot be read."""
    missing = {_CERTIFICATE, _KEY, _AUTHORITIES, _AUTHORITY_KEY, _TOKENS, _CHANGES} - data.keys()
    if missing:
        raise InvalidCertificate(f"the Secret has no {', '.join(sorted(missing))}")
    try:
        changes = msgspec.json.decode(data[_CHANGES], type=_Changes)
        tokens = tuple(data[_TOKENS].decode("ascii").split())
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise InvalidCertificate(f"the Secret's {_CHANGES} or {_TOKENS} cannot be read: {exc}") from exc
    identity = ManagedIdentity(
        authorities=split_bundle(data[_AUTHORITIES]),
        authority_key=data[_AUTHORITY_KEY],
        authorities_changed_at=changes.authorities,
        serving=KeyPair(data[_CERTIFICATE], data[_KEY]),
        serving_changed_at=changes.serving,
        tokens=tokens,
        tokens_changed_at=changes.tokens,
    )
    check(identity)
    return identity
