"""Which existing toleration makes one of ours superfluous, and which rules an operator may write."""

import msgspec
import pytest

from extender.images.platform import InvalidPlatform, Platform
from extender.kubernetes.core_v1 import Toleration
from extender.placement.tolerations import TolerationRule, covers, parse_platforms

ARM = TolerationRule(key="arch", operator="Equal", value="arm64", effect="NoSchedule", platforms=("linux/arm64",))
ANY_VALUE = TolerationRule(key="arch", operator="Exists", effect="NoSchedule", platforms=("linux/arm64",))
ANY_EFFECT = TolerationRule(key="arch", value="arm64", platforms=("linux/arm64",))
EVERYTHING = TolerationRule(operator="Exists", platforms=("linux/arm64",))
NO_VALUE = TolerationRule(key="arch", effect="NoSchedule", platforms=("linux/arm64",))


@pytest.mark.parametrize(
    ("existing", "rule", "expected"),
    [
        pytest.param(
            {"key": "arch", "operator": "Equal", "value": "arm64", "effect": "NoSchedule"}, ARM, True, id="same"
        ),
        pytest.param({"key": "arch", "value": "arm64", "effect": "NoSchedule"}, ARM, True, id="operator is Equal"),
        pytest.param({"key": "arch", "operator": "", "value": "arm64"}, ARM, True, id="every effect"),
        pytest.param({"key": "arch", "operator": "Exists", "effect": "NoSchedule"}, ARM, True, id="every value"),
        pytest.param({"key": "arch", "operator": "Exists"}, ARM, True, id="every value and effect"),
        pytest.param({"operator": "Exists"}, ARM, True, id="everything"),
        pytest.param({"operator": "Exists", "effect": "NoSchedule"}, ARM, True, id="every key"),
        pytest.param({"operator": "Exists", "effect": "NoExecute"}, ARM, False, id="every key, other effect"),
        pytest.param({"operator": "Equal", "value": "arm64"}, ARM, True, id="empty key matches all with the value"),
        pytest.param({"key": "", "operator": "Equal", "value": "x"}, ARM, False, id="empty key, other value"),
        pytest.param({"key": "arch", "value": "amd64", "effect": "NoSchedule"}, ARM, False, id="other value"),
        pytest.param({"key": "arch", "effect": "NoSchedule"}, ARM, False, id="no value"),
        pytest.param({"key": "kubernetes.io/arch", "value": "arm64"}, ARM, False, id="other key"),
        pytest.param({"key": "Arch", "operator": "Exists"}, ARM, False, id="keys have case"),
        pytest.param({"key": "arch", "value": "arm64", "effect": "NoExecute"}, ARM, False, id="other effect"),
        pytest.param({"key": "arch", "operator": "Lt", "value": "arm64"}, ARM, False, id="operator Lt"),
        pytest.param({"key": "arch", "operator": "Gt", "value": "arm64"}, ARM, False, id="operator Gt"),
        pytest.param({"key": "arch", "operator": "exists"}, ARM, False, id="operators have case"),
        pytest.param({"key": None, "operator": "Exists", "effect": None}, ARM, True, id="null is empty"),
        pytest.param({"key": "arch", "operator": "Exists"}, ANY_VALUE, True, id="Exists covers Exists"),
        pytest.param({"key": "arch", "operator": "Equal"}, ANY_VALUE, False, id="one value does not cover all"),
        pytest.param({"key": "arch", "value": "arm64"}, ANY_EFFECT, True, id="every effect covers every effect"),
        pytest.param(
            {"key": "arch", "value": "arm64", "effect": "NoSchedule"},
            ANY_EFFECT,
            False,
            id="one effect does not cover all",
        ),
        pytest.param({"operator": "Exists"}, EVERYTHING, True, id="everything covers everything"),
        pytest.param({"key": "arch", "operator": "Exists"}, EVERYTHING, False, id="one key does not cover all"),
        pytest.param({"key": "arch", "effect": "NoSchedule"}, NO_VALUE, True, id="no value equals no value"),
        pytest.param({"key": "arch", "value": None}, NO_VALUE, True, id="null value equals no value"),
    ],
)
def test_existing_toleration_covers_the_rule(existing: dict[str, object], rule: TolerationRule, expected: bool) -> None:
    """As Toleration.ToleratesTaint defines it, asked for every taint that the rule is about."""
    assert covers(msgspec.convert(existing, Toleration), rule.toleration) is expected


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
    ],
)
def test_rule_an_api_server_would_refuse_is_refused_at_start(fields: dict[str, object], says: str) -> None:
    """Every pod that got such a toleration would be refused, so the configuration is."""
    with pytest.raises(msgspec.ValidationError, match=says):
        msgspec.convert({"platforms": ["linux/arm64"], **fields}, TolerationRule)


def test_rule_without_platforms_is_refused() -> None:
    """Nothing would have to be true of an image to earn it."""
    with pytest.raises(msgspec.ValidationError, match="platforms"):
        msgspec.convert({"key": "a"}, TolerationRule)


@pytest.mark.parametrize("key", ["arch", "kubernetes.io/arch", "a.b-c.example.com/X_y.z"])
def test_rule_takes_keys_that_kubernetes_takes(key: str) -> None:
    """With and without a DNS prefix."""
    assert msgspec.convert({"key": key, "platforms": []}, TolerationRule).key == key


def test_platforms_of_a_rule_are_normalised() -> None:
    """So `aarch64` in the configuration is the `arm64` of an image."""
    assert parse_platforms(("linux/aarch64", "linux/arm/v6")) == {
        Platform("linux", "arm64"),
        Platform("linux", "arm", "v6"),
    }
    with pytest.raises(InvalidPlatform):
        parse_platforms(("arm64",))
