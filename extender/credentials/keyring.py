"""Which credentials a lookup may use, in the order to try them, and the name by which each may be remembered.

Knows logins and hashes. A password leaves this file only inside a `Credential`; what is logged, counted, stored or
used as a key is its `CredentialId`. Where credentials come from (a cluster, a program, a cloud) other files know.
"""

import hashlib
from collections.abc import Hashable, Iterable, Sequence
from typing import NewType, Protocol

import msgspec
import structlog

from extender.credential_sources import SOURCES, Source
from extender.credentials.logins import Login, Logins
from extender.images.reference import ImageReference
from extender.metrics import counters

log = structlog.get_logger()

CREDENTIALS = counters(
    "multiarch_credentials_total",
    "Attempts to obtain credentials, by where from and what came of it.",
    ("source", tuple(source.value for source in SOURCES)),
    ("outcome", ("obtained", "none", "refused", "malformed", "error")),
)

CredentialId = NewType("CredentialId", str)


class Credential(msgspec.Struct, frozen=True):
    """A login to present to a registry; `id` stands for it wherever the secret must not appear."""

    username: str
    password: str
    id: CredentialId

    def __repr__(self) -> str:
        """The id alone: neither name nor password reaches a log or a traceback."""
        return f"Credential(id={self.id!r})"

    def __rich_repr__(self) -> list[tuple[str, str]]:
        """As `repr`: msgspec's own would show the password to a pretty-printer."""
        return [("id", self.id)]


ANONYMOUS = Credential("", "", CredentialId("anonymous"))
_NO_LOGIN = (ANONYMOUS.id,)


class Keyring(Protocol):
    """Whatever knows credentials: pull secrets, a Docker configuration, a program, a cloud's identity.

    What a lookup needs is obtained by `load`; between lookups only ids are asked for, which takes no I/O and no
    password. Nothing here raises: a source that fails has no credentials, and says so in log and metrics.
    """

    @property
    def identity(self) -> Hashable:
        """Equal keyrings give the same credentials, so that who asks with them shares lookups. Holds no secret."""

    @property
    def tenant(self) -> str:
        """On whose account lookups go; empty for the operator's own."""

    def credential_ids_for(self, reference: ImageReference) -> tuple[CredentialId, ...]:
        """What stood for the credentials for this image when last loaded, in the order to try them. No I/O."""

    def is_due(self, reference: ImageReference) -> bool:
        """Whether `load` could bring others than `credential_ids_for` knows: never loaded, or not lately. No I/O."""

    async def load(self, reference: ImageReference, *, refresh: bool = False) -> tuple[Credential, ...]:
        """The credentials to try for this image, most specific first, `ANONYMOUS` last.

        `refresh`: those given before have been denied, so what may have changed meanwhile is obtained again.
        """


class SecretReader(Protocol):
    """Where pull secrets are read: a cluster, or what stands for it in a test."""

    async def read_logins(self, namespace: str, name: str) -> tuple[Login, ...]:
        """The logins in a secret; none if it does not exist, may not be read, or is no pull secret.

        Raises:
            InvalidLogins: it is a pull secret, and malformed.
            ClusterError: it could not be read this time.
        """


class DockerConfigKeyring:
    """The logins of a Docker configuration, matched as the kubelet matches them."""

    tenant = ""

    def __init__(self, logins: Logins, *, key: bytes) -> None:
        """`key` (up to 64 random bytes) keys the ids: a login has the same id only under the same key."""
        self._credentials = logins.map(lambda login: credentials_of([login], key=key)[0])
        self._credential_ids = self._credentials.map(lambda credential: credential.id)

    @property
    def identity(self) -> Hashable:
        """One file, one keyring."""
        return id(self)

    def credentials_for(self, reference: ImageReference) -> tuple[Credential, ...]:
        """The matching logins without repeats, then `ANONYMOUS`. O(logins)."""
        return with_anonymous(self._credentials.matching(reference.repository))

    def credential_ids_for(self, reference: ImageReference) -> tuple[CredentialId, ...]:
        """As `load`: everything is at hand."""
        return tuple(dict.fromkeys((*self._credential_ids.matching(reference.repository), ANONYMOUS.id)))

    def is_due(self, _reference: ImageReference) -> bool:
        """The file is read once."""
        return False

    async def load(self, reference: ImageReference, *, refresh: bool = False) -> tuple[Credential, ...]:
        """As `credentials_for`."""
        del refresh
        return self.credentials_for(reference)


class JoinedKeyring:
    """Several keyrings as one: their credentials one keyring after the other, `ANONYMOUS` at the very end."""

    def __init__(self, parts: Sequence[Keyring], *, tenant: str = "") -> None:
        self._parts = tuple(parts)
        self.tenant = tenant

    @property
    def identity(self) -> Hashable:
        """The parts', in order."""
        return tuple(part.identity for part in self._parts)

    def credential_ids_for(self, reference: ImageReference) -> tuple[CredentialId, ...]:
        """The parts' ids, without repeats."""
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
        """Whether a part is."""
        return any(part.is_due(reference) for part in self._parts)

    async def load(self, reference: ImageReference, *, refresh: bool = False) -> tuple[Credential, ...]:
        """The parts' credentials, without repeats. A part that breaks is left out, with an event to look into."""
        found = [
            credential for part in self._parts for credential in await _load_part(part, reference, refresh=refresh)
        ]
        return with_anonymous(found)


async def _load_part(part: Keyring, reference: ImageReference, *, refresh: bool) -> tuple[Credential, ...]:
    try:
        return await part.load(reference, refresh=refresh)
    except Exception as exc:  # noqa: BLE001 - a defect of ours in one source must not cost the others' credentials
        CREDENTIALS[Source.KEYRING]["error"].inc()
        # Neither text nor traceback: an exception may hold what it stumbled over.
        log.error("keyring.crashed", kind=type(part).__name__, why=type(exc).__name__)  # noqa: TRY400
        return ()


def with_anonymous(credentials: Iterable[Credential]) -> tuple[Credential, ...]:
    """The credentials without repeats, and `ANONYMOUS` as the last."""
    found = (credential for credential in credentials if credential != ANONYMOUS)
    return tuple(dict.fromkeys((*found, ANONYMOUS)))


def credentials_of(logins: Iterable[Login], *, key: bytes) -> tuple[Credential, ...]:
    """Logins as credentials, in their order."""
    return tuple(
        Credential(login.username, login.password, credential_id_of(login.username, login.password, key=key))
        for login in logins
    )


def credential_id_of(username: str, password: str, *, key: bytes) -> CredentialId:
    """The id of a login: a keyed hash; neither name nor password can be guessed from it without `key`."""
    identity = msgspec.json.encode((username, password))
    return CredentialId(hashlib.blake2b(identity, key=key, digest_size=16).hexdigest())
