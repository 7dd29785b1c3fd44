"""What commands explain: pods and workloads of a cluster or of manifests, and what the cluster has beside them."""

import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from extender.cli.console import progress_bar
from extender.cli.lookups import side_by_side
from extender.cli.manifest_files import Manifests
from extender.cluster.client import ClusterClient, decode_answer, open_chosen_cluster
from extender.cluster.workload_lists import (
    UnknownKind,
    fetch_namespace_annotations,
    fetch_object,
    fetch_pull_secrets,
    kind_named,
    list_documents,
)
from extender.config.tree import Config
from extender.credentials.keyring import Keyring
from extender.errors import ClusterError, ConfigError
from extender.fetcher.sources import open_local_sources
from extender.kubernetes.core_v1 import CreatedPod, CreatedSpec
from extender.kubernetes.pod_templates import KubernetesObject, namespace_annotations, node_of, pods_of
from extender.kubernetes.reported_v1 import PodStatus, ReportedNode, WrittenPod
from extender.kubernetes.type_problems import decode_written
from extender.placement.facts import Role
from extender.placement.mutation import Mutator
from extender.placement.nodes import ClusterNodes, is_labelled, name_of_node, platform_of_node
from extender.placement.patch import apply
from extender.placement.pinned_nodes import names_of_node
from extender.reports.explanation import Explanation, PodEvidence, Subject, explain, usual_nodes, with_nodes
from extender.reports.running_containers import PlatformFault, containers_of, fault_of
from extender.reports.workload_reports import FINISHED, uses_of
from extender.resolver.image_cache import ImageQuery
from extender.resolver.pod_resolver import PodResolver
from extender.service.cluster_view import ClusterView
from extender.service.operator_policies import admission_settings_of
from extender.service.resolving import open_pod_resolver

LOOKUP_SECONDS = 60.0

_NODE = msgspec.json.Decoder(ReportedNode)


class ExplainTarget(msgspec.Struct, frozen=True):
    """What the arguments name: an object of a kind, or every object of manifests, or one of these.

    An empty `namespace` is the context's.
    """

    kind: str
    name: str
    namespace: str
    manifests: Manifests | None

    @classmethod
    def parse(cls, text: str | None, namespace: str, manifests: Manifests | None) -> "ExplainTarget":
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

    `defaults` are the annotations of its namespace, if that is among the manifests too. `status` is that of a pod.
    """

    kind: str
    name: str
    namespace: str
    pod: KubernetesObject
    is_live: bool
    node_name: str
    defaults: Mapping[str, str] | None = None
    status: object = None


class Explained(msgspec.Struct, frozen=True):
    """An explanation, and the pod as it was given, as JSON."""

    explanation: Explanation
    pod: KubernetesObject


async def open_client(settings: Config, *, is_needed: bool) -> ClusterClient | None:
    """A client of the cluster that the settings name; None if there is none and none is needed.

    Raises:
        ConfigError: there is none, or its configuration cannot be used.
    """
    if not settings.has_cluster:
        if is_needed:
            raise ConfigError("cluster: none leaves no cluster to read the pod from; give -f FILE")
        return None
    try:
        return await open_chosen_cluster(settings.cluster)
    except ClusterError as exc:
        if is_needed or settings.cluster != "auto":
            raise ConfigError(f"cluster: {exc}") from exc
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
        ClusterError: the object cannot be read from the cluster.
    """
    if not target.namespace:
        target = msgspec.structs.replace(target, namespace=client.namespace if client else "default")
    if target.manifests:
        manifests = [each.manifest for each in target.manifests.objects]
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
        known = _Known(pod_resolver, settings, nodes)
        if client:
            subjects = [await _with_pull_secrets(each, client) for each in subjects]
        found: dict[int, Explained] = {}
        with progress_bar(len(subjects)) as progress:

            async def one(index: int) -> None:
                found[index] = await _explain(subjects[index], known)
                progress.step(subjects[index].name)

            await side_by_side(range(len(subjects)), one)
        return [found[index] for index in range(len(subjects))]


async def list_nodes(client: ClusterClient | None) -> list[ReportedNode]:
    """The cluster's nodes; none without a cluster.

    Raises:
        ClusterError: they cannot be read.
    """
    if client is None:
        return []
    return [decode_answer(_NODE, raw, "node") async for raw in list_documents(client, "/api/v1/nodes")]


class _Known(NamedTuple):
    """What every explanation goes by."""

    pod_resolver: PodResolver
    settings: Config
    nodes: Sequence[ReportedNode]


