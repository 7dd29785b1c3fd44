"""The identity that a cloud gives our pod, turned into credentials for that cloud's registries: Google and Azure.

Knows the clouds' token endpoints and the variables by which they tell a pod where those are. Amazon's, which wants
requests signed, is in `aws.py`. No library of theirs: it is two or three plain requests each.
"""

import asyncio
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import aiohttp
import msgspec

from extender.credentials.logins import Login
from extender.credentials.providers import CredentialsUnavailable, ProvidedCredentials
from extender.kubernetes.credential_provider_v1 import CacheKeyType

_TIMEOUT_SECONDS = 10.0
_MAX_BODY_BYTES = 1 << 20
_SPARE_SECONDS = 60.0  # no token is kept so long that it could expire on its way
_GOOGLE_PATTERNS = ("gcr.io", "*.gcr.io", "*-docker.pkg.dev")
_GOOGLE_HOST = re.compile(r"gcr\.io|[a-z0-9-]+\.gcr\.io|[a-z0-9-]+-docker\.pkg\.dev", re.ASCII)
_AZURE_HOST = re.compile(r"[a-z0-9-]+\.azurecr\.(io|cn|us)", re.ASCII)
_AZURE_AUDIENCES = {
    "io": "https://containerregistry.azure.net",
    "cn": "https://management.chinacloudapi.cn",
    "us": "https://management.usgovcloudapi.net",
}
# What Azure wants to see as the name beside a refresh token.
_AZURE_USERNAME = "00000000-0000-0000-0000-000000000000"
_AZURE_KEEP_SECONDS = 3600.0  # a refresh token of a registry is good for three hours

T = TypeVar("T")


class _GoogleToken(msgspec.Struct):
    access_token: str
    expires_in: float


class _AzureToken(msgspec.Struct):
    access_token: str


class _RegistryToken(msgspec.Struct):
    refresh_token: str


_GOOGLE = msgspec.json.Decoder(_GoogleToken)
_AZURE = msgspec.json.Decoder(_AzureToken, strict=False)
_REGISTRY = msgspec.json.Decoder(_RegistryToken)


class GoogleProvider:
    """Container Registry and Artifact Registry, by the workload identity that the metadata server vouches for."""

    source = "gcp"
    name = "gcp"
    principal = "workload identity"

    def __init__(self, session: aiohttp.ClientSession, environment: Mapping[str, str]) -> None:
        """`session` must let link-local addresses be reached: the metadata server has one."""
        self._session = session
        host = environment.get("GCE_METADATA_HOST") or "metadata.google.internal"
        self._url = f"http://{host}/computeMetadata/v1/instance/service-accounts/default/token"

    def serves(self, repository: str) -> bool:
        """Whether Google answers at the repository's host."""
        return _GOOGLE_HOST.fullmatch(repository.partition("/")[0]) is not None

    async def provide(self, repository: str) -> ProvidedCredentials:
        """An access token, which is good for all of Google's registries.

        Raises:
            CredentialsUnavailable: the metadata server gives none.
        """
        del repository
        body = await ask(self._session, "GET", self._url, headers={"Metadata-Flavor": "Google"})
        token = decode(_GOOGLE, body, "the metadata server")
        logins = tuple(Login(pattern, "oauth2accesstoken", token.access_token) for pattern in _GOOGLE_PATTERNS)
        return ProvidedCredentials(logins, token.expires_in - _SPARE_SECONDS, CacheKeyType.GLOBAL)


class AzureProvider:
    """Container registries of Azure, by the workload identity whose token is mounted into our pod."""

    source = "acr"
    name = "acr"

    def __init__(self, session: aiohttp.ClientSession, environment: Mapping[str, str]) -> None:
        """The variables are those that Azure's workload identity webhook sets."""
        self._session = session
        self._client = environment.get("AZURE_CLIENT_ID", "")
        self._tenant = environment.get("AZURE_TENANT_ID", "")
        self._token_file = environment.get("AZURE_FEDERATED_TOKEN_FILE", "")
        self._authority = environment.get("AZURE_AUTHORITY_HOST") or "https://login.microsoftonline.com/"
        self.principal = f"{self._tenant} {self._client}"

    def serves(self, repository: str) -> bool:
        """Whether Azure answers at the repository's host."""
        return _AZURE_HOST.fullmatch(repository.partition("/")[0]) is not None

    async def provide(self, repository: str) -> ProvidedCredentials:
        """A refresh token of the repository's registry, for which our federated token is exchanged twice.

        Raises:
            CredentialsUnavailable: there is no workload identity, or it is not accepted.
        """
        host = repository.partition("/")[0]
        form = {
            "grant_type": "access_token",
            "service": host,
            "tenant": self._tenant,
            "access_token": await self._access_token(host),
        }
        body = await ask(self._session, "POST", f"https://{host}/oauth2/exchange", form=form)
        token = decode(_REGISTRY, body, host).refresh_token
        return ProvidedCredentials((Login(host, _AZURE_USERNAME, token),), _AZURE_KEEP_SECONDS)

    async def _access_token(self, host: str) -> str:
        if not (self._client and self._tenant and self._token_file):
            raise CredentialsUnavailable("AZURE_CLIENT_ID, AZURE_TENANT_ID and AZURE_FEDERATED_TOKEN_FILE are not set")
        form = {
            "grant_type": "client_credentials",
            "client_id": self._client,
            "scope": f"{_AZURE_AUDIENCES[host.rpartition('.')[2]]}/.default",
            "client_assertion_type": "urn:ietf:params:oauth:client-assertion-type:jwt-bearer",
            "client_assertion": await read_token(self._token_file),
        }
        url = f"{self._authority.rstrip('/')}/{self._tenant}/oauth2/v2.0/token"
        return decode(_AZURE, await ask(self._session, "POST", url, form=form), "Microsoft Entra").access_token


async def ask(
    session: aiohttp.ClientSession,
    method: str,
    url: str,
    *,
    headers: Mapping[str, str] | None = None,
    form: Mapping[str, str] | None = None,
    body: bytes | None = None,
) -> bytes:
    """The body of a 200; no redirect is followed.

    Raises:
        CredentialsUnavailable: another status, no connection, no answer in time, or more than 1 MiB.
    """
    host = url.partition("://")[2].partition("/")[0]
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_SECONDS)
    try:
        async with session.request(
            method, url, headers=headers, data=body if form is None else form, timeout=timeout, allow_redirects=False
        ) as response:
            if response.status != 200:
                raise CredentialsUnavailable(f"{host} answered {response.status}")
            received = await response.content.read(_MAX_BODY_BYTES + 1)
            while len(received) <= _MAX_BODY_BYTES and (more := await response.content.read(_MAX_BODY_BYTES)):
                received += more
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as exc:
        raise CredentialsUnavailable(f"{host} cannot be reached: {type(exc).__name__}") from None
    if len(received) > _MAX_BODY_BYTES:
        raise CredentialsUnavailable(f"{host} answered more than {_MAX_BODY_BYTES} bytes")
    return received


def decode(decoder: "msgspec.json.Decoder[T]", body: bytes, host: str) -> T:
    """The document, or CredentialsUnavailable without a word of it."""
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise CredentialsUnavailable(f"{host} gave no token") from None


async def read_token(path: str) -> str:
    """The token in a mounted file, which is renewed there while we run. Raises CredentialsUnavailable."""
    try:
        return (await asyncio.to_thread(Path(path).read_text, "utf-8")).strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise CredentialsUnavailable(f"{path} cannot be read: {type(exc).__name__}") from None
