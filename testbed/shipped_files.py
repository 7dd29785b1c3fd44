"""Reads the files of `deploy/` and fits them to a control plane on this machine: other addresses, no leader election.

Everything else in them stays as users get it.
"""

import base64
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

import yaml

from testbed.chart import NAME, objects_of, render
from testbed.objects import KubernetesObject

DEPLOY = Path(__file__).resolve().parents[1] / "deploy"
SECOND_SCHEDULER = "multiarch-scheduler"
"""The schedulerName of the second scheduler's pods."""


_RIGHTS = ("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "Lease")


class Mode(StrEnum):
    """A way to run the service, named after its file in deploy/manifests."""

    SECOND = "second-scheduler"
    DEFAULT = "default-scheduler"
    WEBHOOK = "webhook"


def shipped_manifests(mode: Mode) -> list[KubernetesObject]:
    """Returns all objects of the mode's file, in its order."""
    return list(yaml.safe_load_all((DEPLOY / "manifests" / f"{mode}.yaml").read_text()))


def identity_manifests(mode: Mode) -> list[KubernetesObject]:
    """Returns the service's namespace and account, the file's ClusterRoles, and the bindings of these."""
    return [found for found in shipped_manifests(mode) if _is_identity(found)]


def webhook_manifests() -> list[KubernetesObject]:
    """Returns what the webhook's account needs to hold pods, let them go, and read pull secrets, as the chart makes it.

    The file in deploy/manifests asks for none of it. Raises HelmMissing.
    """
    config = {"admission": {"unknown": "gate"}, "registry": {"pull_secrets": True}}
    values = {"fullnameOverride": "multiarch", "certificates": {"source": "existingSecret"}, "config": config}
    text = render(values).replace(
        "multiarch-held-pods", "multiarch-extender-held-pods"
    )  # no setting of the file names it
    found = [each for each in objects_of(text) if each["metadata"].get("namespace", NAME) == NAME]
    return [each for each in found if each["kind"] in _RIGHTS]


def service_configuration(mode: Mode) -> KubernetesObject:
    """Returns the service's own settings in that mode, from its ConfigMap."""
    settings: KubernetesObject = yaml.safe_load(_one(mode, "ConfigMap")["data"]["config.yaml"])
    return settings


def scheduler_configuration(
    mode: Mode, scheduler_url: str, entry: Mapping[str, Any] | None = None, **fields: object
) -> KubernetesObject:
    """Returns the KubeSchedulerConfiguration of deploy/scheduler, with the extender at `scheduler_url` if given.

    `entry` overrides fields of the extender's entry (None removes one); `fields` override those of the configuration.
    """
    shipped: KubernetesObject = yaml.safe_load((DEPLOY / "scheduler" / f"{mode}.yaml").read_text())
    [extender] = shipped.pop("extenders")
    if scheduler_url:
        changed = {**extender, "urlPrefix": f"{scheduler_url}/scheduler", **(entry or {})}
        shipped["extenders"] = [{name: value for name, value in changed.items() if value is not None}]
    return {**shipped, "leaderElection": {"leaderElect": False}, **fields}


def scheduler_flags(mode: Mode) -> list[str]:
    """Returns the feature gates of the mode's kube-scheduler; empty for a mode without one."""
    deployments = [found for found in shipped_manifests(mode) if found["kind"] == "Deployment"]
    containers = [each for found in deployments for each in found["spec"]["template"]["spec"]["containers"]]
    return [flag for each in containers for flag in each.get("command", []) if flag.startswith("--feature-gates=")]


def webhook_configuration(
    mode: Mode, admission_url: str, authority: bytes, namespace_selector: Mapping[str, Any] | None = None
) -> KubernetesObject:
    """Returns the MutatingWebhookConfiguration, pods' webhook first, with `admission_url` and that authority (PEM)."""
    shipped = _one(mode, "MutatingWebhookConfiguration")
    made = []
    for webhook in shipped["webhooks"]:
        path = webhook["clientConfig"]["service"]["path"]
        client = {"url": f"{admission_url}{path}", "caBundle": base64.b64encode(authority).decode()}
        selector = webhook["namespaceSelector"] if namespace_selector is None else dict(namespace_selector)
        made.append({**webhook, "clientConfig": client, "namespaceSelector": selector})
    return {**shipped, "webhooks": made}


def selected_labels(selector: Mapping[str, Any]) -> dict[str, str]:
    """Returns labels of a namespace that this selector of `matchLabels`, In and NotIn selects."""
    expressions: Sequence[Mapping[str, Any]] = selector.get("matchExpressions", [])
    chosen = {each["key"]: each["values"][0] for each in expressions if each["operator"] == "In"}
    return {**chosen, **selector.get("matchLabels", {})}


def _is_identity(found: KubernetesObject) -> bool:
    match found["kind"]:
        case "Namespace" | "ServiceAccount" | "ClusterRole":
            return True
        case "ClusterRoleBinding":
            return not found["roleRef"]["name"].startswith("system:")
    return False


def _one(mode: Mode, kind: str) -> KubernetesObject:
    [found] = [each for each in shipped_manifests(mode) if each["kind"] == kind]
    return found
