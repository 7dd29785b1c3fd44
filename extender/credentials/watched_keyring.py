"""The keyring of files that are read again when they change.

Other files read them; this one only follows the change.
"""

from collections.abc import Hashable

from extender.credentials.keyring import Credential, CredentialId, Keyring, sources_of
from extender.images.reference import ImageReference
from extender.turns import OPERATOR
from extender.watched_files import WatchedFiles


class WatchedKeyring:
    """The keyring that the files hold now. After a denial they are read again at once."""

    tenant = ""

    def __init__(self, files: WatchedFiles[Keyring]) -> None:
        self.files = files

    @property
    def identity(self) -> Hashable:
        """Another one after each change, so that a new lookup does not join one with the old credentials."""
        return id(self), self.files.generation

    @property
    def sources(self) -> tuple[Keyring, ...]:
        """The sources of the present keyring."""
        return sources_of(self.files.value)

    def credential_ids_for(self, reference: ImageReference) -> tuple[CredentialId, ...]:
        """Returns the ids that the present keyring returns."""
        return self.files.value.credential_ids_for(reference)

    def is_due(self, reference: ImageReference) -> bool:
        """Whether the present keyring is due."""
        return self.files.value.is_due(reference)

    def is_unread(self, reference: ImageReference) -> bool:
        """Whether the present keyring is unread. Files that cannot be read again leave the keyring as it was."""
        return self.files.value.is_unread(reference)

    async def load(
        self, reference: ImageReference, *, refresh: bool = False, tenant: str = OPERATOR
    ) -> tuple[Credential, ...]:
        """Returns what the present keyring returns; with `refresh`, after reading files that have changed."""
        if refresh:
            await self.files.refresh()
        return await self.files.value.load(reference, refresh=refresh, tenant=tenant)
