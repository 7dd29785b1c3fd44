"""OpenShift's objects that say where its nodes pull from, kept current by watches, or listed once.

`registry.openshift_conf` gives their meaning, `node_trust` reads what nodes trust there. A kind that the cluster
does not have has no objects.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Set

import msgspec

from extender.cluster.client import JSON, ClusterClient, ClusterRefused
from extender.cluster.listwatch import Getter, Reader, Resource
from extender.cluster.node_trust import TrustProblem, read_node_trust
from extender.cluster.secrets import ClusterSecrets
from extender.cluster.workload_lists import list_documents
from extender.kubernetes.openshift_v1 import (
    ImageConfiguration,
    MirrorObjects,
    MirrorSet,
    NodeTrust,
    RegistrySources,
    SourceMirrors,
)

MirrorObject = MirrorSet | ImageConfiguration
Decode = Callable[[msgspec.Raw], MirrorObject]
Tell = Callable[[MirrorObjects], None]

_CONFIG, _OPERATOR = "/apis/config.openshift.io/v1", "/apis/operator.openshift.io/v1alpha1"
DIGEST_MIRRORS = Resource(name="imagedigestmirrorsets", path=f"{_CONFIG}/imagedigestmirrorsets")
TAG_MIRRORS = Resource(name="imagetagmirrorsets", path=f"{_CONFIG}/imagetagmirrorsets")
DIGEST_POLICIES = Resource(name="imagecontentsourcepolicies", path=f"{_OPERATOR}/imagecontentsourcepolicies")
IMAGE_CONFIGURATIONS = Resource(name="images", path=f"{_CONFIG}/images")
RESOURCES = (DIGEST_MIRRORS, TAG_MIRRORS, DIGEST_POLICIES, IMAGE_CONFIGURATIONS)
_NOTHING = b'{"metadata":{"resourceVersion":"0"},"items":[]}'

_MIRROR_SET = msgspec.json.Decoder(MirrorSet)
_IMAGE_CONFIGURATION = msgspec.json.Decoder(ImageConfiguration)


class MirrorKind:
    """The objects of one kind by name. A `Handler` for the watch of its resource."""

    def __init__(self, decode: Decode, changed: Callable[[], None]) -> None:
        """`changed` is called after each change, once all objects have been listed."""
        self._decode = decode
        self._changed = changed
        self._objects: dict[str, MirrorObject] = {}
        self.synced = False

    def in_order(self) -> Iterator[MirrorObject]:
        """The objects in the order of their names."""
        return (self._objects[name] for name in sorted(self._objects))

    def upsert(self, document: msgspec.Raw) -> None:
        """Adds or replaces an object. Raises msgspec.ValidationError."""
        decoded = self._decode(document)
        self._objects[decoded.metadata.name] = decoded
        self._tell()

    def delete(self, key: str) -> None:
        """Removes the object."""
        self._objects.pop(key, None)
        self._tell()

    def keep_only(self, keys: Set[str]) -> None:
        """Removes all objects but these, which are all that were listed."""
        self._objects = {name: kept for name, kept in self._objects.items() if name in keys}
        self.synced = True
        self._tell()

    def _tell(self) -> None:
        if self.synced:
            self._changed()


class MirrorViews:
    """All objects. `kinds` has the handler of each resource. Tells what they say together whenever that changes."""

    def __init__(self) -> None:
        self.kinds: Mapping[str, MirrorKind] = {
            resource.name: MirrorKind(_decode_of(resource), self._tell_if_changed) for resource in RESOURCES
        }
        self._trust: NodeTrust | None = None
        self._tell: Tell | None = None
        self._told: MirrorObjects | None = None

    def tell_to(self, tell: Tell) -> None:
        """Has `tell` called with what the objects say, at once if they are known, and after each change."""
        self._tell, self._told = tell, None
        self._tell_if_changed()

    def note_trust(self, trust: NodeTrust) -> None:
        """Notes what nodes trust now. Nothing is told before that is known."""
        self._trust = trust
        self._tell_if_changed()

    def _tell_if_changed(self) -> None:
        if self._tell is None or self._trust is None or not all(kind.synced for kind in self.kinds.values()):
            return
        said = _objects_of({name: kind.in_order() for name, kind in self.kinds.items()}, self._trust)
        if said != self._told:
            self._told = said
            self._tell(said)


class Lenient:
    """A client's reads, in which a kind that the cluster does not have is a list of nothing."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def get(self, path: str, query: Mapping[str, str] | None = None, *, accept: str = JSON) -> bytes:
        """As the client's."""
        try:
            return await self._reader.get(path, query, accept=accept)
        except ClusterRefused as exc:
            if exc.status != 404:
                raise
            return _NOTHING

    def stream(
        self, path: str, query: Mapping[str, str] | None = None, *, accept: str = JSON, stall_seconds: float
    ) -> AsyncGenerator[bytes, None]:
        """As the client's."""
        return self._reader.stream(path, query, accept=accept, stall_seconds=stall_seconds)


async def list_mirror_objects(client: ClusterClient) -> tuple[MirrorObjects, tuple[TrustProblem, ...]]:
    """Returns what the objects say now, and what is missing of what nodes trust. Raises ClusterError."""
    lenient = Lenient(client)
    found = await asyncio.gather(*(_list(lenient, resource) for resource in RESOURCES))
    trust, problems = await read_node_trust(client, ClusterSecrets(client), NodeTrust())
    listed = {resource.name: iter(objects) for resource, objects in zip(RESOURCES, found, strict=True)}
    return _objects_of(listed, trust), problems


async def _list(client: Getter, resource: Resource) -> list[MirrorObject]:
    decode = _decode_of(resource)
    found = [decode(document) async for document in list_documents(client, resource.path)]
    return sorted(found, key=lambda each: each.metadata.name)


def _decode_of(resource: Resource) -> Decode:
    return _IMAGE_CONFIGURATION.decode if resource is IMAGE_CONFIGURATIONS else _MIRROR_SET.decode


def _objects_of(found: Mapping[str, Iterator[MirrorObject]], trust: NodeTrust) -> MirrorObjects:
    mirrors: dict[str, list[SourceMirrors]] = {}
    sources = RegistrySources()
    for name, objects in found.items():
        for each in objects:
            if isinstance(each, ImageConfiguration):
                if each.metadata.name == "cluster" and each.spec and each.spec.registry_sources:
                    sources = each.spec.registry_sources
            elif each.spec:
                spec = each.spec
                lists = (spec.image_digest_mirrors, spec.image_tag_mirrors, spec.repository_digest_mirrors)
                mirrors.setdefault(name, []).extend(source for some in lists for source in some or ())
    return MirrorObjects(
        digest_mirrors=tuple(mirrors.get(DIGEST_MIRRORS.name, ())),
        tag_mirrors=tuple(mirrors.get(TAG_MIRRORS.name, ())),
        digest_policies=tuple(mirrors.get(DIGEST_POLICIES.name, ())),
        sources=sources,
        trust=trust,
    )
