"""A clock, a session, and the files and answers of the kubelet's plugins."""

import json
from pathlib import Path
from typing import Any

from tests.integration.registry.conftest import clock, session

__all__ = ["V1", "answer", "clock", "plugin", "session", "write"]

V1 = "credentialprovider.kubelet.k8s.io/v1"
_ECR = "*.dkr.ecr.*.amazonaws.com"


def answer(**fields: Any) -> str:
    response = {
        "kind": "CredentialProviderResponse", "apiVersion": V1, "cacheKeyType": "Registry", "cacheDuration": "1h",
        "auth": {_ECR: {"username": "AWS", "password": "hunter2"}},
    }  # fmt: skip
    return f"print({json.dumps(json.dumps(response | fields))})"


def plugin(name: str = "ecr", **fields: Any) -> dict[str, Any]:
    return {"name": name, "matchImages": [_ECR], "defaultCacheDuration": "12h", "apiVersion": V1} | fields


def write(folder: Path, *plugins: dict[str, Any], **fields: Any) -> str:
    path = folder / "providers.yaml"
    document = {"apiVersion": "kubelet.config.k8s.io/v1", "kind": "CredentialProviderConfig", "providers": plugins}
    path.write_text(json.dumps(document | fields))
    return str(path)
