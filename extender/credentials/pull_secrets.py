"""The pull secrets that a pod names, as a keyring. They are read when a lookup needs them and cached for half a minute.

A `SecretReader` reads the secrets, in turns of the namespaces. Patterns and credential ids are cached for longer than
passwords, so that the image cache can be searched without reading a secret. Both caches are bounded by bytes, and the
secrets of one namespace cannot evict those of others.
"""

import asyncio
from collections.abc import Callable, Hashable, Sequence
from itertools import accumulate, chain, repeat
from sys import getsizeof

import msgspec
import structlog
from async_lru import alru_cache

from extender.credentials.keyring import Credential, CredentialId, LoginSource, SecretReader, credentials_of
from extender.credentials.logins import ByPattern, InvalidLogins, Login, Logins, cost_bytes, matching_all
from extender.errors import ClusterError
from extender.images.reference import ImageReference
from extender.tables import ShareTable, declare_cache
from extender.turns import Turns

log = structlog.get_logger()

# A corrected secret is used within this time: an image that stays unresolved is not judged by older readings.
KEEP_SECONDS = 30.0
# After a denial, secrets are read again at once unless their reading is younger than this. A failed read is retried
# after this time, too.
_JUST_READ_SECONDS = 5.0
# Secrets that are read for one pod, the first ones. No known pod has more, and one must not cause minutes of reads.
MOST_NAMES = 64

# Logins of one pod's secrets, and their bytes in memory. A secret that would exceed either is left out, and so are all
# after it. With 256 logins and 256 KiB per secret, the first four secrets fit if their text is ASCII.
MOST_LOGINS = 1024
MOST_LOGIN_BYTES = 4 << 20
# Names and passwords for one image, which a lookup holds while it asks the registry. Real ones have 4 KB at most.
_MOST_TRIED_BYTES = 256 << 10

# Pods whose secrets are read at a time, and those of one namespace. Each reads one secret after the other, which limits
# the load on the API server, and holds 4 MiB of logins and a secret's 5 MiB at most.
_AT_ONCE, _EACH = 16, 4

# The readings of secrets, with their passwords. One of a single login takes 2.5 KB, and the largest 1.4 MB.
_READING_BYTES = 16 << 20
_READINGS = declare_cache("credentials.pull_secrets.readings", key="namespace, secret", most_mb=17)
# For sets of secrets: as a rule one per namespace and ServiceAccount, of 2.5 KB each.
_CREDENTIAL_ID_BYTES = 16 << 20
_CREDENTIAL_IDS = declare_cache("credentials.pull_secrets.credential_ids", key="namespace, secrets", most_mb=17)
# Of a row without logins: two objects by pattern, and its names.
_EMPTY_BYTES = 1500

_SecretName = tuple[str, str]  # namespace, name
_SecretSet = tuple[str, tuple[str, ...]]  # namespace, names
_NO_LOGINS = Logins(())
_NO_IDS = ByPattern[CredentialId](())


class _Reading(msgspec.Struct, frozen=True):
    """The reading of a secret; `problem` says why a pull secret is malformed.

    If the read failed, `is_unread`, and the rest is of the reading before, or of a secret without logins.
    """

    read_at: float
    logins: Logins = _NO_LOGINS
    credential_ids: ByPattern[CredentialId] = _NO_IDS
    cost_bytes: int = 0
    problem: str = ""
    is_unread: bool = False


class _Remembered(msgspec.Struct):
    credential_ids: tuple[ByPattern[CredentialId], ...]
    id_bytes: int
    due_at: float
    problem: str
    left_out: int
    is_unread: bool


