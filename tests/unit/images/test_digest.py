"""Digests: which texts are one, and whether bytes have one."""

from extender.images.reference import digest_of, is_digest, matches_digest

# Published test vectors of the empty message (FIPS 180-4).
EMPTY_SHA256 = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
EMPTY_SHA384 = "sha384:38b060a751ac96384cd9327eb1b1e36a21fdb71114be07434c0cc7bf63f6e1da274edebfe76f65fbd51ad2f14898b95b"
A = "a" * 64
DIGESTS = (f"sha256:{A}", "sha384:" + "0" * 96, "sha512:" + "f" * 128)
NO_DIGESTS = (
    "", A, f"sha256:{A[1:]}", f"sha256:{A}a", f"sha256:{A.upper()}", f"SHA256:{A}", "sha256:" + "g" * 64,
    f"sha256:{A}\n", "sha256:" + "٣" * 64, "md5:" + "a" * 32, f"sha512:{A}", "sha256:",
)  # fmt: skip


def test_a_digest_has_a_known_algorithm_and_its_length() -> None:
    """Only the kubelet's three algorithms count, each with one length of lower-case hexadecimal digits."""
    assert all(map(is_digest, DIGESTS))
    assert not any(map(is_digest, NO_DIGESTS))
    assert not any(matches_digest(b"", text) for text in NO_DIGESTS)


def test_digest_of_known_bytes() -> None:
    """The digest of the empty message is the published one, sha256 unless another algorithm is named."""
    assert digest_of(b"") == EMPTY_SHA256
    assert digest_of(b"", "sha384") == EMPTY_SHA384


def test_bytes_match_their_own_digest_and_no_other() -> None:
    """A digest is checked with the algorithm it names."""
    for algorithm in ("sha256", "sha384", "sha512"):
        digest = digest_of(b"manifest", algorithm)
        assert matches_digest(b"manifest", digest)
        assert not matches_digest(b"manifest ", digest)
