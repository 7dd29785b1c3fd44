"""Reads pull secrets by name, and decodes the logins in their two types.

This file keeps, lists and watches no secrets, so the verb `get` on secrets is the only permission it needs.
"""

import base64
from collections.abc import Callable
from operator import attrgetter
from typing import TypeAlias

import msgspec
import structlog

from extender.cluster.client import ClusterClient, ClusterRefused
from extender.credentials.logins import (
    DecodedLogins,
    InvalidLogins,
    Login,
    decode_docker_config,
    decode_legacy_config,
)
from extender.errors import UNDECODABLE, ClusterError
from extender.kubernetes.core_v1 import Secret
from extender.kubernetes.meta_v1 import is_object_name

log = structlog.get_logger()

_TIMEOUT_SECONDS = 5.0
_MAX_BODY_BYTES = 2 << 20  # a secret's data may have 1 MiB, a third more in base64
# The limit for a Docker configuration. Real ones have some hundred bytes per registry, and thousands may be in memory.
_MAX_DOCUMENT_BYTES = 256 << 10
# Entries of a secret that are read, the first ones. Real secrets have a handful. Decoding these takes a millisecond.
_MOST_ENTRIES = 256

_DECODERS = {
    "kubernetes.io/dockerconfigjson": (attrgetter("docker_config_json"), decode_docker_config),
    "kubernetes.io/dockercfg": (attrgetter("docker_cfg"), decode_legacy_config),
}


_SECRET = msgspec.json.Decoder(Secret)

OnRefused: TypeAlias = Callable[[str, str, str], None]


class ClusterSecrets:
    """Reads pull secrets of one cluster."""

    def __init__(self, client: ClusterClient, on_refused: OnRefused | None = None) -> None:
        """`on_refused` is called with the namespace and the name of each secret that may not be read, and why."""
        self._client = client
        self._on_refused = on_refused
        self._is_refused = False

    async def read_logins(self, namespace: str, name: str) -> tuple[Login, ...]:
        """The logins in a secret; none if it does not exist, may not be read, or is not a pull secret.

        Logs once that secrets may not be read, and again only after a read has succeeded in between.

        Raises:
            InvalidLogins: it is a malformed pull secret.
            ClusterError: it could not be read this time.
        """
        body = await self._get(namespace, name)
        if body is None:
            return ()
        logins, left_out = _logins_in(body)
        if left_out:
            log.warning("secret.truncated", namespace=namespace, secret=name, kept=_MOST_ENTRIES, left_out=left_out)
        return logins

    async def _get(self, namespace: str, name: str) -> bytes | None:
        if not (is_object_name(namespace) and is_object_name(name)):
            return None
        path = f"/api/v1/namespaces/{namespace}/secrets/{name}"
        try:
            body = await self._client.get(path, timeout_seconds=_TIMEOUT_SECONDS, body_bytes=_MAX_BODY_BYTES)
        except ClusterRefused as exc:
            if exc.status not in (403, 404):
                raise
            if exc.status == 403:
                self._note(exc)
                if self._on_refused:
                    self._on_refused(namespace, name, str(exc))
            return None
        self._is_refused = False
        return body

    def _note(self, refusal: ClusterRefused) -> None:
        if not self._is_refused:
            log.warning("secret.refused", why=str(refusal), setting="registry.pull_secrets")
        self._is_refused = True


def _logins_in(body: bytes) -> DecodedLogins:
    """The logins in a secret, as the kubelet reads them: none if it has another type or lacks the type's key."""
    try:
        secret = _SECRET.decode(body)
    except UNDECODABLE:  # from None: the exception may quote the secret
        raise ClusterError("a secret came that is none of core/v1") from None
    read, decode = _DECODERS.get(secret.type or "", (None, None))
    packed = read(secret.data) if read and secret.data else None
    if decode is None or not packed:
        return DecodedLogins((), 0)
    if len(packed) > _MAX_DOCUMENT_BYTES // 3 * 4 + 4:
        raise InvalidLogins(f"it is longer than {_MAX_DOCUMENT_BYTES} bytes")
    try:
        document = base64.b64decode(packed, validate=True)
    except ValueError:
        raise InvalidLogins("its data is not base64") from None
    return decode(document, most=_MOST_ENTRIES)
