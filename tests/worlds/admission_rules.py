"""For which requests a webhook or a policy is asked: rules, selectors and match conditions.

Source: k8s.io/apiserver/pkg/admission/plugin/webhook/predicates and …/matchconditions. Limit: `matchPolicy` makes no
difference, since each kind has one version.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.worlds.api_kinds import Document, Kind
from tests.worlds.cel import Scope, all_met, compile_cel
from tests.worlds.selectors import matches_labels

_ADMISSION_GROUP = "admissionregistration.k8s.io"


@dataclass
class Request:
    """A change that is to be admitted. `document` is the new object, `old` the stored one."""

    operation: str
    kind: Kind
    namespace: str
    name: str
    user: str
    document: Document
    old: Document | None = None
    subresource: str = ""
    dry_run: bool = False
    namespace_object: Document | None = None
    warnings: list[str] = field(default_factory=list)

    def warn(self, text: str) -> None:
        """Gives the client a warning; equal ones count once (k8s.io/apiserver, filters/warning.go)."""
        if text not in self.warnings:
            self.warnings.append(text)

    @property
    def is_of_admission(self) -> bool:
        """Whether it changes webhooks or policies: nothing may lock its own undoing out."""
        return self.kind.group == _ADMISSION_GROUP

    @property
    def scope(self) -> dict[str, Any]:
        """What expressions see."""
        kind = self.kind
        return {
            "object": self.document if self.operation != "DELETE" else None,
            "oldObject": self.old,
            "namespaceObject": self.namespace_object,
            "request": {
                "operation": self.operation,
                "kind": {"group": kind.group, "version": kind.version, "kind": kind.name},
                "resource": {"group": kind.group, "version": kind.version, "resource": kind.plural},
                "name": self.name,
                "namespace": self.namespace,
                "userInfo": {"username": self.user},
                "dryRun": self.dry_run,
                **({"subResource": self.subresource} if self.subresource else {}),
            },
        }


def is_matched(constraints: Mapping[str, Any], rules: Sequence[Mapping[str, Any]] | None, request: Request) -> bool:
    """Whether the rules and both selectors match. None in place of rules matches every request."""
    if rules is not None and not any(_is_ruled(rule, request) for rule in rules):
        return False
    return _is_in_namespace(constraints.get("namespaceSelector") or {}, request) and _is_object_selected(
        constraints.get("objectSelector") or {}, request
    )


def _is_ruled(rule: Mapping[str, Any], request: Request) -> bool:
    kind = request.kind
    scope = rule.get("scope", "*")
    return (
        _is_among(rule["operations"], request.operation)
        and _is_among(rule["apiGroups"], kind.group)
        and _is_among(rule["apiVersions"], kind.version)
        and any(_is_resource(pattern, request) for pattern in rule["resources"])
        and (scope == "*" or (scope == "Namespaced") is kind.is_namespaced)
    )


def _is_among(listed: Sequence[str], value: str) -> bool:
    return "*" in listed or value in listed


def _is_resource(pattern: str, request: Request) -> bool:
    plural, slash, subresource = pattern.partition("/")
    if plural not in ("*", request.kind.plural):
        return False
    return not request.subresource if not slash else subresource in ("*", request.subresource)


def _is_in_namespace(selector: Mapping[str, Any], request: Request) -> bool:
    if request.kind.name == "Namespace":
        return matches_labels(selector, request.document["metadata"].get("labels"))
    if not request.kind.is_namespaced:
        return True
    found = request.namespace_object
    return matches_labels(selector, found["metadata"].get("labels") if found else None)


def _is_object_selected(selector: Mapping[str, Any], request: Request) -> bool:
    """One of the two objects is enough."""
    if not selector:
        return True
    return any(
        matches_labels(selector, each["metadata"].get("labels")) for each in (request.document, request.old) if each
    )


def meets_conditions(conditions: Sequence[Mapping[str, str]] | None, scope: Scope) -> bool:
    """Whether all conditions are met. One that is not makes up for an error of another. Raises CelError."""
    return all_met(conditions or (), lambda condition: compile_cel(condition["expression"])(scope))
