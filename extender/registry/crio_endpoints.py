"""The endpoints that CRI-O asks, from what `registries.conf` says and from folders of certificates.

Reads no file and sends no request. A pod's credentials go to the image's own host alone, as in CRI-O; the operator's
for each mirror go there.

Departures: no request for `/v2/` comes first. A host that is insecure is shown no client certificate.
"""

import functools
from collections.abc import Callable, Collection

from extender.errors import AddressRefused
from extender.images.reference import ImageReference
from extender.registry.endpoint import SYSTEM_TRUST, Endpoint, Trust, upstream_root
from extender.registry.registries_conf import Candidate, RegistriesConf, ShortNameMode
from extender.tls_context import unverified_context


class CrioEndpoints:
    """Where CRI-O asks, as its files or OpenShift's objects have it."""

    def __init__(
        self,
        conf: RegistriesConf,
        *,
        short_names: ShortNameMode,
        trust_of: Callable[[str], Trust] = lambda _: SYSTEM_TRUST,
        refusal_of: Callable[[ImageReference], str] = lambda _: "",
    ) -> None:
        """`trust_of` returns the TLS contexts for a host, given as `host[:port]`.

        `refusal_of` says why nodes refuse an image wherever they would find it; empty: they do not.
        """
        self._refusal_of = refusal_of
        self.conf = conf
        self._short_names = short_names
        self._trust_of = trust_of
        self._unverified = functools.cache(unverified_context)

    def endpoints_for(self, reference: ImageReference, plain_http: Collection[str] = ()) -> tuple[Endpoint, ...]:
        """As `EndpointSource`.

        Raises:
            AddressRefused: nodes ask nobody for it; the message says why.
            RegistryUnavailable: a registry is not an address.
        """
        names = [reference] if reference.domain else self.conf.full_names_of(reference, self._short_names)
        endpoints: list[Endpoint] = []
        for name in names:
            try:
                candidates = self._candidates_for(name)
            except AddressRefused:
                if name is names[-1] and not endpoints:
                    raise
                continue
            endpoints += [self._endpoint(candidate, name, plain_http) for candidate in candidates]
        return tuple(endpoints)

    def _candidates_for(self, name: ImageReference) -> list[Candidate]:
        if refusal := self._refusal_of(name):
            raise AddressRefused(f"nodes refuse {name.repository}: {refusal}")
        return self.conf.candidates_for(name)

    def _endpoint(self, candidate: Candidate, source: ImageReference, plain_http: Collection[str]) -> Endpoint:
        domain = candidate.reference.domain
        root = upstream_root(domain, plain_http)
        is_own = domain == source.domain
        trust = self._trust_of(domain)
        if candidate.is_insecure:
            trust = Trust(root.origin(), self._unverified, trust.elsewhere)
        is_tls = root.scheme == "https"
        return Endpoint(
            name=domain,
            root=root,
            repository=candidate.reference.path,
            mirror_of="" if is_own else source.domain,
            namespace=candidate.namespace,
            credentials="image" if is_own else "operator",
            not_asked="registries.conf blocks it" if candidate.is_blocked else "",
            plain_root=upstream_root(domain, {domain}) if candidate.is_insecure and is_tls else None,
            trust=trust,
        )
