"""The kinds of objects that the cluster has, and the paths of the API where they are."""

from typing import Any, NamedTuple

Document = dict[str, Any]
"""An object of Kubernetes as its JSON."""


class Kind(NamedTuple):
    """A kind of the API. `has_generation`: a change of its spec counts up `metadata.generation`."""

    name: str
    group: str
    plural: str
    is_namespaced: bool = True
    has_generation: bool = False
    version: str = "v1"

    @property
    def api_version(self) -> str:
        """As objects have it, such as v1 or apps/v1."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def granted_as(self) -> str:
        """The resource as messages about rights have it, such as leases.coordination.k8s.io."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


_ADMISSION = "admissionregistration.k8s.io"
_ALL = (
    Kind("Pod", "", "pods", has_generation=True),
    Kind("Node", "", "nodes", is_namespaced=False),
    Kind("Namespace", "", "namespaces", is_namespaced=False),
    Kind("Secret", "", "secrets"),
    Kind("ConfigMap", "", "configmaps"),
    Kind("Event", "", "events"),
    Kind("ServiceAccount", "", "serviceaccounts"),
    Kind("PodTemplate", "", "podtemplates"),
    Kind("ReplicationController", "", "replicationcontrollers", has_generation=True),
    Kind("Deployment", "apps", "deployments", has_generation=True),
    Kind("ReplicaSet", "apps", "replicasets", has_generation=True),
    Kind("StatefulSet", "apps", "statefulsets", has_generation=True),
    Kind("DaemonSet", "apps", "daemonsets", has_generation=True),
    Kind("Job", "batch", "jobs", has_generation=True),
    Kind("CronJob", "batch", "cronjobs", has_generation=True),
    Kind("Lease", "coordination.k8s.io", "leases"),
    Kind("PriorityClass", "scheduling.k8s.io", "priorityclasses", is_namespaced=False),
    Kind("RuntimeClass", "node.k8s.io", "runtimeclasses", is_namespaced=False),
    Kind("PodDisruptionBudget", "policy", "poddisruptionbudgets", has_generation=True),
    Kind("MutatingWebhookConfiguration", _ADMISSION, "mutatingwebhookconfigurations", False, has_generation=True),
    Kind("ValidatingWebhookConfiguration", _ADMISSION, "validatingwebhookconfigurations", False, has_generation=True),
    Kind("MutatingAdmissionPolicy", _ADMISSION, "mutatingadmissionpolicies", False, has_generation=True),
    Kind("MutatingAdmissionPolicyBinding", _ADMISSION, "mutatingadmissionpolicybindings", False, has_generation=True),
    Kind("ValidatingAdmissionPolicy", _ADMISSION, "validatingadmissionpolicies", False, has_generation=True),
    Kind(
        "ValidatingAdmissionPolicyBinding", _ADMISSION, "validatingadmissionpolicybindings", False, has_generation=True
    ),
)
KINDS = {kind.name: kind for kind in _ALL}
BY_PLURAL = {kind.plural: kind for kind in _ALL}
_BY_RESOURCE = {(kind.group, kind.version, kind.plural): kind for kind in _ALL}


class Target(NamedTuple):
    """What a path of the API names: a collection, or an object in it, or a subresource of that."""

    kind: Kind
    namespace: str = ""
    name: str = ""
    subresource: str = ""


def target_of(path: str) -> Target | None:
    """What the path names; None if it is none of the kinds above."""
    parts = path.strip("/").split("/")
    if len(parts) >= 3 and parts[:2] == ["api", "v1"]:
        group, version, rest = "", "v1", parts[2:]
    elif len(parts) >= 4 and parts[0] == "apis":
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return None
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    kind = _BY_RESOURCE.get((group, version, rest[0]))
    if kind is None or len(rest) > 3:
        return None
    return Target(kind, namespace, *rest[1:])
