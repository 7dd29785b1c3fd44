"""kube-scheduler's own rules for a node, as its documentation has them: NodeAffinity, NodeSelector, TaintToleration.

They are written for the tests alone, over plain JSON, so that a mistake in the package is not made here too.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

Json: TypeAlias = dict[str, Any]

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def allows(spec: Json, node: Json) -> bool:
    """Whether nodeSelector and required node affinity let a pod of this spec onto the node."""
    labels = node["metadata"].get("labels") or {}
    if any(labels.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()):
        return False
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(_REQUIRED)
    if required is None:
        return True
    return any(matches_term(term, node) for term in required["nodeSelectorTerms"] or ())


def is_tolerated(spec: Json, node: Json) -> bool:
    taints = [*(node["spec"].get("taints") or ())]
    if node["spec"].get("unschedulable"):
        taints.append({"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"})
    hard = [taint for taint in taints if taint["effect"] != "PreferNoSchedule"]
    return all(any(tolerates(each, taint) for each in spec.get("tolerations") or ()) for taint in hard)


def matches_term(term: Json, node: Json) -> bool:
    """Whether every requirement of a term holds for the node. A term without any matches none."""
    labels, name = node["metadata"].get("labels") or {}, node["metadata"]["name"]
    expressions, fields = term.get("matchExpressions") or [], term.get("matchFields") or []
    if not expressions and not fields:
        return False
    return all(_holds(each, labels) for each in expressions) and all(
        _holds(each, {"metadata.name": name}) for each in fields
    )


def _holds(requirement: Json, labels: Mapping[str, str]) -> bool:
    present, values = requirement["key"] in labels, requirement.get("values") or []
    value = labels.get(requirement["key"])
    operator = requirement["operator"]
    if operator == "In":
        return present and value in values
    if operator == "NotIn":
        return not present or value not in values
    if operator in ("Exists", "DoesNotExist"):
        return present is (operator == "Exists")
    return present and _is_beyond(operator, str(value), values)


def _is_beyond(operator: str, value: str, values: Sequence[str]) -> bool:
    if not value.lstrip("+-").isdigit():
        return False
    return int(value) > int(values[0]) if operator == "Gt" else int(value) < int(values[0])


def tolerates(toleration: Json, taint: Json) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint["effect"]:
        return False
    if toleration.get("key") and toleration["key"] != taint["key"]:
        return False
    if toleration.get("operator") == "Exists":
        return True
    return (toleration.get("operator") or "Equal") == "Equal" and (toleration.get("value") or "") == (
        taint.get("value") or ""
    )
