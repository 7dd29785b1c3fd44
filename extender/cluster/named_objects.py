"""Reads single objects by kind and name, for commands that look once and do not watch."""

import msgspec

from extender.cluster.client import ClusterClient, ClusterRefused
from extender.cluster.workload_lists import POD, WORKLOAD_KINDS, ListedKind
from extender.errors import ClusterError
from extender.kubernetes.meta_v1 import is_object_name
from extender.kubernetes.pod_templates import KubernetesObject

_OBJECT = msgspec.json.Decoder(KubernetesObject)


class UnknownKind(ClusterError):
    """A word that names no kind whose pods can be explained."""


_SHORT = {
    "po": "Pod", "deploy": "Deployment", "sts": "StatefulSet", "ds": "DaemonSet", "rs": "ReplicaSet",
    "rc": "ReplicationController", "cj": "CronJob",
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
    found = _BY_WORD.get(word.lower())
    if found is None:
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
    return {**_OBJECT.decode(raw), "kind": kind.kind, "apiVersion": kind.api_version}


async def fetch_pull_secrets(client: ClusterClient, namespace: str, account: str) -> list[KubernetesObject]:
    """The references to pull secrets that a ServiceAccount gives to its pods; none if it may not be read.

    Raises:
        ClusterError: the API server could not be asked.
    """
    if not (is_object_name(account) and is_object_name(namespace)):
        return []
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}"
    found = await _fetch_if_allowed(client, path)
    return list((found or {}).get("imagePullSecrets") or [])


async def _fetch_if_allowed(client: ClusterClient, path: str) -> KubernetesObject | None:
    try:
        return _OBJECT.decode(await client.get(path))
    except ClusterRefused as exc:
        if exc.status in (403, 404):
            return None
        raise
