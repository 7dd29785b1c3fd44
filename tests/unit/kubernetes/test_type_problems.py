"""What is said of objects with a field of the wrong type: which key it has."""

from typing import Any

import msgspec
import pytest

from extender.kubernetes.reported_v1 import ReportedPod
from extender.kubernetes.type_problems import decode_written

CONTAINER = {"name": "c", "image": "app:1"}


@pytest.mark.parametrize(
    ("metadata", "spec", "place"),
    [
        ({"annotations": {"a": "x", "example.com/on": True}}, {}, "$.metadata.annotations[example.com/on]"),
        ({"annotations": {"a": 1}}, {}, "$.metadata.annotations[a]"),
        ({"labels": {"app": "x", "tier": 1.5}}, {}, "$.metadata.labels[tier]"),
        ({}, {"nodeSelector": {"a": "x", "b": None}}, "$.spec.nodeSelector[b]"),
        ({}, {"nodeSelector": {"a": {}, "b": []}}, "$.spec.nodeSelector[a]"),
        ({}, {"nodeSelector": ["x"]}, "$.spec.nodeSelector"),
        ({}, {"containers": [CONTAINER, {"name": "c", "image": 7}]}, "$.spec.containers[1].image"),
    ],
)
def test_the_key_of_a_wrong_value_is_named(metadata: dict[str, Any], spec: dict[str, Any], place: str) -> None:
    """A label's or an annotation's too, of which msgspec itself tells no key."""
    pod = {"metadata": metadata, "spec": {"containers": [CONTAINER], **spec}}
    with pytest.raises(msgspec.ValidationError) as caught:
        decode_written(msgspec.json.encode(pod), ReportedPod)
    assert str(caught.value).endswith(f" - at `{place}`")


def test_a_key_below_an_unnamed_one_is_named() -> None:
    kind = dict[str, dict[str, str]]
    with pytest.raises(msgspec.ValidationError, match=r"`\$\[b\]\[d\]`"):
        decode_written(b'{"a": {"c": "x"}, "b": {"c": "x", "d": 1}}', kind)


def test_what_is_no_json_stays_said_as_it_is() -> None:
    with pytest.raises(msgspec.DecodeError, match="malformed"):
        decode_written(b"{a", ReportedPod)
    assert decode_written(b'{"spec": {"nodeSelector": {"a": "b"}}}', ReportedPod).spec is not None
