"""The credentials that a pod's lookups may use, in the order to try them, and the ids that stand for them.

A password leaves this file only inside a `Credential`. Logs, metrics, stores and cache keys have its `CredentialId`
instead. The operator's credentials are in the process that asks registries: here they are one id, whichever of them
opens an image, since they serve every pod.
"""

import hashlib
from collections.abc import Callable, Hashable, Iterable
from typing import NewType, Protocol

import msgspec

from extender.credentials.logins import Login
from extender.images.reference import ImageReference
from extender.turns import OPERATOR

CredentialId = NewType("CredentialId", str)


class Credential(msgspec.Struct, frozen=True):
    """A login to send to a registry; `id` stands for it wherever the secret must not appear."""

    username: str
    password: str
    id: CredentialId

    def __repr__(self) -> str:
        """Shows the id only, so that neither name nor password reaches a log or a traceback."""
        return f"Credential(id={self.id!r})"

    def __rich_repr__(self) -> list[tuple[str, str]]:
        """As `__repr__`: msgspec's own would show the password in a pretty-printer."""
        return [("id", self.id)]


ANONYMOUS = Credential("", "", CredentialId("anonymous"))
NO_OPERATOR = CredentialId("")
"""The id of an operator's credentials if there are none."""


class LoginSource(Protocol):
    """Where a pod's own logins come from. Between lookups only ids are needed, which take no I/O and no password.

    No method raises for a secret that cannot be read: `load` leaves its logins out, and `is_unread` says so.
    """

    @property
    def identity(self) -> Hashable:
        """Equal for sources that give the same logins, so that lookups are shared. Holds no secret."""

    def credential_ids_for(self, reference: ImageReference) -> tuple[CredentialId, ...]:
        """Returns the ids of this image's logins as of the last `load`, in the order to try them. No I/O."""

    def label_of(self, reference: ImageReference, credential_id: CredentialId) -> str:
        """Returns the words for where a login comes from; empty if it is not there any more."""

    def is_due(self) -> bool:
        """Whether `load` may return other logins than the last time, as it was never called or not lately. No I/O."""

    def is_unread(self) -> bool:
        """Whether logins may be missing, because the last reading of a source failed. No I/O."""

    async def load(self, reference: ImageReference, *, refresh: bool = False) -> tuple[Credential, ...]:
        """Returns this image's logins, most specific first.

        `refresh`: the previous ones were denied, so those that may have changed are read again.

        Raises:
            NoTurn: no turn at a source has come in time.
        """


class Keyring:
    """What a lookup may use: a pod's own logins, then the operator's credentials, then none."""

    def __init__(
        self,
        logins: LoginSource | None = None,
        *,
        operator: Callable[[], CredentialId] = lambda: NO_OPERATOR,
        tenant: str = OPERATOR,
    ) -> None:
        """`operator` gives the id of the operator's credentials as they are now. `tenant` is accounted for lookups."""
        self._logins = logins
        self._operator = operator
        self.tenant = tenant

    @property
    def identity(self) -> Hashable:
        """Equal for keyrings that give the same credentials. Holds no secret."""
        return self._logins.identity if self._logins else None

    def of(self, tenant: str, logins: LoginSource | None = None) -> "Keyring":
        """Returns a keyring of other logins, or none, with the same operator's credentials."""
        return Keyring(logins, operator=self._operator, tenant=tenant)

    def as_operator(self) -> "Keyring":
        """Returns a keyring of the same credentials whose lookups are the operator's own."""
        return self.of(OPERATOR, self._logins)

    def credential_ids_for(self, reference: ImageReference) -> tuple[CredentialId, ...]:
        """Returns the ids of all credentials for this image, in the order to try them. No I/O."""
        shared = shared_ids(self._operator())
        return (*dict.fromkeys(self._logins.credential_ids_for(reference)), *shared) if self._logins else shared

    def label_of(self, reference: ImageReference, credential_id: CredentialId) -> str:
        """Returns the words for where a credential comes from, such as `pull secret team-a`; empty if from nowhere."""
        if credential_id == ANONYMOUS.id:
            return "anonymous"
        if credential_id == self._operator():
            return "the operator's credentials"
        return self._logins.label_of(reference, credential_id) if self._logins else ""

    def is_due(self) -> bool:
        """Whether `load` may return other logins than those of `credential_ids_for`. No I/O."""
        return self._logins is not None and self._logins.is_due()

    def is_unread(self) -> bool:
        """Whether a pod's logins may be missing, because a secret could not be read. No I/O."""
        return self._logins is not None and self._logins.is_unread()

    async def load(self, reference: ImageReference, *, refresh: bool = False) -> tuple[Credential, ...]:
        """Returns the pod's own logins for this image, as `LoginSource.load`."""
        return await self._logins.load(reference, refresh=refresh) if self._logins else ()


def shared_ids(operator: CredentialId) -> tuple[CredentialId, ...]:
    """Returns the ids of the credentials for images of any pod, which are tried after its own."""
    return (operator, ANONYMOUS.id) if operator else (ANONYMOUS.id,)


def credentials_of(logins: Iterable[Login], *, key: bytes) -> tuple[Credential, ...]:
    """Returns the logins as credentials, in their order, each name and password once."""
    return tuple(
        Credential(username, password, credential_id_of(username, password, key=key))
        for username, password in dict.fromkeys((login.username, login.password) for login in logins)
    )


def credential_id_of(username: str, password: str, *, key: bytes) -> CredentialId:
    """Returns the id of a login: a keyed hash, from which name and password cannot be guessed without `key`."""
    identity = msgspec.json.encode((username, password))
    return CredentialId(hashlib.blake2b(identity, key=key, digest_size=16).hexdigest())
