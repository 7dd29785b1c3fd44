"""Image references and digests: their grammar and defaults, exactly as the kubelet parses them.

The grammar and the domain split are those of github.com/distribution/reference (regexp.go, normalize.go). Digests
follow opencontainers/go-digest with sha384 and sha512 registered. The default tag is the kubelet's
(pkg/util/parsers): `latest` only if there is neither tag nor digest. This file checks grammar alone: port 99999 and
host `[:]` are grammatical, and fail when a client connects.
"""

import hashlib
import re

import msgspec

from extender.errors import InvalidReference
from extender.images.untrusted import quote

_HASHES = {"sha256": hashlib.sha256, "sha384": hashlib.sha384, "sha512": hashlib.sha512}
# opencontainers/go-digest: each algorithm has one length, in lower-case hex only.
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}|sha384:[0-9a-f]{96}|sha512:[0-9a-f]{128}", re.ASCII)


def is_digest(text: str) -> bool:
    """Whether `text` is a digest of a supported algorithm, with the right length and in lower case."""
    return _DIGEST.fullmatch(text) is not None


def hash_for(digest: str) -> "hashlib._Hash":
    """A new hash of the algorithm of a valid digest, for content that comes in parts."""
    return _HASHES[digest.partition(":")[0]]()


def digest_of(body: bytes, algorithm: str = "sha256") -> str:
    """The digest of `body` as `algorithm:hex`. O(bytes).

    Raises:
        KeyError: `algorithm` is not sha256, sha384 or sha512.
    """
    return f"{algorithm}:{_HASHES[algorithm](body).hexdigest()}"


def matches_digest(body: bytes, digest: str) -> bool:
    """Whether `body` has this digest; False if `digest` is not a valid digest. O(bytes)."""
    return is_digest(digest) and digest_of(body, digest.partition(":")[0]) == digest


PackedDigest = bytes | str


def pack_digest(digest: str) -> PackedDigest:
    """The 32 bytes of a sha256 digest, in half the memory of its text; any other text unchanged."""
    algorithm, _, encoded = digest.partition(":")
    if algorithm != "sha256" or len(encoded) != 64:
        return digest
    try:
        packed = bytes.fromhex(encoded)
    except ValueError:
        return digest
    return packed if packed.hex() == encoded else digest  # fromhex accepts upper case and spaces too


def unpack_digest(packed: PackedDigest) -> str:
    """The text that was passed to `pack_digest`."""
    return packed if isinstance(packed, str) else f"sha256:{packed.hex()}"


HUB = "docker.io"
"""Docker Hub as images name it, which a name without a registry means."""
HUB_LOGIN = "index.docker.io"
"""Its first name, under which `docker login` has always stored its login."""
HUB_HOST = "registry-1.docker.io"
"""Where its API is."""
_OFFICIAL = "library/"
_MAX_PATH = 255  # RepositoryNameTotalLengthMax: "library/" counts, the domain does not
# The grammar does not bound the domain, but DNS does at 253 characters. With port, path, tag and digest, a reference
# that can be pulled stays under 800 characters. A pod may hold a million, which the grammar takes half a second to
# match.
_MAX_TEXT = 4096

_HOST_PART = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?"
_DOMAIN = rf"(?:{_HOST_PART}(?:\.{_HOST_PART})*|\[[a-fA-F0-9:]+\])(?::[0-9]+)?"
_COMPONENT = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_TAG = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
_NAME = re.compile(
    rf"(?:(?P<domain>{_DOMAIN})/)?(?P<path>{_COMPONENT}(?:/{_COMPONENT})*)(?::(?P<tag>{_TAG}))?", re.ASCII
)
_DOMAIN_ONLY = re.compile(_DOMAIN, re.ASCII)
_IMAGE_ID = re.compile(r"[a-f0-9]{64}", re.ASCII)


