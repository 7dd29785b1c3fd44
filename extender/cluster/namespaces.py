"""The annotations that namespaces have for us, kept current by a watch of the namespaces' metadata alone.

`placement.annotations` gives their meaning.
"""

from collections.abc import Mapping, Set
from types import MappingProxyType

import msgspec

from extender.cluster.client import METADATA
from extender.cluster.listwatch import Resource
from extender.errors import ClusterError
from extender.kubernetes.meta_v1 import PartialObjectMetadata
from extender.placement.annotations import NAMESPACE_KEYS

NAMESPACES = Resource(
    name="namespaces",
    path="/api/v1/namespaces",
    list_accept="application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
    watch_accept=METADATA,
)


_NAMESPACE = msgspec.json.Decoder(PartialObjectMetadata)
# Of a value: no allowed one has more, and sentences about others quote less. A namespace may have 256 KiB.
_MOST_CHARACTERS = 128
_NONE: Mapping[str, str] = MappingProxyType({})


class NamespaceView:
    """The annotations of namespaces that have a meaning there. A `Handler` for the watch of `NAMESPACES`.

    Until the view is synced, a namespace not seen yet has none: annotations only override defaults, so no request waits
    for them.
    """

    def __init__(self) -> None:
        self._annotations: dict[str, Mapping[str, str]] = {}  # of the namespaces that have any
        self.synced = False

    def annotations_of(self, namespace: str) -> Mapping[str, str]:
        """The namespace's annotations for us, by full key, cut after 128 characters; empty if it has none. O(1)."""
        return self._annotations.get(namespace, _NONE)

    def upsert(self, document: msgspec.Raw) -> None:
        """Adds or replaces a namespace's annotations.

        Raises:
            msgspec.ValidationError: a field that is read has another type than in meta/v1.
            ClusterError: the namespace has no name.
        """
        metadata = _NAMESPACE.decode(document).metadata
        if not metadata.name:
            raise ClusterError("a namespace without a name")
        found = metadata.annotations or {}
        ours = {key: found[key][:_MOST_CHARACTERS] for key in sorted(NAMESPACE_KEYS & found.keys())}
        if ours:
            self._annotations[metadata.name] = ours
        else:
            self._annotations.pop(metadata.name, None)

    def delete(self, name: str) -> None:
        """Removes the namespace's annotations."""
        self._annotations.pop(name, None)

    def keep_only(self, names: Set[str]) -> None:
        """Removes all namespaces but these, which are all that were listed; the view is then synced."""
        self._annotations = {name: kept for name, kept in self._annotations.items() if name in names}
        self.synced = True
