"""Deployments, DaemonSets and StatefulSets as whoever looks at an installation reads them, and what their pods mount.

Source: k8s.io/api, apps/v1/types.go and core/v1/types.go.
"""

from extender.kubernetes.core_v1 import NodeSelectorRequirement, VolumeMount
from extender.kubernetes.meta_v1 import Wire


class StoredName(Wire, frozen=True):
    """metav1.ObjectMeta of an object in a namespace."""

    name: str
    namespace: str


class ServingContainer(Wire, frozen=True):
    """core/v1 Container, of which the arguments say where its settings are."""

    args: tuple[str, ...] | None = None
    volume_mounts: tuple[VolumeMount, ...] | None = None


class ConfigMapVolumeSource(Wire, frozen=True):
    name: str = ""


class SecretVolumeSource(Wire, frozen=True):
    secret_name: str = ""


class MountedVolume(Wire, frozen=True):
    """core/v1 Volume with files for settings or certificates."""

    name: str = ""
    config_map: ConfigMapVolumeSource | None = None
    secret: SecretVolumeSource | None = None


class ServingSpec(Wire, frozen=True):
    """core/v1 PodSpec of pods that serve."""

    containers: tuple[ServingContainer, ...] = ()
    init_containers: tuple[ServingContainer, ...] | None = None
    volumes: tuple[MountedVolume, ...] | None = None


class ServingTemplate(Wire, frozen=True):
    spec: ServingSpec = ServingSpec()


class LabelSelector(Wire, frozen=True):
    """metav1.LabelSelector; an empty one selects everything."""

    match_labels: dict[str, str] | None = None
    match_expressions: tuple[NodeSelectorRequirement, ...] | None = None


class ServingWorkloadSpec(Wire, frozen=True):
    """The specs of the three kinds; a DaemonSet has no replicas."""

    selector: LabelSelector = LabelSelector()
    template: ServingTemplate = ServingTemplate()
    replicas: int | None = None


class ServingWorkloadStatus(Wire, frozen=True):
    """The statuses of the three kinds; only a DaemonSet has numbers."""

    ready_replicas: int = 0
    desired_number_scheduled: int = 0
    number_ready: int = 0


class ServingWorkload(Wire, frozen=True):
    metadata: StoredName
    spec: ServingWorkloadSpec = ServingWorkloadSpec()
    status: ServingWorkloadStatus = ServingWorkloadStatus()


class DataObject(Wire, frozen=True):
    """A ConfigMap or a Secret of core/v1; values of the latter are base64."""

    data: dict[str, str] | None = None
