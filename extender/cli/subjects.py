"""What commands explain: pods and workloads of a cluster or of manifests, and what the cluster has beside them."""

import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

import msgspec

from extender.cli.manifest_files import read_manifests
from extender.cluster.client import ClusterClient, decode_answer, open_cluster
from extender.cluster.workload_lists import (
    UnknownKind,
    fetch_namespace_annotations,
    fetch_object,
    fetch_pull_secrets,
    kind_named,
    list_documents,
)
from extender.config.tree import Config
from extender.errors import ClusterError, ConfigError
from extender.fetcher.sources import open_local_sources
from extender.kubernetes.pod_templates import KubernetesObject, namespace_annotations, node_of, pods_of
from extender.kubernetes.reported_v1 import NamedPod, NamedSpec, ReportedNode
from extender.placement.cluster_nodes import ClusterNodes, odd_nodes_of
from extender.placement.mutation import Mutator
from extender.placement.nodes import platform_of_node
from extender.placement.patch import apply
from extender.placement.planning import AdmissionPolicy
from extender.reports.explanation import Explanation, PodEvidence, Subject, explain, usual_nodes, with_nodes
from extender.resolver.pod_resolver import PodResolver
from extender.service.cluster_view import ClusterView
from extender.service.operator_policies import admission_policy_of
from extender.service.resolving import open_pod_resolver


class PodExplainer:
    """Explains pods by what a `PodResolver` knows, under the operator's settings."""

    def __init__(self, pod_resolver: PodResolver, admission: AdmissionPolicy) -> None:
        self._pod_resolver = pod_resolver
        self._mutator = Mutator(pod_resolver.policy, admission)

    async def look_up(self, subject: Subject, nodes: ClusterNodes, wait_seconds: float) -> Explanation:
        """The explanation after lookups of the pod's images, which may take up to `wait_seconds`.

        Whoever asks has given the pod, or may read it: its pull secrets count.
        """
        overrides = self._pod_resolver.overrides_of(subject.pod, subject.namespace, subject.raw_pod)
        question = self._pod_resolver.question(subject.pod, subject.namespace, overrides, may_read=True)
        await self._pod_resolver.resolve(question, wait_seconds, revalidate=True)
        found = PodEvidence(
            images=question.images,
            evidence=self._pod_resolver.evidence(question),
            overrides=question.overrides,
        )
        return explain(subject, found, self._pod_resolver.policy, self._mutator, nodes)


LOOKUP_SECONDS = 60.0

_NODE = msgspec.json.Decoder(ReportedNode)


class ExplainTarget(msgspec.Struct, frozen=True):
    """What the arguments name: an object of a kind, or every object of some manifests, or one of these.

    An empty `namespace` is the context's.
    """

    kind: str
    name: str
    namespace: str
    manifests: Sequence[str]

    @classmethod
    def parse(cls, text: str | None, namespace: str, manifests: Sequence[str]) -> "ExplainTarget":
        """Reads `NAME`, which is a pod's, or `KIND/NAME`.

        Raises:
            ConfigError: the kind is not known.
        """
        kind, slash, name = (text or "").rpartition("/")
        try:
            kind = kind_named(kind) if slash else ""
        except UnknownKind as exc:
            raise ConfigError(str(exc)) from exc
        return cls(kind, name, namespace, manifests)

    def matches(self, manifest: KubernetesObject) -> bool:
        """Whether the object of a manifest is meant."""
        metadata = manifest.get("metadata") or {}
        return (not self.name or metadata.get("name") == self.name) and self.kind in ("", manifest.get("kind"))


class ClusterObject(msgspec.Struct, frozen=True):
    """An object, the pod that it is or makes, as JSON, and the node to which a pod is bound.

    `defaults` are the annotations of its namespace, if that is among the manifests too.
    """

    kind: str
    name: str
    namespace: str
    pod: KubernetesObject
    is_live: bool
    node_name: str
    defaults: Mapping[str, str] | None = None

    @property
    def subject(self) -> Subject:
        """What is explained.

        Raises:
            ConfigError: the pod is not one that Kubernetes would take.
        """
        pod, raw_pod = _decode(self.pod, self), msgspec.json.encode(self.pod)
        return Subject(kind=self.kind, name=self.name, namespace=self.namespace, pod=pod, raw_pod=raw_pod)


class Explained(msgspec.Struct, frozen=True):
    """An explanation, and the pod as it was given, as JSON."""

    explanation: Explanation
    pod: KubernetesObject


async def open_client(settings: Config, *, is_needed: bool) -> ClusterClient | None:
    """A client of the cluster that the settings name; None if there is none and none is needed.

    Raises:
        ConfigError: there is none, or its configuration cannot be used.
    """
    cluster = settings.cluster
    if cluster.mode == "none":
        if is_needed:
            raise ConfigError("cluster.mode: none leaves no cluster to read the pod from; give -f FILE")
        return None
    try:
        return await open_cluster("auto", cluster.kubeconfig, cluster.context)
    except ClusterError as exc:
        if is_needed or cluster.kubeconfig or cluster.context:
            raise ConfigError(f"cluster.kubeconfig: {exc}") from exc
        return None


@contextlib.asynccontextmanager
async def opened_client(settings: Config) -> AsyncIterator[ClusterClient]:
    """A client of the cluster that the settings name; it is closed at the end. Raises ConfigError if there is none."""
    client = await open_client(settings, is_needed=True)
    assert client is not None  # noqa: S101 - as it is needed
    try:
        yield client
    finally:
        await client.close()


