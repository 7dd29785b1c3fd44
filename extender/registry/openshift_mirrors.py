"""Where OpenShift's nodes ask for images, and what they trust and log in with there.

Reads no file but the operator's authorities, and sends no request. A host's own authorities are trusted there and by
its token server, in addition to all others, as by CRI-O. Certificates that are none are left out, as by Go.
"""

from collections.abc import Collection, Iterator

import msgspec

from extender.credentials.keyring import Credential, CredentialId
from extender.errors import ConfigError, RegistryNotAsked
from extender.images.reference import ImageReference
from extender.kubernetes.openshift_v1 import MirrorObjects, NodeTrust
from extender.registry.endpoint import Endpoint
from extender.registry.endpoint_tls import CERTIFICATE, SYSTEM_TRUST, Certificates, RegistryTrust, Trust
from extender.registry.openshift_conf import routes_of
from extender.registry.routes import Routes
from extender.watched_files import report_mirrors_loaded, report_mirrors_refused

_HUB = "https://index.docker.io/v1/"


def host_problems(trust: NodeTrust) -> Iterator[str]:
    """Yields in words for which hosts there is no authority, though something stands in its place."""
    for host, text in trust.authorities.items():
        if not CERTIFICATE.search(text):
            yield f"the authorities for {host} hold no certificate"


class OpenShiftMirrors:
    """Where OpenShift's nodes ask, by the objects that `update` was given last and that can be used."""

    def __init__(self, session_trust: RegistryTrust) -> None:
        """`session_trust` is what the session trusts, to which nodes' authorities are added."""
        self._session_trust = session_trust
        self._updates = 0
        self._trust = NodeTrust()
        self._routes: Routes | None = None

    def update(self, objects: MirrorObjects) -> None:
        """Goes by these objects.

        Where nodes ask stays as it was if the machine-config operator refuses that, which is logged and counted.
        """
        if objects.trust != self._trust:
            self._updates += 1
            self._trust = objects.trust
            if problems := "; ".join(host_problems(objects.trust)):
                report_mirrors_refused(problems)
        try:
            routes = routes_of(objects)
        except ConfigError as exc:
            report_mirrors_refused(str(exc))
            return
        self._routes = msgspec.structs.replace(routes, trust_of=self._trust_of)
        report_mirrors_loaded(rule.prefix for rule in routes.rules)

    def endpoints_for(self, reference: ImageReference, plain_http: Collection[str] = ()) -> tuple[Endpoint, ...]:
        """As `Routes`.

        Raises:
            RegistryNotAsked: the objects are not known yet.
        """
        if self._routes is None:
            raise RegistryNotAsked(f"{reference.domain} was not asked: it is not known yet where the nodes pull from")
        return self._routes.endpoints_for(reference, plain_http)

    def credentials_for(self, reference: ImageReference) -> tuple[Credential, ...]:
        """Returns the login that CRI-O has for a mirror: that of the longest name which is the mirror's or above it.

        Specification: containers-auth.json(5).
        """
        name = f"{reference.domain}/{reference.path}"
        while name:
            keys = (name, _HUB) if name == "docker.io" else (name,)
            for key in keys:
                if login := self._trust.logins.get(key):
                    return (Credential(*login, CredentialId(f"pull-secret {self._updates} {key}")),)
            name = name.rpartition("/")[0]
        return ()

    def _trust_of(self, domain: str) -> Trust:
        """Returns what a host is trusted by, whose name is that in images; the operator's authorities as they are."""
        own = self._trust.authorities.get(domain, "")
        if not own and not self._trust.bundle:
            return SYSTEM_TRUST
        session = self._session_trust
        certificates = Certificates(session.ca_files, (self._trust.bundle, own), stamps=(session.files.generation,))
        return Trust(certificates, certificates)
