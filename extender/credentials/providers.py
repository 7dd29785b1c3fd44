"""Keyrings of short-lived credentials from a program or a cloud, which are cached until they expire.

Decides how long an answer is cached and which images share it. Each provider implements its own requests.
"""

import hashlib
from collections.abc import Callable, Hashable
from typing import Protocol

import msgspec
import structlog
from async_lru import alru_cache

from extender.credential_sources import Cloud, Source
from extender.credentials.keyring import Credential, CredentialId, credential_id_of
from extender.credentials.logins import ByPattern, Login, Logins, cost_bytes
from extender.errors import ExtenderError
from extender.images.reference import ImageReference
from extender.kubernetes.credential_provider_v1 import CacheKeyType
from extender.tables import LruTable, ShareTable, declare_cache
from extender.turns import OPERATOR, Turns

log = structlog.get_logger()

# After a failure, or as long as the failure took: a provider that hangs is not asked all the time. At most as long as
# a corrected one may take to be used.
_RETRY_SECONDS, _MOST_RETRY_SECONDS = 10.0, 30.0
_SETTLED_SECONDS = 30.0  # least time before an image that stays unresolved makes `is_due` true again
_LEAST_KEPT_SECONDS = 1.0  # one lookup may need them twice
# Requests to one provider at a time, those of one tenant, and those for one registry: a program takes some 50 MB, and
# one that hangs a minute.
_AT_ONCE, _EACH, _AT_REGISTRY = 8, 4, 4
_ANSWER_BYTES = 16 << 20  # of each provider; an answer with one password of 2 KB takes some 5 KB
_EMPTY_BYTES = 1500  # of an answer without a login
_ANSWERS = declare_cache("credentials.providers.answers", key="image, registry or neither", most_mb=17)
_FAILURES = declare_cache("credentials.providers.failures", key="registry", rows=1024, most_mb=1)


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
    """A cached answer, and the tenant for which it is kept.

    The credential ids stay until another answer replaces them. The logins stay until they expire or fail to renew.
    """

    credential_ids: ByPattern[CredentialId]
    logins: Logins
    fresh_until: float
    due_at: float
    tenant: str = OPERATOR
    cost_bytes: int = 0


_NO_ANSWER = _Held(ByPattern(()), Logins(()), 0.0, 0.0)


