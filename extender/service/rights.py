"""The rights that the account of a service takes: one table, for the service itself, `doctor` and the chart.

`make manifests` writes it into the chart as files/rights.yaml, from which the roles are made. docs/security.md says
what each is for.
"""

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Literal

import msgspec

from extender.config.tree import Config, TlsConfig
from extender.kubernetes.api_groups import ResourceAttributes
from extender.placement.gate import UnknownImages

When = Literal[
    "always", "scheduler", "webhook", "gates", "arms", "secrets", "secretsOfNamespaces", "selfManaged",
]  # fmt: skip
"""What settings say; the chart's template of parts knows the same words."""

_ADMISSION = "admissionregistration.k8s.io"
_OWN, _PROBE, _LISTED = "own", "probe", "listed"


class Rights(msgspec.Struct, frozen=True, omit_defaults=True):
    """Rights on a resource that an account takes while `when` holds.

    An empty `place` is the whole cluster; `own`, `probe` and `listed` are namespaces that settings name. `named` is a
    word for objects that settings name; without it they are all.
    """

    when: When
    resource: str
    verbs: tuple[str, ...]
    why: str
    group: str = ""
    place: str = ""
    named: str = ""


_GET, _LIST, _CREATE = ("get",), ("list",), ("create",)
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
    Rights("secretsOfNamespaces", "secrets", _GET, "pull secrets that its pods name, by name", place=_LISTED),
    Rights("gates", "leases", _CHANGE, "which replica removes gates", "coordination.k8s.io", _OWN, "lease"),
    Rights("arms", "mutatingadmissionpolicies", _GET, "what holds pods", _ADMISSION, named="policy"),
    Rights("arms", _BINDINGS, _CHANGE, "puts it into force", _ADMISSION, named="policy"),
    Rights("arms", _BINDINGS, _CREATE, "RBAC cannot name what does not exist yet", _ADMISSION),
    Rights("arms", "pods", _CREATE, "dry runs, as a policy has it", place=_PROBE),
    Rights("selfManaged", "secrets", _CHANGE, "the webhook's certificate", place=_OWN, named="identity"),
    Rights("selfManaged", _CONFIGURATIONS, _CHANGE, "whom the API server trusts", _ADMISSION, named="configuration"),
)

GATE_RIGHTS = tuple(ResourceAttributes(verb, "pods") for verb in _CHANGE_HELD)
"""What removing the gate of a held pod takes, in all namespaces."""


def rights_of(config: Config, namespace: str) -> tuple[ResourceAttributes, ...]:
    """What a service with these settings, whose pods are in `namespace`, must be allowed; each once."""
    return tuple(dict.fromkeys(_rights_of(config, namespace))) if config.has_cluster else ()


def _rights_of(config: Config, namespace: str) -> Iterator[ResourceAttributes]:
    holds, places, names = _facts(config), _places(config, namespace), _names(config)
    for each in TABLE:
        if holds[each.when]:
            objects = names[each.named] if each.named else ("",)
            for place, name, verb in product(places[each.place], objects, each.verbs):
                yield ResourceAttributes(verb, each.resource, each.group, place, name)


def _facts(config: Config) -> Mapping[When, bool]:
    scheduler, admission, registry = config.scheduler, config.admission, config.registry
    gates = admission.unknown is UnknownImages.GATE
    arms = gates and bool(admission.gate.policy)
    return {
        "always": True,
        "scheduler": bool(scheduler.listen),
        "webhook": bool(admission.listen),
        "gates": gates,
        "arms": arms,
        "secrets": registry.pull_secrets is True,
        "secretsOfNamespaces": not isinstance(registry.pull_secrets, bool),
        "selfManaged": bool(admission.listen and admission.tls and admission.tls.self_managed),
    }


def _places(config: Config, namespace: str) -> Mapping[str, tuple[str, ...]]:
    listed = config.registry.pull_secrets
    return {
        "": ("",),
        _OWN: (namespace,),
        _PROBE: (config.admission.gate.probe_namespace,),
        _LISTED: () if isinstance(listed, bool) else listed,
    }


def _names(config: Config) -> Mapping[str, tuple[str, ...]]:
    admission, tls = config.admission, config.admission.tls or TlsConfig()
    return {
        "lease": (admission.gate.lease,),
        "policy": (admission.gate.policy,),
        "identity": (tls.identity_secret,),
        "configuration": (tls.service,),
    }
