"""The sources of the operator's credentials: logins at hand, and short-lived ones of a program or a cloud.

Decides how long a provider's answer is kept and which images share it. Each provider implements its own requests.
"""

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec
import structlog
from async_lru import alru_cache

from extender.credential_sources import Cloud, Source
from extender.credentials.credential_provider_v1 import CacheKeyType
from extender.credentials.logins import Login, Logins
from extender.errors import ExtenderError
from extender.images.reference import ImageReference
from extender.tables import LruTable

log = structlog.get_logger()

# After a failure, or as long as the failure took: a provider that hangs is not asked all the time. At most as long as
# a corrected one may take to be used.
_RETRY_SECONDS, _MOST_RETRY_SECONDS = 10.0, 30.0
_LEAST_KEPT_SECONDS = 1.0  # one lookup may need them twice
_AT_ONCE = 8  # requests to one provider: a program takes some 50 MB, and one that hangs a minute
_MOST_ANSWERS = 2048  # of each provider; an answer with one password of 2 KB takes some 5 KB


class CredentialsUnavailable(ExtenderError):
    """A provider failed to give credentials. The message quotes nothing from the provider."""


class ProvidedCredentials(msgspec.Struct, frozen=True):
    """A provider's answer: its logins, and how long and for which images they may be cached."""

    logins: tuple[Login, ...]
    keep_seconds: float
    cache_key_type: CacheKeyType = CacheKeyType.REGISTRY


class LoginProvider(Protocol):
    """A source of short-lived credentials.

    `name` is its name in logs. `principal` identifies the account behind the credentials.
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


class OperatorSource(Protocol):
    """One of the operator's sources of logins. `label` says in words which."""

    label: str

    def serves(self, reference: ImageReference) -> bool:
        """Whether it may give other logins for the image some time later."""

    def at_hand(self, reference: ImageReference) -> tuple[Login, ...] | None:
        """Returns the image's logins; None if they have to be loaded, or could not be. No I/O."""

    async def load(self, reference: ImageReference) -> tuple[Login, ...]:
        """Returns the image's logins, most specific first."""


class FixedLogins:
    """Logins that are at hand, matched as the kubelet matches them."""

    def __init__(self, logins: Logins, *, label: str) -> None:
        self.label = label
        self._logins = logins

    def serves(self, _reference: ImageReference) -> bool:
        """False: there is nothing else to load."""
        return False

    def at_hand(self, reference: ImageReference) -> tuple[Login, ...]:
        """Returns the matching logins."""
        return self._logins.matching(reference.repository)

    async def load(self, reference: ImageReference) -> tuple[Login, ...]:
        """As `at_hand`."""
        return self.at_hand(reference)


class _ProviderAnswer(msgspec.Struct, frozen=True):
    """What a provider has answered, and until when it is kept; a failure has no logins."""

    logins: Logins
    until: float
    is_failure: bool = False


_Key = tuple[CacheKeyType | None, str]  # what an answer is for; None: a failure for a registry


