"""Image references as kubelets and containerd read them.

It is written from distribution/reference (normalize.go) and the kubelet's ParseImageName. Limits: ASCII, no IPv6 hosts,
digests of sha256 alone.
"""

import re
from typing import NamedTuple

_PATH = re.compile(r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*)*", re.ASCII)
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::[0-9]+)?", re.ASCII)
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}", re.ASCII)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)


class Reference(NamedTuple):
    """A reference, normalised. What has neither tag nor digest means the tag `latest`."""

    host: str
    repository: str
    tag: str
    digest: str

    @property
    def name(self) -> str:
        """What a registry is asked for: the digest, if there is one."""
        return self.digest or self.tag

    def __str__(self) -> str:
        """As containerd keeps it: a digest stands without the tag."""
        return f"{self.host}/{self.repository}{'@' if self.digest else ':'}{self.name}"


def read_reference(text: str) -> Reference:
    """Reads a reference as it stands in a pod. Raises ValueError: nobody can pull it."""
    rest, _, digest = text.partition("@")
    first, slash, path = rest.partition("/")
    if slash and (first == "localhost" or "." in first or ":" in first or first != first.lower()):
        host = first
    else:
        host, path = "docker.io", rest
    path, colon, tag = path.partition(":")
    if host in ("docker.io", "index.docker.io"):
        host, path = "docker.io", path if "/" in path else f"library/{path}"
    is_whole = _HOST.fullmatch(host) and _PATH.fullmatch(path) and (not colon or _TAG.fullmatch(tag))
    if not is_whole or ("@" in text and not _DIGEST.fullmatch(digest)):
        raise ValueError(f'couldn\'t parse image name "{text}": invalid reference format')
    return Reference(host, path, tag or ("" if digest else "latest"), digest)
