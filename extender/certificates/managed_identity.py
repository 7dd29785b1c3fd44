"""What the replicas share of a webhook's certificate: authorities, key and certificate, also as the data of a Secret.

`renewal.py` decides when each is replaced, and `service/self_managed.py` reads and writes.
"""

from collections.abc import Mapping

import msgspec

from extender.certificates.authority import (
    InvalidCertificate,
    KeyPair,
    fits,
    is_called,
    is_issued_by,
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
