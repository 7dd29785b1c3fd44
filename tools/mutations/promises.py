"""The list: what users were promised, and one change each that breaks it."""

from tools.mutations.mutation import Mutation

_PLATFORM = "extender/images/platform.py"
_PLATFORM_TESTS = ("tests/unit/images/test_platform.py",)

IMAGES = (
    Mutation(
        "an image for one operating system runs on no node of another",
        _PLATFORM,
        "    if node.os != required.os:\n        return False\n",
        "",
        _PLATFORM_TESTS,
    ),
    Mutation(
        "a node of an older arm does not run what is built for a later one",
        _PLATFORM,
        '"arm": {variant: frozenset(_ARM[: index + 1])',
        '"arm": {variant: frozenset(_ARM[index:])',
        _PLATFORM_TESTS,
    ),
    Mutation(
        "an image for 386 runs on amd64 only where the setting says so",
        _PLATFORM,
        "return compatibility.run_386_on_amd64 and not required.variant",
        "return not required.variant",
        _PLATFORM_TESTS,
    ),
    Mutation(
        "an image for a level of amd64 runs only where a node declares that level",
        _PLATFORM,
        "return not required or node == required or",
        "return not required or not node or node == required or",
        _PLATFORM_TESTS,
    ),
    Mutation(
        "aarch64 with v8 is arm64, as in containerd",
        _PLATFORM,
        '"arm64": {"8": "", "v8": "", ',
        '"arm64": {"8": "", ',
        _PLATFORM_TESTS,
    ),
    Mutation(
        "a word that is no valid label value is no part of a platform",
        _PLATFORM,
        "if not (_WORD.fullmatch(os) and _WORD.fullmatch(architecture) and",
        "if not (_WORD.match(os) and _WORD.match(architecture) and",
        ("tests/unit/images",),
    ),
)

MUTATIONS: tuple[Mutation, ...] = IMAGES
