"""Reads the objects that have pods once, for commands: lists page by page, and single ones by their name."""

from collections.abc import AsyncIterator, Mapping
from typing import NamedTuple, TypeVar

import msgspec

from extender.cluster.client import ClusterClient, ClusterRefused, decode_answer
from extender.cluster.listwatch import Getter
from extender.errors import ClusterError
from extender.kubernetes.core_v1 import ListingNode, NodeName, ServiceAccount
from extender.kubernetes.meta_v1 import List, PartialObjectMetadata, is_object_name
from extender.kubernetes.pod_templates import KubernetesObject
from extender.kubernetes.reported_v1 import ReportedNode
from extender.placement.node_images import NodeImages

PAGE_OBJECTS = 250
_MOST_PAGES = 100_000
_NODES = "/api/v1/nodes"
_PAGE = msgspec.json.Decoder(List)
OBJECT = msgspec.json.Decoder(KubernetesObject)
_ACCOUNT = msgspec.json.Decoder(ServiceAccount)
_NAMESPACE = msgspec.json.Decoder(PartialObjectMetadata)
_NODE = msgspec.json.Decoder(ReportedNode)
_LISTING_NODE = msgspec.json.Decoder(ListingNode)

T = TypeVar("T")


class ListedKind(NamedTuple):
    """A kind of object with pods, and where the API server lists it."""

    api_version: str
    kind: str
    plural: str

    def path(self, namespace: str) -> str:
        """The path of the list in a namespace; of all namespaces if that is empty."""
        root = f"/apis/{self.api_version}" if "/" in self.api_version else f"/api/{self.api_version}"
        return f"{root}/namespaces/{namespace}/{self.plural}" if namespace else f"{root}/{self.plural}"

    @property
    def groups(self) -> tuple[str, ...]:
        """What kubectl takes and prints behind the kind and a dot: nothing, the group, or version and group."""
        group, _, version = self.api_version.rpartition("/")
        return ("", group, f"{version}.{group}")


POD = ListedKind("v1", "Pod", "pods")
WORKLOAD_KINDS = (
    ListedKind("apps/v1", "Deployment", "deployments"),
    ListedKind("apps/v1", "StatefulSet", "statefulsets"),
    ListedKind("apps/v1", "DaemonSet", "daemonsets"),
    ListedKind("apps/v1", "ReplicaSet", "replicasets"),
    ListedKind("v1", "ReplicationController", "replicationcontrollers"),
    ListedKind("batch/v1", "CronJob", "cronjobs"),
    ListedKind("batch/v1", "Job", "jobs"),
    ListedKind("v1", "PodTemplate", "podtemplates"),
    ListedKind("apps.openshift.io/v1", "DeploymentConfig", "deploymentconfigs"),
)


async def list_documents(
    client: Getter, path: str, selectors: Mapping[str, str] | None = None
) -> AsyncIterator[msgspec.Raw]:
    """Yields each object of the list at `path`, undecoded. Lists again from the start if the list expires meanwhile.

    An object may come twice then. `selectors` are parameters such as `fieldSelector`.

    Raises:
        ClusterError: the API server refused, or its answer is malformed.
    """
    query = {"limit": str(PAGE_OBJECTS), **(selectors or {})}
    is_restarted = False
    for _ in range(_MOST_PAGES):
        try:
            page = decode_answer(_PAGE, await client.get(path, query), "list")
        except ClusterRefused as exc:
            if exc.status != 410 or is_restarted:
                raise
            is_restarted = True
            query.pop("continue", None)
            continue
        for document in page.items or ():
            yield document
        if not page.metadata.continue_:
            return
        query["continue"] = page.metadata.continue_


async def list_objects(
    client: Getter, path: str, decoder: msgspec.json.Decoder[T], what: str = "object", selector: str = ""
) -> AsyncIterator[T]:
    """Yields each object of the list at `path`, with these labels if a selector is given; errors name `what` it is.

    Raises:
        ClusterError: as `list_documents`.
    """
    selectors = {"labelSelector": selector} if selector else None
    async for document in list_documents(client, path, selectors):
        yield decode_answer(decoder, document, what)


async def list_kind(client: Getter, kind: ListedKind, namespace: str = "") -> AsyncIterator[KubernetesObject]:
    """Yields each object of the kind, with its `kind` and `apiVersion`; of all namespaces if `namespace` is empty.

    Raises:
        ClusterError: as `list_documents`.
    """
    async for found in list_objects(client, kind.path(namespace), OBJECT):
        yield {**found, "kind": kind.kind, "apiVersion": kind.api_version}


