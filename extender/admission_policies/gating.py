"""The policy that holds every eligible pod as it is created: it adds our scheduling gate, its label and the reason.

The gate controller takes all of them off once the pod's images are known. Where there is a webhook as well, it runs
after the policy and takes them off in the same request, if it knows the images.
"""

from extender.admission_policies.objects import ENFORCED, SelectedNamespaces, mutating_policy
from extender.placement.annotations import REASON
from extender.placement.gate import GATE, GATED, GATED_LABEL
from extender.placement.patch import JsonObject, pointer

NAME = "multiarch-extender-gate"
"""The name of the policy and of its binding."""

_GATES = "object.spec.?schedulingGates.orValue([])"
_OURS = f"{{'name': '{GATE}'}}"
_REASON = "the platforms of its images are not looked up yet; the pod is held until they are known"
# Map literals, not Object{}: a list of objects as the value of a JSONPatch makes kube-apiserver 1.36.3 panic, and then
# no matching pod can be created (kubernetes/kubernetes#142181).


def _in_map(field: str, key: str, value: str) -> str:
    """The operations that set a key of a map of metadata, which is created where it is missing."""
    return f"""\
(has(object.metadata.{field})
  ? []
  : [JSONPatch{{op: 'add', path: '/metadata/{field}', value: {{}}}}]) +
[JSONPatch{{op: 'add', path: '{pointer(["metadata", field, key])}', value: '{value}'}}]"""


_PATCH = f"""\
!{ENFORCED} ? [] :
({_GATES}.exists(gate, gate.name == '{GATE}')
  ? []
  : size({_GATES}) > 0
  ? [JSONPatch{{op: 'add', path: '/spec/schedulingGates/-',
       value: {_OURS}}}]
  : [JSONPatch{{op: 'add', path: '/spec/schedulingGates',
       value: [{_OURS}]}}]) +
{_in_map("labels", GATED_LABEL, GATED)} +
{_in_map("annotations", REASON, _REASON)}"""


def gating_policy(namespaces: SelectedNamespaces) -> list[JsonObject]:
    """The policy and its binding for these namespaces. Kubernetes 1.36 or later."""
    return mutating_policy(NAME, namespaces, _PATCH)
