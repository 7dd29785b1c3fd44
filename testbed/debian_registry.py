"""Runs Debian's docker-registry (distribution 2.8.2) as a process and pushes images to it.

Nothing is installed: the package is unpacked into the cache folder, once.
"""

import base64
import re
from pathlib import Path
from ssl import SSLContext
from types import TracebackType
from typing import Any, Self
from urllib.parse import urljoin
from urllib.request import Request, urlopen

import msgspec

from extender.images.reference import digest_of
from testbed.debian_package import find_package
from testbed.images import Bundle
from testbed.processes import Process

_PACKAGE = "docker-registry"
_READY_SECONDS, _END_SECONDS = 30.0, 10.0
_LISTENING = re.compile(rb'"listening on (?P<host>127\.0\.0\.1:\d+)')


def find_docker_registry() -> Path:
    """Returns the path of the docker-registry program. Raises ProgramMissing."""
    return find_package(_PACKAGE) / "usr" / "bin" / _PACKAGE


class DebianRegistry:
    """`with DebianRegistry(program, folder) as registry:` runs a real registry at `registry.host` until the end.

    It keeps images in memory. `http`, `auth` and `proxy` are sections of its configuration file (distribution:
    docs/configuration.md), for TLS, for authentication, and to make it a pull-through cache of another registry.
    """

    def __init__(
        self,
        program: Path,
        folder: Path,
        *,
        http: dict[str, Any] | None = None,
        auth: dict[str, Any] | None = None,
        proxy: dict[str, Any] | None = None,
    ) -> None:
        self.host = ""
        self._scheme = "https" if http and "tls" in http else "http"
        self._command, self._log = [str(program), "serve", str(folder / "registry.yml")], folder / "registry.log"
        configuration = {
            "version": "0.1",
            "log": {"level": "info", "formatter": "json", "accesslog": {"disabled": True}},
            "storage": {"inmemory": {}, "delete": {"enabled": True}},
            "http": {"addr": "127.0.0.1:0"} | (http or {}),
        }
        configuration |= {name: section for name, section in (("auth", auth), ("proxy", proxy)) if section}
        (folder / "registry.yml").write_bytes(msgspec.yaml.encode(configuration))

    @property
    def url(self) -> str:
        """The base URL, without a slash at its end."""
        return f"{self._scheme}://{self.host}"

    def __enter__(self) -> Self:
        self._process = Process(_PACKAGE, self._command, self._log)
        self._process.wait_until(lambda: bool(_LISTENING.search(self._log.read_bytes())), _READY_SECONDS)
        found = _LISTENING.search(self._log.read_bytes())
        assert found
        self.host = found["host"].decode()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.stop(_END_SECONDS)

    def push(
        self,
        repository: str,
        tag: str,
        bundle: Bundle,
        *,
        tls: SSLContext | None = None,
        login: str = "",
        token: str = "",
    ) -> str:
        """Stores the image as `docker push` does, in the distribution-spec's three steps, and returns its digest.

        `login` is `name:password`; `token` is a Bearer token.
        """
        basic = f"Basic {base64.b64encode(login.encode()).decode()}" if login else ""
        authorization = f"Bearer {token}" if token else basic
        shown = {"Authorization": authorization} if authorization else {}
        base = f"{self.url}/v2/{repository}"
        for blob in bundle.blobs:
            location = _send("POST", f"{base}/blobs/uploads/", b"", shown, tls)
            parameters = f"{'&' if '?' in location else '?'}digest={digest_of(blob)}"
            octets = {"Content-Type": "application/octet-stream"}
            _send("PUT", urljoin(base, location) + parameters, blob, shown | octets, tls)
        for manifest in bundle.manifests:
            name = tag if manifest is bundle.manifests[-1] else manifest.digest
            _send("PUT", f"{base}/manifests/{name}", manifest.body, shown | {"Content-Type": manifest.media_type}, tls)
        return bundle.digest

    def delete(self, repository: str, digest: str) -> None:
        """Deletes a manifest, also one that an index lists."""
        _send("DELETE", f"{self.url}/v2/{repository}/manifests/{digest}", b"", {}, None)


def _send(method: str, url: str, body: bytes, headers: dict[str, str], tls: SSLContext | None) -> str:
    """Returns the Location header of the response to a request that must succeed."""
    with urlopen(Request(url, data=body, method=method, headers=headers), timeout=10, context=tls) as response:
        location: str = response.headers.get("Location", "")
        return location
