"""Defaults that the API server writes into objects, and its own admission plugins that change pods and nodes.

Sources: pkg/apis/core/v1/defaults.go and those of apps and batch; plugin/pkg/admission/serviceaccount, priority,
defaulttolerationseconds, runtimeclass and nodetaint. Limits: of the defaults there are those that somebody here looks
at, and those that show in a diff of a pod or a template; a ServiceAccount mounts no token.
"""

from collections.abc import Callable
from typing import Any

from tests.worlds.api_errors import forbidden
from tests.worlds.api_kinds import KINDS, Document

Find = Callable[[str, str, str], Document | None]
"""The stored object of a kind, namespace and name."""

_OMITTED_EMPTY = frozenset(("nodeSelector", "labels", "annotations", "matchLabels", "limits", "requests", "data"))
_KEPT_EMPTY = frozenset(("nodeSelectorTerms", "containers"))  # no omitempty in types.go
_BUILT_IN_CLASSES = {"system-node-critical": 2000001000, "system-cluster-critical": 2000000000}
NOT_READY = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
"""The taint that each node has from its creation until it is ready."""
_SECONDS = 300  # --default-not-ready-toleration-seconds and its sibling


def normalize(value: Any) -> Any:
    """The value without nulls, empty lists and empty maps, which Go's types do not write."""
    if isinstance(value, dict):
        found = {}
        for key, each in value.items():
            kept = normalize(each)
            is_empty = (kept == [] and key not in _KEPT_EMPTY) or (kept == {} and key in _OMITTED_EMPTY)
            if kept is not None and not is_empty:
                found[key] = kept
        return found
    if isinstance(value, list):
        return [normalize(each) for each in value]
    return value


def set_defaults(kind: str, document: Document) -> None:
    """Writes the defaults of the kind into the document."""
    document["apiVersion"], document["kind"] = KINDS[kind].api_version, kind
    if default := _DEFAULTS.get(kind):
        default(document.setdefault("spec", {}))
    elif kind == "Event":
        document.setdefault("type", "Normal")


def _default_pod(spec: Document) -> None:
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("schedulerName", "default-scheduler")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("securityContext", {})
    for name in ("initContainers", "containers"):
        for container in spec.get(name) or ():
            _default_container(container)
    for volume in spec.get("volumes") or ():
        if image := volume.get("image"):
            image.setdefault("pullPolicy", _pull_policy(image.get("reference", "")))


def _default_container(container: Document) -> None:
    container.setdefault("imagePullPolicy", _pull_policy(container.get("image", "")))
    container.setdefault("terminationMessagePath", "/dev/termination-log")
    container.setdefault("terminationMessagePolicy", "File")
    container.setdefault("resources", {})
    for port in container.get("ports") or ():
        port.setdefault("protocol", "TCP")


def _pull_policy(image: str) -> str:
    """Source: SetDefaults_Container."""
    tag = image.rpartition("/")[2].partition(":")[2]
    return "Always" if "@" not in image and tag in ("", "latest") else "IfNotPresent"


def _default_stored_pod(spec: Document) -> None:
    _default_pod(spec)
    spec.setdefault("enableServiceLinks", True)


def _default_template(spec: Document) -> None:
    template = spec.setdefault("template", {})
    template.setdefault("metadata", {})
    _default_pod(template.setdefault("spec", {}))


def _default_deployment(spec: Document) -> None:
    spec.setdefault("replicas", 1)
    spec.setdefault("revisionHistoryLimit", 10)
    spec.setdefault("progressDeadlineSeconds", 600)
    strategy = spec.setdefault("strategy", {})
    if strategy.setdefault("type", "RollingUpdate") == "RollingUpdate":
        rolling = strategy.setdefault("rollingUpdate", {})
        rolling.setdefault("maxSurge", "25%")
        rolling.setdefault("maxUnavailable", "25%")
    _default_template(spec)


def _default_replica_set(spec: Document) -> None:
    spec.setdefault("replicas", 1)
    _default_template(spec)


def _default_stateful_set(spec: Document) -> None:
    spec.setdefault("replicas", 1)
    spec.setdefault("podManagementPolicy", "OrderedReady")
    spec.setdefault("revisionHistoryLimit", 10)
    spec.setdefault("updateStrategy", {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}})
    _default_template(spec)


