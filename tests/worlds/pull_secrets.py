"""The logins that a kubelet tries for an image, from the pod's pull secrets.

It is written from kubernetes 1.36, pkg/credentialprovider/keyring.go and secrets/secrets.go. Limits: no node
configuration and no credential providers.
"""

import base64
import binascii
import fnmatch
import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

import msgspec

from tests.worlds.image_references import Reference

Json = dict[str, Any]

_DEFAULT_HOST = "index.docker.io"
_PORT = re.compile(r":\d+$")


def logins_for(reference: Reference, secrets: Iterable[Json]) -> list[str]:
    """Returns `user:password` of the entries that match the image, the more specific ones first.

    Raises ValueError: a secret is not to be read, and the kubelet pulls nothing with it.
    """
    logins: dict[str, list[str]] = {}
    for secret in secrets:
        for place, entry in _entries(secret).items():
            logins.setdefault(_key(place), []).append(_login(entry))
    target = f"{reference.host}/{reference.repository}"
    found = [login for key in sorted(logins, reverse=True) if _matches(key, target) for login in logins[key]]
    if not found and reference.host in ("docker.io", _DEFAULT_HOST):
        return logins.get(_DEFAULT_HOST, [])
    return found


def _entries(secret: Json) -> Json:
    data = secret.get("data") or {}
    for key, has_auths in ((".dockerconfigjson", True), (".dockercfg", False)):
        if text := data.get(key):
            found: Any = msgspec.json.decode(base64.b64decode(text))
            return ((found.get("auths") or {}) if has_auths else found) or {}
    return {}


def _login(entry: Json) -> str:
    if auth := entry.get("auth"):
        try:
            return base64.b64decode(auth + "=" * (-len(auth) % 4)).decode()
        except (binascii.Error, UnicodeDecodeError) as exc:
            raise ValueError("unable to parse auth field, must be formatted as base64(username:password)") from exc
    return f"{entry.get('username', '')}:{entry.get('password', '')}"


def _key(place: str) -> str:
    parts = urlsplit(place if place.startswith(("https://", "http://")) else f"https://{place}")
    path = parts.path[3:] if parts.path.startswith(("/v1/", "/v2/")) else parts.path
    return parts.netloc + ("" if path == "/" else path)


def _matches(key: str, target: str) -> bool:
    """URLsMatch: the port and the number of labels are the same, each label matches, and the path is a prefix."""
    (host, _, path), (other_host, _, other_path) = key.partition("/"), target.partition("/")
    port, other_port = _PORT.search(host), _PORT.search(other_host)
    if (port[0] if port else "") != (other_port[0] if other_port else ""):
        return False
    labels, others = (_PORT.sub("", each).split(".") for each in (host, other_host))
    if len(labels) != len(others) or not other_path.startswith(path):
        return False
    return all(fnmatch.fnmatchcase(other, label) for label, other in zip(labels, others, strict=True))
