"""Puts into the API server what deploy/ ships for a mode: webhooks, policies, the Lease, and who our service is there.

It reads the rendered files, and makes of them what the chart makes of values that a world draws (deploy/helm, templates
`webhooks.yaml` and `policies.yaml`). Limits: RBAC is not installed, since every right is there until one is denied.
"""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml

from tests.worlds.admission import new_uid
from tests.worlds.api_kinds import KINDS, Document
from tests.worlds.api_server import ApiServer
from tests.worlds.api_storage import copied, decode, encode
from tests.worlds.plan import KubernetesConfig, Mode

NAMESPACE = "multiarch-extender"
_DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
_POLICIES = "helm/multiarch-extender/files/policies"
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_ACCOUNTS = {
    Mode.WEBHOOK: "multiarch-webhook",
    Mode.BOTH: "multiarch-webhook",
    Mode.DEFAULT_AND_WEBHOOK: "multiarch-webhook",
    Mode.POLICY: "multiarch-policy",
    Mode.SECOND: "multiarch-scheduler",
    Mode.DEFAULT: "multiarch-default-scheduler",
}
_USUAL = KubernetesConfig()
_CRITICAL = ("system-node-critical", "system-cluster-critical")
_REFUSES_PATCHES = "no-narrowing"


@functools.cache
def _shipped(path: str) -> bytes:
    """The objects of a file in deploy/, as JSON."""
    return encode([each for each in yaml.load_all((_DEPLOY / path).read_text(), _LOADER) if each])


def _objects(path: str, kind: str) -> list[Document]:
    return [each for each in decode(_shipped(path)) if each["kind"] == kind]


def account(mode: Mode) -> str:
    """The user name of our service."""
    return f"system:serviceaccount:{NAMESPACE}:{_ACCOUNTS[mode]}"


def put_in_place(api: ApiServer, kind: str, document: Document) -> None:
    """Stores an object as it is, without admission; replaces one of its name."""
    document = copied(document)
    metadata = document["metadata"]
    if KINDS[kind].is_namespaced:
        metadata.setdefault("namespace", "default")
    if kind == "Namespace":
        metadata["labels"] = {**(metadata.get("labels") or {}), "kubernetes.io/metadata.name": metadata["name"]}
    metadata.setdefault("uid", new_uid(api.chance))
    metadata.setdefault("creationTimestamp", api.now())
    if KINDS[kind].has_generation:
        metadata.setdefault("generation", 1)
    api.storage.put(kind, {**document, "apiVersion": KINDS[kind].api_version, "kind": kind})


def install(
    api: ApiServer,
    mode: Mode,
    *,
    settings: Sequence[str] = (),
    kubernetes: KubernetesConfig = _USUAL,
    naming_policy: bool = False,
) -> None:
    """Puts in place what the mode has with these settings (`path=JSON`), at once in effect.

    With `naming_policy` a policy names the second scheduler where the webhook cannot be asked.
    """
    found = _read(settings)
    for name in ("default", "kube-system", NAMESPACE):
        if not api.get("Namespace", "", name):
            put_in_place(api, "Namespace", {"metadata": {"name": name}})
    if mode.has_webhook:
        put_in_place(api, "MutatingWebhookConfiguration", _webhooks(mode, found, kubernetes))
    holds = mode.has_policy or found.get("admission.unknown") == "gate"
    if holds:
        [lease] = _objects("manifests/policy.yaml", "Lease")
        # Who applies it once more says nothing of its holder.
        if not api.get("Lease", NAMESPACE, lease["metadata"]["name"]):
            put_in_place(api, "Lease", lease)
        put_in_place(api, "ValidatingAdmissionPolicy", _own_account(mode))
        put_in_place(
            api,
            "ValidatingAdmissionPolicyBinding",
            _objects("manifests/policy.yaml", "ValidatingAdmissionPolicyBinding")[0],
        )
    if mode.has_policy:  # the service opens its binding
        put_in_place(api, "MutatingAdmissionPolicy", _gate_policy(found))
        [binding] = _objects("manifests/policy.yaml", "MutatingAdmissionPolicyBinding")
        put_in_place(api, "MutatingAdmissionPolicyBinding", binding)
    if naming_policy:
        for kind in ("MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"):
            put_in_place(api, kind, _with_settings(_objects(f"{_POLICIES}/scheduler-name.yaml", kind)[0], found))
    if kubernetes.injects:
        api.admission.inject(kubernetes.injects)
    api.admission.refresh()


