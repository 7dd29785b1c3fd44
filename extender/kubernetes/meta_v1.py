"""The fields of meta/v1 that are read: what objects, lists, watches and refusals of every kind have in common.

Source: k8s.io/apimachinery/pkg/apis/meta/v1/types.go. Unknown fields are ignored; no field must be there unless it has
no default.
"""

import msgspec

from extender.kubernetes.wire import Wire


class GroupVersionKind(Wire, frozen=True):
    """metav1.GroupVersionKind; the group of core is empty."""

    group: str | None = None
    kind: str | None = None


class OwnerReference(Wire, frozen=True):
    """metav1.OwnerReference."""

    kind: str = ""
    controller: bool | None = None


class ObjectMeta(Wire, frozen=True):
    """metav1.ObjectMeta. Who puts annotations back as they were asks whether they were missing or null."""

    name: str | None = None
    generate_name: str | None = None
    namespace: str | None = None
    uid: str | None = None
    annotations: dict[str, str] | msgspec.UnsetType | None = msgspec.UNSET
    owner_references: list[OwnerReference] | None = None


class PartialObjectMetadata(Wire, frozen=True):
    """metav1.PartialObjectMetadata: an object of any kind, sent without all but its metadata."""

    metadata: ObjectMeta


class VersionedMeta(Wire, frozen=True):
    """What a watch reads of metav1.ObjectMeta."""

    name: str = ""
    resource_version: str = ""


class VersionedObject(Wire, frozen=True):
    """An object of any kind, or a bookmark, of which a watch reads the name and the version."""

    metadata: VersionedMeta = VersionedMeta()


class ListMeta(Wire, frozen=True):
    """metav1.ListMeta; an empty `continue_` ends the list."""

    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")


class List(Wire, frozen=True):
    """metav1.List: one page of a list of any kind, its objects undecoded."""

    metadata: ListMeta = ListMeta()
    items: list[msgspec.Raw] | None = None


class WatchEvent(Wire, frozen=True):
    """metav1.WatchEvent: a line of a watch. The object of an ERROR is a `Status`."""

    type: str
    object: msgspec.Raw


class Status(Wire, frozen=True):
    """metav1.Status: why a request was refused, or a watch ended."""

    code: int = 0
    message: str | None = None
