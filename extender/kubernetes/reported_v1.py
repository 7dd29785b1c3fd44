"""The fields of core/v1 that only reports read: cordons of nodes and what they can give, what kubelets say of pods and
containers, and what these request.

Source: k8s.io/api/core/v1/types.go. What a decision reads is in `core_v1`, whose structs stay small for its sake. No
field that the audit reads is raw, so that a kept pod does not keep the page that it was read from.
"""

import msgspec

from extender.kubernetes.core_v1 import (
    Affinity,
    Container,
    CreatedPod,
    CreatedSpec,
    Node,
    NodeSpec,
    NodeStatus,
    Pod,
    PodSpec,
    Toleration,
)
from extender.kubernetes.meta_v1 import ObjectMeta, OwnerReference, Wire


class ReportedNodeSpec(NodeSpec, frozen=True):
    """core/v1 NodeSpec with its cordon."""

    unschedulable: bool | None = None


class ReportedNode(Node, frozen=True):
    """core/v1 Node with the fields by which kube-scheduler refuses it."""

    spec: ReportedNodeSpec | None = None


class NamedContainer(Container, frozen=True):
    """A container, init container or ephemeral container with its name."""

    name: str = ""
    restart_policy: str | None = None


class ContainerStateWaiting(Wire, frozen=True):
    """core/v1 ContainerStateWaiting."""

    reason: str | None = None
    message: str | None = None


class ContainerStateRunning(Wire, frozen=True):
    """core/v1 ContainerStateRunning; the time is RFC 3339."""

    started_at: str | None = None


class ContainerStateTerminated(Wire, frozen=True):
    """core/v1 ContainerStateTerminated; times are RFC 3339 with a precision of one second."""

    exit_code: int = 0
    reason: str | None = None
    message: str | None = None
    started_at: str | None = None
    finished_at: str | None = None


class ContainerState(Wire, frozen=True):
    """core/v1 ContainerState: at most one of the three."""

    waiting: ContainerStateWaiting | None = None
    running: ContainerStateRunning | None = None
    terminated: ContainerStateTerminated | None = None


class ContainerStatus(Wire, frozen=True):
    """core/v1 ContainerStatus. `image` and `image_id` are what the runtime says, which need not be what was pulled."""

    name: str = ""
    image: str | None = None
    image_id: str | None = msgspec.field(name="imageID", default=None)
    restart_count: int = 0
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()


class PodStatus(Wire, frozen=True):
    """core/v1 PodStatus."""

    phase: str | None = None
    container_statuses: tuple[ContainerStatus, ...] | None = None
    init_container_statuses: tuple[ContainerStatus, ...] | None = None
    ephemeral_container_statuses: tuple[ContainerStatus, ...] | None = None


class ReportedSpec(PodSpec, frozen=True):
    """core/v1 PodSpec with the names of its containers and volumes."""

    containers: tuple[NamedContainer, ...] | None = None
    init_containers: tuple[NamedContainer, ...] | None = None
    ephemeral_containers: tuple[NamedContainer, ...] | None = None


class NamedSpec(CreatedSpec, frozen=True):
    """As `ReportedSpec`, with the fields that a patch changes or depends on."""

    containers: tuple[NamedContainer, ...] | None = None
    init_containers: tuple[NamedContainer, ...] | None = None
    ephemeral_containers: tuple[NamedContainer, ...] | None = None
    host_network: bool | None = None


class NamedPod(CreatedPod, frozen=True):
    """core/v1 Pod as `explain` reads it."""

    spec: NamedSpec | None = None


class NamedOwner(OwnerReference, frozen=True):
    """metav1.OwnerReference with what an event names the owner by."""

    api_version: str = ""
    uid: str = ""


class OwnedMeta(ObjectMeta, frozen=True):
    """metav1.ObjectMeta with the owners' names."""

    owner_references: list[NamedOwner] | None = None  # type: ignore[assignment] # as above, with more fields


class OwnedObject(Wire, frozen=True):
    """An object of any kind, of which the owners are read."""

    metadata: OwnedMeta = OwnedMeta()


class OwnedPod(Pod, frozen=True):
    """core/v1 Pod with its owners, its containers' names and what the kubelet reports of them."""

    metadata: OwnedMeta = OwnedMeta()
    spec: ReportedSpec | None = None
    status: PodStatus | None = None


Quantities = dict[str, str | int | float]
"""Quantities of resources by name. Manifests write numbers too, which an API server turns into texts."""


class ResourceRequirements(Wire, frozen=True):
    """core/v1 ResourceRequirements, of a container or of a whole pod."""

    requests: Quantities | None = None
    limits: Quantities | None = None


class AuditedContainer(NamedContainer, frozen=True):
    """A container with its name and resources."""

    resources: ResourceRequirements | None = None


class AuditedSpec(PodSpec, frozen=True):
    """core/v1 PodSpec with what decides where the pod may run and what it takes."""

    containers: tuple[AuditedContainer, ...] | None = None
    init_containers: tuple[AuditedContainer, ...] | None = None
    ephemeral_containers: tuple[AuditedContainer, ...] | None = None
    resources: ResourceRequirements | None = None
    overhead: Quantities | None = None
    service_account_name: str | None = None
    host_network: bool | None = None
    node_selector: dict[str, str] | None = None
    affinity: Affinity | None = None
    tolerations: tuple[Toleration, ...] | None = None


class AuditedPod(Wire, frozen=True):
    """core/v1 Pod as the audit reads it."""

    metadata: OwnedMeta = OwnedMeta()
    spec: AuditedSpec = AuditedSpec()
    status: PodStatus | None = None


class AuditedNodeStatus(NodeStatus, frozen=True):
    """core/v1 NodeStatus with what the node can give to pods."""

    allocatable: Quantities | None = None


class AuditedNode(ReportedNode, frozen=True):
    """core/v1 Node as the audit reads it."""

    status: AuditedNodeStatus | None = None