def refuse_patches(api: ApiServer, on: bool = True, *, whole: bool = False) -> None:
    """Puts a policy in force that denies each change of a held pod's affinity or tolerations, or takes it away.

    `whole`: of its gates too.
    """
    name = ("", _REFUSES_PATCHES)
    if on:
        put_in_place(
            api,
            "ValidatingAdmissionPolicy",
            _refusing(("affinity", "tolerations", *(("schedulingGates",) if whole else ()))),
        )
        spec = {"policyName": name[1], "validationActions": ["Deny"]}
        put_in_place(api, "ValidatingAdmissionPolicyBinding", {"metadata": {"name": name[1]}, "spec": spec})
    elif api.storage.find("ValidatingAdmissionPolicy", name):
        api.storage.remove("ValidatingAdmissionPolicyBinding", name)
        api.storage.remove("ValidatingAdmissionPolicy", name)
    api.admission.refresh()


def _refusing(fields: Sequence[str]) -> Document:
    """A policy of the cluster's that is against what our service does with held pods."""
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["UPDATE"]}
    return {
        "metadata": {"name": _REFUSES_PATCHES},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [rule]},
            "matchConditions": [
                {"name": "held", "expression": "size(oldObject.spec.?schedulingGates.orValue([])) > 0"},
            ],
            "validations": [
                {
                    "expression": f"object.spec.?{field} == oldObject.spec.?{field}",
                    "message": f"the cluster's policy lets nobody change {field} of a pod",
                }
                for field in fields
            ],
        },
    }


def _read(settings: Sequence[str]) -> Mapping[str, Any]:
    found = {}
    for each in settings:
        path, _, text = each.partition("=")
        try:
            found[path] = decode(text.encode())
        except msgspec.DecodeError:
            found[path] = text.strip("'\"")
    return found


def _webhooks(mode: Mode, settings: Mapping[str, Any], kubernetes: KubernetesConfig) -> Document:
    file = "second-scheduler" if mode is Mode.SECOND else "webhook"
    [configuration] = _objects(f"manifests/{file}.yaml", "MutatingWebhookConfiguration")
    if kubernetes.workloads == "off":
        configuration["webhooks"] = [each for each in configuration["webhooks"] if not _is_for_workloads(each)]
    pods = configuration["webhooks"][0]
    pods["timeoutSeconds"] = kubernetes.webhook_timeout_seconds
    pods["failurePolicy"] = kubernetes.webhook_failure_policy
    if kubernetes.webhook_failure_policy == "Fail":
        classes = _exempt_classes(settings)
        expression = f"!has(object.spec.priorityClassName) || !(object.spec.priorityClassName in [{classes}])"
        pods["matchConditions"].append({"name": "not-critical", "expression": expression})
    return configuration


def _is_for_workloads(webhook: Document) -> bool:
    return bool(webhook["clientConfig"]["service"]["path"] == "/admission/workloads")


def _exempt_classes(settings: Mapping[str, Any]) -> str:
    """As texts of CEL."""
    more = settings.get("admission.gate.exempt_priority_classes") or ()
    return ", ".join(f"'{each}'" for each in dict.fromkeys((*_CRITICAL, *more)))


def _gate_policy(settings: Mapping[str, Any]) -> Document:
    policy = _with_settings(_objects("manifests/policy.yaml", "MutatingAdmissionPolicy")[0], settings)
    for condition in policy["spec"]["matchConditions"]:
        if condition["name"] == "not-critical":
            classes = _exempt_classes(settings)
            condition["expression"] = f"!(object.spec.?priorityClassName.orValue('') in [{classes}])"
    return policy


def _with_settings(document: Document, settings: Mapping[str, Any]) -> Document:
    """The policy as the template `multiarch.policy.settings` makes it."""
    spec = document["spec"]
    if settings.get("placement.mode") == "observe":
        for variable in spec.get("variables") or ():
            text = variable["expression"]
            variable["expression"] = text.replace("size(variables.modes) == 0 ||", "size(variables.modes) > 0 &&")
    ignored = [name for name, platforms in (settings.get("placement.runtime_classes") or {}).items() if not platforms]
    if ignored and "matchConditions" in spec:
        classes = ", ".join(f"'{name}'" for name in ignored)
        expression = f"!(object.spec.?runtimeClassName.orValue('') in [{classes}])"
        spec["matchConditions"].append({"name": "not-of-an-ignored-runtime-class", "expression": expression})
    return document


def _own_account(mode: Mode) -> Document:
    """The policy that holds our account to what it does; kube-scheduler has the same account as the second one."""
    [policy] = _objects("manifests/policy.yaml", "ValidatingAdmissionPolicy")
    expression = f"request.userInfo.username in ['{account(mode)}']"
    if mode is Mode.SECOND:
        expression += " && request.operation == 'UPDATE' && request.?subResource.orValue('') == ''"
    policy["spec"]["matchConditions"] = [{"name": "own-account", "expression": expression}]
    return policy
