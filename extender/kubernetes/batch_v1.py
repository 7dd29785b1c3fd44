"""The fields of batch/v1 that we read: those of a Job that is being created.

Source: k8s.io/api/batch/v1/types.go. Unknown fields are ignored; missing and null fields are empty.
"""

import msgspec

from extender.kubernetes.wire import Wire


class LabelledMeta(Wire, frozen=True):
    """metav1.ObjectMeta, of which the labels and the name are read."""

    name: str | None = None
    generate_name: str | None = None
    labels: dict[str, str] | None = None


class JobSpec(Wire, frozen=True):
    """batch/v1 JobSpec; `template` is the core/v1 PodTemplateSpec as JSON, empty if missing."""

    template: msgspec.Raw = msgspec.Raw()


class Job(Wire, frozen=True):
    """batch/v1 Job."""

    metadata: LabelledMeta | None = None
    spec: JobSpec | None = None