class ProviderLogins:
    """One provider's logins. An answer that is kept is given without waiting for any other request."""

    def __init__(self, provider: LoginProvider, *, clock: Callable[[], float]) -> None:
        """`clock` gives monotonic seconds."""
        self.label = f"the operator's {provider.source} {provider.name}"
        self.stamp = msgspec.json.encode((provider.source, provider.name, provider.principal))
        self._provider = provider
        self._clock = clock
        self._answers: LruTable[_Key, _ProviderAnswer] = LruTable(_MOST_ANSWERS)
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._obtain = alru_cache(maxsize=None, ttl=0, key=lambda key, _: key)(self._obtain_once)
        self._is_by_image = False  # whether the last answer was for its image only

    def serves(self, reference: ImageReference) -> bool:
        """Whether the provider may have credentials for the image."""
        return self._provider.serves(reference.repository)

    def at_hand(self, reference: ImageReference) -> tuple[Login, ...] | None:
        """Returns the matching logins of a kept answer; None if there is none, or the provider has just failed."""
        if not self.serves(reference):
            return ()
        answer = self._current(reference)
        return None if answer is None or answer.is_failure else answer.logins.matching(reference.repository)

    async def load(self, reference: ImageReference) -> tuple[Login, ...]:
        """Returns the matching logins, asked for once by all who want them at the same time; none after a failure.

        That is one request per registry, whose answer may be for all its images, and one per image if it is not. A
        denial renews none, since tenants cause denials: only expiry does.
        """
        if not self.serves(reference):
            return ()
        answer = self._current(reference)
        if answer is None and not self._is_by_image:
            await self._obtain(reference.domain, reference)
            answer = self._current(reference)
        answer = answer or await self._obtain(reference.repository, reference)
        return answer.logins.matching(reference.repository)

    def _current(self, reference: ImageReference) -> _ProviderAnswer | None:
        """Returns the most specific answer that is kept, in the kubelet's order; a failure only without one."""
        keys = (*_keys(reference).items(), (None, reference.domain))
        now = self._clock()
        answers = (self._answers.get(key) for key in keys)
        return next((answer for answer in answers if answer and now < answer.until), None)

    async def _obtain_once(self, _key: str, reference: ImageReference) -> _ProviderAnswer:
        """Asks the provider. `alru_cache` wraps this method, so that all share the request who give the same key."""
        async with self._slots:
            return self._current(reference) or await self._ask(reference)  # which has come meanwhile

    async def _ask(self, reference: ImageReference) -> _ProviderAnswer:
        started = self._clock()
        try:
            given = await self._provider.provide(reference.repository)
        except CredentialsUnavailable as exc:
            log.warning("provider.failed", provider=self._provider.name, registry=reference.domain, why=str(exc))
            return self._keep_failure(reference, self._clock() - started)
        answer = _ProviderAnswer(Logins(given.logins), self._clock() + max(given.keep_seconds, _LEAST_KEPT_SECONDS))
        self._is_by_image = given.cache_key_type is CacheKeyType.IMAGE
        for key in (*_keys(reference).items(), (None, reference.domain)):  # a more specific answer would hide it
            self._answers.remove(key)
        self._answers.put((given.cache_key_type, _keys(reference)[given.cache_key_type]), answer)
        return answer

    def _keep_failure(self, reference: ImageReference, seconds: float) -> _ProviderAnswer:
        """Keeps a failure for the registry as long as it took, behind answers that others have brought."""
        until = self._clock() + min(max(_RETRY_SECONDS, seconds), _MOST_RETRY_SECONDS)
        failure = _ProviderAnswer(Logins(()), until, is_failure=True)
        self._answers.put((None, reference.domain), failure)
        return failure


def _keys(reference: ImageReference) -> dict[CacheKeyType, str]:
    """Returns for what an answer may be kept, the most specific first."""
    return {
        CacheKeyType.IMAGE: reference.repository,
        CacheKeyType.REGISTRY: reference.domain,
        CacheKeyType.GLOBAL: "",
    }


class NamedSources(msgspec.Struct, frozen=True):
    """What a file of the operator's names, in the order to try it. `stamp` differs where it gives other credentials."""

    stamp: bytes
    providers: Mapping[bytes, LoginProvider]
    """By what the file says of each."""
    fixed: tuple[FixedLogins, ...] = ()


class OperatorFile(msgspec.Struct, frozen=True):
    """The sources that a file names, and a hash of its stamp."""

    stamp: bytes
    sources: tuple[OperatorSource, ...]


class SourcesFile:
    """A file that names sources. A provider of which it says what it said before keeps its answers."""

    def __init__(self, read: Callable[[], NamedSources], *, clock: Callable[[], float]) -> None:
        """`read` reads the file; `clock` gives monotonic seconds."""
        self._read = read
        self._clock = clock
        self._kept: dict[bytes, ProviderLogins] = {}

    def load(self) -> OperatorFile:
        """Returns the sources that the file names now. Raises what `read` raises."""
        named = self._read()
        self._kept = {
            written: self._kept.get(written) or ProviderLogins(provider, clock=self._clock)
            for written, provider in named.providers.items()
        }
        return OperatorFile(hashlib.blake2b(named.stamp).digest(), (*self._kept.values(), *named.fixed))