class ProviderKeyring:
    """A keyring of one provider's credentials. A cached answer is given without waiting for any other request."""

    tenant = ""

    def __init__(self, provider: LoginProvider, *, key: bytes, clock: Callable[[], float]) -> None:
        """`key` is the hash key of the ids; `clock` gives monotonic seconds."""
        self._provider = provider
        self._key = key
        self._clock = clock
        self._held: ShareTable[tuple[CacheKeyType, str], _Held] = ShareTable(
            _ANSWERS.bound(_ANSWER_BYTES), owner_of=lambda _, held: held.tenant, cost_of=lambda _, held: held.cost_bytes
        )
        self._failed: LruTable[str, float] = LruTable(_FAILURES.bound())  # when each registry may be asked for again
        self._turns = Turns(total=_AT_ONCE, each=_EACH, at_host=_AT_REGISTRY)
        self._obtain = alru_cache(maxsize=None, ttl=0, key=lambda key, *_: key)(self._obtain_once)
        self._is_by_image = False  # whether the last answer was for its image only

    @property
    def identity(self) -> Hashable:
        """The object's own id: each provider has one keyring."""
        return id(self)

    def credential_ids_for(self, reference: ImageReference) -> tuple[CredentialId, ...]:
        """Returns the ids of the matching credentials as of the last answer."""
        held = self._find(reference.repository)
        return held.credential_ids.matching(reference.repository) if held else ()

    def label_of(self, _reference: ImageReference, _credential_id: CredentialId) -> str:
        """Returns the kind and the name of the provider."""
        return f"the operator's {self._provider.source} {self._provider.name}"

    def is_due(self, reference: ImageReference) -> bool:
        """Whether the cached answer is due for renewal, or is missing although the provider serves the image."""
        held = self._find(reference.repository)
        is_due = self._clock() >= held.due_at if held else self._provider.serves(reference.repository)
        return is_due and not self._has_just_failed(reference.domain)

    def is_unread(self, reference: ImageReference) -> bool:
        """Whether the provider, which serves the image, has just failed for its registry, and no answer is fresh."""
        is_served = self._provider.serves(reference.repository)
        return is_served and self._has_just_failed(reference.domain) and self._current(reference) is _NO_ANSWER

    async def load(
        self, reference: ImageReference, *, refresh: bool = False, tenant: str = OPERATOR
    ) -> tuple[Credential, ...]:
        """Returns the matching credentials. Ignores `refresh`: tenants cause denials, so only expiry renews them.

        Raises:
            NoTurn: no turn of the tenant has come in time.
        """
        del refresh
        repository = reference.repository
        if not self._provider.serves(repository):
            return ()
        held = self._current(reference) or await self._share(reference, tenant)
        return tuple(
            Credential(login.username, login.password, self._credential_id_of(login))
            for login in held.logins.matching(repository)
        )

    def _current(self, reference: ImageReference) -> _Held | None:
        """Returns the cached answer, or none at all after a failure; None if the provider is to be asked."""
        held = self._find(reference.repository)
        if held and self._clock() < held.fresh_until:
            return held
        return _NO_ANSWER if self._has_just_failed(reference.domain) else None

    def _has_just_failed(self, domain: str) -> bool:
        retry_at = self._failed.get(domain)
        return retry_at is not None and self._clock() < retry_at

    async def _share(self, reference: ImageReference, tenant: str) -> _Held:
        """Returns the answer of a request that all share who want it and have a turn.

        That is one request per registry, whose answer may be for all its images, and one per image if it is not.
        """
        async with self._turns.turn(tenant, reference.domain):
            held = self._current(reference)  # that has come meanwhile
            if held is None and not self._is_by_image:
                await self._obtain(reference.domain, reference, tenant)
                held = self._current(reference)
            return held or await self._obtain(reference.repository, reference, tenant)

    def _find(self, repository: str) -> _Held | None:
        """Returns the most specific fresh answer for the repository, in the kubelet's order; without one, an older."""
        host = repository.partition("/")[0]
        keys = ((CacheKeyType.IMAGE, repository), (CacheKeyType.REGISTRY, host), (CacheKeyType.GLOBAL, ""))
        found = [held for key in keys if (held := self._held.get(key))]
        now = self._clock()
        return next((held for held in found if now < held.fresh_until), found[0] if found else None)

    async def _obtain_once(self, _key: str, reference: ImageReference, tenant: str) -> _Held:
        """Asks the provider. `alru_cache` wraps this method, so that all share the request who give the same key."""
        started = self._clock()
        try:
            given = await self._provider.provide(reference.repository)
        except CredentialsUnavailable as exc:
            log.warning("provider.failed", provider=self._provider.name, registry=reference.domain, why=str(exc))
            return self._hold_failure(reference, self._clock() - started)
        now = self._clock()
        fresh_until = now + max(given.keep_seconds, _LEAST_KEPT_SECONDS)
        credential_ids = ByPattern((login.pattern, self._credential_id_of(login)) for login in given.logins)
        tenant = OPERATOR if given.cache_key_type is CacheKeyType.GLOBAL else tenant
        held = _Held(
            credential_ids, Logins(given.logins), fresh_until, max(fresh_until, now + _SETTLED_SECONDS),
            tenant, _EMPTY_BYTES + cost_bytes(given.logins),
        )  # fmt: skip
        self._is_by_image = given.cache_key_type is CacheKeyType.IMAGE
        self._failed.remove(reference.domain)
        self._hold(given.cache_key_type, reference, held)
        return held

    def _hold_failure(self, reference: ImageReference, seconds: float) -> _Held:
        """Remembers that the provider fails for the registry, for `seconds`: as long as that took.

        Returns the answer that another request has brought meanwhile, or none. An expired one loses its passwords;
        its credential ids stay.
        """
        self._failed.put(reference.domain, self._clock() + min(max(_RETRY_SECONDS, seconds), _MOST_RETRY_SECONDS))
        held = self._find(reference.repository)
        if held and self._clock() < held.fresh_until:
            return held
        if held:
            held.logins = Logins(())
        return _NO_ANSWER

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
