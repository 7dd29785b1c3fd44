"""The rules for giving pods a toleration, and whether a pod has an equivalent toleration already.

Depends on neither images nor pods: `mutation` checks whether a pod's images run on the platforms of a rule.
"""

import functools
from typing import Annotated, Literal

import msgspec

from extender.images.platform import Platform, PlatformName, parse_platform
from extender.kubernetes.core_v1 import Taint, Toleration
from extender.placement.node_match import tolerates

# An API server refuses a pod whose toleration has any other key or value (apimachinery/pkg/util/validation): a key is a
# qualified name or empty, a value is a label value.
_WORD = "[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
_KEY = rf"^(([a-z0-9]([a-z0-9.-]{{0,251}}[a-z0-9])?/)?{_WORD})?\Z"
_VALUE = rf"^({_WORD})?\Z"


class TolerationRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """A toleration, and the platforms on all of which a pod's images must run for the pod to get it.

    An empty key with Exists tolerates every taint, and an empty effect every effect. Platforms are written
    `os/architecture` or `os/architecture/variant`. A rule without platforms never applies.
    """

    key: Annotated[str, msgspec.Meta(pattern=_KEY)] = ""
    operator: Literal["Equal", "Exists"] = "Equal"
    value: Annotated[str, msgspec.Meta(pattern=_VALUE)] = ""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute", ""] = ""
    platforms: tuple[PlatformName, ...]

    def __post_init__(self) -> None:
        """Raises ValueError for a toleration that an API server refuses, as it would refuse every pod that got it."""
        if self.operator == "Exists" and self.value:
            raise ValueError("with operator Exists the value must be empty")
        if not self.key and self.operator != "Exists":
            raise ValueError("without a key the operator must be Exists")

    @functools.cached_property
    def toleration(self) -> Toleration:
        """The toleration that a pod is given, without empty fields."""
        return Toleration(
            key=self.key or None, operator=self.operator, value=self.value or None, effect=self.effect or None
        )


def parse_platforms(texts: tuple[str, ...]) -> frozenset[Platform]:
    """The platforms of a rule, normalised.

    Raises:
        InvalidPlatform: one of the texts is not a platform.
    """
    return frozenset(parse_platform(text) for text in texts)


def covers(existing: Toleration, other: Toleration) -> bool:
    """Whether `existing` tolerates every taint that the other would."""
    if other.operator not in (None, "", "Equal") and existing.operator != "Exists":
        return False
    return tolerates(existing, Taint(other.key or "", other.value, other.effect or ""))


def toleration_text(toleration: Toleration) -> str:
    """The toleration as `kubectl` writes the taint: `key=value:effect`."""
    value = f"={toleration.value}" if toleration.value else ""
    effect = f":{toleration.effect}" if toleration.effect else ""
    return f"{toleration.key or 'every key'}{value}{effect}"
