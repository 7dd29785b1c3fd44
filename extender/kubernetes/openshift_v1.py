"""The fields that say where OpenShift's nodes pull from: mirror sets, the older policies, and the image configuration.

Source: github.com/openshift/api, config/v1 and operator/v1alpha1.
"""

import msgspec

from extender.kubernetes.meta_v1 import VersionedMeta, Wire

NEVER_CONTACT_SOURCE = "NeverContactSource"


class SourceMirrors(Wire, frozen=True):
    """The mirrors of one source, an element of any of the three kinds."""

    source: str = ""
    mirrors: tuple[str, ...] | None = None
    mirror_source_policy: str | None = None


class MirrorSetSpec(Wire, frozen=True):
    """The spec of any of the three kinds, which have a list of another name each."""

    image_digest_mirrors: tuple[SourceMirrors, ...] | None = None
    image_tag_mirrors: tuple[SourceMirrors, ...] | None = None
    repository_digest_mirrors: tuple[SourceMirrors, ...] | None = None


class MirrorSet(Wire, frozen=True):
    """An ImageDigestMirrorSet, ImageTagMirrorSet or ImageContentSourcePolicy."""

    metadata: VersionedMeta = VersionedMeta()
    spec: MirrorSetSpec | None = None


class RegistrySources(Wire, frozen=True):
    """config/v1 RegistrySources."""

    insecure_registries: tuple[str, ...] | None = None
    blocked_registries: tuple[str, ...] | None = None
    allowed_registries: tuple[str, ...] | None = None
    container_runtime_search_registries: tuple[str, ...] | None = None


class ImageConfigurationSpec(Wire, frozen=True):
    """config/v1 ImageSpec."""

    registry_sources: RegistrySources | None = None


class ImageConfiguration(Wire, frozen=True):
    """config/v1 Image, of which the one named `cluster` counts."""

    metadata: VersionedMeta = VersionedMeta()
    spec: ImageConfigurationSpec | None = None


class ConfigMap(Wire, frozen=True):
    data: dict[str, str] | None = None


class NodeTrust(Wire, frozen=True):
    """What nodes trust and log in with besides the system's authorities. Certificates are PEM."""

    bundle: str = ""
    """The authorities for all hosts."""
    authorities: dict[str, str] = msgspec.field(default_factory=dict)
    """Further ones, by `host[:port]`."""
    logins: dict[str, tuple[str, str]] = msgspec.field(default_factory=dict)
    """Name and password, by registry or repository as the pull secret has it."""

    def __repr__(self) -> str:
        """Shows no certificate and no login."""
        return f"NodeTrust(authorities={sorted(self.authorities)}, logins={sorted(self.logins)})"

    def __rich_repr__(self) -> list[tuple[str, list[str]]]:
        """As `__repr__`: msgspec's own would show passwords in a pretty-printer."""
        return [("authorities", sorted(self.authorities)), ("logins", sorted(self.logins))]


class MirrorObjects(Wire, frozen=True):
    """What all objects of a cluster say together, in the order of their kinds and names."""

    digest_mirrors: tuple[SourceMirrors, ...] = ()
    tag_mirrors: tuple[SourceMirrors, ...] = ()
    digest_policies: tuple[SourceMirrors, ...] = ()
    """Of ImageContentSourcePolicies, which have no policy for the source."""
    sources: RegistrySources = RegistrySources()
    trust: NodeTrust = NodeTrust()
