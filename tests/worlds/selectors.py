"""Label and field selectors, as requests and objects have them.

Sources: k8s.io/apimachinery/pkg/labels/selector.go, pkg/fields/selector.go and pkg/apis/meta/v1/helpers.go. Of fields
there are those that pods, events and nodes can be selected by.
"""

import functools
import re
from collections.abc import Callable, Mapping
from typing import Any

from tests.worlds.api_errors import bad_request
from tests.worlds.api_kinds import Document

Predicate = Callable[[Document], bool]
_FIELDS = {
    "metadata.name": ("metadata", "name"),
    "metadata.namespace": ("metadata", "namespace"),
    "spec.nodeName": ("spec", "nodeName"),
    "spec.schedulerName": ("spec", "schedulerName"),
    "status.phase": ("status", "phase"),
    "involvedObject.name": ("involvedObject", "name"),
    "involvedObject.uid": ("involvedObject", "uid"),
    "reason": ("reason",),
    "type": ("type",),
}
_IN = re.compile(r"^\s*([^\s=!]+)\s+(in|notin)\s+\(([^)]*)\)\s*$")
_COMPARED = re.compile(r"^\s*([^\s=!]+)\s*(==|=|!=)\s*(\S*)\s*$")
_SEPARATOR = re.compile(r",(?![^(]*\))")


@functools.lru_cache(maxsize=256)
def parse_selectors(labels: str, fields: str) -> Predicate:
    """Whether an object is selected by both. Raises ApiError (400) for one that cannot be read."""
    wanted = [_label_requirement(part) for part in _SEPARATOR.split(labels) if part.strip()]
    wanted += [_field_requirement(part) for part in fields.split(",") if part.strip()]
    return lambda document: all(is_met(document) for is_met in wanted)


def _label_requirement(part: str) -> Predicate:
    if found := _IN.match(part):
        key, operator, listed = found.group(1, 2, 3)
        values = frozenset(each.strip() for each in listed.split(","))
        return _on_label(key, lambda value: (value in values) is (operator == "in"))
    if found := _COMPARED.match(part):
        key, operator, wanted = found.group(1, 2, 3)
        return _on_label(key, lambda value: (value == wanted) is (operator != "!="))
    key = part.strip().removeprefix("!")
    return _on_label(key, lambda value: (value is None) is part.strip().startswith("!"))


def _on_label(key: str, is_met: Callable[[str | None], bool]) -> Predicate:
    return lambda document: is_met((document["metadata"].get("labels") or {}).get(key))


def _field_requirement(part: str) -> Predicate:
    found = _COMPARED.match(part)
    path = _FIELDS.get(found.group(1)) if found else None
    if found is None or path is None:
        raise bad_request(f"field label not supported: {part}")
    wanted, is_equal = found.group(3), found.group(2) != "!="

    def is_met(document: Document) -> bool:
        value: Any = document
        for step in path:
            value = value.get(step) if isinstance(value, dict) else None
        return ((value or "") == wanted) is is_equal

    return is_met


def matches_labels(selector: Mapping[str, Any] | None, labels: Mapping[str, str] | None) -> bool:
    """Whether a LabelSelector selects the labels; an empty one selects all, None nothing."""
    if selector is None:
        return False
    labels = labels or {}
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    return all(meets_requirement(each, labels) for each in selector.get("matchExpressions") or ())


def meets_requirement(requirement: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether labels meet a requirement of a LabelSelector or a NodeSelectorTerm."""
    value, values = labels.get(requirement["key"]), list(requirement.get("values") or ())
    match requirement["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt":
            return value is not None and value.isdecimal() and int(value) > int(values[0])
        case "Lt":
            return value is not None and value.isdecimal() and int(value) < int(values[0])
    raise ValueError(f"unknown operator in {requirement}")
