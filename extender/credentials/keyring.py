"""The credentials that a pod's lookups may use, in the order to try them, and the ids that stand for them.

A password leaves this file only inside a `Credential`. Logs, metrics, stores and cache keys have its `CredentialId`
instead. The operator's credentials are in the process that asks registries: here they are one id, whichever of them
opens an image, since they serve every pod.
"""

import hashlib
from collections.abc import Callable, Hashable, Iterable
from copy import copy
from typing import NewType

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


class Keyring:
    """What a lookup may use: the operator's credentials, then none. A pod's own logins come before: see `PodKeyring`.

    Between lookups only ids are needed, which take no I/O and no password. No method raises for a secret that cannot be
    read: `load` leaves its logins out, and `is_unread` says so.
    """

    identity: Hashable = None
    """Equal for keyrings that give the same credentials, so that lookups are shared. Holds no secret."""

    def __init__(self, *, operator: Callable[[], CredentialId] = lambda: NO_OPERATOR, tenant: str = OPERATOR) -> None:
        """`operator` gives the id of the operator's credentials as they are now. `tenant` is accounted for lookups."""
        self.operator = operator
        self.tenant = tenant

    def of(self, tenant: str) -> "Keyring":
        """Returns a keyring of the same credentials whose lookups are the tenant's."""
        keyring = copy(self)
        keyring.tenant = tenant
        return keyring

    def credential_ids_for(self, reference: ImageReference) -> tuple[CredentialId, ...]:
        """Returns the ids of all credentials for this image, in the order to try them. No I/O."""
        return (*dict.fromkeys(self.own_ids_for(reference)), *shared_ids(self.operator()))

    def own_ids_for(self, _reference: ImageReference) -> tuple[CredentialId, ...]:
        """Returns the ids of the pod's own logins for this image as of the last `load`, in the order to try them."""
        return ()

    def label_of(self, _reference: ImageReference, credential_id: CredentialId) -> str:
        """Returns the words for where a credential comes from, such as `pull secret team-a`; empty if from nowhere."""
        if credential_id == ANONYMOUS.id:
            return "anonymous"
        return "the operator's credentials" if credential_id == self.operator() else ""

    def is_due(self) -> bool:
        """Whether `load` may return other logins than the last time, as it was never called or not lately. No I/O."""
        return False

    def is_unread(self) -> bool:
        """Whether a pod's logins may be missing, because the last reading of a secret failed. No I/O."""
        return False

    async def load(self, _reference: ImageReference, *, refresh: bool = False) -> tuple[Credential, ...]:  # noqa: ARG002
        """Returns the pod's own logins for this image, most specific first.

        `refresh`: the previous ones were denied, so those that may have changed are read again.

        Raises:
            NoTurn: no turn at a source has come in time.
        """
        return ()


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
