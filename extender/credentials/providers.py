"""Credentials that someone else hands out for a while: a program, or a cloud. Obtained once, kept until they expire.

Knows lifetimes and who shares what. How a provider is asked is its own business.
"""

import asyncio
import hashlib
from collections.abc import Callable, Hashable
from typing import Protocol
from weakref import WeakValueDictionary

import msgspec
import structlog

from extender.credential_sources import Cloud, Source
from extender.credentials.keyring import CREDENTIALS, Credential, CredentialId, credential_id_of
from extender.credentials.logins import ByPattern, Login, Logins
from extender.errors import ExtenderError
from extender.images.reference import ImageReference
from extender.kubernetes.credential_provider_v1 import CacheKeyType
from extender.tables import LruTable, declare_cache

log = structlog.get_logger()

_RETRY_SECONDS = 10.0  # after a failure
_SETTLED_SECONDS = 30.0  # after which an image that stays unresolved is reason to ask again, unless all is kept longer
_LEAST_KEPT_SECONDS = 1.0  # one lookup may need them twice
_AT_ONCE = 8  # questions to one provider
_ANSWERS = declare_cache(
    "credentials.providers.answers",
    key="image, registry or neither",
    lifetime="as the provider says",
    bound=4096,
    invalidated_by="a newer or failed answer",
)


class CredentialsUnavailable(ExtenderError):
    """A provider gave no credentials. The message quotes nothing that it said."""


class ProvidedCredentials(msgspec.Struct, frozen=True):
    """What a provider gave, and for how long it may be kept."""

    logins: tuple[Login, ...]
    keep_seconds: float
    cache_key_type: CacheKeyType = CacheKeyType.REGISTRY


class LoginProvider(Protocol):
    """Someone who hands out credentials.

    `name` is what logs call it. `principal` names who its credentials stand for, where that outlives
    their passwords; empty where another password may be another person.
    """

    @property
    def source(self) -> Source | Cloud:
        """The source under which it counts."""

    name: str
    principal: str

    def serves(self, repository: str) -> bool:
        """Whether it is to be asked about `repository` (`quay.io/a/b`)."""

    async def provide(self, repository: str) -> ProvidedCredentials:
        """What it has for `repository`.

        Raises:
            CredentialsUnavailable: nothing could be obtained.
        """


class _Held(msgspec.Struct):
    """An answer: its credential ids until another replaces them, its passwords until they expire or fail to renew."""

    credential_ids: ByPattern[CredentialId]
    logins: Logins
    fresh_until: float
    due_at: float


class ProviderKeyring:
    """A keyring of what one provider hands out."""

    tenant = ""

    def __init__(self, provider: LoginProvider, *, key: bytes, clock: Callable[[], float]) -> None:
        """`key` keys the ids; `clock` gives monotonic seconds."""
        self._provider = provider
        self._key = key
        self._clock = clock
        self._held: LruTable[tuple[CacheKeyType, str], _Held] = _ANSWERS.lru_table()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._room = asyncio.Semaphore(_AT_ONCE)

    @property
    def identity(self) -> Hashable:
        """One provider, one keyring."""
        return id(self)

    def credential_ids_for(self, reference: ImageReference) -> tuple[CredentialId, ...]:
        """What stood for the matching credentials when last obtained."""
        held = self._find(reference.repository)
        return held.credential_ids.matching(reference.repository) if held else ()

    def is_due(self, reference: ImageReference) -> bool:
        """Whether the provider would be asked, if it serves this image at all."""
        held = self._find(reference.repository)
        if held is None:
            return self._provider.serves(reference.repository)
        return self._clock() >= held.due_at

    async def load(self, reference: ImageReference, *, refresh: bool = False) -> tuple[Credential, ...]:
        """The matching credentials. A denial is no reason to ask before they expire, and tenants cause denials."""
        del refresh
        repository = reference.repository
        if not self._provider.serves(repository):
            return ()
        lock = self._locks.setdefault(reference.domain, asyncio.Lock())
        async with lock, self._room:
            held = self._find(repository)
            if held is None or self._clock() >= held.fresh_until:
                held = await self._obtain(reference, held)
        return tuple(
            Credential(login.username, login.password, self._credential_id_of(login))
            for login in held.logins.matching(repository)
        )

    def _find(self, repository: str) -> _Held | None:
        """The narrowest answer that holds for the repository, as the kubelet looks them up."""
        host = repository.partition("/")[0]
        for key in ((CacheKeyType.IMAGE, repository), (CacheKeyType.REGISTRY, host), (CacheKeyType.GLOBAL, "")):
            held = self._held.peek(key)
            if held:
                return held
        return None

    async def _obtain(self, reference: ImageReference, before: _Held | None) -> _Held:
        counts = CREDENTIALS[self._provider.source]
        try:
            given = await self._provider.provide(reference.repository)
        except CredentialsUnavailable as exc:
            counts["error"].inc()
            log.warning("provider.failed", provider=self._provider.name, registry=reference.domain, why=str(exc))
            return self._hold_failure(reference, before)
        counts["obtained" if given.logins else "none"].inc()
        now = self._clock()
        fresh_until = now + max(given.keep_seconds, _LEAST_KEPT_SECONDS)
        credential_ids = ByPattern((login.pattern, self._credential_id_of(login)) for login in given.logins)
        held = _Held(credential_ids, Logins(given.logins), fresh_until, max(fresh_until, now + _SETTLED_SECONDS))
        self._hold(given.cache_key_type, reference, held)
        return held

    def _hold_failure(self, reference: ImageReference, before: _Held | None) -> _Held:
        """Nothing to present until the next try; what was proven before stays known."""
        retry_at = self._clock() + _RETRY_SECONDS
        if before is None:
            before = _Held(ByPattern(()), Logins(()), retry_at, retry_at)
            self._hold(CacheKeyType.REGISTRY, reference, before)
        before.logins, before.fresh_until, before.due_at = Logins(()), retry_at, retry_at
        return before

    def _hold(self, cache_key_type: CacheKeyType, reference: ImageReference, held: _Held) -> None:
        names = {
            CacheKeyType.IMAGE: reference.repository,
            CacheKeyType.REGISTRY: reference.domain,
            CacheKeyType.GLOBAL: "",
        }
        for key in names.items():  # a narrower one would hide it
            self._held.remove(key)
        self._held.put((cache_key_type, names[cache_key_type]), held)

    def _credential_id_of(self, login: Login) -> CredentialId:
        """By its principal where there is one, so that what it may read outlives its password."""
        principal = self._provider.principal
        if not principal:
            return credential_id_of(login.username, login.password, key=self._key)
        identity = msgspec.json.encode((self._provider.name, principal, login.pattern, login.username))
        return CredentialId(hashlib.blake2b(identity, key=self._key, digest_size=16).hexdigest())