async def _explain(item: ClusterObject, known: _Known) -> Explained:
    """The explanation after lookups of the pod's images.

    Whoever asks has given the pod, or may read it: its pull secrets count. The pod of a workload counts on nodes as the
    webhook would create it, if the settings have one.
    """
    pod_resolver, settings, nodes = known
    policy = pod_resolver.policy
    with _refusing(item):
        raw_pod = msgspec.json.encode(item.pod)
        decode_written(raw_pod, WrittenPod)  # a mutation relies on the types that the API server demands
        pod = msgspec.json.decode(raw_pod, type=CreatedPod)
        subject = Subject(kind=item.kind, name=item.name, namespace=item.namespace, pod=pod, raw_pod=raw_pod)
        overrides = pod_resolver.overrides_of(pod, item.namespace, raw_pod)
        question = pod_resolver.question(pod, item.namespace, overrides, may_read=True)
        await pod_resolver.resolve(question, LOOKUP_SECONDS, revalidate=True)
        found = PodEvidence(
            images=question.images, evidence=pod_resolver.evidence(question), overrides=question.overrides
        )
        mutator = Mutator(policy, admission_settings_of(settings))
        told = explain(subject, found, policy, mutator, _kinds_of(nodes))
        spec = pod.spec or CreatedSpec()
        told = msgspec.structs.replace(
            told,
            node_name=item.node_name,
            faults=[] if told.skipped else await _faults(item, spec, question.keyring, known),
        )
        if not item.is_live and settings.admission.listen and told.webhook.patch:
            patched = msgspec.json.encode(apply(item.pod, told.webhook.patch))
            spec = msgspec.json.decode(patched, type=CreatedPod).spec or CreatedSpec()
        told = with_nodes(told, spec, nodes or usual_nodes(), is_assumed=not nodes)
        return Explained(told, item.pod)


async def _faults(item: ClusterObject, spec: CreatedSpec, keyring: Keyring, known: _Known) -> list[PlatformFault]:
    """What does not match between the containers of a live pod and its node's platform."""
    pod_resolver, _, nodes = known
    platforms = (platform_of_node(node) for node in nodes if name_of_node(node) == item.node_name)
    platform = next(platforms, None)
    if not (item.is_live and platform) or spec.runtime_class_name in pod_resolver.policy.runtime_classes:
        return []
    status = msgspec.convert(item.status or {}, PodStatus)
    if status.phase in FINISHED:
        return []
    images = ((use.name, use.image) for use in uses_of(spec) if use.image.role is not Role.VOLUME)
    faults: list[PlatformFault] = []
    for container in containers_of(images, status, platform):
        queries = [ImageQuery(each) for each in (container.image.reference, container.reported) if each]
        named, *reported = await pod_resolver.resolver.resolve_all(queries, keyring, LOOKUP_SECONDS)
        then = reported[0] if reported else None
        if fault := fault_of(container, named, then, pod_resolver.policy.compatibility):
            faults.append(fault)
    return faults


def _kinds_of(nodes: Sequence[ReportedNode]) -> ClusterNodes:
    platforms = [platform_of_node(node) for node in nodes]
    pairs = zip(nodes, platforms, strict=True)
    unlabelled = frozenset(platform for node, platform in pairs if not is_labelled(node))
    by_name = {name: platform for node, platform in zip(nodes, platforms, strict=True) for name in names_of_node(node)}
    return ClusterNodes(frozenset(filter(None, platforms)), unlabelled, by_name=by_name)


async def _with_pull_secrets(item: ClusterObject, client: ClusterClient) -> ClusterObject:
    """The object whose pod names the pull secrets of its ServiceAccount, as a pod does once it is created."""
    spec = item.pod["spec"]
    if (item.kind == "Pod" and item.is_live) or spec.get("imagePullSecrets"):
        return item
    try:
        found = await fetch_pull_secrets(client, item.namespace, spec.get("serviceAccountName") or "default")
    except ClusterError:
        return item
    if not found:
        return item
    pod = {**item.pod, "spec": {**spec, "imagePullSecrets": found}}
    return msgspec.structs.replace(item, pod=pod)


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
        status = manifest.get("status") if kind == "Pod" else None
        is_pod = is_live and kind == "Pod"
        yield ClusterObject(kind, shown, namespace, pod, is_pod, node_of(manifest), status=status)


@contextlib.contextmanager
def _refusing(item: ClusterObject) -> Iterator[None]:
    """Parts of a pod are decoded where they are needed; the ConfigError says whose they are."""
    try:
        yield
    except msgspec.ValidationError as exc:
        raise ConfigError(f"{item.kind} {item.namespace}/{item.name} is not as Kubernetes takes it: {exc}") from exc
