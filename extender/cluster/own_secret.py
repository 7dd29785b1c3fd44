"""One Secret of the service's own, which its replicas share: read by all, written by their leader.

Needs the verbs get and patch on that Secret, and create on secrets in its namespace.
"""

import base64
import binascii
from collections.abc import Mapping

import msgspec

from extender.cluster.client import MERGE_PATCH, ClusterClient, ClusterRefused
from extender.errors import UNDECODABLE, ClusterError
from extender.kubernetes.core_v1 import OpaqueSecret


class SecretContent(msgspec.Struct, frozen=True):
    """The data of the Secret as it was read; `version` is its resourceVersion, empty if there is no such Secret."""

    data: Mapping[str, bytes]
    version: str

    def __repr__(self) -> str:
        """Leaves the data out, so that it reaches no log or traceback."""
        return f"SecretContent(version={self.version!r})"

    def __rich_repr__(self) -> list[tuple[str, str]]:
        """As `__repr__`."""
        return [("version", self.version)]


_SECRET = msgspec.json.Decoder(OpaqueSecret)
_TIMEOUT_SECONDS = 5.0


class OwnSecret:
    """The Secret `name` in `namespace`."""

    def __init__(self, client: ClusterClient, namespace: str, name: str) -> None:
        self._client = client
        self._name = name
        self._collection = f"/api/v1/namespaces/{namespace}/secrets"
        self._path = f"{self._collection}/{name}"

    async def read(self) -> SecretContent:
        """What the Secret has now. Raises ClusterError."""
        try:
            return _decode(await self._client.get(self._path, timeout_seconds=_TIMEOUT_SECONDS))
        except ClusterRefused as exc:
            if exc.status == 404:
                return SecretContent({}, "")
            raise

    async def write(self, data: Mapping[str, bytes], version: str) -> SecretContent:
        """Writes the data into the Secret that was read as `version`, or creates it. Returns what it has then.

        Raises:
            ClusterError: it was changed or created by another one meanwhile (a ClusterRefused of status 409), or could
                not be written.
        """
        document = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"resourceVersion": version} if version else {"name": self._name},
            "data": {key: base64.b64encode(value).decode() for key, value in data.items()},
        }
        body = msgspec.json.encode(document)
        if not version:
            return _decode(await self._client.send("POST", self._collection, body, timeout_seconds=_TIMEOUT_SECONDS))
        sent = self._client.send("PATCH", self._path, body, MERGE_PATCH, timeout_seconds=_TIMEOUT_SECONDS)
        return _decode(await sent)


def _decode(document: bytes) -> SecretContent:
    try:
        secret = _SECRET.decode(document)
        data = {key: base64.b64decode(value, validate=True) for key, value in (secret.data or {}).items()}
    except (*UNDECODABLE, binascii.Error):  # from None: it may quote it
        raise ClusterError("the API server's answer is no Secret") from None
    return SecretContent(data, secret.metadata.resource_version)
