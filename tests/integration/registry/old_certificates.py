"""Certificates as old tools make them, which Go's clients take, and those of Python 3.13 do not by themselves."""

import datetime
from collections.abc import Callable
from ipaddress import ip_address
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

_BEGIN, _END = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC), datetime.datetime(2120, 1, 1, tzinfo=datetime.UTC)


class OldCertificates(NamedTuple):
    """An authority's certificate, and a server's with its key, as PEM."""

    authority: str
    server: str


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(name: str, issuer: str, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(_subject(name)).issuer_name(_subject(issuer)).public_key(key)
        .serial_number(x509.random_serial_number()).not_valid_before(_BEGIN).not_valid_after(_END)
    )  # fmt: skip


def _issue(*, is_critical: bool, has_usage: bool, has_key_ids: bool, is_root_named: bool) -> OldCertificates:
    key, own = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    issuer = "old authority" if is_root_named else "an authority above it"
    signer = key if is_root_named else ec.generate_private_key(ec.SECP256R1())
    authority = _builder("old authority", issuer, key.public_key())
    authority = authority.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=is_critical)
    if has_usage:
        usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
        authority = authority.add_extension(usage, critical=True)
    server = _builder("old server", "old authority", own.public_key())
    names = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1")), x509.DNSName("localhost")])
    server = server.add_extension(names, critical=False)
    if has_key_ids:
        authority = authority.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        named = x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())
        server = server.add_extension(named, critical=False)
    text = own.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    text += server.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)
    return OldCertificates(authority.sign(signer, hashes.SHA256()).public_bytes(Encoding.PEM).decode(), text.decode())


OLD: dict[str, Callable[[], OldCertificates]] = {
    "no key identifiers": lambda: _issue(is_critical=True, has_usage=True, has_key_ids=False, is_root_named=True),
    "constraints not critical": lambda: _issue(is_critical=False, has_usage=True, has_key_ids=True, is_root_named=True),
    "no key usage": lambda: _issue(is_critical=True, has_usage=False, has_key_ids=True, is_root_named=True),
    "intermediate alone": lambda: _issue(is_critical=True, has_usage=True, has_key_ids=True, is_root_named=False),
}
"""Makes certificates, by what is unusual about them."""
