"""Every error of this package; the leaf says whose fault it was, since that fixes the answer.

Knows no other room. Foreign exceptions become one of these once, at the edge that met them.
Messages never hold credentials or bodies that came from outside.
"""


class ExtenderError(Exception):
    """Base of all errors raised on purpose by this package."""


class InvalidRequest(ExtenderError):
    """The caller (kube-scheduler, kube-apiserver) sent something that is no request: answered with 400."""


class InvalidReference(ExtenderError):
    """The pod's author wrote an image string that is no image reference."""


class InvalidManifest(ExtenderError):
    """The registry's bytes are not the document they claim to be (wrong digest, malformed, two kinds in one)."""


class UnsupportedManifest(ExtenderError):
    """A well-formed document from which no platform can be learned, such as schema1 or one over our request budget."""


class RegistryError(ExtenderError):
    """A registry did not give what was asked for.

    `host_is_well`: that says nothing against the image's registry, since it was spared, or a mirror of it has answered.
    """

    host_is_well = False


class ManifestNotFound(RegistryError):
    """404: no such repository, tag or digest there."""


class RegistryDenied(RegistryError):
    """401 with the best credential we have, or 403; some registries answer so for what does not exist."""


class RegistryThrottled(RegistryError):
    """429: the registry asks us to come back later.

    `retry_after_seconds` is the clamped Retry-After, or None where the registry named no time.
    """

    def __init__(self, message: str, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class RegistryUnavailable(RegistryError):
    """The host's fault: connection, TLS, DNS, time-out, 5xx, a login page, a redirect loop."""


class RegistryFailed(RegistryUnavailable):
    """There is an answer, which costs no time-out, but it is no registry's: 5xx, a login page."""


class AddressRefused(RegistryError):
    """The operator's rules keep us from a host on the way: `allow`, `deny`, or an address inside. Nothing was asked."""


class ClusterError(ExtenderError):
    """The Kubernetes API did not give what was asked for."""


class ConfigError(ExtenderError):
    """The operator's configuration is wrong: exit code 2."""
