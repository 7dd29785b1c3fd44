"""Lists the objects that have pods, and pods and nodes, once and page by page, for commands that do not watch."""

from collections.abc import AsyncIterator, Mapping
from typing import NamedTuple

import msgspec

from extender.cluster.client import ClusterRefused, decode_answer
from extender.cluster.listwatch import Getter
from extender.kubernetes.meta_v1 import List
from extender.kubernetes.pod_templates import KubernetesObject
from extender.kubernetes.reported_v1 import AuditedNode

PAGE_OBJECTS = 250
_MOST_PAGES = 100_000
_PAGE = msgspec.json.Decoder(List)
_OBJECT = msgspec.json.Decoder(KubernetesObject)
_NODE = msgspec.json.Decoder(AuditedNode)


class ListedKind(NamedTuple):
    """A kind of object with pods, and where the API server lists it."""

    api_version: str
    kind: str
    plural: str

    def path(self, namespace: str) -> str:
        """The path of the list in a namespace; of all namespaces if that is empty."""
        root = f"/apis/{self.api_version}" if "/" in self.api_version else f"/api/{self.api_version}"
        return f"{root}/namespaces/{namespace}/{self.plural}" if namespace else f"{root}/{self.plural}"


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


async def list_objects(client: Getter, kind: ListedKind, namespace: str = "") -> AsyncIterator[KubernetesObject]:
    """Yields each object of the kind, with its `kind` and `apiVersion`; of all namespaces if `namespace` is empty.

    Raises:
        ClusterError: as `list_documents`.
    """
    path = kind.path(namespace)
    async for document in list_documents(client, path):
        found: KubernetesObject = decode_answer(_OBJECT, document, "object")
        yield {**found, "kind": kind.kind, "apiVersion": kind.api_version}


async def list_nodes(client: Getter) -> list[AuditedNode]:
    """Every node. Raises ClusterError as `list_documents`."""
    path = "/api/v1/nodes"
    return [decode_answer(_NODE, document, "node") async for document in list_documents(client, path)]


async def fetch_account_secrets(client: Getter, namespace: str = "") -> Mapping[tuple[str, str], tuple[str, ...]]:
    """The names of the pull secrets that each ServiceAccount gives to its pods, by namespace and account.

    Raises:
        ClusterError: as `list_documents`.
    """
    kind = ListedKind("v1", "ServiceAccount", "serviceaccounts")
    found: dict[tuple[str, str], tuple[str, ...]] = {}
    async for account in list_objects(client, kind, namespace):
        metadata = account.get("metadata") or {}
        names = tuple(str(each["name"]) for each in account.get("imagePullSecrets") or () if each.get("name"))
        if names:
            found[str(metadata.get("namespace")), str(metadata.get("name"))] = names
    return found


async def fetch_namespace_annotations(client: Getter, namespace: str = "") -> Mapping[str, Mapping[str, str]]:
    """The annotations of the namespace, or of all.

    Raises:
        ClusterError: as `list_documents`.
    """
    path = "/api/v1/namespaces"
    found: dict[str, Mapping[str, str]] = {}
    if namespace:
        metadata = decode_answer(_OBJECT, await client.get(f"{path}/{namespace}"), "object").get("metadata") or {}
        return {namespace: metadata.get("annotations") or {}}
    async for document in list_documents(client, path):
        metadata = decode_answer(_OBJECT, document, "object").get("metadata") or {}
        found[str(metadata.get("name"))] = metadata.get("annotations") or {}
    return found
