"""The pull secrets that a pod names, as a keyring. They are read when a lookup needs them and cached for half a minute.

A `SecretReader` reads the secrets. Patterns and credential ids are cached for longer than passwords, so that the image
cache can be searched without reading a secret.
"""

import asyncio
from collections.abc import Callable, Hashable, Sequence
from itertools import accumulate

import msgspec
import structlog

from extender.credential_sources import Source
from extender.credentials.keyring import CREDENTIALS, Credential, CredentialId, Keyring, SecretReader, credentials_of
from extender.credentials.logins import ByPattern, InvalidLogins, Login, Logins, matching_all
from extender.errors import ClusterError
from extender.images.reference import ImageReference
from extender.tables import LruTable, Table, declare_cache

log = structlog.get_logger()

# A corrected secret is used within this time: an image that stays unresolved is not judged by older readings.
KEEP_SECONDS = 30.0
# After a denial, secrets are read again at once unless their reading is younger than this. A failed read is retried
# after this time, too.
_JUST_READ_SECONDS = 5.0
_READS_AT_ONCE = 16  # limits the load on the API server
# Secrets that are read for one pod, the first ones. No known pod has more, and one must not cause minutes of reads.
MOST_NAMES = 64

# Logins of one pod's secrets. A secret that would exceed it is left out, and so are all after it. With 256 logins per
# secret, the first four secrets always fit.
MOST_LOGINS = 1024

# The readings of secrets, with their passwords.
_READINGS = declare_cache(
    "credentials.pull_secrets.readings",
    key="namespace, secret",
    lifetime=f"{KEEP_SECONDS:g} s",
    bound=1024,
    invalidated_by=f"a denial, after {_JUST_READ_SECONDS:g} s",
)
# For sets of secrets: one per namespace and ServiceAccount, and some to spare.
_CREDENTIAL_IDS = declare_cache(
    "credentials.pull_secrets.credential_ids",
    key="namespace, secrets",
    bound=8192,
    invalidated_by="the next reading",
)

_SecretName = tuple[str, str]  # namespace, name
_NO_LOGINS = Logins(())
_NO_IDS = ByPattern[CredentialId](())


class _Reading(msgspec.Struct, frozen=True):
    """The reading of a secret. `logins` is None if the read failed; `problem` says why a pull secret is malformed."""

    read_at: float
    logins: Logins | None = _NO_LOGINS
    credential_ids: ByPattern[CredentialId] = _NO_IDS
    problem: str = ""


class _Remembered(msgspec.Struct):
    credential_ids: tuple[ByPattern[CredentialId], ...]
    due_at: float
    problem: str
    left_out: int


