"""The policy that names a scheduler for pods of the namespaces that ask for it by a label.

It needs nothing of ours to run, so an outage makes these pods wait for their scheduler and leads none to the default
one.
"""

from extender.admission_policies.objects import ENFORCED, SelectedNamespaces, cel_string, cel_strings, mutating_policy
from extender.placement.annotations import PREFIX
from extender.placement.patch import JsonObject

LABEL = f"{PREFIX}scheduler"
"""The label of namespaces; its value is the name of the scheduler."""

NAME = "multiarch-extender-scheduler-name"
"""The name of the policy and of its binding."""

_DEFAULT = "default-scheduler"


def scheduler_name_policy(scheduler: str, namespaces: SelectedNamespaces) -> list[JsonObject]:
    """The policy and its binding: pods there that name no other scheduler get this one. Kubernetes 1.36 or later.

    Namespaces are those of `namespaces` that also have the label. Raises ValueError if it cannot be a scheduler's name.
    """
    patch = f"""\
{ENFORCED} && object.spec.?schedulerName.orValue('') in {cel_strings(["", _DEFAULT])}
  ? [JSONPatch{{op: 'add', path: '/spec/schedulerName', value: {cel_string(scheduler)}}}]
  : []"""
    labelled = SelectedNamespaces({**namespaces.labels, LABEL: scheduler}, namespaces.excluded)
    return mutating_policy(NAME, labelled, patch)
