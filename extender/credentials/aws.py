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
import structlog

from extender.credential_sources import Cloud
from extender.credentials.cloud_api import CloudAccess, decode, read_token
from extender.credentials.logins import Login
from extender.credentials.providers import CredentialsUnavailable, ProvidedCredentials

log = structlog.get_logger()

# As in cloud-provider-aws (cmd/ecr-credential-provider/main.go), and the European Sovereign Cloud.
_HOST = re.compile(
    r"[0-9]{12}\.dkr[.-]ecr(?P<fips>-fips)?\.(?P<region>[a-zA-Z0-9][a-zA-Z0-9_-]*)\."
    r"(?:amazonaws\.com(?:\.cn)?|amazonaws\.eu|on\.(?:aws|amazonwebservices\.com\.cn)"
    r"|sc2s\.sgov\.gov|c2s\.ic\.gov|cloud\.adc-e\.uk|csp\.hci\.ic\.gov)",
    re.ASCII,
)
# The domains of Amazon's APIs, by how the regions of a partition begin (botocore, partitions.json).
_API_DOMAINS = {
    "cn-": "amazonaws.com.cn",
    "eusc-": "amazonaws.eu",
    "us-iso-": "c2s.ic.gov",
    "us-isob-": "sc2s.sgov.gov",
    "eu-isoe-": "cloud.adc-e.uk",
    "us-isof-": "csp.hci.ic.gov",
}
_TARGET = "AmazonEC2ContainerRegistry_V20150921.GetAuthorizationToken"
# ECR Public has one API, in one region.
_PUBLIC_HOST, _PUBLIC_REGION = "public.ecr.aws", "us-east-1"
_PUBLIC_TARGET = "SpencerFrontendService.GetAuthorizationToken"
_PUBLIC_RETRY_SECONDS = 600.0
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


class _PublicAuthorization(msgspec.Struct, rename="camel"):
    authorization_data: _Authorization


_CONTAINER_KEYS = msgspec.json.Decoder(_ContainerKeys)
_AUTHORIZATIONS = msgspec.json.Decoder(_Authorizations)
_PUBLIC_AUTHORIZATION = msgspec.json.Decoder(_PublicAuthorization)


class EcrProvider:
    """Provides logins for ECR and ECR Public, from the identity of our pod.

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
        """Whether the repository is in a private registry of ECR, or in ECR Public."""
        host = repository.partition("/")[0]
        return host == _PUBLIC_HOST or _HOST.fullmatch(host) is not None

    async def provide(self, repository: str) -> ProvidedCredentials:
        """Returns a login for the repository's registry, to be cached for half of its life of twelve hours.

        Raises:
            CredentialsUnavailable: we have no identity, or it is not accepted. ECR Public is then asked without one.
        """
        host = repository.partition("/")[0]
        if host == _PUBLIC_HOST:
            return await self._provide_public()
        found = _HOST.fullmatch(host)
        if found is None:
            return ProvidedCredentials((), 0.0)
        region = found["region"]
        service = "ecr-fips" if found["fips"] else "api.ecr"
        url = self._environment.get("AWS_ENDPOINT_URL_ECR") or f"https://{service}.{region}.{_api_domain(region)}"
        reply = decode(_AUTHORIZATIONS, await self._ask(url, _TARGET, region=region, service="ecr"), "ECR")
        if not reply.authorization_data:
            raise CredentialsUnavailable("ECR gave no token")
        return self._granted(host, reply.authorization_data[0])

    async def _provide_public(self) -> ProvidedCredentials:
        """Returns a login by which more requests are allowed; none without one, as everything there is public."""
        url = self._environment.get("AWS_ENDPOINT_URL_ECR_PUBLIC") or (
            f"https://api.ecr-public.{_PUBLIC_REGION}.{_api_domain(_PUBLIC_REGION)}"
        )
        try:
            body = await self._ask(url, _PUBLIC_TARGET, region=_PUBLIC_REGION, service="ecr-public")
            return self._granted(_PUBLIC_HOST, decode(_PUBLIC_AUTHORIZATION, body, "ECR Public").authorization_data)
        except CredentialsUnavailable as exc:
            log.info("provider.failed", provider=self.name, registry=_PUBLIC_HOST, why=str(exc))
            return ProvidedCredentials((), _PUBLIC_RETRY_SECONDS)

    async def _ask(self, url: str, target: str, *, region: str, service: str) -> bytes:
        body, url = b"{}", f"{url.rstrip('/')}/"
        headers = {"content-type": "application/x-amz-json-1.1", "x-amz-target": target}
        signed = sign(
            await self._keys(), "POST", url, headers, body,
            region=region, service=service, at=datetime.fromtimestamp(self._access.wall_clock(), UTC),
        )  # fmt: skip
        return await self._access.ask("POST", url, headers=signed, body=body)

    def _granted(self, host: str, granted: _Authorization) -> ProvidedCredentials:
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
        host = f"sts.{region}.{_api_domain(region)}" if region else "sts.amazonaws.com"
        form = {
            "Action": "AssumeRoleWithWebIdentity",
            "Version": "2011-06-15",
            "RoleArn": self._environment["AWS_ROLE_ARN"],
            "RoleSessionName": self._environment.get("AWS_ROLE_SESSION_NAME") or _SESSION_NAME,
            "WebIdentityToken": await read_token(self._environment["AWS_WEB_IDENTITY_TOKEN_FILE"]),
        }
        url = self._environment.get("AWS_ENDPOINT_URL_STS") or f"https://{host}"
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


def _api_domain(region: str) -> str:
    return next((domain for start, domain in _API_DOMAINS.items() if region.startswith(start)), "amazonaws.com")


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
