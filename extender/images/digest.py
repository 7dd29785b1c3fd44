"""What a digest is: `algorithm:hex`, and whether bytes have one.

Knows the three algorithms the kubelet registers (sha256, sha384, sha512) and nothing of who stated the digest.
"""

import hashlib
import re

_HASHES = {"sha256": hashlib.sha256, "sha384": hashlib.sha384, "sha512": hashlib.sha512}
# opencontainers/go-digest: each algorithm has one length, in lower-case hex only.
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}|sha384:[0-9a-f]{96}|sha512:[0-9a-f]{128}", re.ASCII)


def is_digest(text: str) -> bool:
    """Whether `text` is a digest of an algorithm known here, of the right length and in lower case."""
    return _DIGEST.fullmatch(text) is not None


def digest_of(body: bytes, algorithm: str = "sha256") -> str:
    """The digest of `body` as `algorithm:hex`. O(bytes).

    Raises:
        KeyError: `algorithm` is none of sha256, sha384, sha512.
    """
    return f"{algorithm}:{_HASHES[algorithm](body).hexdigest()}"


def matches_digest(body: bytes, digest: str) -> bool:
    """Whether `body` has this digest; no for a `digest` that is none. O(bytes)."""
    return is_digest(digest) and digest_of(body, digest.partition(":")[0]) == digest


PackedDigest = bytes | str


def pack_digest(digest: str) -> PackedDigest:
    """The 32 bytes of a sha256 digest, half the memory of its text; the text itself of any other."""
    algorithm, _, encoded = digest.partition(":")
    if algorithm != "sha256" or len(encoded) != 64:
        return digest
    try:
        packed = bytes.fromhex(encoded)
    except ValueError:
        return digest
    return packed if packed.hex() == encoded else digest  # fromhex reads upper case and spaces too


def unpack_digest(packed: PackedDigest) -> str:
    """The digest that `pack_digest` was given."""
    return packed if isinstance(packed, str) else f"sha256:{packed.hex()}"
