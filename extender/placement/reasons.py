"""The sentences for a pod's author: why nodes were refused, and why kube-scheduler should retry.

Each depends on the pod's images alone and never on the requested nodes. kube-scheduler groups nodes by text, and a text
that changes between attempts makes it retry the pod in a hot loop. Each has fewer than 512 characters.
"""

import itertools
from collections.abc import Iterable, Sequence, Set

import msgspec

from extender.images.platform import Platform
from extender.placement.facts import Anywhere, ImageFact, Pending, PodImage, RunsOn, Unknown

# The longest text around a reference and its platforms, with counts of five digits, takes 112 of the 512 characters.
_REFERENCE_CHARACTERS = 220
_PLATFORMS_CHARACTERS = 160
_PLATFORM_CHARACTERS = 60  # a manifest may state any word as its architecture
_ASKED_CHARACTERS = 75
_DETAIL_CHARACTERS = 160


class Constraint(msgspec.Struct, frozen=True):
    """An image that refuses every node which runs none of `platforms`.

    `assumed`: whether `platforms` are assumed by the operator's policy rather than known. `asked` and `by_operator` are
    as in `RunsOn`.
    """

    reference: str
    platforms: frozenset[Platform]
    assumed: bool = False
    asked: str = ""
    by_operator: bool = False


def constraints_of(
    images: Sequence[PodImage],
    facts: Sequence[ImageFact],
    assumed: Set[PodImage] = frozenset(),
    assume: frozenset[Platform] = frozenset(),
) -> list[Constraint]:
    """What the known images require, and those `assumed` to run on the platforms of `assume`, in pod order.

    `facts` are those of `images`, in order.
    """
    found = []
    for image, fact in zip(images, facts, strict=True):
        if isinstance(fact, RunsOn):
            found.append(Constraint(image.reference, fact.platforms, False, fact.asked, fact.by_operator))
        elif image in assumed:
            found.append(Constraint(image.reference, assume, assumed=True))
    return found


NAME_CHARACTERS = 253
"""Of the name of an object. Whoever creates a pod may write a megabyte, which the API server refuses after us."""


def tightest(constraints: Iterable[Constraint]) -> tuple[Constraint, ...]:
    """The constraints whose platforms have no proper subset among the others', in order and without repeats.

    At least one of them refuses every refused node. Proof: some constraint C refuses the node, so the node runs no
    platform of C. Take a smallest set S among the sets of platforms within C's. The node runs no platform of S either,
    and no other set is a proper subset of S, so the result has S. Which constraints are assumed does not matter, as an
    assumption applies to all nodes alike.
    """
    first: dict[tuple[str, frozenset[Platform]], Constraint] = {}
    for item in constraints:
        first.setdefault((item.reference, item.platforms), item)
    sets = {platforms for _, platforms in first}
    if len(sets) == 1:
        return tuple(first.values())
    smallest = {platforms for platforms in sets if not any(other < platforms for other in sets)}
    return tuple([item for item in first.values() if item.platforms in smallest])


def refusal_text(constraints: Sequence[Constraint]) -> str:
    """The one reason for all nodes that `constraints` refuse; empty without constraints."""
    refusing = tightest(constraints)
    if not refusing:
        return ""
    return f"{_image(refusing[0].reference)} {_said(refusing[0])}{_others({item.reference for item in refusing})}"


def system_text(images: Sequence[PodImage], facts: Sequence[ImageFact]) -> str:
    """The reason for nodes of other systems than the pod's, none of whose images is for a platform; else empty."""
    for image, fact in zip(images, facts, strict=True):
        if isinstance(fact, Anywhere) and fact.os:
            return f"{_image(image.reference)} is in a pod for {shorten(fact.os, _ASKED_CHARACTERS)} (spec.os.name)"
    return ""


def _said(constraint: Constraint) -> str:
    if constraint.assumed:
        platforms = platforms_text(constraint.platforms)
        return f"is not known yet and is taken to run only on {platforms} (operator's setting)"
    return built_text(constraint)


def built_text(image: RunsOn | Constraint) -> str:
    """For what the image is built, as the end of a sentence about it."""
    platforms, asked = platforms_text(image.platforms), image.asked
    if image.by_operator and platforms:
        return f"runs only on {platforms} (operator's setting)"
    if not asked:
        return f"is built only for {platforms}"
    if not platforms:
        return f"is not built for {shorten(asked, _PLATFORMS_CHARACTERS)}"
    return f"is built for {shorten(asked, _ASKED_CHARACTERS)} only as {platforms}"


def retry_text(unresolved: Sequence[tuple[PodImage, Pending | Unknown]]) -> str:
    """Why kube-scheduler should retry, with the first unresolved image and its cause; empty if there is none."""
    return f"{_unresolved(unresolved)}; to be tried again" if unresolved else ""


def held_text(unresolved: Sequence[tuple[PodImage, Pending | Unknown]]) -> str:
    """Why a pod is held, with the first unresolved image and its cause; empty if there is none."""
    return f"{_unresolved(unresolved)}; the pod is held until it is known" if unresolved else ""


def passed_text(unresolved: Sequence[tuple[PodImage, Pending | Unknown]], why: str) -> str:
    """That a pod was let through although an image is unresolved, and why; empty if none is."""
    return f"{_unresolved(unresolved)}; the pod was let through without it, {why}" if unresolved else ""


def left_text(why_left: str) -> str:
    """That a pod was let through although it has too much of something, which `why_left` says, to be decided about."""
    return f"the pod was let through without node affinity and tolerations: {why_left}"


def platforms_text(platforms: Iterable[Platform]) -> str:
    """The sorted platforms as `linux/amd64, linux/arm64`; a long list is cut off by `and 7 more`."""
    words = [shorten(str(platform), _PLATFORM_CHARACTERS) for platform in sorted(platforms)]
    ends = itertools.accumulate(len(word) + len(", ") for word in words)
    fitting = sum(end <= _PLATFORMS_CHARACTERS for end in ends)
    text = ", ".join(words[:fitting])
    return text if fitting == len(words) else f"{text} and {len(words) - fitting} more"


def shown_reference(reference: str) -> str:
    """The reference in 220 characters at most: a pod that is being created may name a megabyte."""
    return shorten(reference, _REFERENCE_CHARACTERS)


def _unresolved(unresolved: Sequence[tuple[PodImage, Pending | Unknown]]) -> str:
    image, fact = unresolved[0]
    state = "is not known yet" if isinstance(fact, Pending) else "is unknown"
    cause = f"({fact.cause}: {shorten(fact.detail, _DETAIL_CHARACTERS)})"
    return f"{_image(image.reference)} {state} {cause}{_others({image.reference for image, _ in unresolved})}"


def _image(reference: str) -> str:
    return f"image {shown_reference(reference)}" if reference else "a container without an image"


def _others(references: Set[str]) -> str:
    more = len(references) - 1
    return f" (and {more} more image{'s' if more > 1 else ''})" if more else ""


def shorten(text: str, characters: int) -> str:
    """`text` without its middle if too long, as the ends of a reference say most; unprintable characters as `?`."""
    if len(text) > characters:
        half = (characters - 1) // 2
        text = f"{text[:half]}…{text[-half:]}"
    return text if text.isprintable() else "".join(letter if letter.isprintable() else "?" for letter in text)
