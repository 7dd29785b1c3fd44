"""Credentials for ECR, from the identity that Amazon gives our pod.

Implements signature version 4, the three ways in which a pod gets an identity, and one API call of ECR.
"""

import base64
import hashlib
import hmac
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from urllib.parse import quote, urlsplit

import msgspec

from extender.credential_sources import Cloud
from extender.credentials.cloud_api import CloudAccess, decode, read_token
from extender.credentials.logins import Login
from extender.credentials.providers import CredentialsUnavailable, ProvidedCredentials

# As in cloud-provider-aws (cmd/ecr-credential-provider/main.go), with regions as Amazon names them.
_HOST = re.compile(
    r"[0-9]{12}\.dkr[.-]ecr(?P<fips>-fips)?\.(?P<region>[a-z]{2,4}(?:-[a-z]+){1,3}-[0-9]{1,2})\."
    r"(?P<domain>amazonaws\.com(?:\.cn)?|on\.aws|on\.amazonwebservices\.com\.cn)",
    re.ASCII,
)
_TARGET = "AmazonEC2ContainerRegistry_V20150921.GetAuthorizationToken"
_SESSION_NAME = "multiarch-extender"
_FIELD = re.compile(r"<(AccessKeyId|SecretAccessKey|SessionToken)>\s*([^<\s]+)\s*</")


class AwsKeys(msgspec.Struct, frozen=True):
    """Keys that sign requests. Only keys that expire have a `token`."""

    access_key: str
    secret_key: str
    token: str = ""

    def __repr__(self) -> str:
        """Shows nothing of the keys."""
        return "AwsKeys(…)"

    def __rich_repr__(self) -> list[tuple[str, str]]:
        """As `__repr__`."""
        return []


class _ContainerKeys(msgspec.Struct, rename="pascal"):
    access_key_id: str
    secret_access_key: str
    token: str = ""


class _Authorization(msgspec.Struct, rename="camel"):
    authorization_token: str
    expires_at: float


class _Authorizations(msgspec.Struct, rename="camel"):
    authorization_data: tuple[_Authorization, ...]


_CONTAINER_KEYS = msgspec.json.Decoder(_ContainerKeys)
_AUTHORIZATIONS = msgspec.json.Decoder(_Authorizations)


