"""Which existing toleration makes one of ours superfluous, and which rules an operator may write."""

from itertools import product

import msgspec
import pytest

from extender.images.platform import InvalidPlatform
from extender.kubernetes.core_v1 import Toleration
from extender.placement.tolerations import TolerationRule, covers, parse_platforms
from tests.unit.placement.kube_scheduler import tolerates

ARM = TolerationRule(key="arch", operator="Equal", value="arm64", effect="NoSchedule", platforms=("linux/arm64",))
ANY_VALUE = TolerationRule(key="arch", operator="Exists", effect="NoSchedule", platforms=("linux/arm64",))
ANY_EFFECT = TolerationRule(key="arch", value="arm64", platforms=("linux/arm64",))
EVERYTHING = TolerationRule(operator="Exists", platforms=("linux/arm64",))
NO_VALUE = TolerationRule(key="arch", effect="NoSchedule", platforms=("linux/arm64",))
KEYS, VALUES, EFFECTS = ("arch", "Arch", "other"), ("", "arm64", "amd64", "other"), ("NoSchedule", "NoExecute")
TAINTS = [dict(zip(("key", "value", "effect"), each, strict=True)) for each in product(KEYS, VALUES, EFFECTS)]
GIVEN = product((None, "", *KEYS), (None, "", "Equal", "Exists", "exists", "Lt"), (None, *VALUES), (None, "", *EFFECTS))


def test_a_toleration_covers_another_that_tolerates_no_other_taint() -> None:
    """By kube-scheduler's own rule, for each of the taints; null is empty, and words have case."""
    for words in GIVEN:
        given = dict(zip(("key", "operator", "value", "effect"), words, strict=True))
        for rule in (ARM, ANY_VALUE, ANY_EFFECT, EVERYTHING, NO_VALUE):
            theirs = [taint for taint in TAINTS if tolerates(msgspec.to_builtins(rule.toleration), taint)]
            expected = all(tolerates(given, taint) for taint in theirs)
            assert covers(msgspec.convert(given, Toleration), rule.toleration) is expected, (given, rule)


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
    for key in ("arch", "kubernetes.io/arch", "a.b-c.example.com/X_y.z"):
        assert msgspec.convert({"key": key, "platforms": []}, TolerationRule).key == key


def test_platforms_of_a_rule_are_normalised() -> None:
    """So `aarch64` in the configuration is the `arm64` of an image."""
    assert set(map(str, parse_platforms(("linux/aarch64", "linux/arm/v6")))) == {"linux/arm64", "linux/arm/v6"}
    with pytest.raises(InvalidPlatform):
        parse_platforms(("arm64",))
