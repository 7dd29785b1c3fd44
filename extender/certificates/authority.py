"""A certificate authority of our own, and the server certificates that it issues: X.509 in PEM, nothing else.

The API server trusts the authority by the `caBundle` of the webhook's configuration. `managed_identity.py` decides when
something new is made.
Specification: RFC 5280; what Go's TLS client checks is in crypto/x509.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

# Clocks of API servers may be behind ours by this much.
_BEFORE = timedelta(minutes=5)


class InvalidCertificate(ValueError):
    """A certificate or key cannot be read, or they do not fit together; the message says which."""


class KeyPair(msgspec.Struct, frozen=True):
    """A certificate and its private key, both PEM."""

    certificate: bytes
    key: bytes = msgspec.field(default=b"")

    def __repr__(self) -> str:
        """Leaves the key out, so that it reaches no log or traceback."""
        return f"KeyPair(certificate={self.certificate!r})"

    def __rich_repr__(self) -> list[tuple[str, bytes]]:
        """As `__repr__`."""
        return [("certificate", self.certificate)]


def make_authority(name: str, now: datetime, lifetime: timedelta) -> KeyPair:
    """Returns a new authority with a P-256 key, which signs server certificates only."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _subject(name)
    builder = (
        _builder(subject, subject, key.public_key(), now, lifetime)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
    )
    return KeyPair(_pem_of(builder.sign(key, hashes.SHA256())), _pem_of_key(key))


def issue_certificate(authority: KeyPair, names: Sequence[str], now: datetime, lifetime: timedelta) -> KeyPair:
    """Returns a new server certificate for these DNS names and IP addresses, which ends with the authority at latest.

    Raises:
        InvalidCertificate: the authority cannot be read.
    """
    issuer, issuer_key = _read(authority.certificate), _read_key(authority.key)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _subject(names[0][:64])
    lifetime = min(lifetime, issuer.not_valid_after_utc - now)
    builder = (
        _builder(subject, issuer.subject, key.public_key(), now, lifetime)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(list(map(_general_name, names))), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()),
            critical=False,
        )
    )
    return KeyPair(_pem_of(builder.sign(issuer_key, hashes.SHA256())), _pem_of_key(key))


def expires_at(certificate: bytes) -> datetime:
    """When the certificate ends. Raises InvalidCertificate."""
    return _read(certificate).not_valid_after_utc


def renew_at(certificate: bytes) -> datetime:
    """When two thirds of the certificate's life are over. Raises InvalidCertificate."""
    read = _read(certificate)
    return read.not_valid_before_utc + (read.not_valid_after_utc - read.not_valid_before_utc) * 2 / 3


def issued_at(certificate: bytes) -> datetime:
    """When the certificate was made here. Raises InvalidCertificate."""
    return _read(certificate).not_valid_before_utc + _BEFORE


def is_called(certificate: bytes, name: str) -> bool:
    """Whether the certificate's subject has this common name. Raises InvalidCertificate."""
    return _read(certificate).subject == _subject(name)


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


def fits(pair: KeyPair) -> bool:
    """Whether the key is the certificate's. Raises InvalidCertificate."""
    return _read(pair.certificate).public_key() == _read_key(pair.key).public_key()


def split_bundle(bundle: bytes) -> tuple[bytes, ...]:
    """Returns the certificates of a bundle, each as PEM of its own. Raises InvalidCertificate."""
    if not bundle.strip():
        return ()
    try:
        return tuple(map(_pem_of, x509.load_pem_x509_certificates(bundle)))
    except ValueError as exc:
        raise InvalidCertificate(f"the authorities are no PEM certificates: {exc}") from exc


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, lifetime: timedelta
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now.astimezone(UTC) - _BEFORE)
        .not_valid_after(now.astimezone(UTC) + lifetime)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem_of(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _pem_of_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _read(certificate: bytes) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(certificate)
    except ValueError as exc:
        raise InvalidCertificate(f"it is no PEM certificate: {exc}") from exc


def _read_key(key: bytes) -> ec.EllipticCurvePrivateKey:
    try:
        found = serialization.load_pem_private_key(key, password=None)
    except (ValueError, TypeError) as exc:
        raise InvalidCertificate("it is no private key in PEM without a password") from exc
    if not isinstance(found, ec.EllipticCurvePrivateKey):
        raise InvalidCertificate("the private key is of another kind than those made here")
    return found
