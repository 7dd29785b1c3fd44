"""The webhook's own certificate, which is its own trust anchor: X.509 in PEM, and what replaces it when.

The API server trusts it by the `caBundle` of the webhook's configuration, which lists the present certificate and the
next one. The next one is made at half of the present one's life, and served from two thirds of it.
Specification: RFC 5280; what Go's TLS client checks is in crypto/x509, which accepts a server's certificate that is
among the roots.
"""

import contextlib
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from fractions import Fraction

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from extender.certificates.server_names import as_address

SETTLE = timedelta(minutes=2)
"""Until a certificate has this age, replicas and API servers may not know it. All do after twice this time."""
_MADE_AT, _SERVED_AT = Fraction(1, 2), Fraction(2, 3)  # of the present certificate's life: when the next one is
_BEFORE = timedelta(minutes=5)  # clocks of API servers may be behind ours by this much
_NAME = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "multiarch-extender webhook")])


class InvalidCertificate(ValueError):
    """A certificate or key cannot be read, or they do not fit together; the message says which."""


class KeyPair(msgspec.Struct, frozen=True):
    """A certificate and its private key, both PEM."""

    certificate: bytes
    key: bytes

    def __repr__(self) -> str:
        """Leaves the key out, so that it reaches no log or traceback."""
        return f"KeyPair(certificate={self.certificate!r})"


class OwnCertificates(msgspec.Struct, frozen=True):
    """What the replicas share: the present certificate and the next one, None if it is not made yet."""

    present: KeyPair
    next: KeyPair | None = None

    @property
    def bundle(self) -> bytes:
        """What the API server has to trust, as PEM."""
        return self.present.certificate + (self.next.certificate if self.next else b"")

    def served(self, names: Collection[str], now: datetime, *, published: bool) -> KeyPair:
        """The certificate to serve. `published`: the API server trusts `bundle`, and has had time to take notice."""
        if self.next is None or not is_valid(self.next.certificate, now):
            return self.present
        may_change = published or not is_valid(self.present.certificate, now)
        return self.next if may_change and self._is_over(names, now, SETTLE) else self.present

    def renewed(self, names: Collection[str], lifetime: timedelta, now: datetime) -> "OwnCertificates":
        """With a new next certificate if that is due, and without those that nobody accepts now; else the same object.

        A certificate that is not valid yet was made by a clock that was ahead.
        """
        valid = [each for each in (self.present, self.next) if each and is_valid(each.certificate, now)]
        if not valid:
            return OwnCertificates(make_certificate(names, now, lifetime))
        if len(valid) < 1 + (self.next is not None):
            return OwnCertificates(*valid).renewed(names, lifetime, now)
        latest = valid[-1]
        if now < _at(latest, _MADE_AT) and _is_for(latest, names):
            return self
        following = make_certificate(names, now, lifetime)
        return OwnCertificates(latest if self._is_over(names, now, 2 * SETTLE) else self.present, following)

    def _is_over(self, names: Collection[str], now: datetime, age: timedelta) -> bool:
        """Whether the next certificate is to be served; while the present one is valid, from that age on."""
        if not is_valid(self.present.certificate, now):
            return True
        if self.next is None or now < _made_at(self.next) + age:
            return False
        return now >= _at(self.present, _SERVED_AT) or not _is_for(self.present, names)


# The Secret's keys. The first two are those of a Secret of type kubernetes.io/tls.
_CERTIFICATE, _KEY, _NEXT_CERTIFICATE, _NEXT_KEY = "tls.crt", "tls.key", "next.crt", "next.key"
_OWNER = {"owner": b"multiarch-extender"}


def to_secret_data(own: OwnCertificates) -> dict[str, bytes | None]:
    """What to write into the Secret by a merge patch, before its base64; None removes a key."""
    data: dict[str, bytes | None] = {_CERTIFICATE: own.present.certificate, _KEY: own.present.key, **_OWNER}
    data[_NEXT_CERTIFICATE] = own.next.certificate if own.next else None
    data[_NEXT_KEY] = own.next.key if own.next else None
    return data


def is_ours(data: Mapping[str, bytes]) -> bool:
    """Whether a Secret with this data was written by the service, however damaged it is now."""
    return _OWNER.items() <= dict(data).items()


