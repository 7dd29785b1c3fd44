"""The fields of apidiscovery.k8s.io/v2 that we read: which groups and resources an API server serves.

Source: k8s.io/api/apidiscovery/v2/types.go.
"""

from extender.kubernetes.meta_v1 import ObjectMeta, Wire

MEDIA_TYPE = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


class APIResourceDiscovery(Wire, frozen=True):
    """apidiscovery APIResourceDiscovery; `resource` is the plural, as in paths."""

    resource: str | None = None


class APIVersionDiscovery(Wire, frozen=True):
    """apidiscovery APIVersionDiscovery."""

    resources: tuple[APIResourceDiscovery, ...] | None = None


class APIGroupDiscovery(Wire, frozen=True):
    """apidiscovery APIGroupDiscovery, whose name is the group's."""

    metadata: ObjectMeta | None = None
    versions: tuple[APIVersionDiscovery, ...] | None = None


class APIGroupDiscoveryList(Wire, frozen=True):
    """apidiscovery APIGroupDiscoveryList."""

    items: tuple[APIGroupDiscovery, ...] | None = None
