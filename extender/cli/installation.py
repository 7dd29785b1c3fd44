"""An installation that `doctor` examines: what several checks read of it, and the result of a check."""

import enum
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import msgspec

from extender.cli.installation_objects import InstalledWorkload
from extender.cluster.client import ClusterClient
from extender.cluster.workload_lists import OBJECT, list_objects
from extender.config.tree import Config
from extender.kubernetes.api_groups import WEBHOOK_CONFIGURATIONS, MutatingWebhook, MutatingWebhookConfiguration
from extender.kubernetes.apps_v1 import LabelSelector
from extender.kubernetes.documents import value_at
from extender.kubernetes.pod_templates import KubernetesObject

T = TypeVar("T")
_CONFIGURATION = msgspec.json.Decoder(MutatingWebhookConfiguration)


class CheckName(enum.StrEnum):
    """What is checked; docs/how-to/doctor.md says what is wrong of each."""

    PODS = "pods"
    SETTINGS = "settings"
    SERVICE = "service"
    WEBHOOK = "webhook"
    NAMESPACES = "namespaces"
    CERTIFICATE = "certificate"
    PROBE = "probe"


class CheckState(enum.StrEnum):
    """How a check ended. Of `WRONG` the installation does not do its job; `NOT_SEEN` says why it could not be seen."""

    OK = "ok"
    WRONG = "wrong"
    NOT_SEEN = "not seen"


class Diagnosis(msgspec.Struct, frozen=True):
    """What was seen of one thing, and what to do about it or, where it is ok, what would be better."""

    subject: str
    state: CheckState
    seen: str
    remedy: str = ""


def ok(subject: str, seen: str, better: str = "") -> Diagnosis:
    return Diagnosis(subject, CheckState.OK, seen, better)


def wrong(subject: str, seen: str, remedy: str) -> Diagnosis:
    return Diagnosis(subject, CheckState.WRONG, seen, remedy)


def not_seen(subject: str, why: str, remedy: str = "") -> Diagnosis:
    return Diagnosis(subject, CheckState.NOT_SEEN, why, remedy)


class Installation:
    """An installation that is checked, and what several checks read of its cluster: once."""

    def __init__(
        self, client: ClusterClient, workloads: Sequence[InstalledWorkload], selector: str, namespace: str
    ) -> None:
        """`namespace` is one whose pods should be reviewed; it may be empty."""
        self.client = client
        self.workloads = workloads
        self.selector = selector
        self.namespace = namespace
        self._read: dict[tuple[str, str], list[Any]] = {}

    @property
    def serving(self) -> list[tuple[InstalledWorkload, Config]]:
        """The workloads that answer reviews, with their settings."""
        return [(each, each.config) for each in self.workloads if each.config and each.config.admission.listen]

    @property
    def of_unknown_settings(self) -> str:
        """The first workload whose settings are not known; empty if those of all are."""
        return next((each.subject for each in self.workloads if each.config is None), "")

    async def listed(self, path: str, decoder: msgspec.json.Decoder[T], selector: str = "") -> list[T]:
        """The objects at the path with these labels. Raises ClusterError."""
        if (path, selector) not in self._read:
            found = list_objects(self.client, path, decoder, selector=selector)
            self._read[path, selector] = [each async for each in found]
        return self._read[path, selector]

    async def webhooks(self) -> list["ReviewWebhook"]:
        """Our webhooks for pods, each with the workload that answers it. Raises ClusterError."""
        serving = self.serving
        found = await self.listed(WEBHOOK_CONFIGURATIONS, _CONFIGURATION, self.selector) if serving else []
        return [
            ReviewWebhook(each, configuration.metadata.name, *_behind(configuration.metadata.name, serving))
            for configuration in found
            for each in configuration.webhooks or ()
            if each.is_for_new_pods
        ]

    async def selected(self, webhook: MutatingWebhook) -> list[str]:
        """The namespaces whose pods are sent to the webhook, `default` first. Raises ClusterError."""
        found = await self.listed("/api/v1/namespaces", OBJECT, selector_text(webhook.namespace_selector))
        names = [name_of(each) for each in found if not value_at(each, "metadata", "deletionTimestamp")]
        return sorted(names, key=lambda name: name != "default")


class ReviewWebhook(msgspec.Struct, frozen=True):
    """A webhook of a configuration, and the workload that answers it with its settings."""

    registered: MutatingWebhook
    configuration: str
    workload: InstalledWorkload
    config: Config

    @property
    def subject(self) -> str:
        return f"webhook {self.registered.name} of {self.configuration}"


Check: TypeAlias = Callable[[Installation], AsyncIterator[Diagnosis]]
"""Yields its results. Raises ClusterError where the cluster does not answer."""


def selector_text(selector: LabelSelector | None) -> str:
    """A LabelSelector as the API server takes it in a query; an empty text selects all, as a missing selector does."""
    if selector is None:
        return ""
    texts = [f"{key}={value}" for key, value in (selector.match_labels or {}).items()]
    for each in selector.match_expressions or ():
        listed = f"({','.join(each.values or ())})"
        match each.operator:
            case "In":
                texts.append(f"{each.key} in {listed}")
            case "NotIn":
                texts.append(f"{each.key} notin {listed}")
            case "DoesNotExist":
                texts.append(f"!{each.key}")
            case _:
                texts.append(each.key)
    return ",".join(texts)


def _behind(
    configuration: str, serving: Sequence[tuple[InstalledWorkload, Config]]
) -> tuple[InstalledWorkload, Config]:
    """The workload that answers the webhooks of that configuration: the one of its name, else the first."""
    return next((each for each in serving if each[0].name == configuration), serving[0])


def name_of(document: KubernetesObject) -> str:
    return str(value_at(document, "metadata", "name"))