def from_secret_data(data: Mapping[str, bytes]) -> OwnCertificates:
    """The certificates in the data of a Secret. Raises InvalidCertificate if the present one cannot be read."""
    missing = {_CERTIFICATE, _KEY} - data.keys()
    if missing:
        raise InvalidCertificate(f"the Secret has no {', '.join(sorted(missing))}")
    present = _checked(KeyPair(data[_CERTIFICATE], data[_KEY]))
    return OwnCertificates(present, _next_in(data))


def _next_in(data: Mapping[str, bytes]) -> KeyPair | None:
    """The next certificate; None if it is damaged or there is none."""
    with contextlib.suppress(InvalidCertificate):
        return _checked(KeyPair(data.get(_NEXT_CERTIFICATE, b""), data.get(_NEXT_KEY, b"")))
    return None


def make_certificate(names: Collection[str], now: datetime, lifetime: timedelta) -> KeyPair:
    """Returns a new certificate with a P-256 key for a server with these DNS names and IP addresses.

    It has signed itself and signs nothing else.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    usage = dict.fromkeys(
        ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "key_cert_sign", "crl_sign",
         "encipher_only", "decipher_only"), False,
    )  # fmt: skip
    certificate = (
        x509.CertificateBuilder()
        .subject_name(_NAME)
        .issuer_name(_NAME)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now.astimezone(UTC) - _BEFORE)
        .not_valid_after(now.astimezone(UTC) + lifetime)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.KeyUsage(digital_signature=True, **usage), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(_general_names(names)), critical=False)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return KeyPair(_pem_of(certificate), secret)


def expires_at(certificate: bytes) -> datetime:
    """When the certificate ends. Raises InvalidCertificate."""
    return _read(certificate).not_valid_after_utc


def is_valid(certificate: bytes, now: datetime) -> bool:
    """Whether the certificate has begun and has not ended. Raises InvalidCertificate."""
    read = _read(certificate)
    return read.not_valid_before_utc <= now < read.not_valid_after_utc


def names_of(certificate: bytes) -> frozenset[str]:
    """The DNS names and IP addresses that a server certificate is for. Raises InvalidCertificate."""
    try:
        found = _read(certificate).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return frozenset()
    addresses = map(str, found.get_values_for_type(x509.IPAddress))
    return frozenset((*found.get_values_for_type(x509.DNSName), *addresses))


def is_issued_by(certificate: bytes, authority: bytes) -> bool:
    """Whether the authority has signed the certificate. Raises InvalidCertificate."""
    try:
        _read(certificate).verify_directly_issued_by(_read(authority))
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def split_bundle(bundle: bytes) -> tuple[bytes, ...]:
    """Returns the certificates of a bundle, each as PEM of its own. Raises InvalidCertificate."""
    if not bundle.strip():
        return ()
    try:
        return tuple(map(_pem_of, x509.load_pem_x509_certificates(bundle)))
    except ValueError as exc:
        raise InvalidCertificate(f"the authorities are no PEM certificates: {exc}") from exc


def _made_at(pair: KeyPair) -> datetime:
    return _read(pair.certificate).not_valid_before_utc + _BEFORE


def _at(pair: KeyPair, fraction: Fraction) -> datetime:
    """When this fraction of the certificate's life is over."""
    began = _made_at(pair)
    return began + (expires_at(pair.certificate) - began) * fraction.numerator / fraction.denominator


def _is_for(pair: KeyPair, names: Collection[str]) -> bool:
    """Whether the certificate is for all these names. Others may be there, so that replicas need not agree."""
    return names_of(pair.certificate) >= set(names)


def _general_names(names: Iterable[str]) -> list[x509.GeneralName]:
    addresses = {name: as_address(name) for name in names}
    return [x509.IPAddress(address) if address else x509.DNSName(name) for name, address in addresses.items()]


def _pem_of(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _read(certificate: bytes) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(certificate)
    except ValueError as exc:
        raise InvalidCertificate(f"it is no PEM certificate: {exc}") from exc


def _checked(pair: KeyPair) -> KeyPair:
    """The pair. Raises InvalidCertificate if the key is not the certificate's."""
    try:
        key = serialization.load_pem_private_key(pair.key, password=None)
    except (ValueError, TypeError) as exc:
        raise InvalidCertificate("it is no private key in PEM without a password") from exc
    if _read(pair.certificate).public_key() != key.public_key():
        raise InvalidCertificate("the key is that of another certificate")
    return pair
