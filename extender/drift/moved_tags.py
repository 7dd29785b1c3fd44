"""What it means for a pod that an image of it runs on other platforms than before.

A change matters if the pod runs on a platform that the image has lost, or if the image was the last one that kept the
pod from a platform of the cluster. Other changes do not.
"""

import enum
from collections.abc import Iterable, Sequence

from extender.images.platform import Compatibility, Platform
from extender.placement.facts import Fit, ImageFact, fit
from extender.placement.reasons import platforms_text, shown_reference


class DriftChange(enum.StrEnum):
    """What a change of an image means for pods: they need a platform that it lost, or one that it gained frees them."""

    LOST = "lost"
    GAINED = "gained"


def lost_platform(
    before: ImageFact, after: ImageFact, node: Platform | None, compatibility: Compatibility
) -> Platform | None:
    """The platform of the pod's node, if the image ran there and does so no more; None otherwise."""
    if node is None or fit([before], node, compatibility) is not Fit.YES:
        return None
    return node if fit([after], node, compatibility) is Fit.NO else None


def gained_platforms(
    before: Sequence[ImageFact], after: Sequence[ImageFact], cluster: Iterable[Platform], compatibility: Compatibility
) -> frozenset[Platform]:
    """The platforms of the cluster on which all images of a pod run now and did not; the facts are in pod order."""
    return frozenset(
        platform
        for platform in cluster
        if fit(after, platform, compatibility) is Fit.YES and fit(before, platform, compatibility) is Fit.NO
    )


def drift_text(change: DriftChange, image: str, platforms: Iterable[Platform], digest: str) -> str:
    """The sentence for the workload; `digest` is the last one that had the platforms that are lost."""
    words, shown = platforms_text(platforms), shown_reference(image)
    if change is DriftChange.GAINED:
        return f"image {shown} runs on {words} now, and so do all images of this workload"
    return (
        f"image {shown} has lost {words}, on which pods of this workload run: it does not start there again. "
        f"The last digest that had it is {digest}; name the image by that digest until the tag has it again"
    )