async def find_subjects(target: ExplainTarget, client: ClusterClient | None) -> list[ClusterObject]:
    """The objects that the target names, from its manifests or from the cluster.

    Raises:
        ConfigError: the manifests cannot be read.
        ClusterError: the object cannot be read from the cluster.
    """
    if not target.namespace:
        target = msgspec.structs.replace(target, namespace=client.namespace if client else "default")
    if target.manifests:
        manifests = [each.manifest for each in read_manifests(target.manifests)]
        namespaces = namespace_annotations(manifests)
        found = [each for manifest in manifests for each in _objects_of(manifest, target, is_live=False)]
        return [msgspec.structs.replace(each, defaults=namespaces.get(each.namespace)) for each in found]
    if client is None:
        raise ClusterError("there is no cluster to read the object from")
    manifest = await fetch_object(client, target.kind or "pod", target.name, target.namespace)
    found = list(_objects_of(manifest, target, is_live=True))
    if not found:
        raise ClusterError(f"{target.kind} {target.namespace}/{target.name} has no pod template")
    return found


async def explain_all(
    subjects: Sequence[ClusterObject], settings: Config, client: ClusterClient | None
) -> list[Explained]:
    """Each subject with its explanation, after lookups of their images.

    Raises:
        ClusterError: the cluster's nodes cannot be read.
    """
    nodes = await list_nodes(client)
    annotations: dict[str, Mapping[str, str]] = {}
    if client:
        for namespace in dict.fromkeys(each.namespace for each in subjects):
            with contextlib.suppress(ClusterError):
                annotations |= await fetch_namespace_annotations(client, namespace)
    annotations |= {each.namespace: each.defaults for each in subjects if each.defaults is not None}
    view = ClusterView(client=client, annotations=annotations)
    async with open_pod_resolver(settings, view, open_local_sources) as pod_resolver:
        explainer = PodExplainer(pod_resolver, admission_policy_of(settings))
        return [await _explain(each, explainer, nodes, settings, client) for each in subjects]


async def list_nodes(client: ClusterClient | None) -> list[ReportedNode]:
    """The cluster's nodes; none without a cluster.

    Raises:
        ClusterError: they cannot be read.
    """
    if client is None:
        return []
    return [decode_answer(_NODE, raw, "node") async for raw in list_documents(client, "/api/v1/nodes")]


def on_nodes(
    explanation: Explanation, item: ClusterObject, nodes: Sequence[ReportedNode], settings: Config
) -> Explanation:
    """The explanation with the cluster's nodes, or with usual ones where there is no cluster.

    The pod of a workload counts as the webhook would create it, if the settings have one.
    """
    pod = item.pod
    if not item.is_live and settings.admission.listen and explanation.webhook.patch:
        pod = _as_object(apply(pod, explanation.webhook.patch))
    spec = _decode(pod, item).spec or NamedSpec()
    placed = msgspec.structs.replace(explanation, node_name=item.node_name)
    level_label = settings.placement.level_label
    return with_nodes(placed, spec, nodes or usual_nodes(), level_label, is_assumed=not nodes)


async def _explain(
    item: ClusterObject,
    explainer: PodExplainer,
    nodes: Sequence[ReportedNode],
    settings: Config,
    client: ClusterClient | None,
) -> Explained:
    if client and not (item.kind == "Pod" and item.is_live):
        item = await _with_pull_secrets(item, client)
    with _refusing(item):
        found = await explainer.look_up(item.subject, _known(nodes, settings), LOOKUP_SECONDS)
        return Explained(on_nodes(found, item, nodes, settings), item.pod)


async def _with_pull_secrets(item: ClusterObject, client: ClusterClient) -> ClusterObject:
    """The object whose pod names the pull secrets of its ServiceAccount, as a pod does once it is created."""
    spec = item.pod["spec"]
    if spec.get("imagePullSecrets"):
        return item
    try:
        found = await fetch_pull_secrets(client, item.namespace, spec.get("serviceAccountName") or "default")
    except ClusterError:
        return item
    if not found:
        return item
    pod = {**item.pod, "spec": {**spec, "imagePullSecrets": found}}
    return msgspec.structs.replace(item, pod=pod)


def _known(nodes: Sequence[ReportedNode], settings: Config) -> ClusterNodes:
    level_label = settings.placement.level_label
    platforms = (platform_of_node(node, level_label) for node in nodes)
    odd = (odd_nodes_of(node, level_label) for node in nodes)
    return ClusterNodes(frozenset(each for each in platforms if each), frozenset(each for each in odd if each))


def _objects_of(manifest: KubernetesObject, target: ExplainTarget, *, is_live: bool) -> Iterator[ClusterObject]:
    """The object with each pod that it is or makes; a name says which of several it is."""
    if not target.matches(manifest):
        return
    metadata = manifest.get("metadata") or {}
    namespace = str(metadata.get("namespace") or target.namespace)
    name = str(metadata.get("name") or metadata.get("generateName") or "")
    kind = str(manifest.get("kind"))
    for place, made in pods_of(manifest):
        pod = {**made, "metadata": {**made["metadata"], "namespace": namespace}}
        shown = f"{name} at {place}" if place else name
        yield ClusterObject(kind, shown, namespace, pod, is_live and kind == "Pod", node_of(manifest))


def _decode(pod: KubernetesObject, item: ClusterObject) -> NamedPod:
    with _refusing(item):
        return msgspec.json.decode(msgspec.json.encode(pod), type=NamedPod)


@contextlib.contextmanager
def _refusing(item: ClusterObject) -> Iterator[None]:
    """Parts of a pod are decoded where they are needed; the ConfigError says whose they are."""
    try:
        yield
    except msgspec.ValidationError as exc:
        raise ConfigError(f"{item.kind} {item.namespace}/{item.name} is not as Kubernetes takes it: {exc}") from exc


def _as_object(value: object) -> KubernetesObject:
    assert isinstance(value, dict)  # noqa: S101 -- a patch of ours never replaces the whole pod
    return value