async def list_nodes(client: Getter) -> list[ReportedNode]:
    """Every node once. Raises ClusterError as `list_documents`."""
    nodes = {node.name: node async for node in list_objects(client, _NODES, _NODE, "node")}
    return list(nodes.values())


async def list_nodes_and_images(client: Getter) -> tuple[list[ReportedNode], NodeImages]:
    """Every node once, and the images that each lists. Raises ClusterError as `list_documents`."""
    nodes, images = dict[NodeName, ReportedNode](), NodeImages()
    async for document in list_documents(client, _NODES):
        node, status = decode_answer(_NODE, document, "node"), decode_answer(_LISTING_NODE, document, "node").status
        nodes[node.name] = node
        images.put(node.name, status.image_names if status else ())
    return list(nodes.values()), images


async def fetch_account_secrets(client: Getter, namespace: str = "") -> Mapping[tuple[str, str], tuple[str, ...]]:
    """The names of the pull secrets that each ServiceAccount gives to its pods, by namespace and account.

    Raises:
        ClusterError: as `list_documents`.
    """
    path = ListedKind("v1", "ServiceAccount", "serviceaccounts").path(namespace)
    found: dict[tuple[str, str], tuple[str, ...]] = {}
    async for account in list_objects(client, path, _ACCOUNT, "ServiceAccount"):
        if names := account.pull_secrets:
            found[account.metadata.namespace, account.metadata.name] = names
    return found


async def fetch_namespace_annotations(client: Getter, namespace: str = "") -> Mapping[str, Mapping[str, str]]:
    """The annotations of the namespace, or of all.

    Raises:
        ClusterError: as `list_documents`.
    """
    path = "/api/v1/namespaces"
    found: dict[str, Mapping[str, str]] = {}
    if namespace:
        metadata = decode_answer(_NAMESPACE, await client.get(f"{path}/{namespace}"), "Namespace").metadata
        return {namespace: metadata.annotations or {}}
    async for listed in list_objects(client, path, _NAMESPACE, "Namespace"):
        found[listed.metadata.name or ""] = listed.metadata.annotations or {}
    return found


class UnknownKind(ClusterError):
    """A word that names no kind whose pods can be explained."""


_SHORT = {
    "po": "Pod", "deploy": "Deployment", "sts": "StatefulSet", "ds": "DaemonSet", "rs": "ReplicaSet",
    "rc": "ReplicationController", "cj": "CronJob", "dc": "DeploymentConfig",
}  # fmt: skip
_KINDS = {each.kind.lower(): each for each in (POD, *WORKLOAD_KINDS)}
_BY_WORD = (
    _KINDS
    | {each.plural: each for each in _KINDS.values()}
    | {word: _KINDS[kind.lower()] for word, kind in _SHORT.items()}
)


def kind_named(word: str) -> str:
    """The kind that `kubectl` means by the word.

    Raises:
        UnknownKind: it is none that has pods, or none that is known here.
    """
    return _resource(word).kind


def _resource(word: str) -> ListedKind:
    name, _, group = word.lower().partition(".")
    found = _BY_WORD.get(name)
    if found is None or group not in found.groups:
        known = ", ".join(_KINDS)
        raise UnknownKind(f"{word!r} is no kind with pods that is known here; give one of {known}")
    return found


async def fetch_object(client: ClusterClient, word: str, name: str, namespace: str) -> KubernetesObject:
    """The object of that kind and name.

    Raises:
        UnknownKind: as `kind_named`.
        ClusterError: it does not exist, or could not be read.
    """
    kind = _resource(word)
    if not (is_object_name(name) and is_object_name(namespace)):
        raise ClusterError(f"{namespace}/{name} is no name of an object")
    raw = await client.get(f"{kind.path(namespace)}/{name}")
    found: KubernetesObject = decode_answer(OBJECT, raw, kind.kind)
    return {**found, "kind": kind.kind, "apiVersion": kind.api_version}


async def fetch_pull_secrets(client: ClusterClient, namespace: str, account: str) -> tuple[str, ...]:
    """The names of the pull secrets that a ServiceAccount gives to its pods.

    Raises:
        ClusterError: the API server could not be asked, or refuses.
    """
    if not (is_object_name(account) and is_object_name(namespace)):
        return ()
    found = await client.find(f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}", _ACCOUNT)
    return found.pull_secrets if found else ()
