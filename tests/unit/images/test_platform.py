"""Platforms: containerd's spelling, and which node runs what."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.images.platform import (
    Compatibility,
    InvalidPlatform,
    Platform,
    as_single,
    is_of_nodes,
    normalize_platform,
    parse_platform,
    platform_of,
    runs_on,
    satisfies,
)

STRICT = Compatibility()
LENIENT = Compatibility(run_386_on_amd64=True, run_arm_on_arm64=True)
SPELLINGS = {
    "linux/amd64": "linux/amd64 Linux/AMD64 linux/x86_64 linux/x86-64 linux/amd64/v1 linux/x86_64/V1",
    "linux/amd64/v2": "linux/amd64/v2",
    "linux/386": "linux/i386 linux/i386/sse2",
    "linux/386/softfloat": "linux/386/softfloat",
    "linux/arm64": "linux/aarch64 linux/arm64/8 linux/arm64/v8 linux/arm64/v8.0 linux/aarch64/V8",
    "linux/arm64/v8.1": "linux/arm64/v8.1",
    "linux/arm64/v9": "linux/arm64/9 linux/arm64/9.0 linux/arm64/v9.0",
    "linux/arm64/v9.2": "linux/arm64/v9.2",
    "linux/arm64/armv8": "linux/arm64/armv8",
    "linux/arm/v5": "linux/arm/5",
    "linux/arm/v6": "linux/arm/6 linux/armel",
    "linux/arm/v7": "linux/arm linux/arm/7 linux/armhf linux/armhf/v6",
    "linux/arm/v8": "linux/arm/8",
    "linux/arm/armv7": "linux/arm/armv7",
    "darwin/arm64": "macOS/arm64",
    "windows/amd64": "windows/amd64",
    "linux/riscv64/rva23u64": "linux/riscv64/rva23u64",
    "linux/fake": "linux/fake",
    "wasip1/wasm": "wasi/wasm",
}
WORD = st.text("abv0123456789._-", min_size=1, max_size=6).map(lambda text: f"a{text}z")
ARCHITECTURE = st.sampled_from(["amd64", "x86_64", "i386", "arm64", "aarch64", "arm", "armhf", "armel", "386"]) | WORD
VARIANT = st.sampled_from(["", "v1", "v2", "5", "7", "8", "9", "v8", "v8.1", "v9", "v9.0", "9.0"]) | WORD


@pytest.mark.parametrize(("normal", "texts"), SPELLINGS.items())
def test_a_platform_is_spelled_as_containerd_spells_it(normal: str, texts: str) -> None:
    """Synonyms of one platform become equal; words nobody knows stay as they are."""
    assert {str(parse_platform(text)) for text in texts.split()} == {normal}


def test_missing_words_are_not_filled_in() -> None:
    assert normalize_platform("", "") == Platform("", "")


NO_PLATFORMS = (
    "", "linux", "linux/", "/amd64", "linux/amd64/", "linux//v8", "a/b/c/d", "linux/am d64", "linux/amd64\n",
    "linux/ämd", "linux/-x", "linux/x-", "linux/.", "linux/" + "a" * 64, "linux(10.0)/amd64",
)  # fmt: skip


def test_text_that_is_no_platform_is_refused() -> None:
    for text in NO_PLATFORMS:
        with pytest.raises(InvalidPlatform, match="is no platform; write os/architecture"):
            parse_platform(text)


def test_words_that_state_no_platform_are_refused() -> None:
    """Words from a document must be there and be words, the variant apart; those that are one are normalised."""
    for words in (("", "amd64"), ("linux", ""), ("linux", "arm/v7"), ("linux", "arm", "v7\n"), ("li nux", "arm")):
        with pytest.raises(InvalidPlatform, match="is no platform"):
            platform_of(*words)
    assert platform_of("Linux", "aarch64") == Platform("linux", "arm64")
    assert platform_of("linux", "arm", "7") == Platform("linux", "arm", "v7")


def test_a_word_has_32_characters_at_most() -> None:
    """The longest real name has 11. A message shows only the beginning of a longer one."""
    assert platform_of("linux", "a" * 32, "b" * 32) == Platform("linux", "a" * 32, "b" * 32)
    with pytest.raises(InvalidPlatform) as caught:
        platform_of("a" * 33, "b" * 10_000, "\N{GRINNING FACE}" * 10_000)
    assert len(str(caught.value)) < 150


def test_platforms_sort_by_their_text() -> None:
    texts = ["linux/amd64", "linux/amd64/v2", "linux/arm/v6", "linux/arm/v7", "linux/arm64", "windows/amd64"]
    assert [str(platform) for platform in sorted(map(parse_platform, reversed(texts)))] == texts


@given(st.sampled_from(["linux", "macos", "Windows"]) | WORD, ARCHITECTURE, VARIANT)
def test_a_normalised_platform_round_trips(os: str, architecture: str, variant: str) -> None:
    """Any platform parsed from its own text is itself, unknown words included; one of nodes runs on itself."""
    platform = normalize_platform(os, architecture, variant)
    assert parse_platform(str(platform)) == platform
    assert satisfies(platform, platform, STRICT) is is_of_nodes(platform)


def test_a_level_counts_for_nothing_in_a_single_manifest() -> None:
    """No node compares it. A variant of arm does, since its programs end on a lower one."""
    for text, single in (("amd64/v3", "amd64"), ("arm64/v9", "arm64"), ("arm/v6", "arm/v6"), ("riscv64", "riscv64")):
        assert as_single(parse_platform(f"linux/{text}")) == parse_platform(f"linux/{single}")


# By node: the images that it runs, and those that it does not.
RUNS = {
    "linux/amd64": ("linux/amd64", "linux/arm64 windows/amd64 linux/fake linux/amd64/v2"),
    # no node has a level of amd64 or arm64, whatever it is called
    "linux/amd64/v3": ("linux/amd64", "linux/amd64/v2 linux/amd64/v3"),
    "linux/arm64/v9": ("linux/arm64", "linux/arm64/v8.5 linux/arm64/v9"),
    # arm variants downward, to v5 as both runtimes have it
    "linux/arm/v6": ("linux/arm/v6 linux/arm/v5", "linux/arm/v7"),
    "linux/arm/v7": (
        "linux/arm linux/arm/v6 linux/arm/v5",
        "linux/arm/v4 linux/arm/v8 linux/arm/armv7 linux/arm/armv6",
    ),
    "linux/arm/v8": ("linux/arm/v7", "linux/arm/v9"),
    "linux/arm64": ("linux/arm64/v8 linux/arm64/v8.0", "linux/arm64/v8.1 linux/arm64/v9 linux/arm64/armv8"),
    "linux/ppc64le": ("linux/ppc64le", "linux/ppc64le/power8"),
    "linux/riscv64": ("linux/riscv64", "linux/riscv64/rva23u64"),
    "linux/386": ("linux/386", "linux/amd64"),
}


@pytest.mark.parametrize(("node", "images"), RUNS.items(), ids=RUNS)
def test_a_node_runs_its_own_platform_and_the_lesser_ones(node: str, images: tuple[str, str]) -> None:
    """What a node runs does not depend on the two compatibilities as long as the architectures are equal or alien."""
    for texts, runs in zip(images, (True, False), strict=True):
        for text in texts.split():
            for compatibility in (STRICT, LENIENT):
                assert satisfies(parse_platform(node), parse_platform(text), compatibility) is runs, text


FOREIGN = {
    "linux/amd64": "linux/386", "linux/amd64/v3": "linux/386", "linux/arm64/v9": "linux/arm/v6",
    "linux/arm64": "linux/arm/v8 linux/arm linux/arm/v5",
}  # fmt: skip


@pytest.mark.parametrize(("node", "images"), FOREIGN.items())
def test_foreign_instruction_sets_run_only_where_configured(node: str, images: str) -> None:
    """386 on amd64 and arm on arm64 are each the operator's choice, and one does not switch on the other."""
    for image in images.split():
        mine = Compatibility(run_386_on_amd64="386" in image, run_arm_on_arm64="386" not in image)
        other = Compatibility(run_386_on_amd64="386" not in image, run_arm_on_arm64="386" in image)
        assert satisfies(parse_platform(node), parse_platform(image), mine)
        assert not satisfies(parse_platform(node), parse_platform(image), other)
        assert not satisfies(parse_platform(node), parse_platform(image), STRICT)


ALIEN = (
    "linux/arm/v7 linux/arm64", "linux/386 linux/amd64", "linux/arm64 linux/386", "linux/arm64 linux/arm/armv7",
    "linux/amd64 linux/arm/v7", "linux/amd64 windows/386", "linux/amd64 linux/386/softfloat",
)  # fmt: skip


@pytest.mark.parametrize("pair", ALIEN)
def test_compatibility_goes_one_way_and_no_further(pair: str) -> None:
    """A 32-bit node runs no 64-bit image, and compatibility never crosses families or operating systems."""
    node, image = map(parse_platform, pair.split())
    assert not satisfies(node, image, LENIENT)


def test_an_image_runs_where_one_of_its_platforms_does() -> None:
    """The plain entry beside a level counts for every node; a level alone counts for none."""
    level, plain = parse_platform("linux/amd64/v3"), parse_platform("linux/amd64")
    for node in (level, plain):
        assert runs_on(frozenset({level, plain}), node, STRICT)
        assert not runs_on(frozenset({level}), node, STRICT)
        assert not runs_on(frozenset(), node, STRICT)
    assert runs_on(frozenset({parse_platform("linux/arm/v6")}), parse_platform("linux/arm"), STRICT)
