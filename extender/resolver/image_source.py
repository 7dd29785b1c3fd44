"""Where lookups get their answers from: a port to registries, whatever stands behind it."""

from typing import Protocol

from extender.credentials.keyring import Credential
from extender.images.manifest import Image
from extender.images.reference import ImageReference


class ImageSource(Protocol):
    """Asks registries. Each method ends within `seconds`, and works for the pods of `tenant`.

    Raises nothing but subclasses of RegistryError, InvalidManifest and UnsupportedManifest. When the time is over it is
    RegistryUnavailable, or its subclass RegistryNotAsked if no host is to blame.
    """

    async def state_digest(
        self, reference: ImageReference, credential: Credential, *, tenant: str, seconds: float
    ) -> str | None:
        """Returns the digest that the registry states for the reference, which nobody has verified.

        None if it states none; then the caller has the image described.
        """
        ...

    async def describe(
        self, reference: ImageReference, credential: Credential, *, tenant: str, seconds: float
    ) -> Image:
        """Returns the image's description, by digest if the reference has one, else by tag.

        It is read from bytes that hash to its digest, and has 64 platforms and 65 skipped parts at most.
        """
        ...
