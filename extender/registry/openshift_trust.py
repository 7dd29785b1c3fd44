"""TLS contexts and logins for requests from what OpenShift's nodes trust and log in with.

Reads no file but the operator's authorities, and sends no request. A host's own authorities are trusted there and by
its token server, in addition to all others, as by CRI-O. Certificates that are none are left out, as by Go.
"""

import contextlib
import re
import ssl
from collections.abc import Callable, Iterator
from functools import lru_cache

from extender.credentials.keyring import Credential, CredentialId
from extender.images.reference import ImageReference
from extender.kubernetes.openshift_v1 import NodeTrust
from extender.registry.endpoint import SYSTEM_TRUST, Trust

_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----[A-Za-z0-9+/=\s]+-----END CERTIFICATE-----", re.ASCII)
_CONTEXTS = 8  # of hosts with authorities of their own, kept; one with the system's takes a megabyte
_HUB = "https://index.docker.io/v1/"


def host_problems(trust: NodeTrust) -> Iterator[str]:
    """Yields in words for which hosts there is no authority, though something stands in its place."""
    for host, text in trust.authorities.items():
        if not _CERTIFICATE.search(text):
            yield f"the authorities for {host} hold no certificate"


class NodeTrusts:
    """The TLS contexts and logins by host, made when they are first asked for."""

    def __init__(self, trust: NodeTrust, new_context: Callable[[], ssl.SSLContext], generation: int) -> None:
        """`new_context` trusts the system's authorities and the operator's. Raises what it raises.

        `generation` is another one for other logins.
        """
        self._trust = trust
        self._new_context = new_context
        self._generation = generation
        self._context_with = lru_cache(_CONTEXTS)(self._make_context)

    def trust_of(self, domain: str) -> Trust:
        """Returns the TLS contexts for a host, by the name that images have."""
        own = self._trust.authorities.get(domain, "")
        if not own and not self._trust.bundle:
            return SYSTEM_TRUST
        context = self._context_with(own)
        return Trust(None, context, context)

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

    def _make_context(self, own: str) -> ssl.SSLContext:
        context = self._new_context()
        certificates: list[str] = _CERTIFICATE.findall(f"{self._trust.bundle}\n{own}")
        try:
            context.load_verify_locations(cadata="\n".join(certificates))
        except (ssl.SSLError, ValueError):  # one of them is none; one by one takes four times as long
            for certificate in certificates:
                with contextlib.suppress(ssl.SSLError):
                    context.load_verify_locations(cadata=certificate)
        return context
