"""TLS contexts and logins for requests from what OpenShift's nodes trust and log in with.

Reads no file but the operator's authorities, and sends no request. A host's own authorities are trusted there and by
its token server, in addition to all others, as by CRI-O. Certificates that are none are left out, as by Go.
"""

from collections.abc import Iterator

from extender.credentials.keyring import Credential, CredentialId
from extender.images.reference import ImageReference
from extender.kubernetes.openshift_v1 import NodeTrust
from extender.registry.endpoint import SYSTEM_TRUST, Trust
from extender.registry.endpoint_tls import CERTIFICATE, Certificates, TlsContexts

_HUB = "https://index.docker.io/v1/"


def host_problems(trust: NodeTrust) -> Iterator[str]:
    """Yields in words for which hosts there is no authority, though something stands in its place."""
    for host, text in trust.authorities.items():
        if not CERTIFICATE.search(text):
            yield f"the authorities for {host} hold no certificate"


class NodeTrusts:
    """The TLS contexts and logins by host, made when they are first asked for."""

    def __init__(self, trust: NodeTrust, contexts: TlsContexts, generation: int) -> None:
        """`contexts` trust the system's authorities and the operator's.

        `generation` is another one for other logins.
        """
        self._trust = trust
        self._contexts = contexts
        self._generation = generation

    def trust_of(self, domain: str) -> Trust:
        """Returns the TLS contexts for a host, by the name that images have."""
        own = self._trust.authorities.get(domain, "")
        if not own and not self._trust.bundle:
            return SYSTEM_TRUST
        make = self._contexts.of(Certificates(pem=(self._trust.bundle, own)))
        return Trust(None, make, make)

    def credentials_for(self, reference: ImageReference) -> tuple[Credential, ...]:
        """Returns the login that CRI-O has for a mirror: that of the longest name which is the mirror's or above it.

        Specification: containers-auth.json(5).
        """
        name = f"{reference.domain}/{reference.path}"
        while name:
            keys = (name, _HUB) if name == "docker.io" else (name,)
            for key in keys:
                if login := self._trust.logins.get(key):
                    return (Credential(*login, CredentialId(f"pull-secret {self._generation} {key}")),)
            name = name.rpartition("/")[0]
        return ()