class PullSecrets:
    """The pull secrets of a cluster. To be used from one event loop."""

    def __init__(self, reader: SecretReader, *, key: bytes, clock: Callable[[], float]) -> None:
        """`key` is the hash key of the ids, as in `DockerConfigKeyring`; `clock` gives monotonic seconds."""
        self._reader = reader
        self._key = key
        self._clock = clock
        self._kept: Table[_SecretName, _Reading] = _READINGS.table()
        self._remembered: LruTable[tuple[str, tuple[str, ...]], _Remembered] = _CREDENTIAL_IDS.lru_table()
        self._reading: dict[_SecretName, asyncio.Task[_Reading]] = {}
        self._room = asyncio.Semaphore(_READS_AT_ONCE)
        self._sweep_at: asyncio.TimerHandle | None = None

    def keyring(self, namespace: str, names: Sequence[str]) -> Keyring:
        """Returns the keyring of a pod in `namespace` that names these secrets. Leaves out empty names.

        It is for callers that may have these secrets read: it also gives what was read for others.
        """
        chosen = tuple(dict.fromkeys(filter(None, names)))[:MOST_NAMES]
        return _PodSecrets(self, namespace, chosen)

    def credential_ids_for(self, namespace: str, names: tuple[str, ...], repository: str) -> tuple[CredentialId, ...]:
        """Returns the ids of the matching credentials as of the last reading of the secrets; none without one."""
        remembered = self._remembered.peek((namespace, names))
        return matching_all(remembered.credential_ids, repository) if remembered else ()

    def is_due(self, namespace: str, names: tuple[str, ...]) -> bool:
        """Whether the secrets were never read together, or so long ago that they are due to be read again."""
        remembered = self._remembered.peek((namespace, names))
        return remembered is None or self._clock() >= remembered.due_at

    async def load(self, namespace: str, names: tuple[str, ...], repository: str, *, refresh: bool) -> list[Login]:
        """Returns the matching logins of all the secrets, in the order in which the kubelet tries them."""
        most_seconds = _JUST_READ_SECONDS if refresh else KEEP_SECONDS
        readings = [await self._read((namespace, name), most_seconds) for name in names]
        used = _used(readings)
        self._remember(namespace, names, readings, used)
        return list(_matching(used, repository))

    def credentials_of(self, logins: Sequence[Login]) -> tuple[Credential, ...]:
        """Returns the logins with their credential ids."""
        return credentials_of(logins, key=self._key)

    async def _read(self, secret: _SecretName, most_seconds: float) -> _Reading:
        """Returns a reading that is at most `most_seconds` old, or a new one that concurrent callers share.

        Each caller is a lookup in a task of its own. Lookups are cancelled only all together, and cancelling one
        cancels the reading.
        """
        kept = self._kept.peek(secret)
        if kept and self._age_seconds(kept) < most_seconds:
            return kept
        task = self._reading.get(secret)
        if task is None:
            task = self._reading[secret] = asyncio.create_task(self._ask(secret, kept))
            task.add_done_callback(lambda _: self._reading.pop(secret, None))
        return await task

    async def _ask(self, secret: _SecretName, before: _Reading | None) -> _Reading:
        try:
            async with self._room:
                logins = await self._reader.read_logins(*secret)
            await asyncio.sleep(0)  # decoding has taken 4 ms and the rest takes 2 ms for the largest secret
            reading = self._reading_of(logins)
        except InvalidLogins as exc:
            CREDENTIALS[Source.SECRET]["malformed"].inc()
            reading = _Reading(self._clock(), problem=f"{secret[1]}: {exc}")
        except ClusterError as exc:
            CREDENTIALS[Source.SECRET]["error"].inc()
            log.warning("secret.unread", namespace=secret[0], secret=secret[1], why=str(exc))
            retried_soon = self._clock() - KEEP_SECONDS + _JUST_READ_SECONDS
            return msgspec.structs.replace(before, read_at=retried_soon) if before else _Reading(retried_soon, None)
        self._keep(secret, reading)
        return reading

    def _reading_of(self, logins: tuple[Login, ...]) -> _Reading:
        """Returns the reading of a secret, made for matching once."""
        by_pattern = Logins(logins)
        return _Reading(self._clock(), by_pattern, by_pattern.map(lambda login: self.credentials_of([login])[0].id))

    def _keep(self, secret: _SecretName, reading: _Reading) -> None:
        self._kept.put(secret, reading)
        if self._sweep_at is None:
            self._sweep_at = asyncio.get_running_loop().call_later(KEEP_SECONDS, self._sweep)

    def _sweep(self) -> None:
        """Removes readings that are too old to be used, and with them their passwords."""
        self._sweep_at = None
        self._kept.remove_where(lambda _, reading: self._age_seconds(reading) >= KEEP_SECONDS)
        if self._kept:
            self._sweep_at = asyncio.get_running_loop().call_later(_JUST_READ_SECONDS, self._sweep)

    def _remember(
        self, namespace: str, names: tuple[str, ...], readings: Sequence[_Reading], used: Sequence[_Reading]
    ) -> None:
        """Caches the credential ids. The previous ones stay if a secret could not be read this time."""
        before = self._remembered.peek((namespace, names))
        problem = _problem_of(readings)
        if problem and (before is None or before.problem != problem):
            log.warning("secret.malformed", namespace=namespace, why=problem)
        left_out = 0 if problem else len(readings) - len(used)
        if left_out and (before is None or before.left_out != left_out):
            first = names[len(used)]
            log.warning("secret.truncated", namespace=namespace, secret=first, kept=MOST_LOGINS, left_out=left_out)
        if before and any(reading.logins is None for reading in readings):
            credential_ids = before.credential_ids
        else:
            credential_ids = tuple(reading.credential_ids for reading in used)
        oldest = min((reading.read_at for reading in readings), default=self._clock())
        self._remembered.put((namespace, names), _Remembered(credential_ids, oldest + KEEP_SECONDS, problem, left_out))

    def _age_seconds(self, reading: _Reading) -> float:
        return self._clock() - reading.read_at


def _problem_of(readings: Sequence[_Reading]) -> str:
    return next((reading.problem for reading in readings if reading.problem), "")


def _used(readings: Sequence[_Reading]) -> Sequence[_Reading]:
    """Returns the first readings that have 1,024 logins together at most.

    Returns none if a secret is malformed: the kubelet then refuses the whole keyring.
    """
    if _problem_of(readings):
        return ()
    together = accumulate(len(reading.credential_ids) for reading in readings)
    return readings[: sum(logins <= MOST_LOGINS for logins in together)]


def _matching(readings: Sequence[_Reading], repository: str) -> tuple[Login, ...]:
    return matching_all([reading.logins for reading in readings if reading.logins is not None], repository)


class _PodSecrets:
    """One pod's keyring. Its identity is the same for pods of a namespace that name the same secrets."""

    def __init__(self, secrets: PullSecrets, namespace: str, names: tuple[str, ...]) -> None:
        self._secrets = secrets
        self._namespace = namespace
        self._names = names
        self.tenant = namespace

    @property
    def identity(self) -> Hashable:
        return self._namespace, self._names

    def credential_ids_for(self, reference: ImageReference) -> tuple[CredentialId, ...]:
        return self._secrets.credential_ids_for(self._namespace, self._names, reference.repository)

    def is_due(self, _reference: ImageReference) -> bool:
        return self._secrets.is_due(self._namespace, self._names)

    async def load(self, reference: ImageReference, *, refresh: bool = False) -> tuple[Credential, ...]:
        found = await self._secrets.load(self._namespace, self._names, reference.repository, refresh=refresh)
        return self._secrets.credentials_of(found)
