"""The pull secrets that a pod names, as a keyring. They are read when a lookup needs them and cached for half a minute.

The secrets are read in turns of the namespaces. Patterns and credential ids are cached for longer than
passwords, so that the image cache can be searched without reading a secret. What is kept is bounded by bytes, and the
secrets of one namespace cannot evict those of others.
"""

import asyncio
import math
from collections import ChainMap
from collections.abc import Awaitable, Callable, Sequence
from itertools import accumulate
from sys import getsizeof

import msgspec
import structlog

from extender.credentials.keyring import Credential, CredentialId, Keyring, credentials_of
from extender.credentials.logins import ByPattern, InvalidLogins, Login, cost_bytes, matching_all
from extender.errors import ClusterError
from extender.images.reference import ImageReference
from extender.tables import ShareTable
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

# The readings of secrets, which lose their passwords when they are too old to be used. One of a single login takes
# 2.5 KB, and the largest 1.4 MB.
_READING_BYTES = 16 << 20
# Of a row without logins: two objects by pattern, and its names.
_EMPTY_BYTES = 1500

_SecretName = tuple[str, str]  # namespace, name
ReadLogins = Callable[[str, str], Awaitable[tuple[Login, ...]]]
"""Returns the logins in a secret, by namespace and name; none if it does not exist or may not be read.

Raises InvalidLogins for a pull secret that is malformed, and ClusterError for one that could not be read this time.
"""
_NO_IDS = ByPattern[CredentialId](())


class _Reading(msgspec.Struct):
    """The reading of a secret; `problem` says why a pull secret is malformed.

    The ids stay until another reading replaces them; of the credentials nothing is left after `KEEP_SECONDS`. If the
    read failed, `is_unread`, and the rest is of the reading before, or of a secret without logins. `said_left_out` is
    how many secrets after this one are known to be left out.
    """

    read_at: float
    ids: ByPattern[CredentialId] = _NO_IDS
    credentials: dict[CredentialId, Credential] = {}
    cost_bytes: int = 0
    problem: str = ""
    is_unread: bool = False
    said_left_out: int = 0


