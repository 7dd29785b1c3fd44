"""The files and answers of the kubelet's plugins."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from extender.credentials.logins import Login
from extender.credentials.providers import NamedSources, OperatorSource, SourcesFile
from extender.images.reference import ImageReference
from extender.watched_files import FileSetting, WatchedFiles
from testbed.clock import Clock

V1 = "credentialprovider.kubelet.k8s.io/v1"
_ECR = "*.dkr.ecr.*.amazonaws.com"


class FileKeyring:
    """What the sources of a file give, one after the other, as it is now."""

    def __init__(self, setting: FileSetting, path: str, read: Callable[[], NamedSources], clock: Clock) -> None:
        self._files = WatchedFiles.of(setting, [path], SourcesFile(read, clock=clock).load)

    @property
    def sources(self) -> Sequence[OperatorSource]:
        return self._files.value.sources

    async def load(self, reference: ImageReference) -> list[Login]:
        await self._files.refresh()
        return [each for source in self.sources for each in await source.load(reference)]


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
