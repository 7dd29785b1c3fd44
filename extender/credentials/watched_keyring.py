"""The keyring of files that are read again when they change, or of logins that are told again.

Other files read them; this one only follows the change.
"""

from collections.abc import Hashable, Mapping

from extender.credentials.keyring import Credential, CredentialId, DockerConfigKeyring, Keyring, sources_of
from extender.credentials.logins import Login, Logins
from extender.images.reference import ImageReference
from extender.turns import OPERATOR
from extender.watched_files import Reading, WatchedFiles


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


class ClusterLogins(WatchedKeyring):
    """The keyring of the nodes' own pull secret, as its logins were told last."""

    def __init__(self, key: bytes) -> None:
        """`key` as in `DockerConfigKeyring`."""
        self._key = key
        self._logins: tuple[Login, ...] = ()
        super().__init__(
            WatchedFiles(self._read, lambda _: self._logins, loaded=lambda _: None, refused=lambda _: None)
        )

    def tell(self, logins: Mapping[str, tuple[str, str]]) -> None:
        """Takes names and passwords by registry or repository."""
        self._logins = tuple(Login(pattern, *login) for pattern, login in logins.items())
        self.files.reload_if_changed()

    def _read(self) -> Reading[Keyring]:
        keyring = DockerConfigKeyring(Logins(self._logins), key=self._key, label="the cluster's pull secret")
        return Reading(keyring, self._logins)
