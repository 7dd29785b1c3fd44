"""Which existing toleration makes one of ours superfluous, and which rules an operator may write."""

import msgspec
import pytest

from extender.images.platform import InvalidPlatform
from extender.kubernetes.core_v1 import Toleration
from extender.placement.tolerations import TolerationRule, covers, parse_platforms

ARM = TolerationRule(key="arch", operator="Equal", value="arm64", effect="NoSchedule", platforms=("linux/arm64",))
ANY_VALUE = TolerationRule(key="arch", operator="Exists", effect="NoSchedule", platforms=("linux/arm64",))
ANY_EFFECT = TolerationRule(key="arch", value="arm64", platforms=("linux/arm64",))
EVERYTHING = TolerationRule(operator="Exists", platforms=("linux/arm64",))
NO_VALUE = TolerationRule(key="arch", effect="NoSchedule", platforms=("linux/arm64",))


COVERING: list[tuple[dict[str, object], TolerationRule]] = [
    ({"key": "arch", "operator": "Equal", "value": "arm64", "effect": "NoSchedule"}, ARM),
    ({"key": "arch", "value": "arm64", "effect": "NoSchedule"}, ARM),
    ({"key": "arch", "operator": "", "value": "arm64"}, ARM),
    ({"key": "arch", "operator": "Exists", "effect": "NoSchedule"}, ARM),
    ({"key": "arch", "operator": "Exists"}, ARM),
    ({"operator": "Exists"}, ARM),
    ({"operator": "Exists", "effect": "NoSchedule"}, ARM),
    ({"operator": "Equal", "value": "arm64"}, ARM),  # an empty key matches all with the value
    ({"key": None, "operator": "Exists", "effect": None}, ARM),
    ({"key": "arch", "operator": "Exists"}, ANY_VALUE),
    ({"key": "arch", "value": "arm64"}, ANY_EFFECT),
    ({"operator": "Exists"}, EVERYTHING),
    ({"key": "arch", "effect": "NoSchedule"}, NO_VALUE),
    ({"key": "arch", "value": None}, NO_VALUE),
]
NOT_COVERING: list[tuple[dict[str, object], TolerationRule]] = [
    ({"operator": "Exists", "effect": "NoExecute"}, ARM),
    ({"key": "", "operator": "Equal", "value": "x"}, ARM),
    ({"key": "arch", "value": "amd64", "effect": "NoSchedule"}, ARM),
    ({"key": "arch", "effect": "NoSchedule"}, ARM),
    ({"key": "kubernetes.io/arch", "value": "arm64"}, ARM),
    ({"key": "Arch", "operator": "Exists"}, ARM),
    ({"key": "arch", "value": "arm64", "effect": "NoExecute"}, ARM),
    ({"key": "arch", "operator": "Lt", "value": "arm64"}, ARM),
    ({"key": "arch", "operator": "Gt", "value": "arm64"}, ARM),
    ({"key": "arch", "operator": "exists"}, ARM),  # operators have case
    ({"key": "arch", "operator": "Equal"}, ANY_VALUE),
    ({"key": "arch", "value": "arm64", "effect": "NoSchedule"}, ANY_EFFECT),
    ({"key": "arch", "operator": "Exists"}, EVERYTHING),
]


@pytest.mark.parametrize(("rows", "expected"), [(COVERING, True), (NOT_COVERING, False)], ids=["covering", "other"])
def test_existing_toleration_covers_the_rule(
    rows: list[tuple[dict[str, object], TolerationRule]], expected: bool
) -> None:
    """As Toleration.ToleratesTaint defines it, asked for every taint that the rule is about."""
    for existing, rule in rows:
        assert covers(msgspec.convert(existing, Toleration), rule.toleration) is expected, (existing, rule)


@pytest.mark.parametrize(
    ("rule", "written"),
    [
        (ARM, {"key": "arch", "operator": "Equal", "value": "arm64", "effect": "NoSchedule"}),
        (ANY_VALUE, {"key": "arch", "operator": "Exists", "effect": "NoSchedule"}),
        (EVERYTHING, {"operator": "Exists"}),
    ],
)
def test_toleration_leaves_empty_fields_out(rule: TolerationRule, written: dict[str, str]) -> None:
    """So that it looks the same after the API server has read and written it."""
    assert msgspec.to_builtins(rule.toleration) == written
    assert covers(rule.toleration, rule.toleration)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        pytest.param({"key": "a", "operator": "Exists", "value": "x"}, "value must be empty", id="Exists with a value"),
        pytest.param({"value": "x"}, "must be Exists", id="no key with Equal"),
        pytest.param({"key": "a", "operator": "Lt"}, "operator", id="operator"),
        pytest.param({"key": "a", "effect": "NoStart"}, "effect", id="effect"),
        pytest.param({"key": "a b"}, "key", id="key"),
        pytest.param({"key": "a/b/c"}, "key", id="key with two slashes"),
        pytest.param({"key": "a\n"}, "key", id="key with a line break"),
        pytest.param({"key": "a", "value": "x" * 64}, "value", id="value too long"),
        pytest.param({"key": "a", "platfroms": []}, "platfroms", id="unknown field"),
        pytest.param({"key": "a", "platforms": "linux/arm64"}, "platforms", id="platforms that are no list"),
        pytest.param({"key": "a", "platforms": msgspec.UNSET}, "platforms", id="no platforms"),
    ],
)
def test_rule_an_api_server_would_refuse_is_refused_at_start(fields: dict[str, object], says: str) -> None:
    """Every pod that got such a toleration would be refused, so the configuration is."""
    given = {key: value for key, value in {"platforms": [], **fields}.items() if value is not msgspec.UNSET}
    with pytest.raises(msgspec.ValidationError, match=says):
        msgspec.convert(given, TolerationRule)


def test_rule_takes_keys_that_kubernetes_takes() -> None:
    """With and without a DNS prefix."""
    for key in ("arch", "kubernetes.io/arch", "a.b-c.example.com/X_y.z"):
        assert msgspec.convert({"key": key, "platforms": []}, TolerationRule).key == key


def test_platforms_of_a_rule_are_normalised() -> None:
    """So `aarch64` in the configuration is the `arm64` of an image."""
    assert set(map(str, parse_platforms(("linux/aarch64", "linux/arm/v6")))) == {"linux/arm64", "linux/arm/v6"}
    with pytest.raises(InvalidPlatform):
        parse_platforms(("arm64",))
