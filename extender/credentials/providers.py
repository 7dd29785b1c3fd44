"""Keyrings of short-lived credentials from a program or a cloud, which are cached until they expire.

Decides how long an answer is cached and which images share it. Each provider implements its own requests.
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
_SETTLED_SECONDS = 30.0  # least time before an image that stays unresolved makes `is_due` true again
_LEAST_KEPT_SECONDS = 1.0  # one lookup may need them twice
_AT_ONCE = 8  # concurrent requests to one provider
_ANSWERS = declare_cache(
    "credentials.providers.answers",
    key="image, registry or neither",
    lifetime="as the provider says",
    bound=4096,
    invalidated_by="a newer or failed answer",
)


class CredentialsUnavailable(ExtenderError):
    """A provider failed to give credentials. The message quotes nothing from the provider."""


class ProvidedCredentials(msgspec.Struct, frozen=True):
    """A provider's answer: its logins, and how long and for which images they may be cached."""

    logins: tuple[Login, ...]
    keep_seconds: float
    cache_key_type: CacheKeyType = CacheKeyType.REGISTRY


class LoginProvider(Protocol):
    """A source of short-lived credentials.

    `name` is its name in logs. `principal` identifies the account behind the credentials, if the account stays the
    same when the password changes. It is empty if another password may mean another account.
    """

    @property
    def source(self) -> Source | Cloud:
        """The source that its metrics count under."""

    name: str
    principal: str

    def serves(self, repository: str) -> bool:
        """Whether it may have credentials for `repository` (`quay.io/a/b`)."""

    async def provide(self, repository: str) -> ProvidedCredentials:
        """Returns what it has for `repository`.

        Raises:
            CredentialsUnavailable: the provider failed.
        """


class _Held(msgspec.Struct):
    """A cached answer.

    The credential ids stay until another answer replaces them. The logins stay until they expire or fail to renew.
    """

    credential_ids: ByPattern[CredentialId]
    logins: Logins
    fresh_until: float
    due_at: float


class ProviderKeyring:
    """A keyring of one provider's credentials."""

    tenant = ""

    def __init__(self, provider: LoginProvider, *, key: bytes, clock: Callable[[], float]) -> None:
        """`key` is the hash key of the ids; `clock` gives monotonic seconds."""
        self._provider = provider
        self._key = key
        self._clock = clock
        self._held: LruTable[tuple[CacheKeyType, str], _Held] = _ANSWERS.lru_table()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._room = asyncio.Semaphore(_AT_ONCE)

    @property
    def identity(self) -> Hashable:
        """The object's own id: each provider has one keyring."""
        return id(self)

    def credential_ids_for(self, reference: ImageReference) -> tuple[CredentialId, ...]:
        """Returns the ids of the matching credentials as of the last answer."""
        held = self._find(reference.repository)
        return held.credential_ids.matching(reference.repository) if held else ()

    def is_due(self, reference: ImageReference) -> bool:
        """Whether the cached answer is due for renewal, or is missing although the provider serves the image."""
        held = self._find(reference.repository)
        if held is None:
            return self._provider.serves(reference.repository)
        return self._clock() >= held.due_at

    async def load(self, reference: ImageReference, *, refresh: bool = False) -> tuple[Credential, ...]:
        """Returns the matching credentials. Ignores `refresh`: tenants cause denials, so only expiry renews them."""
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
        """Returns the most specific cached answer for the repository, in the kubelet's order."""
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
        """Caches an answer without logins until the next retry. The credential ids of the last answer stay."""
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
        for key in names.items():  # a more specific entry would hide the new one
            self._held.remove(key)
        self._held.put((cache_key_type, names[cache_key_type]), held)

    def _credential_id_of(self, login: Login) -> CredentialId:
        """Returns the login's id, which depends on the principal if there is one, and else on the password.

        With a principal, cached images stay usable after the password has changed.
        """
        principal = self._provider.principal
        if not principal:
            return credential_id_of(login.username, login.password, key=self._key)
        identity = msgspec.json.encode((self._provider.name, principal, login.pattern, login.username))
        return CredentialId(hashlib.blake2b(identity, key=self._key, digest_size=16).hexdigest())
