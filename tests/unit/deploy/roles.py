"""What the roles of a set of objects give to an account."""

from collections.abc import Sequence
from itertools import product

from extender.kubernetes.api_groups import ResourceAttributes
from testbed.objects import KubernetesObject


def rights_in(rules: Sequence[KubernetesObject], namespace: str) -> set[ResourceAttributes]:
    """What the rules of a role give, in the namespace of a Role, or everywhere."""
    return {
        ResourceAttributes(verb, resource, group, namespace, name)
        for rule in rules
        for verb, resource, group, name in product(
            rule["verbs"], rule["resources"], rule["apiGroups"], rule.get("resourceNames", [""])
        )
    }


def rights_given(objects: Sequence[KubernetesObject], account: str) -> set[ResourceAttributes]:
    """What the roles that are among the objects give to the ServiceAccount of that name."""
    roles = {(each["kind"], *_place_of(each)): each for each in objects if each["kind"].endswith("Role")}
    given = set[ResourceAttributes]()
    for each in objects:
        if account in {subject["name"] for subject in each.get("subjects", ())}:
            _, namespace = _place_of(each)
            kind, name = each["roleRef"]["kind"], each["roleRef"]["name"]
            role = roles.get((kind, name, namespace if kind == "Role" else ""), {"rules": []})
            given |= rights_in(role["rules"], namespace)
    return given


def _place_of(document: KubernetesObject) -> tuple[str, str]:
    return document["metadata"]["name"], document["metadata"].get("namespace", "")


def is_given(right: ResourceAttributes, given: set[ResourceAttributes]) -> bool:
    """Whether one of the rights given covers it: for its namespace and name, or for all."""
    return any(
        (each.verb, each.resource, each.group) == (right.verb, right.resource, right.group)
        and each.namespace in ("", right.namespace)
        and each.name in ("", right.name)
        for each in given
    )
