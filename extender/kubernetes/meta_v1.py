"""The fields of meta/v1 that we read: those that objects, lists, watches and error statuses of every kind share.

Source: k8s.io/apimachinery/pkg/apis/meta/v1/types.go. Unknown fields are ignored; only fields without a default are
required.
"""

import re

import msgspec

_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", re.ASCII)


def is_object_name(text: str) -> bool:
    """Whether objects may have the name: an RFC 1123 subdomain, which leads to no other path of the API server."""
    return _SUBDOMAIN.fullmatch(text) is not None


class Wire(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """A struct of the Kubernetes API, whose Go types have JSON tags: keys in camelCase, unknown keys ignored."""


class GroupVersionKind(Wire, frozen=True):
    """metav1.GroupVersionKind; the group of core/v1 is empty."""

    group: str | None = None
    kind: str | None = None


class OwnerReference(Wire, frozen=True):
    kind: str = ""
    name: str = ""
    controller: bool | None = None
    api_version: str = ""
    uid: str = ""


class ObjectMeta(Wire, frozen=True):
    """metav1.ObjectMeta. Only a stored object has a resource version.

    `annotations` and `labels` distinguish missing (UNSET) from null, so that a patch can restore either.
    """

    name: str | None = None
    generate_name: str | None = None
    namespace: str | None = None
    uid: str | None = None
    annotations: dict[str, str] | msgspec.UnsetType | None = msgspec.UNSET
    labels: dict[str, str] | msgspec.UnsetType | None = msgspec.UNSET
    owner_references: list[OwnerReference] | None = None
    resource_version: str = ""

    @property
    def controller(self) -> OwnerReference | None:
        """The owner that manages the object; None for one that no controller has made."""
        for each in self.owner_references or ():
            if each.controller:
                return each
        return None


class StoredMeta(Wire, frozen=True):
    """metav1.ObjectMeta of an object that the API server stores; the time is in RFC 3339."""

    name: str
    namespace: str
    uid: str
    resource_version: str
    labels: dict[str, str] | None = None
    creation_timestamp: str = ""


class PartialObjectMetadata(Wire, frozen=True):
    """metav1.PartialObjectMetadata: an object of any kind, sent with its metadata alone."""

    metadata: ObjectMeta = ObjectMeta()


class VersionedMeta(Wire, frozen=True):
    """The fields of metav1.ObjectMeta that a watch reads; an empty namespace means that the kind has none."""

    name: str = ""
    namespace: str = ""
    resource_version: str = ""

    @property
    def key(self) -> str:
        """What distinguishes the object from the others of its kind: `namespace/name`, or the name alone."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class VersionedObject(Wire, frozen=True):
    """An object of any kind, or a bookmark, of which a watch reads the name and the resource version."""

    metadata: VersionedMeta = VersionedMeta()


class ListMeta(Wire, frozen=True):
    """metav1.ListMeta; an empty `continue_` ends the list."""

    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")


class List(Wire, frozen=True):
    """metav1.List: one page of a list of any kind, with undecoded objects."""

    metadata: ListMeta = ListMeta()
    items: list[msgspec.Raw] | None = None


class WatchEvent(Wire, frozen=True):
    """metav1.WatchEvent: one line of a watch. The object of an ERROR event is a `Status`."""

    type: str
    object: msgspec.Raw


class Status(Wire, frozen=True):
    """metav1.Status: why a request was refused, or a watch ended."""

    code: int = 0
    message: str | None = None
