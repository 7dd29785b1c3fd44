"""Reads for which pods the webhooks of an installation are called."""

import re
from collections.abc import Iterator

import msgspec

from extender.cluster.client import ClusterRefused
from extender.cluster.listwatch import Getter
from extender.cluster.workload_lists import list_objects
from extender.kubernetes.api_groups import WEBHOOK_CONFIGURATIONS, MutatingWebhook, MutatingWebhookConfiguration
from extender.kubernetes.apps_v1 import LabelSelector
from extender.kubernetes.meta_v1 import PartialObjectMetadata
from extender.placement.webhook_reach import NAME_LABEL, OWN_NAME, CalledFor, WebhookReach

# Conditions that pods of a workload meet which is not ignored, and the one that the chart adds under
# `failurePolicy: Fail`, which pods of some priority classes do not meet. Nothing is known of others.
_MET = frozenset(("not-bound-yet", "no-mirror-of-a-static-pod", "not-ignored"))
_OF_CLASSES = re.compile(
    r"!has\(object\.spec\.priorityClassName\) \|\|\s+!\(object\.spec\.priorityClassName in \[([^]]*)\]\)\s*"
)
_QUOTED = re.compile("'([^']*)'")

_CONFIGURATION = msgspec.json.Decoder(MutatingWebhookConfiguration)
_NAMESPACE = msgspec.json.Decoder(PartialObjectMetadata)


async def fetch_webhook_reach(client: Getter) -> WebhookReach:
    """The pods for which the installed webhooks are called; those that nothing shipped leaves out if none can be read.

    Raises:
        ClusterError: as `list_documents`, but for a refusal.
    """
    try:
        own = list_objects(
            client, WEBHOOK_CONFIGURATIONS, _CONFIGURATION, "MutatingWebhookConfiguration", f"{NAME_LABEL}={OWN_NAME}"
        )
        installed = [each async for found in own for each in found.webhooks or () if each.is_for_new_pods]
        if not installed:
            return WebhookReach()
        namespaces = list_objects(client, "/api/v1/namespaces", _NAMESPACE, "Namespace")
        labels = {each.metadata.name or "": each.metadata.labels or {} async for each in namespaces}
    except ClusterRefused:
        return WebhookReach()
    return WebhookReach(tuple(_called_for(installed)), labels)


def _called_for(webhooks: list[MutatingWebhook]) -> Iterator[CalledFor]:
    for each in webhooks:
        others = [condition for condition in each.match_conditions or () if condition.name not in _MET]
        by_classes = [found[1] for one in others if (found := _OF_CLASSES.fullmatch(one.expression))]
        if len(by_classes) == len(others):
            yield CalledFor(
                each.namespace_selector or LabelSelector(),
                each.object_selector or LabelSelector(),
                frozenset(_QUOTED.findall(" ".join(by_classes))),
            )
