"""The fields of core/v1 that we read or write. Unknown fields are ignored; missing and null fields are empty.

Source: k8s.io/api/core/v1/types.go. Structs hold only what a decision reads. Code that returns an object to Kubernetes
works on its raw bytes instead.
"""

from collections.abc import Iterator, Mapping
from typing import NewType

import msgspec

from extender.kubernetes.meta_v1 import ObjectMeta, OwnerReference, StoredMeta, VersionedMeta, Wire

NodeName = NewType("NodeName", str)
PodUid = NewType("PodUid", str)


class VolumeMount(Wire, frozen=True):
    name: str = ""
    mount_path: str = ""


class Container(Wire, frozen=True):
    """The image of a container, init container or ephemeral container, and where its command finds its program."""

    image: str | None = None
    image_pull_policy: str | None = None
    command: tuple[str, ...] | None = None
    working_dir: str | None = None
    volume_mounts: tuple[VolumeMount, ...] | None = None
    name: str = ""
    restart_policy: str | None = None


class ImageVolumeSource(Wire, frozen=True):
    """core/v1 ImageVolumeSource; both fields may be empty."""

    reference: str | None = None
    pull_policy: str | None = None


class TextSource(Wire, frozen=True):
    """A source of texts that the API server keeps, such as core/v1 ConfigMapVolumeSource."""


class Volume(Wire, frozen=True):
    """core/v1 Volume, of which only an image volume's source is read, and whether it holds texts."""

    name: str = ""
    image: ImageVolumeSource | None = None
    config_map: TextSource | None = None
    secret: TextSource | None = None
    projected: TextSource | None = None
    downward_api: TextSource | None = msgspec.field(name="downwardAPI", default=None)

    @property
    def holds_texts(self) -> bool:
        """Whether its files are texts of the API server, in which there is no program."""
        return not (self.config_map is self.secret is self.projected is self.downward_api is None)


class Toleration(Wire, frozen=True, omit_defaults=True):
    """core/v1 Toleration; an empty operator means Equal, an empty key or effect matches all."""

    key: str | None = None
    operator: str | None = None
    value: str | None = None
    effect: str | None = None
    toleration_seconds: int | None = None


class LocalObjectReference(Wire, frozen=True):
    """core/v1 LocalObjectReference: the name of an object in the pod's own namespace."""

    name: str | None = None


class ServiceAccount(Wire, frozen=True):
    """core/v1 ServiceAccount: which pull secrets its pods get if they name none."""

    metadata: VersionedMeta = VersionedMeta()
    image_pull_secrets: tuple[LocalObjectReference, ...] | None = None

    @property
    def pull_secrets(self) -> tuple[str, ...]:
        """The names of its pull secrets."""
        return tuple(each.name for each in self.image_pull_secrets or () if each.name)


class PodOS(Wire, frozen=True):
    """core/v1 PodOS: the operating system for which a pod's author says that it is."""

    name: str = ""


class PodSpec(Wire, frozen=True):
    containers: tuple[Container, ...] | None = None
    init_containers: tuple[Container, ...] | None = None
    ephemeral_containers: tuple[Container, ...] | None = None
    volumes: tuple[Volume, ...] | None = None
    node_name: str | None = None
    runtime_class_name: str | None = None
    image_pull_secrets: tuple[LocalObjectReference, ...] | None = None
    os: PodOS | None = None
    host_network: bool | None = None


class Pod(Wire, frozen=True):
    metadata: ObjectMeta | None = None
    spec: PodSpec | None = None

    @property
    def annotations(self) -> Mapping[str, str]:
        """Empty where it has none."""
        return (self.metadata and self.metadata.annotations) or {}

    @property
    def controller(self) -> OwnerReference | None:
        """The owner that made the pod; None for one that a person made."""
        return self.metadata.controller if self.metadata else None


class CreatedSpec(PodSpec, frozen=True):
    """core/v1 PodSpec with the fields that a patch changes or depends on, as raw JSON; `UNSET` if missing."""

    priority_class_name: str | None = None
    tolerations: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    affinity: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    scheduler_name: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    node_selector: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    scheduling_gates: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class CreatedPod(Pod, frozen=True):
    """core/v1 Pod as a mutation reads it, new or held by a gate."""

    spec: CreatedSpec | None = None


class PodSchedulingGate(Wire, frozen=True):
    name: str = ""


class StoredSpec(Wire, frozen=True):
    """core/v1 PodSpec, of which only the gates are read."""

    scheduling_gates: list[PodSchedulingGate] | None = None


class StoredPod(Wire, frozen=True):
    """core/v1 Pod as the API server stores it, with what distinguishes it from others and its earlier states."""

    metadata: StoredMeta
    spec: StoredSpec | None = None

    @property
    def key(self) -> str:
        """The key by which a watch names the pod."""
        return f"{self.metadata.namespace}/{self.metadata.name}"


class NodeSystemInfo(Wire, frozen=True):
    """core/v1 NodeSystemInfo: what the kubelet reports of its machine, with architecture in GOARCH and no variant."""

    architecture: str | None = None
    operating_system: str | None = None