def _default_daemon_set(spec: Document) -> None:
    spec.setdefault("revisionHistoryLimit", 10)
    strategy = spec.setdefault("updateStrategy", {})
    if strategy.setdefault("type", "RollingUpdate") == "RollingUpdate":
        rolling = strategy.setdefault("rollingUpdate", {})
        rolling.setdefault("maxUnavailable", 1)
        rolling.setdefault("maxSurge", 0)
    _default_template(spec)


def _default_job(spec: Document) -> None:
    spec.setdefault("completions", 1)
    spec.setdefault("parallelism", 1)
    spec.setdefault("backoffLimit", 6)
    spec.setdefault("completionMode", "NonIndexed")
    spec.setdefault("suspend", False)
    _default_template(spec)


def _default_cron_job(spec: Document) -> None:
    spec.setdefault("concurrencyPolicy", "Allow")
    spec.setdefault("suspend", False)
    _default_template(spec.setdefault("jobTemplate", {}).setdefault("spec", {}))


_DEFAULTS: dict[str, Callable[[Document], None]] = {
    "Pod": _default_stored_pod,
    "Deployment": _default_deployment,
    "ReplicaSet": _default_replica_set,
    "StatefulSet": _default_stateful_set,
    "DaemonSet": _default_daemon_set,
    "Job": _default_job,
    "CronJob": _default_cron_job,
}


def admit(kind: str, document: Document, operation: str, find: Find) -> None:
    """What the API server's own plugins do to an object, in their order. Raises ApiError (403)."""
    if kind == "Pod":
        _admit_pod(document, operation, find)
    elif kind == "Node" and operation == "CREATE":
        spec = document.setdefault("spec", {})
        taints = spec.get("taints") or []
        spec["taints"] = taints if NOT_READY in taints else [*taints, dict(NOT_READY)]


def _admit_pod(pod: Document, operation: str, find: Find) -> None:
    if operation == "CREATE":
        _set_account(pod, find)
        _set_priority(pod, find)
    _tolerate_for_seconds(pod["spec"])
    if operation == "CREATE":
        _set_runtime_class(pod, find)


def _name(pod: Document) -> str:
    return str(pod["metadata"].get("name") or pod["metadata"].get("generateName", ""))


def _set_account(pod: Document, find: Find) -> None:
    spec = pod["spec"]
    account = find("ServiceAccount", pod["metadata"]["namespace"], spec.setdefault("serviceAccountName", "default"))
    spec["serviceAccount"] = spec["serviceAccountName"]
    if account and not spec.get("imagePullSecrets") and account.get("imagePullSecrets"):
        spec["imagePullSecrets"] = list(account["imagePullSecrets"])


def _set_priority(pod: Document, find: Find) -> None:
    spec = pod["spec"]
    name = spec.get("priorityClassName", "")
    stored = find("PriorityClass", "", name) if name else None
    if name and stored is None and name not in _BUILT_IN_CLASSES:
        raise forbidden(KINDS["Pod"], _name(pod), f"no PriorityClass with name {name} was found")
    spec["priority"] = stored["value"] if stored else _BUILT_IN_CLASSES.get(name, 0)
    spec.setdefault("preemptionPolicy", (stored or {}).get("preemptionPolicy", "PreemptLowerPriority"))


def _tolerate_for_seconds(spec: Document) -> None:
    """Source: plugin/pkg/admission/defaulttolerationseconds, which handles updates too."""
    tolerations = spec.get("tolerations") or []
    covered = [each.get("key", "") for each in tolerations if each.get("effect", "") in ("NoExecute", "")]
    missing = [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": _SECONDS}
        for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
        if key not in covered and "" not in covered
    ]
    if missing:
        spec["tolerations"] = [*tolerations, *missing]


def _set_runtime_class(pod: Document, find: Find) -> None:
    spec = pod["spec"]
    name = spec.get("runtimeClassName", "")
    if not name:
        return
    found = find("RuntimeClass", "", name)
    if found is None:
        raise forbidden(KINDS["Pod"], _name(pod), f'pod rejected: RuntimeClass "{name}" not found')
    scheduling = found.get("scheduling") or {}
    if selector := scheduling.get("nodeSelector"):
        mine = spec.get("nodeSelector") or {}
        if any(mine.get(key, value) != value for key, value in selector.items()):
            raise forbidden(KINDS["Pod"], _name(pod), "conflict: runtimeClass.scheduling.nodeSelector")
        spec["nodeSelector"] = {**mine, **selector}
    added = [each for each in scheduling.get("tolerations") or () if each not in (spec.get("tolerations") or ())]
    if added:
        spec["tolerations"] = [*(spec.get("tolerations") or ()), *added]
