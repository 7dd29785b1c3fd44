"""The Secret of an installation whose certificate an authority of its own has signed."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from extender.certificates.server_names import as_address


def authority_secret(names: Sequence[str], now: datetime, lifetime: timedelta) -> dict[str, bytes]:
    key, leaf_key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority, leaf = _name("multiarch-extender webhook"), _name(names[0][:64])
    sans = [x509.IPAddress(ip_address(name)) if as_address(name) else x509.DNSName(name) for name in names]
    root = (
        _builder(authority, authority, key, now, 8 * lifetime)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate = (
        _builder(leaf, authority, leaf_key, now, lifetime)
        .add_extension(x509.SubjectAlternativeName(sans), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return {
        "tls.crt": certificate.public_bytes(serialization.Encoding.PEM),
        "tls.key": _pem(leaf_key),
        "ca.crt": root.public_bytes(serialization.Encoding.PEM),
        "ca.key": _pem(key),
        "owner": b"multiarch-extender",
    }


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime, lifetime: timedelta
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + lifetime)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
