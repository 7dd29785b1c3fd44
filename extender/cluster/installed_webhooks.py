"""Reads for which pods the webhooks of an installation are called."""

from collections.abc import Iterator

import msgspec

from extender.cluster.client import ClusterRefused
from extender.cluster.listwatch import Getter
from extender.cluster.workload_lists import list_objects
from extender.kubernetes.apps_v1 import LabelSelector
from extender.kubernetes.meta_v1 import PartialObjectMetadata, Wire
from extender.placement.webhook_reach import NAME_LABEL, OWN_NAME, CalledFor, WebhookReach

_PATH = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
_PODS = "pods"
# Conditions that pods of a workload meet which is not ignored. Nothing is known of others.
_MET = frozenset(("not-bound-yet", "no-mirror-of-a-static-pod", "not-ignored"))


class _CallRule(Wire, frozen=True):
    resources: tuple[str, ...] = ()
    operations: tuple[str, ...] = ()


class _Condition(Wire, frozen=True):
    name: str = ""


class _Webhook(Wire, frozen=True):
    rules: tuple[_CallRule, ...] | None = None
    namespace_selector: LabelSelector | None = None
    object_selector: LabelSelector | None = None
    match_conditions: tuple[_Condition, ...] | None = None


class _Configuration(Wire, frozen=True):
    webhooks: tuple[_Webhook, ...] | None = None


_CONFIGURATION = msgspec.json.Decoder(_Configuration)
_NAMESPACE = msgspec.json.Decoder(PartialObjectMetadata)


async def fetch_webhook_reach(client: Getter) -> WebhookReach:
    """The pods for which the installed webhooks are called; those that nothing shipped leaves out if none can be read.

    Raises:
        ClusterError: as `list_documents`, but for a refusal.
    """
    try:
        own = list_objects(client, _PATH, _CONFIGURATION, "MutatingWebhookConfiguration", f"{NAME_LABEL}={OWN_NAME}")
        installed = [each async for found in own for each in found.webhooks or () if _is_for_pods(each)]
        if not installed:
            return WebhookReach()
        namespaces = list_objects(client, "/api/v1/namespaces", _NAMESPACE, "Namespace")
        labels = {each.metadata.name or "": each.metadata.labels or {} async for each in namespaces}
    except ClusterRefused:
        return WebhookReach()
    return WebhookReach(tuple(_called_for(installed)), labels)


def _is_for_pods(webhook: _Webhook) -> bool:
    return any(
        _PODS in rule.resources and not {"CREATE", "*"}.isdisjoint(rule.operations) for rule in webhook.rules or ()
    )


def _called_for(webhooks: list[_Webhook]) -> Iterator[CalledFor]:
    for each in webhooks:
        if {condition.name for condition in each.match_conditions or ()} <= _MET:
            yield CalledFor(each.namespace_selector or LabelSelector(), each.object_selector or LabelSelector())
