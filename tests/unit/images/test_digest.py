"""Digests: which texts are one, and whether bytes have one."""

import pytest

from extender.images.reference import digest_of, is_digest, matches_digest

# Published test vectors of the empty message (FIPS 180-4).
EMPTY_SHA256 = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
EMPTY_SHA384 = "sha384:38b060a751ac96384cd9327eb1b1e36a21fdb71114be07434c0cc7bf63f6e1da274edebfe76f65fbd51ad2f14898b95b"


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        pytest.param("sha256:" + "a" * 64, True, id="sha256"),
        pytest.param("sha384:" + "0" * 96, True, id="sha384"),
        pytest.param("sha512:" + "f" * 128, True, id="sha512"),
        pytest.param("", False, id="empty"),
        pytest.param("a" * 64, False, id="no algorithm"),
        pytest.param("sha256:" + "a" * 63, False, id="too short"),
        pytest.param("sha256:" + "a" * 65, False, id="too long"),
        pytest.param("sha256:" + "A" * 64, False, id="upper case"),
        pytest.param("SHA256:" + "a" * 64, False, id="upper-case algorithm"),
        pytest.param("sha256:" + "g" * 64, False, id="not hexadecimal"),
        pytest.param("sha256:" + "a" * 64 + "\n", False, id="line break"),
        pytest.param("sha256:" + "٣" * 64, False, id="digits that are not ASCII"),
        pytest.param("md5:" + "a" * 32, False, id="unregistered algorithm"),
        pytest.param("sha512:" + "a" * 64, False, id="length of another algorithm"),
    ],
)
def test_a_digest_has_a_known_algorithm_and_its_length(text: str, valid: bool) -> None:
    """Only the kubelet's three algorithms count, each with one length of lower-case hexadecimal digits."""
    assert is_digest(text) is valid


def test_digest_of_known_bytes() -> None:
    """The digest of the empty message is the published one, sha256 unless another algorithm is named."""
    assert digest_of(b"") == EMPTY_SHA256
    assert digest_of(b"", "sha384") == EMPTY_SHA384


@pytest.mark.parametrize("algorithm", ["sha256", "sha384", "sha512"])
def test_bytes_match_their_own_digest_and_no_other(algorithm: str) -> None:
    """A digest is checked with the algorithm it names."""
    digest = digest_of(b"manifest", algorithm)
    assert matches_digest(b"manifest", digest)
    assert not matches_digest(b"manifest ", digest)


@pytest.mark.parametrize("digest", ["", "sha256:", "md5:" + "a" * 32, EMPTY_SHA256.upper(), EMPTY_SHA256 + "\n"])
def test_nothing_matches_a_text_that_is_no_digest(digest: str) -> None:
    """A malformed digest is matched by no bytes and is no error."""
    assert not matches_digest(b"", digest)
