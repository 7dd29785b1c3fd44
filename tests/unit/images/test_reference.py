"""Image references, parsed as the kubelet parses them, and digests: which texts are one, and whether bytes have one."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.errors import InvalidReference
from extender.images.reference import (
    ImageReference,
    as_short_name,
    digest_of,
    is_digest,
    matches_digest,
    parse_reference,
)

VECTORS = Path(__file__).parents[3].parent / "shared" / "vectors" / "references.json"

HEX = "0123456789abcdef" * 4
SHA256 = f"sha256:{HEX}"
SHA384 = f"sha384:{HEX}{HEX[:32]}"
SHA512 = f"sha512:{HEX}{HEX}"
DOMAINS = [
    "", "docker.io/", "index.docker.io/", "DOCKER.IO/", "localhost/", "a-b.example.com:5000/", "[::1]/", "a_b.c/",
]  # fmt: skip
COMPONENT = st.lists(st.sampled_from(["a", "0", "library", "a.b", "a_b", "a__b", "a---b"]), min_size=1, max_size=3)
TAG = st.text("aZ0_.-", max_size=8).map(lambda text: f":t{text}")


# They lie outside the repository and only some checkouts have them; the rows below cover each rule without them.
@pytest.mark.skipif(not VECTORS.exists(), reason="the upstream vectors are not beside this checkout")
def test_upstream_vectors() -> None:
    """Every row computed by distribution/reference itself comes out the same."""
    rows = json.loads(VECTORS.read_text())
    assert rows
    assert [row for row in rows if row != {**row, **_outcome(row["in"])}] == []


def _outcome(text: str) -> dict[str, str | bool]:
    try:
        found = parse_reference(text)
    except InvalidReference:
        return {"domain": "", "path": "", "tag": "", "digest": "", "error": True}
    return {"domain": found.domain, "path": found.path, "tag": found.tag, "digest": found.digest, "error": False}


@pytest.mark.parametrize(
    ("text", "domain", "path", "tag", "digest"),
    [
        # docker.io is the default, library/ its default folder, whichever way the Hub is written
        ("nginx", "docker.io", "library/nginx", "latest", ""),
        ("library/nginx", "docker.io", "library/nginx", "latest", ""),
        ("docker.io/nginx", "docker.io", "library/nginx", "latest", ""),
        ("index.docker.io/nginx:1", "docker.io", "library/nginx", "1", ""),
        ("index.docker.io/team/app", "docker.io", "team/app", "latest", ""),
        ("docker.io/library/a/b", "docker.io", "library/a/b", "latest", ""),
        ("team/app", "docker.io", "team/app", "latest", ""),
        # other spellings of the Hub get no library/, and case is kept
        ("DOCKER.IO/nginx", "DOCKER.IO", "nginx", "latest", ""),
        ("docker.io:443/nginx", "docker.io:443", "nginx", "latest", ""),
        ("registry-1.docker.io/nginx", "registry-1.docker.io", "nginx", "latest", ""),
        # the part before the first / is a domain if it is localhost, or has a dot, a colon or an upper-case letter
        ("localhost/nginx", "localhost", "nginx", "latest", ""),
        ("localhost:5000/nginx", "localhost:5000", "nginx", "latest", ""),
        ("registry:5000/team/app:1.2", "registry:5000", "team/app", "1.2", ""),
        ("registry.example.com/app", "registry.example.com", "app", "latest", ""),
        ("LOCALHOST/nginx", "LOCALHOST", "nginx", "latest", ""),
        ("Foo/bar", "Foo", "bar", "latest", ""),
        ("127.0.0.1:5000/nginx", "127.0.0.1:5000", "nginx", "latest", ""),
        ("xn--n3h.com:18080/nginx", "xn--n3h.com:18080", "nginx", "latest", ""),
        ("[fc00::1]:5000/team/app", "[fc00::1]:5000", "team/app", "latest", ""),
        ("[FC00::1]/app", "[FC00::1]", "app", "latest", ""),
        # without a / nothing is a domain
        ("localhost:5000", "docker.io", "library/localhost", "5000", ""),
        ("example.com:5000", "docker.io", "library/example.com", "5000", ""),
        ("192.168.0.1", "docker.io", "library/192.168.0.1", "latest", ""),
        ("oci:app", "docker.io", "library/oci", "app", ""),
        (SHA256, "docker.io", "library/sha256", HEX, ""),
        # the split takes it for a domain, the grammar does not
        ("ex_ample.com/x", "", "ex_ample.com/x", "latest", ""),
        ("test_com/app", "docker.io", "test_com/app", "latest", ""),
        # grammatical, though nobody can connect there
        ("example.com:0/x", "example.com:0", "x", "latest", ""),
        ("example.com:99999/x", "example.com:99999", "x", "latest", ""),
        ("[:]/x", "[:]", "x", "latest", ""),
        # path components
        ("a__b/c---d/e.f_g", "docker.io", "a__b/c---d/e.f_g", "latest", ""),
        ("0/1", "docker.io", "0/1", "latest", ""),
        # tags keep their case
        ("nginx:V1.0_rc-1", "docker.io", "library/nginx", "V1.0_rc-1", ""),
        ("nginx:_", "docker.io", "library/nginx", "_", ""),
        ("nginx:" + "t" * 128, "docker.io", "library/nginx", "t" * 128, ""),
        # a digest takes the default tag's place, and stands beside a tag that was written
        (f"nginx@{SHA256}", "docker.io", "library/nginx", "", SHA256),
        (f"nginx:1@{SHA256}", "docker.io", "library/nginx", "1", SHA256),
        (f"nginx@{SHA384}", "docker.io", "library/nginx", "", SHA384),
        (f"nginx@{SHA512}", "docker.io", "library/nginx", "", SHA512),
        # 64 hexadecimal digits are an image ID only when they are the whole text
        (HEX[:63], "docker.io", f"library/{HEX[:63]}", "latest", ""),
        (HEX + "0", "docker.io", f"library/{HEX}0", "latest", ""),
        (f"docker.io/{HEX}", "docker.io", f"library/{HEX}", "latest", ""),
        (f"{HEX}:1", "docker.io", f"library/{HEX}", "1", ""),
        # the longest path; the domain does not count
        ("example.com/" + "p" * 255, "example.com", "p" * 255, "latest", ""),
        ("p" * 247, "docker.io", "library/" + "p" * 247, "latest", ""),
    ],
)
def test_a_reference_gets_the_kubelets_parts(text: str, domain: str, path: str, tag: str, digest: str) -> None:
    assert parse_reference(text) == ImageReference(domain, path, tag, digest)


# By what a person is told, the texts of which that is said.
INVALID: dict[str, tuple[str, ...]] = {
    "it is empty": ("",),
    "visible ASCII": (
        " nginx", "nginx\n", "nginx:1\n", f"nginx@{SHA256}\n", "nginx\x00", "ngınx", "nginx:٣", "nginx\ud800",
    ),
    "scheme": ("https://github.com/team/app", "ftp://x"),
    "image ID": (HEX,),
    "a digest is": (
        "nginx@", f"nginx@{SHA256[:-1]}", f"nginx@{SHA256.upper()}", f"nginx@sha256:{HEX.upper()}",
        f"nginx@md5:{HEX[:32]}", f"nginx@{SHA256}:1", f"nginx@{SHA256}@{SHA256}",
    ),
    "lower case": ("ROOT", "team/App", "docker.io/team/App", "example.com/Team/app:1"),
    "a tag is": ("nginx:", "nginx:.1", "nginx:-1", "nginx:a+b", "example.com:5000/app:" + "t" * 129),
    "write [host": (
        "$IMAGE", "-team/app", "team-/app", "team/", "team///app", "_team/_app", "a..b/c", "a_.b/c", "a-.b/c",
        "a___b/c", "docker.io./x", "localhost./x", "x..y/z", "[fc00::1]", "[fc00::1]:5000", "fc00::1:5000/app",
        "[fe80::1%eth0]:5000/app", "[2001:db8::192.0.2.33]:5000/app", "example.com:port/app", "ex_ample.com:5000/x",
    ),
    "more than 255 characters": ("example.com/" + "p" * 256, "p" * 248),
    "more than 4096 characters": ("a" * 5000 + ".example.com/x",),
}  # fmt: skip


@pytest.mark.parametrize("why", INVALID)
def test_an_invalid_reference_is_refused_with_its_mistake(why: str) -> None:
    """What the kubelet refuses is refused here, in words that name the likeliest mistake."""
    for text in INVALID[why]:
        with pytest.raises(InvalidReference, match=r"no image reference") as refusal:
            parse_reference(text)
        assert why in str(refusal.value)


def test_a_long_hostile_text_is_quoted_in_part_and_on_one_line() -> None:
    """Of a bad reference at most 100 characters are shown, with control characters escaped."""
    with pytest.raises(InvalidReference) as refusal:
        parse_reference("bad\r\n\x1b[31m" + "x" * 1_000_000)
    assert str(refusal.value).isprintable()
    assert len(str(refusal.value)) < 250


def test_repository_and_text_of_a_reference() -> None:
    """The repository leaves tag and digest out, the canonical text holds both."""
    reference = parse_reference(f"nginx:1@{SHA256}")
    assert reference.repository == "docker.io/library/nginx"
    assert str(reference) == f"docker.io/library/nginx:1@{SHA256}"
    assert str(parse_reference("ex_ample.com/x")) == "ex_ample.com/x:latest"


def test_with_digest_drops_the_tag() -> None:
    """A reference by digest names the same repository and nothing but the digest."""
    pinned = parse_reference("example.com/app:1").with_digest(SHA256)
    assert pinned == ImageReference("example.com", "app", "", SHA256)


GRAMMATICAL = st.tuples(
    st.sampled_from(DOMAINS),
    COMPONENT.map("/".join),
    TAG | st.just(""),
    st.sampled_from(["", f"@{SHA256}", f"@{SHA512}"]),
).map("".join)


@given(GRAMMATICAL)
def test_canonical_text_parses_to_an_equal_reference(text: str) -> None:
    """Parsing the canonical text of any reference changes nothing."""
    reference = parse_reference(text)
    assert parse_reference(str(reference)) == reference
    assert reference.tag or reference.digest


@given(st.text() | st.text(alphabet="aA0._-:/@[]$ \n"))
def test_any_text_is_a_reference_or_refused(text: str) -> None:
    """No text whatever raises anything but InvalidReference, and what is shown of it stays on one short line."""
    try:
        reference = parse_reference(text)
    except InvalidReference as refusal:
        message = str(refusal)
    else:
        message = str(parse_reference(str(reference)))
    assert message.isprintable()
    assert len(message) < 250


@pytest.mark.parametrize(
    ("text", "domain", "path"),
    [
        ("app", "", "app"),
        ("app:1", "", "app"),
        ("team/app:1", "", "team/app"),
        ("library/app", "", "library/app"),
        (f"app@sha256:{'d' * 64}", "", "app"),
        ("docker.io/app:1", "docker.io", "library/app"),
        ("index.docker.io/team/app", "docker.io", "team/app"),
        ("localhost/app", "localhost", "app"),
        ("reg.example:5000/app", "reg.example:5000", "app"),
    ],
)
def test_name_without_a_registry_keeps_none_for_cri_o(text: str, domain: str, path: str) -> None:
    """Others, tags and digests are as the kubelet parses them."""
    full = parse_reference(text)
    short = as_short_name(full, text)
    assert (short.domain, short.path) == (domain, path)
    assert (short.tag, short.digest) == (full.tag, full.digest)


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
