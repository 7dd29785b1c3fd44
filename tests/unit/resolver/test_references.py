"""Reading what pods call images."""

import pytest

from extender.images.content import Cause, Failure
from extender.images.reference import digest_of
from extender.resolver.image_cache import References, Target
from tests.unit.retained import retained_bytes

DIGEST = digest_of(b"content")


@pytest.mark.parametrize(
    ("one", "other", "are_same"),
    [
        pytest.param("debian", "docker.io/library/debian:latest", True, id="defaults-are-written-out"),
        pytest.param(f"debian:12@{DIGEST}", f"debian@{DIGEST}", True, id="a-tag-beside-a-digest-says-nothing"),
        pytest.param("debian:12", "debian:13", False, id="tags-differ"),
        pytest.param("ghcr.io/a/b:1", "quay.io/a/b:1", False, id="registries-differ"),
    ],
)
def test_references_that_ask_for_the_same_have_equal_targets(one: str, other: str, are_same: bool) -> None:
    """What a registry would be asked decides, not how the reference is written."""
    references = References(10)
    assert (references.target_of(one) == references.target_of(other)) is are_same


def test_a_text_is_read_once() -> None:
    """The second time the same object comes back, so reading costs nothing on the scheduling path."""
    references = References(10)
    assert references.target_of("debian:12") is references.target_of("debian:12")


def test_an_invalid_reference_is_remembered_as_a_failure_that_says_why() -> None:
    """Nothing is fetched for it, and the pod's author reads what is wrong with the name."""
    references = References(10)
    failure = references.target_of("Debian")
    assert isinstance(failure, Failure)
    assert failure.cause is Cause.INVALID_REFERENCE
    assert "lower case" in failure.detail
    assert references.target_of("Debian") is failure


def test_a_very_long_text_is_not_kept() -> None:
    """A pod may hold a million characters, and a table of them would be without bound."""
    references = References(10)
    text = "a" * 1025
    assert references.target_of(text) is not references.target_of(text)


def test_a_repository_is_one_string_for_all_its_tags() -> None:
    """The tables name it in every row."""
    references = References(10)
    one, other = references.target_of("ghcr.io/a/b:1"), references.target_of("ghcr.io/a/b:2")
    assert isinstance(one, Target)
    assert isinstance(other, Target)
    assert one.repository is other.repository


def test_the_largest_texts_that_are_kept_take_little_memory() -> None:
    """A text that is not ASCII is no reference, takes four bytes a character, and is not kept."""
    references = References(10)
    longest = f"{'.'.join(['a' * 60] * 9)[:540]}/{'b/' * 120}a:{'t' * 128}"[: 1024 - 136] + f"@sha512:{'0' * 128}"
    for text in (longest, "a" * 1024):
        target = references.target_of(text)
        assert references.target_of(text) is target
        assert retained_bytes((text, target)) < 3_400
    wide = "\N{GRINNING FACE}" * 1024
    assert references.target_of(wide) is not references.target_of(wide)


def test_short_names_are_found_in_registries_of_the_runtime() -> None:
    """Credentials go by the kubelet's name; the name of another image does not stand for the same."""
    references = References(10, short_names=True)
    short, full = references.target_of("app:1"), references.target_of("docker.io/library/app:1")
    assert isinstance(short, Target)
    assert isinstance(full, Target)
    assert short.reference == full.reference == full.asked
    assert (short.asked.domain, short.repository, full.repository) == ("", "app", "docker.io/library/app")
    usual = References(10).target_of("app:1")
    assert usual == full
