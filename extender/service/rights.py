"""The rights that the account of a service takes: one table, for the service itself, `doctor` and the chart's tests.

docs/security.md says what each is for.
"""

from collections.abc import Iterator

from extender.cluster.node_trust import TRUST_OBJECTS
from extender.cluster.openshift_objects import RESOURCES
from extender.config.tree import AdmissionConfig, Config, DriftConfig
from extender.kubernetes.authorization_v1 import ResourceAttributes
from extender.placement.gate import UnknownImages

GATE_RIGHTS = tuple(ResourceAttributes(verb, "pods") for verb in ("get", "list", "watch", "patch"))
"""What letting a held pod go takes, in all namespaces."""
_ADMISSION = "admissionregistration.k8s.io"


def rights_of(config: Config, namespace: str) -> tuple[ResourceAttributes, ...]:
    """What a service with these settings, whose pods are in `namespace`, must be allowed; each once."""
    return tuple(dict.fromkeys(_rights_of(config, namespace))) if config.has_cluster else ()


def canary_right(namespace: str) -> ResourceAttributes:
    """What sending canaries to that namespace takes."""
    return ResourceAttributes("create", "pods", namespace=namespace)


def _rights_of(config: Config, namespace: str) -> Iterator[ResourceAttributes]:
    scheduler, admission = config.scheduler, config.admission
    for resource in ("nodes", "namespaces"):
        yield from _each(("list", "watch"), resource)
    if scheduler.listen or admission.listen:  # a node that is asked about before the watch has seen it
        yield ResourceAttributes("get", "nodes")
    if scheduler.listen:
        yield from _each(("list", "watch"), "pods")
    if admission.listen:  # on DaemonSets
        yield ResourceAttributes("create", "events")
    yield from _drift_rights(config.drift)
    if admission.unknown is UnknownImages.GATE:
        yield from _gating_rights(admission, namespace)
    if admission.listen and admission.canary_seconds and admission.canary_namespace:
        yield canary_right(admission.canary_namespace)
    yield from _registry_rights(config)
    tls = admission.tls
    if admission.listen and tls and tls.self_managed:
        yield from _each(("get", "patch"), "secrets", "", namespace, admission.self_managed.secret)
        for name in admission.self_managed.configurations:
            yield from _each(("get", "patch"), "mutatingwebhookconfigurations", _ADMISSION, "", name)


def _drift_rights(drift: DriftConfig) -> Iterator[ResourceAttributes]:
    if drift.events:
        yield ResourceAttributes("list", "pods")
    if drift.events:
        yield ResourceAttributes("get", "replicasets", "apps")
        yield ResourceAttributes("get", "jobs", "batch")
        yield ResourceAttributes("create", "events")


def _gating_rights(admission: AdmissionConfig, namespace: str) -> Iterator[ResourceAttributes]:
    yield from GATE_RIGHTS
    yield ResourceAttributes("create", "events")
    yield from _each(("get", "patch"), "leases", "coordination.k8s.io", namespace, admission.gate.lease)
    if policy := admission.gate.policy:
        yield ResourceAttributes("get", "mutatingadmissionpolicies", _ADMISSION, name=policy)
        yield from _each(("get", "patch"), "mutatingadmissionpolicybindings", _ADMISSION, "", policy)
        yield ResourceAttributes("create", "mutatingadmissionpolicybindings", _ADMISSION)
        yield canary_right(admission.canary_namespace)


def _registry_rights(config: Config) -> Iterator[ResourceAttributes]:
    readable = config.registry.pull_secrets
    everywhere = ("",) if readable else ()
    for namespace in everywhere if isinstance(readable, bool) else readable:
        yield ResourceAttributes("get", "secrets", namespace=namespace)
    if config.registry.mirrors_of_openshift:
        for kind in RESOURCES:
            yield from _each(("list", "watch"), kind.name, kind.path.split("/")[2])
        for each in TRUST_OBJECTS:
            yield ResourceAttributes("get", each.resource, namespace=each.namespace, name=each.name)


def _each(
    verbs: tuple[str, ...], resource: str, group: str = "", namespace: str = "", name: str = ""
) -> Iterator[ResourceAttributes]:
    return (ResourceAttributes(verb, resource, group, namespace, name) for verb in verbs)