class NodeStatus(Wire, frozen=True):
    node_info: NodeSystemInfo | None = None


class Taint(Wire, frozen=True):
    key: str = ""
    value: str | None = None
    effect: str = ""


class NodeSpec(Wire, frozen=True):
    taints: tuple[Taint, ...] | None = None


class NodeMeta(Wire, frozen=True):
    """The metadata of a node from which its platform is read."""

    name: str | None = None
    labels: dict[str, str] | None = None


class Node(Wire, frozen=True):
    metadata: NodeMeta | None = None
    status: NodeStatus | None = None
    spec: NodeSpec | None = None

    @property
    def name(self) -> NodeName:
        """Empty for a node without a name, as none of an API server is."""
        return NodeName((self.metadata and self.metadata.name) or "")

    @property
    def labels(self) -> Mapping[str, str]:
        """Empty where it has none."""
        return (self.metadata and self.metadata.labels) or {}


class ContainerImage(Wire, frozen=True):
    names: list[str] | None = None


class ListingNodeStatus(NodeStatus, frozen=True):
    """core/v1 NodeStatus with the images that the node has."""

    images: list[ContainerImage] | None = None

    @property
    def image_names(self) -> Iterator[str]:
        """All names of all images."""
        return (name for image in self.images or () for name in image.names or ())


class ListingNode(Node, frozen=True):
    """core/v1 Node with the images that it has, which are most of its bytes and a filter call need not read."""

    status: ListingNodeStatus | None = None


class NodeList(Wire, frozen=True):
    """core/v1 NodeList, of which only the items are read."""

    items: list[Node] | None = None


class SecretData(Wire, frozen=True):
    """The data of a core/v1 Secret, in base64: the keys of the two types of pull secrets."""

    docker_config_json: str | None = msgspec.field(name=".dockerconfigjson", default=None)
    docker_cfg: str | None = msgspec.field(name=".dockercfg", default=None)


class OpaqueSecret(Wire, frozen=True):
    """core/v1 Secret with any keys."""

    metadata: VersionedMeta = VersionedMeta()
    data: dict[str, bytes] | None = None

    def __repr__(self) -> str:
        """Leaves the data out, so that it reaches no log or traceback."""
        return f"OpaqueSecret(version={self.metadata.resource_version!r})"


class Secret(Wire, frozen=True):
    type: str | None = None
    data: SecretData | None = None


class NodeSelectorRequirement(Wire, frozen=True, omit_defaults=True):
    key: str = ""
    operator: str = ""
    values: tuple[str, ...] | None = None


class NodeSelectorTerm(Wire, frozen=True, omit_defaults=True):
    """core/v1 NodeSelectorTerm: its requirements are ANDed; a term without requirements matches no node."""

    match_expressions: tuple[NodeSelectorRequirement, ...] | None = None
    match_fields: tuple[NodeSelectorRequirement, ...] | None = None


class NodeSelector(Wire, frozen=True):
    """core/v1 NodeSelector: its terms are ORed."""

    node_selector_terms: tuple[NodeSelectorTerm, ...] | None = None


class PreferredSchedulingTerm(Wire, frozen=True):
    """core/v1 PreferredSchedulingTerm; the weight is 1-100."""

    weight: int = 0
    preference: NodeSelectorTerm = NodeSelectorTerm()


class NodeAffinity(
    Wire,
    frozen=True,
    rename={
        "required": "requiredDuringSchedulingIgnoredDuringExecution",
        "preferred": "preferredDuringSchedulingIgnoredDuringExecution",
    },
):
    required: NodeSelector | None = None
    preferred: tuple[PreferredSchedulingTerm, ...] | None = None


class Affinity(Wire, frozen=True):
    """core/v1 Affinity, of which only the node affinity is read."""

    node_affinity: NodeAffinity | None = None


class PodReference(Wire, frozen=True):
    """core/v1 ObjectReference to a pod, or to what has pods."""

    namespace: str
    name: str
    uid: str
    api_version: str = "v1"
    kind: str = "Pod"


class EventMeta(Wire, frozen=True, omit_defaults=True):
    """The metadata of an event; the API server completes its name where that is empty."""

    namespace: str
    generate_name: str = ""
    name: str = ""


class EventSource(Wire, frozen=True):
    component: str


class PodEvent(Wire, frozen=True):
    """core/v1 Event about a pod."""

    metadata: EventMeta
    involved_object: PodReference
    reason: str
    message: str
    type: str
    source: EventSource
    reporting_component: str
    reporting_instance: str
    action: str
    first_timestamp: str
    last_timestamp: str
    event_time: str
    count: int = 1


class SchedulingSpec(Wire, frozen=True):
    """core/v1 PodSpec, of which only what its author asks of nodes is read."""

    tolerations: tuple[Toleration, ...] | None = None
    affinity: Affinity | None = None
    scheduler_name: str | None = None
    node_selector: dict[str, str] | None = None