class PullSecrets:
    """The pull secrets of a cluster. To be used from one event loop."""

    def __init__(self, read_logins: ReadLogins, *, key: bytes, clock: Callable[[], float]) -> None:
        """`key` (up to 64 random bytes) is the hash key of the ids; `clock` gives monotonic seconds."""
        self._read_logins = read_logins
        self._key = key
        self._clock = clock
        self._readings: ShareTable[_SecretName, _Reading] = ShareTable(
            _READING_BYTES,
            owner_of=lambda secret, _: secret[0],
            cost_of=lambda secret, reading: _EMPTY_BYTES + getsizeof(secret[1]) + reading.cost_bytes,
        )
        self._turns = Turns(total=_AT_ONCE, each=_EACH, at_host=1)  # of a set of secrets, which all want at once
        self._sweep_at: asyncio.TimerHandle | None = None

    def keyring(self, keyring: Keyring, namespace: str, names: Sequence[str]) -> Keyring:
        """Returns the keyring with the logins of a pod in `namespace` that names these secrets. Leaves out empty names.

        It is for callers that may have these secrets read: it also gives what was read for others.
        """
        chosen = tuple(dict.fromkeys(filter(None, names)))[:MOST_NAMES]
        return PodKeyring(self, namespace, chosen, operator=keyring.operator)

    async def load(self, namespace: str, names: tuple[str, ...], most_seconds: float) -> "_PodReadings":
        """Returns what is used of the secrets; reads those again whose reading is not younger.

        Raises:
            NoTurn: no turn of the namespace has come in time.
        """
        pod = self.pod(namespace, names, most_seconds)
        if pod is None:
            async with self._turns.turn(namespace, "/".join((namespace, *names))):
                pod = await self._read_all(namespace, names, most_seconds)
        if pod.left_out and pod.used and pod.used[-1].said_left_out != pod.left_out:
            pod.used[-1].said_left_out = pod.left_out
            first = names[len(pod.used)]
            log.warning("secret.truncated", namespace=namespace, secret=first, kept=MOST_LOGINS, left_out=pod.left_out)
        return pod

    def pod(self, namespace: str, names: tuple[str, ...], most_seconds: float = math.inf) -> "_PodReadings | None":
        """Returns what is used of the secrets; None if one has no reading that is younger."""
        pod = _PodReadings(len(names))
        for name in names:
            if pod.is_full:
                break
            reading = self._readings.get((namespace, name))
            if reading is None or self._age_seconds(reading) >= most_seconds:
                return None
            pod.add(reading)
        return pod

    async def _read_all(self, namespace: str, names: tuple[str, ...], most_seconds: float) -> "_PodReadings":
        """Returns what is used of the secrets, after reading those that need it, one after the other."""
        pod = _PodReadings(len(names))
        for name in names:
            if pod.is_full:  # reading more would cost 5 ms each, for nothing
                break
            reading = self._readings.get((namespace, name))
            if reading is None or self._age_seconds(reading) >= most_seconds:
                reading = await self._read(namespace, name, reading)
            pod.add(reading)
            await asyncio.sleep(0)
        return pod

    async def _read(self, namespace: str, name: str, before: _Reading | None) -> _Reading:
        """Returns a new reading, which is kept."""
        try:
            logins = await self._read_logins(namespace, name)
            await asyncio.sleep(0)  # decoding has taken 4 ms and the rest takes 2 ms for the largest secret
            reading = self._reading_of(logins)
        except InvalidLogins as exc:
            reading = _Reading(self._clock(), problem=f"{name}: {exc}")
            if before is None or before.problem != reading.problem:
                log.warning("secret.malformed", namespace=namespace, why=reading.problem)
        except ClusterError as exc:
            log.warning("secret.unread", namespace=namespace, secret=name, why=str(exc))
            retried = self._clock() - KEEP_SECONDS + _JUST_READ_SECONDS
            if before is None or self._age_seconds(before) >= KEEP_SECONDS:
                before = msgspec.structs.replace(before or _Reading(retried), read_at=retried, credentials={})
            reading = msgspec.structs.replace(before, is_unread=True)
        reading.said_left_out = before.said_left_out if before else 0
        self._readings.put((namespace, name), reading)
        if self._sweep_at is None:
            self._sweep_at = asyncio.get_running_loop().call_later(KEEP_SECONDS, self._sweep)
        return reading

    def _reading_of(self, logins: tuple[Login, ...]) -> _Reading:
        """Returns the reading of a secret, made for matching once."""
        credentials: dict[CredentialId, Credential] = {}
        entries: list[tuple[str, CredentialId | None]] = []
        for login in logins:
            found = credentials_of([login] if login.username or login.password else (), key=self._key)
            credentials |= {each.id: each for each in found}
            entries.append((login.pattern, found[0].id if found else None))
        return _Reading(self._clock(), ByPattern(entries), credentials, cost_bytes(logins))

    def _sweep(self) -> None:
        """Forgets the passwords of readings that are too old to be used."""
        self._sweep_at, is_any_left = None, False
        for _, reading in self._readings.items():  # noqa: PERF102 - of a table, which has no values()
            if reading.credentials:
                if self._age_seconds(reading) >= KEEP_SECONDS:
                    reading.credentials = {}
                else:
                    is_any_left = True
        if is_any_left:
            self._sweep_at = asyncio.get_running_loop().call_later(_JUST_READ_SECONDS, self._sweep)

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
        self.is_unread = False
        self._is_malformed = False
        self._secrets = secrets
        self._logins = self._bytes = 0

    @property
    def left_out(self) -> int:
        """How many secrets are not used because there are too many logins."""
        return self._secrets - len(self.used) if self.is_full and not self._is_malformed else 0

    @property
    def is_full(self) -> bool:
        """Whether no later secret is used, whatever it holds."""
        return self._logins > MOST_LOGINS or self._bytes > MOST_LOGIN_BYTES

    def ids_for(self, reference: ImageReference) -> tuple[CredentialId, ...]:
        """Returns the ids of the matching credentials, in the order in which the kubelet tries them."""
        return matching_all([reading.ids for reading in self.used], reference.repository)

    def add(self, reading: _Reading) -> None:
        """Adds the reading of the next secret."""
        self._logins += len(reading.ids)
        self._bytes += reading.cost_bytes
        self._is_malformed = self._is_malformed or bool(reading.problem)
        self.is_unread = self.is_unread or reading.is_unread
        if self._is_malformed:
            self.used.clear()
        elif not self.is_full:
            self.used.append(reading)


class PodKeyring(Keyring):
    """One pod's logins before the operator's. Pods of a namespace that name the same secrets have equal ones."""

    def __init__(
        self, secrets: PullSecrets, namespace: str, names: tuple[str, ...], *, operator: Callable[[], CredentialId]
    ) -> None:
        super().__init__(operator=operator, tenant=namespace)
        self.identity = namespace, names
        self._secrets = secrets
        self._of = namespace, names

    def own_ids_for(self, reference: ImageReference) -> tuple[CredentialId, ...]:
        pod = self._secrets.pod(*self._of)
        return pod.ids_for(reference) if pod else ()

    def label_of(self, reference: ImageReference, credential_id: CredentialId) -> str:
        pod = self._secrets.pod(*self._of)
        for name, reading in zip(self._of[1], pod.used if pod else (), strict=False):
            if credential_id in reading.ids.matching(reference.repository):
                return f"pull secret {name}"
        return super().label_of(reference, credential_id)

    def is_due(self) -> bool:
        return self._secrets.pod(*self._of, KEEP_SECONDS) is None

    def is_unread(self) -> bool:
        pod = self._secrets.pod(*self._of)
        return pod is not None and pod.is_unread

    async def load(self, reference: ImageReference, *, refresh: bool = False) -> tuple[Credential, ...]:
        pod = await self._secrets.load(*self._of, _JUST_READ_SECONDS if refresh else KEEP_SECONDS)
        held = ChainMap(*(reading.credentials for reading in pod.used))
        found = [held[each] for each in dict.fromkeys(pod.ids_for(reference)) if each in held]
        together = accumulate(getsizeof(each.username) + getsizeof(each.password) for each in found)
        return tuple(found[: sum(used <= _MOST_TRIED_BYTES for used in together)])
