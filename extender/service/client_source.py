"""What the resolver asks, answered by a client of registries in the same process."""

from extender.credentials.keyring import Credential
from extender.images.manifest import Image
from extender.images.reference import ImageReference
from extender.registry.client import RegistryClient
from extender.registry.image import describe_image


class ClientSource:
    """An `ImageSource` over a client, whose own time limit holds for each exchange."""

    def __init__(self, client: RegistryClient) -> None:
        self._client = client

    async def state_digest(
        self, reference: ImageReference, credential: Credential, *, tenant: str, seconds: float
    ) -> str | None:
        """Returns the digest that the registry states for the reference; None if it states none."""
        del tenant, seconds
        return await self._client.head_manifest(reference, credential)

    async def describe(
        self, reference: ImageReference, credential: Credential, *, tenant: str, seconds: float
    ) -> Image:
        """Returns the image's description, by digest if the reference has one, else by tag."""
        del tenant, seconds
        manifest = await self._client.fetch_manifest(reference, credential)
        return await describe_image(self._client, reference, manifest, credential)
