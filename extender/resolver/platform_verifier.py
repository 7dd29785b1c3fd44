"""Has the platforms of one image looked into, and records what is found.

`fetcher` does the looking; this file has the credentials for it, and puts what is found where lookups find it.
"""

from collections.abc import Iterable
from typing import Protocol

from extender.credentials.keyring import Credential, CredentialId, Keyring
from extender.errors import InvalidManifest, RegistryDenied, RegistryError, UnsupportedManifest
from extender.images.platform import Platform
from extender.images.platform_states import PlatformState
from extender.images.reference import ImageReference
from extender.resolver.image_cache import ImageCache, Target
from extender.resolver.keyring_lookup import CredentialOrder
from extender.verifier.verification import Verification


class PlatformSource(Protocol):
    """Looks inside images."""

    async def verify(
        self, reference: ImageReference, platform: Platform, credential: Credential, *, tenant: str, seconds: float
    ) -> Verification:
        """Returns what is known of a platform that the image claims, after `seconds` at most.

        Raises RegistryError, InvalidManifest or UnsupportedManifest if nothing can be asked.
        """
        ...


class PlatformVerifier:
    """Looks inside images for the resolver's cache."""

    def __init__(self, source: PlatformSource, cache: ImageCache) -> None:
        self._source = source
        self._cache = cache

    async def verify(
        self, target: Target, digest: str, platform: Platform, keyring: Keyring, seconds: float
    ) -> Verification:
        """Returns and records what is known of a platform of the image, by the credentials that it was seen with."""
        reference = target.reference.with_digest(digest)
        why = "no credential opens it"

        def has_shown(credential_id: CredentialId) -> bool:
            known = self._cache.find(target, credential_id)
            return known is not None and known.digest == digest

        order = CredentialOrder(keyring, target.reference, has_shown)
        async for credential in order.credentials():
            try:
                found = await self._source.verify(
                    reference, platform, credential, tenant=keyring.tenant, seconds=seconds
                )
            except RegistryDenied:
                continue
            except (RegistryError, InvalidManifest, UnsupportedManifest) as exc:
                why = str(exc)[:200]
                break
            await self.record(target.repository, digest, [found])
            return found
        return Verification(platform=platform, state=PlatformState.CLAIMED, detail=why)

    async def record(self, repository: str, digest: str, found: Iterable[Verification]) -> None:
        """Records what is known now. What could not be found out changes nothing."""
        denied = [each.denied for each in found if each.denied]
        verified = [(each.platform, each.state) for each in found if each.state is PlatformState.VERIFIED]
        if denied or verified:
            await self._cache.judge(repository, digest, denied, verified)