class PullSecrets:
    """The pull secrets of a cluster. To be used from one event loop."""

    def __init__(self, reader: SecretReader, *, key: bytes, clock: Callable[[], float]) -> None:
        """`key` is the hash key of the ids, as in `DockerConfigKeyring`; `clock` gives monotonic seconds."""
        self._reader = reader
        self._key = key
        self._clock = clock
        self._kept: ShareTable[_SecretName, _Reading] = ShareTable(
            _READINGS.bound(_READING_BYTES),
            owner_of=lambda secret, _: secret[0],
            cost_of=lambda secret, reading: _EMPTY_BYTES + getsizeof(secret[1]) + reading.cost_bytes,
        )
        self._remembered: ShareTable[_SecretSet, _Remembered] = ShareTable(
            _CREDENTIAL_IDS.bound(_CREDENTIAL_ID_BYTES),
            owner_of=lambda secrets, _: secrets[0],
            cost_of=lambda secrets, row: _EMPTY_BYTES + sum(map(getsizeof, secrets[1])) + row.id_bytes,
        )
        self._turns = Turns(total=_AT_ONCE, each=_EACH, at_host=_AT_ONCE)
        self._read = alru_cache(maxsize=None, ttl=0)(self._read_once)
        self._sweep_at: asyncio.TimerHandle | None = None

    def of_pod(self, namespace: str, names: Sequence[str]) -> LoginSource:
        """Returns the logins of a pod in `namespace` that names these secrets. Leaves out empty names.

        It is for callers that may have these secrets read: it also gives what was read for others.
        """
        chosen = tuple(dict.fromkeys(filter(None, names)))[:MOST_NAMES]
        return _PodSecrets(self, namespace, chosen)

    def credential_ids_for(self, namespace: str, names: tuple[str, ...], repository: str) -> tuple[CredentialId, ...]:
        """Returns the ids of the matching credentials as of the last reading of the secrets; none without one."""
        remembered = self._remembered.get((namespace, names))
        return matching_all(remembered.credential_ids, repository) if remembered else ()

    def secret_with(
        self, namespace: str, names: tuple[str, ...], repository: str, credential_id: CredentialId
    ) -> str | None:
        """Returns the name of the secret that gave this credential, by the last reading; None if none of them did."""
        remembered = self._remembered.get((namespace, names))
        for name, found in zip(names, remembered.credential_ids if remembered else (), strict=False):
            if credential_id in found.matching(repository):
                return name
        return None

    def is_due(self, namespace: str, names: tuple[str, ...]) -> bool:
        """Whether the secrets were never read together, or so long ago that they are due to be read again."""
        remembered = self._remembered.get((namespace, names))
        return remembered is None or self._clock() >= remembered.due_at

    def is_unread(self, namespace: str, names: tuple[str, ...]) -> bool:
        """Whether one of the secrets could not be read the last time."""
        remembered = self._remembered.get((namespace, names))
        return remembered is not None and remembered.is_unread

    async def load(self, namespace: str, names: tuple[str, ...], repository: str, *, refresh: bool) -> list[Login]:
        """Returns the matching logins of all the secrets, in the order in which the kubelet tries them.

        Raises:
            NoTurn: no turn of the namespace has come in time.
        """
        most_seconds = _JUST_READ_SECONDS if refresh else KEEP_SECONDS
        secrets = (namespace, names)
        pod = self._kept_for(secrets, most_seconds)
        if pod is None:
            async with self._turns.turn(namespace):
                pod = await self._read_all(secrets, most_seconds)
        self._remember(secrets, pod)
        return _matching(pod.used, repository)

    def credentials_of(self, logins: Sequence[Login]) -> tuple[Credential, ...]:
        """Returns the logins with their credential ids."""
        return credentials_of(logins, key=self._key)

    def _recent(self, secret: _SecretName, most_seconds: float) -> _Reading | None:
        kept = self._kept.get(secret)
        return kept if kept and self._age_seconds(kept) < most_seconds else None

    def _kept_for(self, secrets: _SecretSet, most_seconds: float) -> "_PodReadings | None":
        """Returns what is used of the secrets; None if one must be read."""
        pod = _PodReadings(len(secrets[1]))
        for name in secrets[1]:
            if pod.is_full:
                break
            kept = self._recent((secrets[0], name), most_seconds)
            if kept is None:
                return None
            pod.add(kept)
        return pod

    async def _read_all(self, secrets: _SecretSet, most_seconds: float) -> "_PodReadings":
        """Returns what is used of the secrets, after reading those that need it, one after the other."""
        pod = _PodReadings(len(secrets[1]))
        for name in secrets[1]:
            if pod.is_full:  # reading more would cost 5 ms each, for nothing
                break
            secret = (secrets[0], name)
            pod.add(self._recent(secret, most_seconds) or await self._read(secret))
            await asyncio.sleep(0)
        return pod

    async def _read_once(self, secret: _SecretName) -> _Reading:
        """Returns a new reading, which all share that want it: `alru_cache` wraps this method."""
        try:
            logins = await self._reader.read_logins(*secret)
            await asyncio.sleep(0)  # decoding has taken 4 ms and the rest takes 2 ms for the largest secret
            reading = self._reading_of(logins)
        except InvalidLogins as exc:
            reading = _Reading(self._clock(), problem=f"{secret[1]}: {exc}")
        except ClusterError as exc:
            log.warning("secret.unread", namespace=secret[0], secret=secret[1], why=str(exc))
            before = self._recent(secret, KEEP_SECONDS) or _Reading(self._clock() - KEEP_SECONDS + _JUST_READ_SECONDS)
            reading = msgspec.structs.replace(before, is_unread=True)
        self._keep(secret, reading)
        return reading

    def _reading_of(self, logins: tuple[Login, ...]) -> _Reading:
        """Returns the reading of a secret, made for matching once."""
        by_pattern = Logins(logins)
        credential_ids = by_pattern.map(lambda login: self.credentials_of([login])[0].id)
        return _Reading(self._clock(), by_pattern, credential_ids, cost_bytes(logins))

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

    def _remember(self, secrets: _SecretSet, pod: "_PodReadings") -> None:
        """Caches the credential ids. Those of a secret that could not be read this time stay."""
        namespace, names = secrets
        before = self._remembered.get(secrets)
        if pod.problem and (before is None or before.problem != pod.problem):
            log.warning("secret.malformed", namespace=namespace, why=pod.problem)
        if pod.left_out and (before is None or before.left_out != pod.left_out):
            first = names[len(pod.used)]
            log.warning("secret.truncated", namespace=namespace, secret=first, kept=MOST_LOGINS, left_out=pod.left_out)
        credential_ids = tuple(reading.credential_ids for reading in pod.used)
        id_bytes = sum(reading.cost_bytes for reading in pod.used)
        if before and pod.is_unread:
            known = chain(before.credential_ids, repeat(_NO_IDS))
            credential_ids = tuple(
                ids if reading.is_unread else reading.credential_ids
                for reading, ids in zip(pod.used, known, strict=False)
            )
            id_bytes += before.id_bytes
        due_at = (self._clock() if pod.oldest_at is None else pod.oldest_at) + KEEP_SECONDS
        self._remembered.put(
            secrets, _Remembered(credential_ids, id_bytes, due_at, pod.problem, pod.left_out, pod.is_unread)
        )

    def _age_seconds(self, reading: _Reading) -> float:
        return self._clock() - reading.read_at


