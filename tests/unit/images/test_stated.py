"""What the operator says of images: which names a glob matches, and what counts of several."""

import pytest

from extender.images.content import Cause, Content, Failure
from extender.images.manifest import Kind
from extender.images.platform import Platform
from extender.images.reference import parse_reference
from extender.images.stated import ImageRule, StatedImages

AMD64, ARM64 = Platform("linux", "amd64"), Platform("linux", "arm64")
DIGEST = f"sha256:{'0' * 64}"


def said(*rules: tuple[str, tuple[str, ...]], of: str) -> Content | Failure | None:
    stated = StatedImages([ImageRule(match=glob, platforms=platforms) for glob, platforms in rules])
    return stated.find(parse_reference(of))


@pytest.mark.parametrize(
    ("glob", "image", "matches"),
    [
        ("docker.io/library/mongo:*", "mongo:8", True),
        ("docker.io/library/mongo:*", "mongo", True),
        ("docker.io/library/mongo:*", f"mongo:8@{DIGEST}", True),
        ("docker.io/library/mongo:*", f"mongo@{DIGEST}", False),
        ("docker.io/library/mongo:*", "mongo-express:8", False),
        ("docker.io/library/mongo:*", "registry.example.com/library/mongo:8", False),
        ("docker.io/library/mongo@*", f"mongo@{DIGEST}", True),
        ("docker.io/library/mongo:8", "mongo:8", True),
        ("docker.io/library/mongo:8", "mongo:8.1", False),
        ("*/mongo:8", "registry.example.com/a/b/mongo:8", True),
        ("*/a*b*:1*2", "ghcr.io/axxb/ab:112", True),
        ("*/a*b*:1*2", "ghcr.io/axxb/ab:113", False),
        ("*/a*ba*", "ghcr.io/a/bba:1", True),
        ("[::1]:5000/*", "[::1]:5000/app:1", True),
        ("ghcr.io/a.b:1", "ghcr.io/axb:1", False),
        ("*/*a*a*a*a*a*a*a*b", f"ghcr.io/{'a' * 200}:1", False),
    ],
)
def test_a_glob_matches_the_whole_name_as_nodes_complete_it(glob: str, image: str, *, matches: bool) -> None:
    assert (said((glob, ("linux/amd64",)), of=image) is not None) is matches


def test_the_first_rule_that_matches_counts() -> None:
    rules = ("*/mongo:7", ("linux/x86_64", "linux/arm64/v8")), ("*/mongo:*", ())
    both = Content(Kind.STATED, frozenset({AMD64, ARM64}), states_platforms=True)
    assert said(*rules, of="mongo:7") == both
    never = said(*rules, of="mongo:8")
    assert isinstance(never, Failure)
    assert never.cause is Cause.BY_OPERATOR
    assert said(*rules, of="redis:8") is None
