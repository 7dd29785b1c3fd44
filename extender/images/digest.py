"""Digests: the form `algorithm:hex`, and whether bytes match one.

Supports the three algorithms that the kubelet registers: sha256, sha384 and sha512.
"""

import hashlib
import re

_HASHES = {"sha256": hashlib.sha256, "sha384": hashlib.sha384, "sha512": hashlib.sha512}
# opencontainers/go-digest: each algorithm has one length, in lower-case hex only.
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}|sha384:[0-9a-f]{96}|sha512:[0-9a-f]{128}", re.ASCII)


def is_digest(text: str) -> bool:
    """Whether `text` is a digest of a supported algorithm, with the right length and in lower case."""
    return _DIGEST.fullmatch(text) is not None


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