class _PodReadings:
    """The readings of one pod's secrets, added in the pod's order, of which it keeps no more than are `used`.

    `used` are the first ones, up to 1,024 logins and 4 MiB together. It is empty if a secret is malformed: the kubelet
    then refuses the whole keyring. `is_unread` says whether a secret could not be read.
    """

    def __init__(self, secrets: int) -> None:
        """`secrets` is how many the pod names."""
        self.used: list[_Reading] = []
        self.problem = ""
        self.is_unread = False
        self.oldest_at: float | None = None
        self._secrets = secrets
        self._logins = self._bytes = 0

    @property
    def left_out(self) -> int:
        """How many secrets are not used because there are too many logins."""
        return self._secrets - len(self.used) if self.is_full and not self.problem else 0

    @property
    def is_full(self) -> bool:
        """Whether no later secret is used, whatever it holds."""
        return self._logins > MOST_LOGINS or self._bytes > MOST_LOGIN_BYTES

    def add(self, reading: _Reading) -> None:
        """Adds the reading of the next secret."""
        self._logins += len(reading.credential_ids)
        self._bytes += reading.cost_bytes
        self.problem = self.problem or reading.problem
        self.is_unread = self.is_unread or reading.is_unread
        self.oldest_at = reading.read_at if self.oldest_at is None else min(self.oldest_at, reading.read_at)
        if self.problem:
            self.used.clear()
        elif not self.is_full:
            self.used.append(reading)


def _matching(readings: Sequence[_Reading], repository: str) -> list[Login]:
    """Returns the logins for the repository: the first ones, whose names and passwords take 256 KiB together."""
    found = matching_all([reading.logins for reading in readings], repository)
    together = accumulate(getsizeof(login.username) + getsizeof(login.password) for login in found)
    return list(found[: sum(used <= _MOST_TRIED_BYTES for used in together)])


class _PodSecrets:
    """One pod's logins. Their identity is the same for pods of a namespace that name the same secrets."""

    def __init__(self, secrets: PullSecrets, namespace: str, names: tuple[str, ...]) -> None:
        self._secrets = secrets
        self._namespace = namespace
        self._names = names

    @property
    def identity(self) -> Hashable:
        return self._namespace, self._names

    def credential_ids_for(self, reference: ImageReference) -> tuple[CredentialId, ...]:
        return self._secrets.credential_ids_for(self._namespace, self._names, reference.repository)

    def label_of(self, reference: ImageReference, credential_id: CredentialId) -> str:
        name = self._secrets.secret_with(self._namespace, self._names, reference.repository, credential_id)
        return f"pull secret {name}" if name else ""

    def is_due(self) -> bool:
        return self._secrets.is_due(self._namespace, self._names)

    def is_unread(self) -> bool:
        return self._secrets.is_unread(self._namespace, self._names)

    async def load(self, reference: ImageReference, *, refresh: bool = False) -> tuple[Credential, ...]:
        found = await self._secrets.load(self._namespace, self._names, reference.repository, refresh=refresh)
        return self._secrets.credentials_of(found)
