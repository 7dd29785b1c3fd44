"""The fields of coordination.k8s.io/v1 that a leader election reads and writes.

Source: k8s.io/api/coordination/v1/types.go.
"""

from extender.kubernetes.meta_v1 import VersionedMeta, Wire


class LeaseSpec(Wire, frozen=True):
    """coordination/v1 LeaseSpec; times are RFC 3339 texts with microseconds, an empty holder means that it is free."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(Wire, frozen=True):
    """coordination/v1 Lease."""

    metadata: VersionedMeta = VersionedMeta()
    spec: LeaseSpec | None = None
