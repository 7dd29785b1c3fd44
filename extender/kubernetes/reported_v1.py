"""The fields of core/v1 that only reports read: cordons of nodes and what they can give, what kubelets say of pods and
containers, and what these request.

Source: k8s.io/api/core/v1/types.go. What a decision reads is in `core_v1`, whose structs stay small for its sake. No
field that the audit reads is raw, so that a kept pod does not keep the page that it was read from.
"""

import msgspec

from extender.kubernetes.core_v1 import (
    Affinity,
    Container,
    Node,
    NodeSpec,
    NodeStatus,
    Pod,
    PodSpec,
    Toleration,
)
from extender.kubernetes.meta_v1 import Wire


class ReportedNodeSpec(NodeSpec, frozen=True):
    """core/v1 NodeSpec with its cordon."""

    unschedulable: bool | None = None


class ContainerStateWaiting(Wire, frozen=True):
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
    phase: str | None = None
    container_statuses: tuple[ContainerStatus, ...] | None = None
    init_container_statuses: tuple[ContainerStatus, ...] | None = None
    ephemeral_container_statuses: tuple[ContainerStatus, ...] | None = None


Quantities = dict[str, str | int | float]
"""Quantities of resources by name. Manifests write numbers too, which an API server turns into texts."""


class ResourceRequirements(Wire, frozen=True):
    """core/v1 ResourceRequirements, of a container or of a whole pod."""

    requests: Quantities | None = None
    limits: Quantities | None = None


class ReportedContainer(Container, frozen=True):
    """A container with its resources."""

    resources: ResourceRequirements | None = None


class ReportedSpec(PodSpec, frozen=True):
    """core/v1 PodSpec with what decides where the pod may run and what it takes."""

    containers: tuple[ReportedContainer, ...] | None = None
    init_containers: tuple[ReportedContainer, ...] | None = None
    ephemeral_containers: tuple[ReportedContainer, ...] | None = None
    resources: ResourceRequirements | None = None
    overhead: Quantities | None = None
    service_account_name: str | None = None
    priority_class_name: str | None = None
    scheduler_name: str | None = None
    node_selector: dict[str, str] | None = None
    affinity: Affinity | None = None
    tolerations: tuple[Toleration, ...] | None = None


class ReportedPod(Pod, frozen=True):
    """core/v1 Pod as reports read it, and as an API server types it, on which a patch of a manifest relies."""

    spec: ReportedSpec | None = None
    status: PodStatus | None = None


class ReportedNodeStatus(NodeStatus, frozen=True):
    """core/v1 NodeStatus with what the node can give to pods."""

    allocatable: Quantities | None = None


class ReportedNode(Node, frozen=True):
    """core/v1 Node with what kube-scheduler refuses it by."""

    spec: ReportedNodeSpec | None = None
    status: ReportedNodeStatus | None = None
