"""A registry in this process: serves images from memory on loopback, as distribution serves them.

It implements the pull part of the distribution-spec and counts requests. A subclass may override `answer` to add
authentication, faults or delays.
"""

import asyncio
import re
import ssl
from collections import Counter
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import msgspec
from aiohttp import web

from extender.images.reference import digest_of
from testbed.images import DOCKER, OCI, Bundle, Family, Manifest, build_artifact, build_index, build_manifest

_PATH = re.compile(r"/v2/(?P<repository>.+)/(?P<kind>manifests|blobs)/(?P<name>[^/]+)")
_SHUTDOWN_SECONDS = 1.0  # for requests still in flight
_FIELD_BYTES = 128 << 10  # of a header: tokens may be long


class _IndexPlatform(msgspec.Struct, frozen=True):
    os: str = ""
    architecture: str = ""


class _IndexEntry(msgspec.Struct):
    digest: str
    platform: _IndexPlatform = _IndexPlatform()


class _Index(msgspec.Struct):
    manifests: list[_IndexEntry]


class EmbeddedRegistry:
    """A registry at `registry.host`, open within `async with EmbeddedRegistry() as registry:`.

    `requests` counts by method and kind: `registry.requests["GET manifests"]`, `["HEAD manifests"]`, `["GET blobs"]`.
    """

    def __init__(self, *, delay_seconds: float = 0.0, tls: ssl.SSLContext | None = None) -> None:
        """`delay_seconds` delays every answer, as a distant registry would."""
        self.requests: Counter[str] = Counter()
        self.delay_seconds = delay_seconds
        self._manifests: dict[tuple[str, str], Manifest] = {}
        self._blobs: dict[tuple[str, str], bytes] = {}
        self._port = 0
        self._tls = tls
        self._runner = web.ServerRunner(
            web.Server(self._serve, access_log=None, handler_cancellation=True, max_field_size=_FIELD_BYTES),
            shutdown_timeout=_SHUTDOWN_SECONDS,
        )

    @property
    def host(self) -> str:
        """`127.0.0.1:port`, as it stands in an image reference."""
        return f"127.0.0.1:{self._port}"

    @property
    def url(self) -> str:
        """The base address, without a slash at its end."""
        return f"{'https' if self._tls else 'http'}://{self.host}"

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=self._tls).start()
        self._port = self._runner.addresses[0][1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._runner.cleanup()

    def add_index(
        self, repository: str, tag: str, platforms: Sequence[str], *, attested: bool = False, family: Family = OCI
    ) -> str:
        """Adds a multi-arch image under this tag, `attested` with BuildKit's attestations. Returns its digest."""
        return self.add(repository, tag, build_index(platforms, attested=attested, family=family))

    def add_manifest(self, repository: str, tag: str, platform: str, *, family: Family = OCI) -> str:
        """Adds a single image under this tag. Returns its digest."""
        return self.add(repository, tag, build_manifest(platform, family))

    def add_artifact(self, repository: str, tag: str) -> str:
        """Adds a Helm chart under this tag. Returns its digest."""
        return self.add(repository, tag, build_artifact())

    def add(self, repository: str, tag: str, bundle: Bundle) -> str:
        """Adds any image under this tag, and all its parts by digest. Returns its digest."""
        for blob in bundle.blobs:
            self._blobs[repository, digest_of(blob)] = blob
        for manifest in bundle.manifests:
            self._manifests[repository, manifest.digest] = manifest
        self._manifests[repository, tag] = bundle.manifests[-1]
        return bundle.digest

    def remove(self, repository: str, name: str) -> None:
        """Removes the manifest with this tag or digest; other names of it stay."""
        del self._manifests[repository, name]

    def forget(self) -> None:
        """Resets the request counts to zero."""
        self.requests.clear()

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """The response to one request. Subclasses override it to give other responses."""
        found = _PATH.fullmatch(request.path)
        if request.method not in ("GET", "HEAD"):
            return _refuse(405, "UNSUPPORTED", "only GET and HEAD are served")
        if found is None:
            return (
                web.json_response({})
                if request.path in ("/v2", "/v2/")
                else _refuse(404, "UNSUPPORTED", "no such path")
            )
        if found["kind"] == "manifests":
            return self._answer_manifest(
                found["repository"], found["name"], ",".join(request.headers.getall("Accept", ()))
            )
        return self._answer_blob(found["repository"], found["name"])

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        found = _PATH.fullmatch(request.path)
        self.requests[f"{request.method} {found['kind'] if found else request.path}"] += 1
        if self.delay_seconds:
            await asyncio.sleep(self.delay_seconds)
        return await self.answer(request)

    def _answer_manifest(self, repository: str, name: str, accept: str) -> web.Response:
        manifest = self._manifests.get((repository, name))
        if manifest is None:
            return _refuse(404, "MANIFEST_UNKNOWN", "manifest unknown")
        accepted = {part.partition(";")[0].strip() for part in accept.split(",")}
        if manifest.media_type == DOCKER.index and DOCKER.index not in accepted and name != manifest.digest:
            return self._answer_manifest(repository, _default_child(manifest), f"{accept},{DOCKER.manifest}")
        if manifest.media_type in (OCI.index, OCI.manifest) and manifest.media_type not in accepted:
            return _refuse(404, "MANIFEST_UNKNOWN", "OCI document found, but accept header does not support it")
        headers = {"Docker-Content-Digest": manifest.digest, "ETag": f'"{manifest.digest}"'}
        return web.Response(body=manifest.body, content_type=manifest.media_type, headers=headers)

    def _answer_blob(self, repository: str, digest: str) -> web.Response:
        blob = self._blobs.get((repository, digest))
        if blob is None:
            return _refuse(404, "BLOB_UNKNOWN", "blob unknown to registry")
        headers = {"Docker-Content-Digest": digest}
        return web.Response(body=blob, content_type="application/octet-stream", headers=headers)


def _default_child(index: Manifest) -> str:
    """The child that distribution serves for a tag if the client does not accept an index: linux/amd64, if any."""
    entries = msgspec.json.decode(index.body, type=_Index).manifests
    wanted = (
        entry.digest for entry in entries if (entry.platform.os, entry.platform.architecture) == ("linux", "amd64")
    )
    return next(wanted, "")


def _refuse(status: int, code: str, message: str) -> web.Response:
    """An error in the format of the distribution-spec."""
    return web.json_response({"errors": [{"code": code, "message": message, "detail": None}]}, status=status)
