"""Why an image is not known, in the words that a pod's author is shown: from an error, and from several failures."""

from collections.abc import Iterable

from extender.errors import (
    AddressRefused,
    CertificateUntrusted,
    EndpointUnavailable,
    HostDenied,
    InnerAddress,
    InvalidManifest,
    InvalidReference,
    ManifestNotFound,
    NameUnresolved,
    PrivateAddress,
    RegistryDenied,
    RegistryNotAllowed,
    RegistryNotAsked,
    RegistryRefusedImage,
    RegistryThrottled,
    RegistryWithoutTls,
    UnsupportedManifest,
)
from extender.images.content import Answer, Cause, Failure

# Constant sentences, so that no address reaches the pod's author, and of a registry's texts only why it refuses.
_SENTENCES = {
    Cause.MISSING: "its registry has no such image",
    Cause.DENIED: "its registry gives access with none of the credentials at hand",
    Cause.REFUSED: "its registry refuses to give it out, by a rule of its own",
    Cause.NOT_ALLOWED: "the nodes' files for registries have nobody ask for it",
    Cause.THROTTLED: "its registry has been asked too often and wants us to wait",
    Cause.UNAVAILABLE: "its registry cannot be reached or gives no proper answer",
    Cause.INVALID: "its registry's answer is no valid manifest",
    Cause.UNSUPPORTED: "no platform can be learned from a manifest of its kind",
    Cause.INVALID_REFERENCE: "its name is no image reference that can be pulled",
}
_SETTINGS: dict[type[BaseException], str] = {
    RegistryNotAllowed: "registry.allow does not name its registry",
    HostDenied: "registry.deny names its registry, or a host to which that leads",
    InnerAddress: "its registry, or a host to which that leads, is at an address that registry.allow has to name",
    PrivateAddress: "its registry, or a host to which that leads, is private, and registry.private_addresses is false",
    RegistryWithoutTls: "its registry does not speak TLS with us; registry.plain_http names those of plain HTTP",
    CertificateUntrusted: "its registry's certificate is not trusted; registry.ca_files gives its authority",
}
"""What a setting of the operator's can change. It names no host, as that may be one to which the registry leads."""
ENDED = Failure(Cause.LOOKING_UP, "its lookup was ended before it came to anything")
OVERDUE_SECONDS = 0.8
OVERDUE = Failure(Cause.UNAVAILABLE, "its registry has not answered yet")
"""Stands for a lookup that is under way for so long: nodes that have the image need not wait for its end."""
DENIED = Failure(Cause.DENIED, _SENTENCES[Cause.DENIED])
PARTLY_ASKED = Failure(Cause.UNAVAILABLE, "a mirror or registry that may have it cannot be reached or gives no answer")
UNREAD = Failure(Cause.UNAVAILABLE, "a pull secret or provider that may have credentials for it cannot be read now")
_CAUSES: dict[type[BaseException], Cause] = {
    ManifestNotFound: Cause.MISSING,
    RegistryDenied: Cause.DENIED,
    RegistryRefusedImage: Cause.REFUSED,
    AddressRefused: Cause.NOT_ALLOWED,
    RegistryThrottled: Cause.THROTTLED,
    InvalidManifest: Cause.INVALID,
    UnsupportedManifest: Cause.UNSUPPORTED,
    InvalidReference: Cause.INVALID_REFERENCE,
}

# Causes after which the next credential is tried, as the kubelet does; the one that says most stands last. *Throttled*
# is an account's. "No such image" is one, since some registries answer so when a login has no access. So is
# *unavailable* where one of several endpoints has answered.
_TELLING = (Cause.DENIED, Cause.THROTTLED, Cause.MISSING, Cause.REFUSED, Cause.UNAVAILABLE)


def failure_of(error: Exception) -> Failure:
    """The failure that the pod's author is shown for `error`; *unavailable* for errors without a cause of their own."""
    cause = next((_CAUSES[kind] for kind in type(error).__mro__ if kind in _CAUSES), Cause.UNAVAILABLE)
    match error:
        case RegistryRefusedImage():
            if not error.said:
                return Failure(cause, f"{_SENTENCES[cause]} (HTTP {error.status})")
            return Failure(cause, f"its registry refuses it (HTTP {error.status}), and says: {error.said}")
        case EndpointUnavailable():
            return PARTLY_ASKED
        case NameUnresolved():
            return Failure(cause, "its registry's name does not resolve, or not in time")
        case RegistryNotAsked():
            return Failure(cause, "its registry was not asked, since no connection was free in time")
        case _:
            return Failure(cause, _SETTINGS.get(type(error), _SENTENCES[cause]))


def is_under_way(answer: Answer) -> bool:
    """Whether a lookup may answer soon."""
    return answer is None or answer == OVERDUE


def depends_on_credential(failure: Failure) -> bool:
    """Whether the image may be had with another credential."""
    return failure == PARTLY_ASKED or failure.cause in _TELLING[:-1]


def summary(failures: Iterable[Failure]) -> Failure:
    """The one failure for all credentials from the failure of each, in order, each of which depends on its credential.

    It is the first *unavailable*, since nobody knows what that endpoint has, else the first *refused*, else the first
    *missing*, since a login with access knows best, else *throttled*, since that account may open it. Else *denied*.
    """
    result = DENIED
    for failure in failures:
        if _TELLING.index(failure.cause) > _TELLING.index(result.cause):
            result = failure
    return result
