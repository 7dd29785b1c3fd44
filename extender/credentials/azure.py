"""Credentials for Azure's container registries, from the identity that Azure gives our pod.

Sends requests to Microsoft Entra and to the registry. Reads the variables that Azure's workload identity webhook sets.
"""

import re

import msgspec

from extender.credential_sources import Cloud
from extender.credentials.cloud_api import CloudAccess, decode, read_token
from extender.credentials.logins import Login
from extender.credentials.providers import CredentialsUnavailable, ProvidedCredentials

_HOST = re.compile(r"[a-z0-9-]+\.azurecr\.(io|cn|us)", re.ASCII)
_AUDIENCES = {
    "io": "https://containerregistry.azure.net",
    "cn": "https://management.chinacloudapi.cn",
    "us": "https://management.usgovcloudapi.net",
}
# The username that Azure requires with a refresh token.
_USERNAME = "00000000-0000-0000-0000-000000000000"
_KEEP_SECONDS = 3600.0  # a refresh token of a registry is valid for three hours


class _AccessToken(msgspec.Struct):
    access_token: str


class _RefreshToken(msgspec.Struct):
    refresh_token: str


_ACCESS_TOKEN = msgspec.json.Decoder(_AccessToken, strict=False)
_REFRESH_TOKEN = msgspec.json.Decoder(_RefreshToken)


class AzureProvider:
    """Provides logins for Azure's container registries, from the workload identity token mounted into our pod."""

    source = Cloud.ACR
    name = Cloud.ACR.value

    def __init__(self, access: CloudAccess) -> None:
        """Reads the variables that Azure's workload identity webhook sets."""
        environment = access.environment
        self._access = access
        self._client = environment.get("AZURE_CLIENT_ID", "")
        self._directory = environment.get("AZURE_TENANT_ID", "")
        self._token_file = environment.get("AZURE_FEDERATED_TOKEN_FILE", "")
        self._authority = environment.get("AZURE_AUTHORITY_HOST") or "https://login.microsoftonline.com/"
        self.principal = f"{self._directory} {self._client}"

    def serves(self, repository: str) -> bool:
        """Whether the repository's host is one of Azure's container registries."""
        return _HOST.fullmatch(repository.partition("/")[0]) is not None

    async def provide(self, repository: str) -> ProvidedCredentials:
        """Returns a refresh token of the repository's registry, for which two requests exchange our federated token.

        Raises:
            CredentialsUnavailable: there is no workload identity, or it is not accepted.
        """
        host = repository.partition("/")[0]
        form = {
            "grant_type": "access_token",
            "service": host,
            "tenant": self._directory,
            "access_token": await self._access_token(host),
        }
        body = await self._access.ask("POST", f"https://{host}/oauth2/exchange", form=form)
        token = decode(_REFRESH_TOKEN, body, host).refresh_token
        return ProvidedCredentials((Login(host, _USERNAME, token),), _KEEP_SECONDS)

    async def _access_token(self, host: str) -> str:
        if not (self._client and self._directory and self._token_file):
            raise CredentialsUnavailable("AZURE_CLIENT_ID, AZURE_TENANT_ID and AZURE_FEDERATED_TOKEN_FILE are not set")
        form = {
            "grant_type": "client_credentials",
            "client_id": self._client,
            "scope": f"{_AUDIENCES[host.rpartition('.')[2]]}/.default",
            "client_assertion_type": "urn:ietf:params:oauth:client-assertion-type:jwt-bearer",
            "client_assertion": await read_token(self._token_file),
        }
        url = f"{self._authority.rstrip('/')}/{self._directory}/oauth2/v2.0/token"
        return decode(_ACCESS_TOKEN, await self._access.ask("POST", url, form=form), "Microsoft Entra").access_token