class ImageReference(msgspec.Struct, frozen=True, cache_hash=True, gc=False):
    """A normalised image reference; an empty string means absent. Build it with `parse_reference`.

    `domain` keeps its case. It is empty in the one invalid form `ex_ample.com/x`, which no client can pull, and in what
    `as_short_name` makes of a name without a registry. A reference may have both a tag and a digest; then the
    digest determines what is pulled.
    """

    domain: str
    path: str
    tag: str
    digest: str

    @property
    def repository(self) -> str:
        """`domain/path`."""
        return f"{self.domain}/{self.path}" if self.domain else self.path

    def with_digest(self, digest: str) -> "ImageReference":
        """The reference to `digest` in the same repository, without a tag."""
        return ImageReference(self.domain, self.path, "", digest)

    def pinned_to(self, digest: str) -> "ImageReference":
        """The reference to `digest` as whoever has the tag has it; without a tag as `with_digest`."""
        return ImageReference(self.domain, self.path, self.tag, digest)

    def __str__(self) -> str:
        """The canonical text, `domain/path[:tag][@digest]`; parsing it gives an equal reference."""
        return self.repository + (f":{self.tag}" if self.tag else "") + (f"@{self.digest}" if self.digest else "")


def parse_reference(text: str) -> ImageReference:
    """The reference that a kubelet parses from a pod's `image`. O(characters).

    Raises:
        InvalidReference: `text` is not a reference. The message is for the pod's author.
    """
    if len(text) > _MAX_TEXT:
        raise InvalidReference(f"{quote(text)} is no image reference: it has more than {_MAX_TEXT} characters")
    name, at, digest = text.partition("@")
    found = _NAME.fullmatch(_with_domain(name))
    if found is None or (at and not is_digest(digest)) or _IMAGE_ID.fullmatch(text):
        raise InvalidReference(f"{quote(text)} is no image reference: {_why_invalid(text)}")
    domain, path, tag = found.group("domain", "path", "tag")
    if len(path) > _MAX_PATH:
        raise InvalidReference(f"{quote(text)} is no image reference: its path has more than {_MAX_PATH} characters")
    return ImageReference(domain or "", path, tag or ("" if at else "latest"), digest)


def as_short_name(reference: ImageReference, text: str) -> ImageReference:
    """What CRI-O reads in the text of a reference: a name without a registry has no domain, and the path as written."""
    first, slash, _ = text.partition("@")[0].partition("/")
    is_full = slash and (first == "localhost" or "." in first or ":" in first)
    if is_full or reference.domain != HUB:
        return reference
    path = reference.path if slash else reference.path.removeprefix(_OFFICIAL)
    return ImageReference("", path, reference.tag, reference.digest)


def host_of_registry(domain: str) -> str:
    """Where the API of a registry is that images name so."""
    return HUB_HOST if domain == HUB else domain


def is_domain(text: str) -> bool:
    """Whether the text is `host[:port]` as references begin with one."""
    return _DOMAIN_ONLY.fullmatch(text) is not None


def split_name(text: str) -> tuple[str, str] | None:
    """The domain, or an empty one, and the path of a name as it is written, without defaults.

    None if the text is no name, or has a tag or a digest.
    """
    found = _NAME.fullmatch(text)
    return (found["domain"] or "", found["path"]) if found and not found["tag"] else None


def _with_domain(name: str) -> str:
    """`name` with the defaults written out (splitDockerDomain); the result need not be valid."""
    first, slash, remainder = name.partition("/")
    if not slash:
        return f"{HUB}/{_OFFICIAL}{name}"
    if first == HUB_LOGIN:
        first = HUB
    elif not (first == "localhost" or "." in first or ":" in first or first != first.lower()):
        return f"{HUB}/{name}"
    if first == HUB and "/" not in remainder:
        remainder = _OFFICIAL + remainder
    return f"{first}/{remainder}"


def _why_invalid(text: str) -> str:
    """The likeliest mistake in an invalid reference; the most specific ones are checked first."""
    name, at, digest = text.partition("@")
    if not text:
        return "it is empty"
    if not text.isascii() or not text.isprintable() or " " in text:
        return "only visible ASCII characters may occur, and no spaces"
    if "://" in text:
        return "leave out the scheme (https://)"
    if _IMAGE_ID.fullmatch(text):
        return "64 hexadecimal digits alone are an image ID, not a name"
    if at and not is_digest(digest):
        return "a digest is sha256:, sha384: or sha512: and 64, 96 or 128 lower-case hexadecimal digits"
    return _why_invalid_name(name)


def _why_invalid_name(name: str) -> str:
    repository, colon, tag = name.rpartition(":")
    if _NAME.fullmatch(_with_domain(name).lower()):
        return "a repository's path must be lower case"
    if colon and "/" not in tag and _NAME.fullmatch(_with_domain(repository)):
        return "a tag is 1 to 128 letters, digits, _, . and -, the first no . or -"
    return "write [host[:port]/]path[:tag][@digest]"
