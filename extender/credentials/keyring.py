"""The credentials that a lookup may use, in the order to try them, and the ids that stand for them.

A password leaves this file only inside a `Credential`. Logs, metrics, stores and cache keys have its `CredentialId`
instead. Other files obtain the credentials from clusters, programs and clouds.
"""

import hashlib
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import NewType, Protocol

import msgspec
import structlog

from extender.credentials.logins import Login, Logins
from extender.images.reference import ImageReference
from extender.turns import OPERATOR, NoTurn

log = structlog.get_logger()

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
_NO_LOGIN = (ANONYMOUS.id,)


class Keyring(Protocol):
    """A source of credentials: pull secrets, a Docker configuration, a program, or a cloud's identity.

    `load` obtains the credentials for a lookup. Between lookups only ids are needed, which take no I/O and no password.
    No method raises for a source that fails: `load` leaves its credentials out, logs the failure, and
    `is_unread` says so.
    """

    @property
    def identity(self) -> Hashable:
        """Equal for keyrings that give the same credentials, so that lookups are shared. Holds no secret."""

    @property
    def tenant(self) -> str:
        """The tenant that lookups are accounted to; empty for the operator."""

    def credential_ids_for(self, reference: ImageReference) -> tuple[CredentialId, ...]:
        """Returns the ids of this image's credentials as of the last `load`, in the order to try them. No I/O."""

    def is_due(self, reference: ImageReference) -> bool:
        """Whether `load` may return other credentials than those of `credential_ids_for`. No I/O.

        This is so if they were never loaded, or not lately.
        """

    def is_unread(self, reference: ImageReference) -> bool:
        """Whether this image's credentials may lack some, because the last reading of a source failed. No I/O."""

    async def load(
        self, reference: ImageReference, *, refresh: bool = False, tenant: str = OPERATOR
    ) -> tuple[Credential, ...]:
        """Returns the credentials to try for this image, most specific first, `ANONYMOUS` last.

        `refresh`: the previous credentials were denied, so those that may have changed are obtained again. `tenant` is
        the one whose turns at a source are used.

        Raises:
            NoTurn: no turn at a source has come in time.
        """


class SecretReader(Protocol):
    """Reads pull secrets from a cluster, or from a substitute in a test."""

    async def read_logins(self, namespace: str, name: str) -> tuple[Login, ...]:
        """Returns the logins in a secret; none if it does not exist, may not be read, or is not a pull secret.

        Raises:
            InvalidLogins: it is a pull secret, but malformed.
            ClusterError: it could not be read this time.
        """


class DockerConfigKeyring:
    """The logins of a Docker configuration, matched as the kubelet matches them."""

    tenant = ""

    def __init__(self, logins: Logins, *, key: bytes, label: str = "the operator's Docker configuration") -> None:
        """`key` (up to 64 random bytes) is the hash key of the ids: a login has the same id only under the same key.

        `label` says in words where the logins are from.
        """
        self._label = label
        self._credentials = logins.map(lambda login: credentials_of([login], key=key)[0])
        self._credential_ids = self._credentials.map(lambda credential: credential.id)

    @property
    def identity(self) -> Hashable:
        """The object's own id."""
        return id(self)

    def label_of(self, _reference: ImageReference, _credential_id: CredentialId) -> str:
        """Returns where the logins are from."""
        return self._label

    def credentials_for(self, reference: ImageReference) -> tuple[Credential, ...]:
        """Returns the matching logins without duplicates, then `ANONYMOUS`. O(logins)."""
        return with_anonymous(self._credentials.matching(reference.repository))

    def credential_ids_for(self, reference: ImageReference) -> tuple[CredentialId, ...]:
        """Returns the ids of the credentials that `load` returns."""
        return tuple(dict.fromkeys((*self._credential_ids.matching(reference.repository), ANONYMOUS.id)))

    def is_due(self, _reference: ImageReference) -> bool:
        """False: there is nothing else to load."""
        return False

    def is_unread(self, _reference: ImageReference) -> bool:
        """False: the file has been read."""
        return False

    async def load(
        self, reference: ImageReference, *, refresh: bool = False, tenant: str = OPERATOR
    ) -> tuple[Credential, ...]:
        """As `credentials_for`."""
        del refresh, tenant
        return self.credentials_for(reference)


