"""The fields of core/v1 that the audit reads besides: owners, requests for CPU and memory, and what a node can give.

Source: k8s.io/api/core/v1/types.go. No field is raw, so that a kept pod does not keep the page that it was read from.
"""

from extender.kubernetes.core_v1 import Affinity, NodeStatus, PodSpec, Toleration
from extender.kubernetes.meta_v1 import ObjectMeta, Wire
from extender.kubernetes.reported_v1 import NamedContainer, NamedVolume, ReportedNode

Quantities = dict[str, str | int | float]
"""Quantities of resources by name. Manifests write numbers too, which an API server turns into texts."""


class OwningController(Wire, frozen=True):
    """metav1.OwnerReference with the owner's name."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    controller: bool | None = None


class AuditedMeta(ObjectMeta, frozen=True):
    """metav1.ObjectMeta with the owners' names."""

    owner_references: list[OwningController] | None = None  # type: ignore[assignment] # as above, with more fields


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
    volumes: tuple[NamedVolume, ...] | None = None
    resources: ResourceRequirements | None = None
    overhead: Quantities | None = None
    service_account_name: str | None = None
    host_network: bool | None = None
    node_selector: dict[str, str] | None = None
    affinity: Affinity | None = None
    tolerations: tuple[Toleration, ...] | None = None


class AuditedPodStatus(Wire, frozen=True):
    """core/v1 PodStatus, of which only the phase is read."""

    phase: str | None = None


class AuditedPod(Wire, frozen=True):
    """core/v1 Pod as the audit reads it."""

    metadata: AuditedMeta = AuditedMeta()
    spec: AuditedSpec = AuditedSpec()
    status: AuditedPodStatus | None = None


class AuditedNodeStatus(NodeStatus, frozen=True):
    """core/v1 NodeStatus with what the node can give to pods."""

    allocatable: Quantities | None = None


class AuditedNode(ReportedNode, frozen=True):
    """core/v1 Node as the audit reads it."""

    status: AuditedNodeStatus | None = None
