"""The rights that the account of a service takes: one table, for the service itself and the chart.

`make manifests` writes it into the chart as files/rights.yaml, from which the roles are made. docs/security.md says
what each is for.
"""

from typing import Literal

import msgspec

from extender.kubernetes.api_groups import ResourceAttributes

When = Literal[
    "always", "scheduler", "webhook", "gates", "policy", "secrets", "secretsOfNamespaces", "selfManaged",
]  # fmt: skip
"""What settings say; the chart's `multiarch.facts` has the same words."""

_ADMISSION = "admissionregistration.k8s.io"
_OWN, _PROBE, _LISTED = "own", "probe", "listed"


class Rights(msgspec.Struct, frozen=True, omit_defaults=True):
    """Rights on a resource that an account takes while `when` holds.

    Empty `namespaces` are the whole cluster; `own`, `probe` and `listed` are those that settings name. `named` is a
    word for objects that settings name; without it they are all.
    """

    when: When
    resource: str
    verbs: tuple[str, ...]
    why: str
    group: str = ""
    namespaces: str = ""
    named: str = ""


_GET, _CREATE = ("get",), ("create",)
_WATCH, _CHANGE = ("list", "watch"), ("get", "patch")
_CONFIGURATIONS, _BINDINGS = "mutatingwebhookconfigurations", "mutatingadmissionpolicybindings"
_CHANGE_HELD = ("get", "list", "watch", "patch")
TABLE: tuple[Rights, ...] = (
    Rights("always", "nodes", _WATCH, "platforms and taints"),
    Rights("always", "namespaces", _WATCH, "their annotations"),
    Rights("scheduler", "pods", _WATCH, "pending ones"),
    Rights("gates", "pods", _CHANGE_HELD, "held ones, by their label; get: one that changed; patch: removes the gate"),
    Rights("webhook", "events", _CREATE, "on DaemonSets whose images lack a node's platform"),
    Rights("gates", "events", _CREATE, "why a pod is held, and as what its gate was removed"),
    Rights("secrets", "secrets", _GET, "pull secrets that pods name, by name"),
    Rights("secretsOfNamespaces", "secrets", _GET, "pull secrets that its pods name, by name", namespaces=_LISTED),
    Rights("gates", "leases", _CHANGE, "which replica removes gates", "coordination.k8s.io", _OWN, "lease"),
    Rights("policy", _BINDINGS, _CHANGE, "puts it into force", _ADMISSION, named="policy"),
    Rights("policy", "pods", _CREATE, "dry runs, as a policy has it", namespaces=_PROBE),
    Rights("selfManaged", "secrets", _CHANGE, "the webhook's certificate", namespaces=_OWN, named="identity"),
    Rights("selfManaged", _CONFIGURATIONS, _CHANGE, "whom the API server trusts", _ADMISSION, named="configuration"),
)

GATE_RIGHTS = tuple(ResourceAttributes(verb, "pods") for verb in _CHANGE_HELD)
"""What removing the gate of a held pod takes, in all namespaces."""