class JoinedKeyring:
    """Several keyrings as one: their credentials in the order of the keyrings, then `ANONYMOUS`."""

    def __init__(self, parts: Sequence[Keyring], *, tenant: str = "") -> None:
        self._parts = tuple(parts)
        self.tenant = tenant

    @property
    def identity(self) -> Hashable:
        """The parts' identities, in order."""
        return tuple(part.identity for part in self._parts)

    def credential_ids_for(self, reference: ImageReference) -> tuple[CredentialId, ...]:
        """Returns the parts' ids without duplicates."""
        found: tuple[CredentialId, ...] = ()
        for part in self._parts:
            credential_ids = part.credential_ids_for(reference)
            if credential_ids and credential_ids != _NO_LOGIN:
                found = found + credential_ids if found else credential_ids
        if not found:
            return _NO_LOGIN
        if found[-1] == ANONYMOUS.id and len(set(found)) == len(found):
            return found
        logins = (credential_id for credential_id in found if credential_id != ANONYMOUS.id)
        return tuple(dict.fromkeys((*logins, ANONYMOUS.id)))

    def is_due(self, reference: ImageReference) -> bool:
        """Whether a part is due."""
        return any(part.is_due(reference) for part in self._parts)

    def is_unread(self, reference: ImageReference) -> bool:
        """Whether a part is unread."""
        return any(part.is_unread(reference) for part in self._parts)

    @property
    def sources(self) -> tuple[Keyring, ...]:
        """The parts, and in place of a part that is joined itself its own, in order."""
        return tuple(source for part in self._parts for source in sources_of(part))

    async def load(
        self, reference: ImageReference, *, refresh: bool = False, tenant: str = OPERATOR
    ) -> tuple[Credential, ...]:
        """Returns the parts' credentials without duplicates. A part that raises is left out, logged and counted."""
        found: list[Credential] = []
        for part in self._parts:
            found += await load_source(part, reference, refresh=refresh, tenant=tenant or self.tenant)
        return with_anonymous(found)


def sources_of(keyring: Keyring) -> tuple[Keyring, ...]:
    """Returns the sources that the keyring is made of, in the order to try them; the keyring itself if of none.

    A keyring that is made of others has them as `sources`.
    """
    sources: tuple[Keyring, ...] | None = getattr(keyring, "sources", None)  # to check for a Protocol takes 7 us
    return (keyring,) if sources is None else sources


def label_of(keyring: Keyring, reference: ImageReference, credential_id: CredentialId) -> str:
    """Returns the words for where a credential of the keyring comes from, such as `pull secret team-a`.

    Only the first source that has the credential is named. Empty if none has it any more.
    """
    if credential_id == ANONYMOUS.id:
        return "anonymous"
    for source in sources_of(keyring):
        if credential_id in source.credential_ids_for(reference):
            label: Callable[[ImageReference, CredentialId], str] | None = getattr(source, "label_of", None)
            return (label(reference, credential_id) if label else "") or "the operator's credentials"
    return ""


def is_operators(keyring: Keyring, reference: ImageReference, credential_id: CredentialId) -> bool:
    """Whether the credential is the operator's own for the image, and not of a pull secret or anonymous."""
    return credential_id != ANONYMOUS.id and any(
        credential_id in source.credential_ids_for(reference)
        for source in sources_of(keyring)
        if source.tenant == OPERATOR
    )


async def load_source(
    source: Keyring, reference: ImageReference, *, refresh: bool = False, tenant: str
) -> tuple[Credential, ...]:
    """Returns the source's credentials, or none if it crashes, which is logged.

    Raises:
        NoTurn: as `Keyring.load`.
    """
    try:
        return await source.load(reference, refresh=refresh, tenant=tenant)
    except NoTurn:
        raise
    except Exception as exc:  # noqa: BLE001 - a defect of ours in one source must not cost the others' credentials
        # Neither message nor traceback: an exception may quote its input.
        log.error("keyring.crashed", kind=type(source).__name__, why=type(exc).__name__)  # noqa: TRY400
        return ()


def with_anonymous(credentials: Iterable[Credential]) -> tuple[Credential, ...]:
    """Returns the credentials without duplicates, then `ANONYMOUS`."""
    found = (credential for credential in credentials if credential != ANONYMOUS)
    return tuple(dict.fromkeys((*found, ANONYMOUS)))


def credentials_of(logins: Iterable[Login], *, key: bytes) -> tuple[Credential, ...]:
    """Returns the logins as credentials, in their order."""
    return tuple(
        Credential(login.username, login.password, credential_id_of(login.username, login.password, key=key))
        for login in logins
    )


def credential_id_of(username: str, password: str, *, key: bytes) -> CredentialId:
    """Returns the id of a login: a keyed hash, from which name and password cannot be guessed without `key`."""
    identity = msgspec.json.encode((username, password))
    return CredentialId(hashlib.blake2b(identity, key=key, digest_size=16).hexdigest())
