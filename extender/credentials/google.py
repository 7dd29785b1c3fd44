"""Credentials for Google's registries, from the identity that Google gives our pod.

Uses the metadata server's token endpoint, and the variable that names its host.
"""

import re

import msgspec

from extender.credential_sources import Cloud
from extender.credentials.cloud_api import CloudAccess, decode
from extender.credentials.credential_provider_v1 import CacheKeyType
from extender.credentials.logins import Login
from extender.credentials.providers import ProvidedCredentials

_SPARE_SECONDS = 60.0  # how long before its expiry a token is dropped, so that it does not expire on its way
_PATTERNS = ("gcr.io", "*.gcr.io", "*-docker.pkg.dev")
_HOST = re.compile(r"gcr\.io|[a-z0-9-]+\.gcr\.io|[a-z0-9-]+-docker\.pkg\.dev", re.ASCII)


class _Token(msgspec.Struct):
    access_token: str
    expires_in: float


_TOKEN = msgspec.json.Decoder(_Token)


class GoogleProvider:
    """Provides logins for Container Registry and Artifact Registry, from the metadata server's workload identity."""

    source = Cloud.GCP
    name = Cloud.GCP.value
    principal = "workload identity"

    def __init__(self, access: CloudAccess) -> None:
        """Reads GCE_METADATA_HOST, as Google's own libraries do."""
        self._access = access
        host = access.environment.get("GCE_METADATA_HOST") or "metadata.google.internal"
        self._url = f"http://{host}/computeMetadata/v1/instance/service-accounts/default/token"

    def serves(self, repository: str) -> bool:
        """Whether the repository's host is one of Google's registries."""
        return _HOST.fullmatch(repository.partition("/")[0]) is not None

    async def provide(self, repository: str) -> ProvidedCredentials:
        """Returns a login with an access token, which is valid for all of Google's registries.

        Raises:
            CredentialsUnavailable: the metadata server gives none.
        """
        del repository
        body = await self._access.ask("GET", self._url, headers={"Metadata-Flavor": "Google"})
        token = decode(_TOKEN, body, "the metadata server")
        logins = tuple(Login(pattern, "oauth2accesstoken", token.access_token) for pattern in _PATTERNS)
        return ProvidedCredentials(logins, token.expires_in - _SPARE_SECONDS, CacheKeyType.GLOBAL)
