"""The fields of core/v1 that are read. Unknown fields are ignored, missing and null ones are empty.

Source: k8s.io/api/core/v1/types.go. Structs hold what a decision reads and nothing more; whoever must give an object
back works on its raw bytes.
"""

from typing import NewType

import msgspec

NodeName = NewType("NodeName", str)
PodUid = NewType("PodUid", str)


class Wire(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """Base of everything decoded here: camelCase keys."""


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


class Container(Wire, frozen=True):
    """The image of a container, init container or ephemeral container."""

    image: str | None = None
    image_pull_policy: str | None = None


class ImageVolumeSource(Wire, frozen=True):
    """core/v1 ImageVolumeSource; both fields may be empty."""

    reference: str | None = None
    pull_policy: str | None = None


class Volume(Wire, frozen=True):
    """A volume, of which only the image kind matters."""

    image: ImageVolumeSource | None = None


class Toleration(Wire, frozen=True, omit_defaults=True):
    """core/v1 Toleration; an empty operator is Equal, an empty key or effect matches all."""

    key: str | None = None
    operator: str | None = None
    value: str | None = None
    effect: str | None = None
    toleration_seconds: int | None = None


class LocalObjectReference(Wire, frozen=True):
    """A name in the pod's own namespace."""

    name: str | None = None


class PodSpec(Wire, frozen=True):
    """core/v1 PodSpec; hashable, and equal for pods of one template."""

    containers: tuple[Container, ...] | None = None
    init_containers: tuple[Container, ...] | None = None
    ephemeral_containers: tuple[Container, ...] | None = None
    volumes: tuple[Volume, ...] | None = None
    node_name: str | None = None
    runtime_class_name: str | None = None
    image_pull_secrets: tuple[LocalObjectReference, ...] | None = None


class Pod(Wire, frozen=True):
    """core/v1 Pod."""

    metadata: ObjectMeta | None = None
    spec: PodSpec | None = None


class NodeSystemInfo(Wire, frozen=True):
    """What the kubelet says of its machine: architecture in GOARCH, no variant."""

    architecture: str | None = None
    operating_system: str | None = None


class NodeStatus(Wire, frozen=True):
    """core/v1 NodeStatus."""

    node_info: NodeSystemInfo | None = None


class NodeMeta(Wire, frozen=True):
    """The metadata of a node that decides its platform."""

    name: str | None = None
    labels: dict[str, str] | None = None


class Node(Wire, frozen=True):
    """core/v1 Node."""

    metadata: NodeMeta | None = None
    status: NodeStatus | None = None
