"""All errors of this package. The leaf class says whose fault the error is, which determines the response.

Imports no other room. Foreign exceptions are translated into these once, at the edge that meets them.
Messages never contain credentials or bodies from outside.
"""

import contextlib
from collections.abc import Iterator

import msgspec

from extender.masked import masked

UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What a decoder raises for bytes from outside."""


class ExtenderError(Exception):
    """Base of all errors raised on purpose by this package."""


class InvalidRequest(ExtenderError):
    """The caller (kube-scheduler or kube-apiserver) sent an invalid request; the response is 400."""


class InvalidReference(ExtenderError):
    """The pod's author wrote an image string that is not an image reference."""


class InvalidManifest(ExtenderError):
    """The registry's bytes are not the document they claim to be: wrong digest, malformed, or two kinds in one."""


class UnsupportedManifest(ExtenderError):
    """A well-formed document whose platforms cannot be read, such as schema1 or one over our request budget."""


class RegistryError(ExtenderError):
    """A registry did not return what was requested."""


class ManifestNotFound(RegistryError):
    """404: the registry has no such repository, tag or digest."""


class RegistryDenied(RegistryError):
    """401 with the best credential we have, or 403. Some registries return these for what does not exist."""


class RegistryRefusedImage(RegistryError):
    """Another 4xx: the registry responded and does not hand the image out, for example by a policy of its own (412).

    `status` is the response's status. `said` is what the registry says of it, in one line of `http.MOST_SAID`
    at most; empty if it says nothing. The message does not have it.
    """

    def __init__(self, message: str, status: int, said: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.said = said


class RegistryThrottled(RegistryError):
    """429: the registry asks us to retry later.

    `retry_after_seconds` is the clamped Retry-After, or None if the registry stated no time.
    """

    def __init__(self, message: str, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class QuotaReserved(RegistryThrottled):
    """No request was sent: what is left of the registry's quota is for others."""


class RegistryUnavailable(RegistryError):
    """The host failed: connection, TLS, DNS, time-out, 5xx, a login page or a redirect loop.

    `retry_after_seconds` is for how long it is not asked, if it failed before and was not asked now.
    """

    def __init__(self, message: str, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class RegistryFailed(RegistryUnavailable):
    """The host responded, so no time-out was spent, but not as a registry does: 5xx or a login page."""


class EndpointUnavailable(RegistryUnavailable):
    """One of the endpoints that may have the image failed, and another one does not have it or does not give it out."""


class RegistryUnreachable(RegistryUnavailable):
    """No connection to the host came about: it refuses, does not answer, or its TLS fails."""


class RegistryWithoutTls(RegistryUnreachable):
    """The host does not speak TLS as we do: it may be one of plain HTTP."""


class CertificateUntrusted(RegistryUnreachable):
    """The host shows a certificate of an authority that is not trusted here, or one for another name."""


class RegistryNotAsked(RegistryUnavailable):
    """No request reached the host, and it is not to blame: no connection of ours was free in time."""


class NameUnresolved(RegistryNotAsked):
    """The host's name did not resolve, or not in time."""


class AddressRefused(RegistryError):
    """The nodes' files, or a rule of the operator, which the class names, forbid a host on the way.

    It got no request.
    """


class RegistryNotAllowed(AddressRefused):
    """`registry.allow` does not name the registry."""


class HostDenied(AddressRefused):
    """`registry.deny` names a host on the way."""


class InnerAddress(AddressRefused):
    """A host on the way is at an address of this machine or its link, and `registry.allow` does not name it."""


class PrivateAddress(AddressRefused):
    """A host on the way is at a private address, which `registry.private_addresses` forbids."""


class ClusterError(ExtenderError):
    """The Kubernetes API did not return what was requested."""


class ConfigError(ExtenderError):
    """The operator's configuration is wrong: exit code 2. Each of the problems is shown on a line of its own.

    A problem may quote what was given: logins in URLs are masked.
    """

    def __init__(self, *problems: str) -> None:
        self.problems = tuple(map(masked, problems))
        super().__init__("\n".join(self.problems))


@contextlib.contextmanager
def naming(where: object) -> Iterator[None]:
    """Puts where it is before the problem of a ConfigError that comes up within."""
    try:
        yield
    except ConfigError as exc:
        raise ConfigError(f"{where}: {exc}") from exc
