"""Which pods the webhook gives something to: those of the namespaces and with the labels that it is called for."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from extender.kubernetes.apps_v1 import LabelSelector
from extender.placement.node_match import is_met

NAME_LABEL, OWN_NAME = "app.kubernetes.io/name", "multiarch-extender"
"""The label of everything that the chart and the manifests install, and of the service's pods."""
_LEFT_OUT = frozenset(("kube-system", "kube-node-lease", "kube-public", OWN_NAME))  # by what is shipped


def is_selected(labels: Mapping[str, str], selector: LabelSelector) -> bool:
    """Whether the selector selects an object with these labels."""
    return all(labels.get(key) == value for key, value in (selector.match_labels or {}).items()) and all(
        is_met(each, labels.get(each.key)) for each in selector.match_expressions or ()
    )


class CalledFor(NamedTuple):
    """What a webhook is called for: pods that its selectors of namespaces and of objects both match.

    Not pods of the priority `classes`.
    """

    namespaces: LabelSelector
    objects: LabelSelector
    classes: frozenset[str] = frozenset()


class WebhookReach(msgspec.Struct, frozen=True):
    """The webhooks of an installation, and the labels of namespaces; without webhooks, what every shipped one leaves.

    `webhooks` has those alone of which it is known when they are called.
    """

    webhooks: Sequence[CalledFor] | None = None
    namespaces: Mapping[str, Mapping[str, str]] = {}

    def includes(self, namespace: str, labels: Mapping[str, str], priority_class: str | None = None) -> bool:
        """Whether new pods with these labels get something in that namespace."""
        if self.webhooks is None:
            return namespace not in _LEFT_OUT and labels.get(NAME_LABEL) != OWN_NAME
        of_namespace = self.namespaces.get(namespace)
        return of_namespace is not None and any(
            is_selected(of_namespace, each.namespaces)
            and is_selected(labels, each.objects)
            and priority_class not in each.classes
            for each in self.webhooks
        )
