"""An installation that `doctor` examines: what several checks read of it, and the result of a check."""

import enum
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from typing import TypeAlias

import msgspec

from extender.cli.installation_objects import InstalledWorkload
from extender.cluster.client import ClusterClient
from extender.cluster.workload_lists import OBJECT, list_objects
from extender.config.tree import Config
from extender.kubernetes.documents import Json, list_at, map_at, value_at
from extender.kubernetes.pod_templates import KubernetesObject

WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"


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
        self._read: dict[tuple[str, str], list[KubernetesObject]] = {}

    @property
    def serving(self) -> list[tuple[InstalledWorkload, Config]]:
        """The workloads that answer reviews, with their settings."""
        return [(each, each.config) for each in self.workloads if each.config and each.config.admission.listen]

    @property
    def of_unknown_settings(self) -> str:
        """The first workload whose settings are not known; empty if those of all are."""
        return next((each.subject for each in self.workloads if each.config is None), "")

    async def listed(self, path: str, selector: str = "") -> list[KubernetesObject]:
        """The objects at the path with these labels. Raises ClusterError."""
        if (path, selector) not in self._read:
            found = list_objects(self.client, path, OBJECT, selector=selector)
            self._read[path, selector] = [each async for each in found]
        return self._read[path, selector]

    async def webhooks(self) -> list["ReviewWebhook"]:
        """Our webhooks for pods, each with the workload that answers it. Raises ClusterError."""
        serving = self.serving
        return [
            ReviewWebhook(each, name_of(configuration), *_behind(name_of(configuration), serving))
            for configuration in (await self.listed(WEBHOOKS, self.selector) if serving else ())
            for each in webhooks_of(configuration)
            if is_for_pods(each)
        ]

    async def selected(self, webhook: KubernetesObject) -> list[str]:
        """The namespaces whose pods are sent to the webhook, `default` first. Raises ClusterError."""
        found = await self.listed("/api/v1/namespaces", selector_text(webhook.get("namespaceSelector")))
        names = [name_of(each) for each in found if not value_at(each, "metadata", "deletionTimestamp")]
        return sorted(names, key=lambda name: name != "default")


class ReviewWebhook(msgspec.Struct, frozen=True):
    """A webhook of a configuration, and the workload that answers it with its settings."""

    document: KubernetesObject
    configuration: str
    workload: InstalledWorkload
    config: Config

    @property
    def subject(self) -> str:
        return f"webhook {self.document.get('name')} of {self.configuration}"


Check: TypeAlias = Callable[[Installation], AsyncIterator[Diagnosis]]
"""Yields its results. Raises ClusterError where the cluster does not answer."""


def selector_text(selector: Json) -> str:
    """A LabelSelector as the API server takes it in a query; an empty text selects all, as a missing selector does."""
    texts = [f"{key}={value}" for key, value in map_at(selector, "matchLabels").items()]
    for each in list_at(selector, "matchExpressions"):
        key, listed = value_at(each, "key"), f"({','.join(map(str, list_at(each, 'values')))})"
        match value_at(each, "operator"):
            case "In":
                texts.append(f"{key} in {listed}")
            case "NotIn":
                texts.append(f"{key} notin {listed}")
            case "DoesNotExist":
                texts.append(f"!{key}")
            case _:
                texts.append(str(key))
    return ",".join(texts)


def webhooks_of(configuration: KubernetesObject) -> list[KubernetesObject]:
    return [each for each in list_at(configuration, "webhooks") if isinstance(each, dict)]


def is_for_pods(webhook: KubernetesObject) -> bool:
    """Whether new pods are sent to the webhook."""
    return any(
        _names(rule, "resources", {"pods", "*", "*/*"})
        and _names(rule, "operations", {"CREATE", "*"})
        and _names(rule, "apiGroups", {"", "*"})
        for rule in list_at(webhook, "rules")
    )


def _names(rule: Json, field: str, values: Collection[str]) -> bool:
    return any(each in values for each in list_at(rule, field) if isinstance(each, str))


def _behind(
    configuration: str, serving: Sequence[tuple[InstalledWorkload, Config]]
) -> tuple[InstalledWorkload, Config]:
    """The workload that answers the webhooks of that configuration: the one of its name, else the first."""
    return next((each for each in serving if each[0].name == configuration), serving[0])


def name_of(document: KubernetesObject) -> str:
    return str(value_at(document, "metadata", "name"))
