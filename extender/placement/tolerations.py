"""Which toleration a pod may be given, and whether it has as much already.

Knows no image and no pod: `mutation` asks, per rule, whether the images run on its platforms.
"""

import functools
from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec

from extender.images.platform import Platform, parse_platform
from extender.kubernetes.core_v1 import Toleration
from extender.tables import declare_cache

# An API server refuses a pod whose toleration has another key or value (apimachinery/pkg/util/validation): a key is a
# qualified name or empty, a value is a label's.
_WORD = "[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
_KEY = rf"^(([a-z0-9]([a-z0-9.-]{{0,251}}[a-z0-9])?/)?{_WORD})?\Z"
_VALUE = rf"^({_WORD})?\Z"


class TolerationRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A toleration, and the platforms on every one of which all images must run to earn it.

    An empty key, with Exists, tolerates every taint; an empty effect every effect. Platforms are written
    `os/architecture` or `os/architecture/variant`; without any the rule is never earned.
    """

    key: Annotated[str, msgspec.Meta(pattern=_KEY)] = ""
    operator: Literal["Equal", "Exists"] = "Equal"
    value: Annotated[str, msgspec.Meta(pattern=_VALUE)] = ""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute", ""] = ""
    platforms: tuple[str, ...]

    def __post_init__(self) -> None:
        """Refuse what an API server refuses, since it would refuse every pod that got this."""
        if self.operator == "Exists" and self.value:
            raise ValueError("with operator Exists the value must be empty")
        if not self.key and self.operator != "Exists":
            raise ValueError("without a key the operator must be Exists")

    @property
    def toleration(self) -> Toleration:
        """What a pod is given: empty fields left out."""
        return Toleration(
            key=self.key or None, operator=self.operator, value=self.value or None, effect=self.effect or None
        )


_RULES = declare_cache("placement.tolerations.platforms", key="texts of a rule", bound=256)


@functools.lru_cache(_RULES.rows)
def parse_platforms(texts: tuple[str, ...]) -> frozenset[Platform]:
    """The platforms of a rule, normalised.

    Raises:
        InvalidPlatform: one of them is none.
    """
    return frozenset(parse_platform(text) for text in texts)


def covers(existing: Toleration, rule: TolerationRule) -> bool:
    """Whether `existing` tolerates every taint that the rule's toleration would.

    As Toleration.ToleratesTaint has it (k8s.io/api/core/v1/toleration.go): an empty effect or key matches all, an empty
    operator is Equal, Exists matches any value; operators that compare numbers (Lt, Gt) cover no rule of ours.
    """
    if existing.effect and existing.effect != rule.effect:
        return False
    if existing.key and existing.key != rule.key:
        return False
    if existing.operator == "Exists":
        return True
    return (
        (existing.operator or "Equal") == "Equal" and rule.operator == "Equal" and (existing.value or "") == rule.value
    )


def is_covered(rule: TolerationRule, tolerations: Sequence[Toleration]) -> bool:
    """Whether one of these does what the rule's toleration would."""
    return any(covers(existing, rule) for existing in tolerations)
