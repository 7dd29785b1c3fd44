"""Tokens that distribution accepts: JSON Web Tokens signed by a key whose certificate its configuration trusts."""

import base64
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import trustme
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from testbed.faulty_registry import GuardedRegistry

SERVICE, ISSUER = "debian", "desk"
_LIFE_SECONDS = 300


class TokenIssuer:
    """Signs tokens for a registry that is configured with `auth` (distribution: docs/spec/auth/jwt.md)."""

    def __init__(self, folder: Path, realm: str) -> None:
        authority = trustme.CA()
        leaf = authority.issue_cert("desk.example")
        key = serialization.load_pem_private_key(leaf.private_key_pem.bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        self._key = key
        certificate = x509.load_pem_x509_certificate(leaf.cert_chain_pems[0].bytes())
        self._certificate = base64.b64encode(certificate.public_bytes(serialization.Encoding.DER)).decode()
        authority.cert_pem.write_to_path(str(folder / "authority.pem"))
        trusted = str(folder / "authority.pem")
        self.auth = {"token": {"realm": realm, "service": SERVICE, "issuer": ISSUER, "rootcertbundle": trusted}}

    def issue(self, repository: str, actions: Sequence[str]) -> str:
        now = int(time.time())
        header = {"typ": "JWT", "alg": "ES256", "x5c": [self._certificate]}
        access = [{"type": "repository", "name": repository, "actions": actions}]
        times = {"exp": now + _LIFE_SECONDS, "nbf": now - 10, "iat": now}
        claims = {"iss": ISSUER, "sub": "", "aud": SERVICE, "jti": "1", "access": access} | times
        signed = b".".join((_pack(msgspec.json.encode(header)), _pack(msgspec.json.encode(claims))))
        r, s = decode_dss_signature(self._key.sign(signed, ec.ECDSA(hashes.SHA256())))
        return b".".join((signed, _pack(r.to_bytes(32) + s.to_bytes(32)))).decode()


class TokenDesk(GuardedRegistry):
    """Issues tokens for another registry: each login may pull one repository."""

    def __init__(self, **pulls: str) -> None:
        """`pulls` maps each login to the repository that it may pull."""
        super().__init__(*pulls)
        self.pulls = pulls
        self.issuer: TokenIssuer | None = None
        self.token_fault = self._issue

    async def _issue(self, request: web.BaseRequest) -> web.StreamResponse | None:
        login = self.desk[-1][1]
        if self.issuer is None or login not in self.pulls:
            return None
        return web.json_response({"token": self.issuer.issue(self.pulls[login], ["pull"]), "expires_in": _LIFE_SECONDS})


def _pack(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")
