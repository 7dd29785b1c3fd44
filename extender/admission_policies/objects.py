"""What the policies share: their form, the namespaces and pods they apply to, and the mode that annotations choose."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from extender.placement.annotations import MODE, Mode
from extender.placement.patch import Json, JsonObject

API_VERSION = "admissionregistration.k8s.io/v1"
MUTATING_POLICY = "MutatingAdmissionPolicy"
VALIDATING_POLICY = "ValidatingAdmissionPolicy"
OWN_NAMESPACE = "multiarch-extender"
SYSTEM_NAMESPACES = ("kube-system", "kube-node-lease", "kube-public")
"""The cluster's own namespaces, in which no pod is changed."""

_NAMESPACE_NAME = "kubernetes.io/metadata.name"
_MIRROR = "kubernetes.io/config.mirror"

ENFORCED = "variables.enforced"
"""A CEL expression for policies made by `mutating_policy`: whether the pod may be changed.

It may not with the mode `observe` or `ignore`. As in the service, a value that is not a mode counts as absent, and the
pod's mode comes before its namespace's.
"""


class SelectedNamespaces(msgspec.Struct, frozen=True):
    """Namespaces with all of `labels`, except the cluster's own and those in `excluded`."""

    labels: Mapping[str, str] = {}
    excluded: Sequence[str] = (OWN_NAMESPACE,)

    def selector(self) -> JsonObject:
        """The metav1.LabelSelector."""
        names: list[Json] = [*SYSTEM_NAMESPACES, *sorted(set(self.excluded))]
        selector: JsonObject = {
            "matchExpressions": [{"key": _NAMESPACE_NAME, "operator": "NotIn", "values": names}],
        }
        return {"matchLabels": dict(self.labels), **selector} if self.labels else selector

    def selects(self, name: str, labels: Mapping[str, str]) -> bool:
        """Whether the selector selects a namespace of that name with these labels."""
        is_excluded = name in SYSTEM_NAMESPACES or name in self.excluded
        return not is_excluded and self.labels.items() <= labels.items()


def mutating_policy(name: str, namespaces: SelectedNamespaces, patch: str) -> list[JsonObject]:
    """A policy and its binding that patch pods when they are created.

    The pods are those about which the webhook is asked: not bound yet, no mirror of a static pod, not of a DaemonSet,
    whose controller judges nodes by its template. `patch` is a CEL expression of a list of JSONPatch.

    It fails closed: an error in it refuses the pod, and does not let it pass unchanged.
    """
    policy: JsonObject = {
        "apiVersion": API_VERSION,
        "kind": MUTATING_POLICY,
        "metadata": {"name": name},
        "spec": {
            "failurePolicy": "Fail",
            "reinvocationPolicy": "Never",
            "matchConstraints": {
                "matchPolicy": "Equivalent",
                "namespaceSelector": namespaces.selector(),
                "resourceRules": [
                    {
                        "apiGroups": [""],
                        "apiVersions": ["v1"],
                        "resources": ["pods"],
                        "operations": ["CREATE"],
                        "scope": "Namespaced",
                    }
                ],
            },
            "matchConditions": [
                {"name": "not-bound-yet", "expression": "object.spec.?nodeName.orValue('') == ''"},
                {
                    "name": "no-mirror-of-a-static-pod",
                    "expression": f"!('{_MIRROR}' in object.metadata.?annotations.orValue({{}}))",
                },
                {
                    "name": "not-of-a-daemonset",
                    "expression": "!object.metadata.?ownerReferences.orValue([]).exists(owner,\n"
                    "  owner.kind == 'DaemonSet' && owner.?controller.orValue(false))",
                },
            ],
            "variables": _mode_variables(),
            "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": patch}}],
        },
    }
    return [policy, binding(MUTATING_POLICY, name)]


def binding(kind: str, name: str) -> JsonObject:
    """The binding that puts the policy of that kind and name to work; it has the same name."""
    spec: JsonObject = {"policyName": name}
    if kind == VALIDATING_POLICY:
        spec["validationActions"] = ["Deny"]
    return {"apiVersion": API_VERSION, "kind": f"{kind}Binding", "metadata": {"name": name}, "spec": spec}


def cel_string(value: str) -> str:
    """The value as a CEL string. Raises ValueError if it has a quote, a backslash or a control character."""
    if not value.isprintable() or "'" in value or "\\" in value:
        raise ValueError(f"{value!r} has characters that no name in Kubernetes has")
    return f"'{value}'"


def cel_strings(values: Iterable[str]) -> str:
    """The values as a CEL list of strings. Raises ValueError as `cel_string`."""
    return f"[{', '.join(map(cel_string, values))}]"


def _mode_variables() -> list[Json]:
    """The variables behind `ENFORCED`."""
    said = ",\n  ".join(
        f"{owner}.metadata.?annotations[?'{MODE}'].orValue('')" for owner in ("object", "namespaceObject")
    )
    modes = f"[\n  {said}\n].filter(mode, mode in {cel_strings(Mode)})"
    return [
        {"name": "modes", "expression": modes},
        {
            "name": ENFORCED.removeprefix("variables."),
            "expression": f"size(variables.modes) == 0 || variables.modes[0] == '{Mode.ENFORCE}'",
        },
    ]
