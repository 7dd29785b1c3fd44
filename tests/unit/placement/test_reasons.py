"""The sentences users see: exact words, who is to blame, and that they stay short."""

import pytest

from extender.images.content import Cause
from extender.images.platform import Platform, parse_platform
from extender.placement.facts import Pending, PodImage, Unknown
from extender.placement.reasons import Constraint, platforms_text, refusal_text, retry_text, tightest

ONLY_ARM = "is built only for linux/arm64"
TAKEN = "is not known yet and is taken to run only on linux/amd64 (operator's setting)"
A, B, C = (PodImage(f"r/{name}:1") for name in "abc")
PENDING = Pending(Cause.LOOKING_UP, "its lookup has not ended yet")
DENIED = Unknown(Cause.DENIED, "registry.example.com answered 403")
B_IS = "image r/b:1 is unknown (denied: registry.example.com answered 403)"
MANY = frozenset(Platform("linux", f"architecture{index}", "v" * (index % 9)) for index in range(3_000))
LONG = "registry.example.com/" + "team/" * 80 + "app@sha256:" + "a" * 64


def built(reference: str, *platforms: str, assumed: bool = False) -> Constraint:
    return Constraint(reference, frozenset(map(parse_platform, platforms)), assumed)


APP = built("registry.example.com/team/app:1.2", "linux/amd64")
MULTI = built("r/multi:1", "linux/arm64", "linux/amd64")
ARM = built("r/arm:1", "linux/arm64")
ASSUMED = built("r/new:1", "linux/amd64", assumed=True)
SILENT = built("", "linux/amd64", assumed=True)


@pytest.mark.parametrize(
    ("constraints", "text"),
    [
        pytest.param([], "", id="nothing"),
        pytest.param([APP], f"image {APP.reference} is built only for linux/amd64", id="one"),
        pytest.param([MULTI], "image r/multi:1 is built only for linux/amd64, linux/arm64", id="sorted"),
        pytest.param([MULTI, APP], f"image {APP.reference} is built only for linux/amd64", id="subset"),
        pytest.param([ARM, MULTI, APP], f"image r/arm:1 {ONLY_ARM} (and 1 more image)", id="two"),
        pytest.param([ARM, APP, ASSUMED], f"image r/arm:1 {ONLY_ARM} (and 2 more images)", id="three"),
        pytest.param([ARM, APP, ARM], f"image r/arm:1 {ONLY_ARM} (and 1 more image)", id="named twice"),
        pytest.param([ASSUMED], f"image r/new:1 {TAKEN}", id="assumed"),
        pytest.param([MULTI, ASSUMED], f"image r/new:1 {TAKEN}", id="assumed subset"),
        pytest.param([ASSUMED, ARM], f"image r/new:1 {TAKEN} (and 1 more image)", id="assumed first"),
        pytest.param([SILENT], f"a container without an image {TAKEN}", id="no reference"),
        pytest.param([built("a:1\n\x1b[31m", "l/a")], "image a:1??[31m is built only for l/a", id="unprintable"),
    ],
)
def test_the_refusal_names_the_first_image_to_blame_and_what_it_has(constraints: list[Constraint], text: str) -> None:
    """To blame are the images whose set has no proper subset among the others."""
    assert refusal_text(constraints) == text


def test_equal_sets_are_all_to_blame_in_pod_order() -> None:
    """Neither is a proper subset of the other, whether known or assumed; of two uses of an image the first counts."""
    known, other = built("r/new:1", "linux/amd64"), built("r/new:1", "linux/arm64")
    assert tightest([MULTI, ASSUMED, APP, ASSUMED]) == (ASSUMED, APP)
    assert tightest([known, ASSUMED]) == (known,)
    assert tightest([ASSUMED, known]) == (ASSUMED,)
    assert tightest([other, ASSUMED]) == (other, ASSUMED)
    assert refusal_text([other, ASSUMED]) == "image r/new:1 is built only for linux/arm64"


@pytest.mark.parametrize(
    ("unresolved", "text"),
    [
        pytest.param([], "", id="nothing"),
        pytest.param(
            [(A, PENDING)],
            "image r/a:1 is not known yet (looking-up: its lookup has not ended yet); to be tried again",
            id="pending",
        ),
        pytest.param([(B, DENIED)], f"{B_IS}; to be tried again", id="unknown"),
        pytest.param(
            [(B, DENIED), (A, PENDING), (C, PENDING)], f"{B_IS} (and 2 more images); to be tried again", id="several"
        ),
    ],
)
def test_the_error_names_an_image_and_the_cause(
    unresolved: list[tuple[PodImage, Pending | Unknown]], text: str
) -> None:
    assert retry_text(unresolved) == text


@pytest.mark.parametrize(("assumed", "asked"), [(False, ""), (True, ""), (False, "w" * 9_000)])
@pytest.mark.parametrize("platforms", [MANY, frozenset({Platform("l" * 9_000, "a" * 9_000)})], ids=["many", "long"])
def test_a_refusal_stays_below_512_characters(platforms: frozenset[Platform], assumed: bool, asked: str) -> None:
    """Whatever a manifest or a pod's author writes; both ends of the reference stay to be seen."""
    constraints = [Constraint(f"{LONG}{index}", platforms, assumed, asked) for index in range(20_000)]
    text = refusal_text(constraints)
    assert len(text) < 512
    assert text.startswith("image registry.example.com/team/")
    assert "aaaa0 is " in text
    assert text.endswith("(and 19999 more images)")
    cause = Unknown(Cause.INVALID_REFERENCE, "d" * 999)
    error = retry_text([(PodImage(each.reference), cause) for each in constraints])
    assert len(error) < 512
    assert error.endswith("to be tried again")


def test_platforms_are_sorted_and_the_rest_is_counted() -> None:
    assert platforms_text(map(parse_platform, ("windows/amd64", "linux/arm/v7", "linux/amd64"))) == (
        "linux/amd64, linux/arm/v7, windows/amd64"
    )
    head, _, tail = platforms_text(Platform("linux", f"a{index:02}") for index in range(40)).partition(" and ")
    assert head.startswith("linux/a00, linux/a01, ")
    assert tail == f"{40 - len(head.split(', '))} more"