class EcrProvider:
    """Provides logins for private registries of ECR, from the identity of our pod.

    The identity is the first of these: keys in the environment, a role of the ServiceAccount (IRSA), a pod identity.
    The node's own role is not used.
    """

    source = Cloud.ECR
    name = Cloud.ECR.value

    def __init__(self, access: CloudAccess) -> None:
        """Reads Amazon's own variables, AWS_ENDPOINT_URL_* included."""
        self._access = access
        self._environment = environment = access.environment
        self.principal = environment.get("AWS_ROLE_ARN") or environment.get("AWS_ACCESS_KEY_ID") or "pod identity"

    def serves(self, repository: str) -> bool:
        """Whether the repository is in a private registry of ECR."""
        return _HOST.fullmatch(repository.partition("/")[0]) is not None

    async def provide(self, repository: str) -> ProvidedCredentials:
        """Returns a login for the repository's registry, to be cached for half of its life of twelve hours.

        Raises:
            CredentialsUnavailable: we have no identity, or it is not accepted.
        """
        host = repository.partition("/")[0]
        found = _HOST.fullmatch(host)
        if found is None:
            return ProvidedCredentials((), 0.0)
        region, china = found["region"], ".cn" if found["domain"].endswith(".cn") else ""
        service = "ecr-fips" if found["fips"] else "api.ecr"
        url = self._environment.get("AWS_ENDPOINT_URL_ECR") or f"https://{service}.{region}.amazonaws.com{china}"
        body = b"{}"
        headers = {"content-type": "application/x-amz-json-1.1", "x-amz-target": _TARGET}
        signed = sign(
            await self._keys(), "POST", f"{url.rstrip('/')}/", headers, body,
            region=region, service="ecr", at=datetime.fromtimestamp(self._access.wall_clock(), UTC),
        )  # fmt: skip
        reply = decode(
            _AUTHORIZATIONS, await self._access.ask("POST", f"{url.rstrip('/')}/", headers=signed, body=body), "ECR"
        )
        if not reply.authorization_data:
            raise CredentialsUnavailable("ECR gave no token")
        granted = reply.authorization_data[0]
        keep_seconds = (granted.expires_at - self._access.wall_clock()) / 2
        return ProvidedCredentials((_login_of(host, granted.authorization_token),), keep_seconds)

    async def _keys(self) -> AwsKeys:
        given = self._environment
        if given.get("AWS_ACCESS_KEY_ID"):
            return AwsKeys(
                given["AWS_ACCESS_KEY_ID"], given.get("AWS_SECRET_ACCESS_KEY", ""), given.get("AWS_SESSION_TOKEN", "")
            )
        if given.get("AWS_WEB_IDENTITY_TOKEN_FILE") and given.get("AWS_ROLE_ARN"):
            return await self._role_keys()
        if given.get("AWS_CONTAINER_CREDENTIALS_FULL_URI"):
            return await self._container_keys()
        raise CredentialsUnavailable("no AWS identity is in the environment")

    async def _role_keys(self) -> AwsKeys:
        """Returns keys of the ServiceAccount's role, in exchange for its token. STS answers in XML."""
        region = self._environment.get("AWS_REGION") or self._environment.get("AWS_DEFAULT_REGION")
        host = f"sts.{region}.amazonaws.com" if region else "sts.amazonaws.com"
        china = ".cn" if region and region.startswith("cn-") else ""
        form = {
            "Action": "AssumeRoleWithWebIdentity",
            "Version": "2011-06-15",
            "RoleArn": self._environment["AWS_ROLE_ARN"],
            "RoleSessionName": self._environment.get("AWS_ROLE_SESSION_NAME") or _SESSION_NAME,
            "WebIdentityToken": await read_token(self._environment["AWS_WEB_IDENTITY_TOKEN_FILE"]),
        }
        url = self._environment.get("AWS_ENDPOINT_URL_STS") or f"https://{host}{china}"
        body = await self._access.ask("POST", f"{url.rstrip('/')}/", form=form)
        fields = dict(_FIELD.findall(body.decode(errors="replace")))
        try:
            return AwsKeys(fields["AccessKeyId"], fields["SecretAccessKey"], fields["SessionToken"])
        except KeyError:
            raise CredentialsUnavailable("STS gave no keys") from None

    async def _container_keys(self) -> AwsKeys:
        """Returns keys from the pod identity agent on the node."""
        file = self._environment.get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE")
        token = await read_token(file) if file else self._environment.get("AWS_CONTAINER_AUTHORIZATION_TOKEN", "")
        url = self._environment["AWS_CONTAINER_CREDENTIALS_FULL_URI"]
        body = await self._access.ask("GET", url, headers={"Authorization": token} if token else {})
        keys = decode(_CONTAINER_KEYS, body, "the pod identity agent")
        return AwsKeys(keys.access_key_id, keys.secret_access_key, keys.token)


def sign(
    keys: AwsKeys,
    method: str,
    url: str,
    headers: Mapping[str, str],
    body: bytes,
    *,
    region: str,
    service: str,
    at: datetime,
) -> dict[str, str]:
    """Returns the headers with signature version 4. `url` must have no query, and `headers` lower-case names.

    docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html
    """
    parts = urlsplit(url)
    moment = at.strftime("%Y%m%dT%H%M%SZ")
    stated = {**headers, "host": parts.netloc, "x-amz-date": moment}
    if keys.token:
        stated["x-amz-security-token"] = keys.token
    names = ";".join(sorted(stated))
    lines = [f"{name}:{' '.join(stated[name].split())}" for name in sorted(stated)]
    path = quote(parts.path or "/", safe="/-_.~")
    canonical = "\n".join([method, path, "", *lines, "", names, hashlib.sha256(body).hexdigest()])
    credential_id = f"{moment[:8]}/{region}/{service}/aws4_request"
    to_sign = f"AWS4-HMAC-SHA256\n{moment}\n{credential_id}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    key = f"AWS4{keys.secret_key}".encode()
    for step in credential_id.split("/"):
        key = _hmac(key, step)
    signature = _hmac(key, to_sign).hex()
    stated["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={keys.access_key}/{credential_id}, SignedHeaders={names}, Signature={signature}"
    )
    return stated


def _hmac(key: bytes, text: str) -> bytes:
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


def _login_of(host: str, token: str) -> Login:
    try:
        text = base64.b64decode(token, validate=True).decode()
    except ValueError:
        text = ""
    username, colon, password = text.partition(":")
    if not colon:
        raise CredentialsUnavailable("ECR gave no token")
    return Login(host, username, password)
