"""The service's client of its fetcher: starts it, asks it, and starts another when it ends.

What was asked for when a fetcher ended may be why it ended. It is asked again alone, in a second fetcher that exists
only for that. So nobody's image keeps another's from being known, and a fetcher that is killed costs its callers time.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Generic, TypeVar

import msgspec
import structlog

from extender.background import in_background
from extender.credential_sources import Cloud, Source
from extender.credentials.keyring import Credential
from extender.credentials.provider_specs import ProviderSpec
from extender.credentials.providers import CredentialsUnavailable, LoginProvider, ProvidedCredentials
from extender.errors import ConfigError, ExtenderError, RegistryDenied, RegistryNotAsked, RegistryUnavailable
from extender.fetcher.child import MAIN, SECOND, VERIFIER, FetcherChild, FetcherEnded
from extender.fetcher.messages import (
    Describe,
    Described,
    DigestStated,
    FailedAnswer,
    NodeMirrors,
    ProtocolError,
    Provide,
    Provided,
    StateDigest,
    ToQuestion,
    Verified,
    Verify,
    error_of,
    frame,
)
from extender.fetcher.settings import FetcherSettings
from extender.images.manifest import Image
from extender.images.platform import Platform
from extender.images.reference import ImageReference
from extender.kubernetes.openshift_v1 import MirrorObjects
from extender.metrics import counter
from extender.tables import LruTable
from extender.verifier.verification import Verification
from extender.watched_files import report_mirrors_refused

T = TypeVar("T")
log = structlog.get_logger()

ENDS = counter(
    "multiarch_fetcher_ends_total",
    "Processes that ask registries and have ended, by cause; over: it became too large; silent: it answered no ping; "
    "garbled: it said what makes no sense; refused: its settings' files cannot be used; unstarted: it did not start.",
    "cause",
    ("ended", "over", "silent", "garbled", "refused", "unstarted"),
)

# Together with the service this is less than 512 MiB. One question alone needs little.
RESIDENT_BYTES, SECOND_RESIDENT_BYTES = 150 << 20, 100 << 20
# One image at a time, with the names of 200,000 files; only while one is looked into.
VERIFIER_RESIDENT_BYTES = 200 << 20
# A start after one that lived for a second follows at once, others after a wait.
_WELL_SECONDS, _MOST_WAIT_SECONDS = 1.0, 10.0
_CHECK_SECONDS = 10.0  # for which the start of the service waits to hear that the fetcher's files can be used
_ALONE_SECONDS = 3.0  # of each suspect, since others wait
_LEEWAY_SECONDS = 0.5  # in which a fetcher says that the time is over, before its caller does
_PROVIDE_SECONDS = 65.0  # a program has a minute
_DEATHS = 2
_SUSPECTED_SECONDS, _MOST_SUSPECTS = 300.0, 4096
_MOST_MIRRORS = 4  # that a new fetcher is told, since it may refuse the last ones, and then goes by those before
_MOST_CREDENTIAL = 32 << 10  # characters; no server takes a header that long


class _PendingQuestion(msgspec.Struct):
    """A question with all who may answer it: until when, and how often a fetcher has ended while it was alone."""

    question: StateDigest | Describe
    ends_at: float
    answer: "asyncio.Future[ToQuestion]"
    deaths: int = 0

    def now(self, most_seconds: float = 3600.0) -> StateDigest | Describe:
        """Returns the question with the time that is left for it."""
        left = self.ends_at - asyncio.get_running_loop().time()
        return msgspec.structs.replace(self.question, seconds=max(0.0, min(left, most_seconds)))


class Suspects(Generic[T]):
    """The questions that wait to be asked alone, and the images that are asked for alone for some minutes.

    Tenants take turns, so that one with many suspects keeps none of another's from being cleared.
    """

    def __init__(self, clock: Callable[[], float], size: int = _MOST_SUSPECTS) -> None:
        """Remembers at most `size` images."""
        self._clock = clock
        self._until: LruTable[ImageReference, float] = LruTable(size)
        self._waiting: dict[str, deque[T]] = {}

    def suspect(self, image: ImageReference) -> None:
        """Notes that asking for the image may end a fetcher, since one ended meanwhile."""
        self._until.put(image, self._clock() + _SUSPECTED_SECONDS)

    def clear(self, image: ImageReference) -> None:
        """Notes that the image was asked for alone, and has an answer."""
        self._until.remove(image)

    def is_suspect(self, image: ImageReference) -> bool:
        """Whether to ask for the image alone."""
        return (self._until.get(image) or 0.0) > self._clock()

    def add(self, tenant: str, question: T) -> None:
        """Has the question wait for its tenant's turn."""
        self._waiting.setdefault(tenant, deque()).append(question)

    def put_back(self, tenant: str, question: T) -> None:
        """Has the question wait once more, as the tenant's first."""
        self._waiting.setdefault(tenant, deque()).appendleft(question)

    def next(self) -> T | None:
        """Returns the next question, of the tenant whose turn is longest ago; None if none waits."""
        if not self._waiting:
            return None
        tenant = next(iter(self._waiting))
        questions = self._waiting.pop(tenant)
        question = questions.popleft()
        if questions:
            self._waiting[tenant] = questions  # which is now the last
        return question


class FetcherClient:
    """Asks registries and providers by a fetcher, as `sources.LocalSources` does in its own process."""

    def __init__(self, settings: FetcherSettings) -> None:
        self._settings = settings
        self._suspects: Suspects[_PendingQuestion] = Suspects(time.monotonic)
        self._main: asyncio.Future[FetcherChild] = asyncio.get_running_loop().create_future()
        self._checked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._examining: asyncio.Task[None] | None = None
        self._second: FetcherChild | None = None
        self._mirrors: deque[NodeMirrors] = deque(maxlen=_MOST_MIRRORS)
        self._verifying = asyncio.Lock()
        self._verifier: FetcherChild | None = None
        self._is_closed = False

    async def state_digest(
        self, reference: ImageReference, credential: Credential, *, tenant: str, seconds: float
    ) -> str | None:
        """As `ImageSource`."""
        question = StateDigest(tenant=tenant, reference=reference, credential=credential)
        answer = await self._ask(question, seconds)
        assert isinstance(answer, DigestStated)  # noqa: S101 - as `messages.answers` says
        return answer.digest

    async def describe(
        self, reference: ImageReference, credential: Credential, *, tenant: str, seconds: float
    ) -> Image:
        """As `ImageSource`."""
        question = Describe(tenant=tenant, reference=reference, credential=credential)
        answer = await self._ask(question, seconds)
        assert isinstance(answer, Described)  # noqa: S101 - as `messages.answers` says
        return answer.image

    async def verify(
        self, reference: ImageReference, platform: Platform, credential: Credential, *, tenant: str, seconds: float
    ) -> Verification:
        """As `PlatformSource`: by a process of its own, which reads one image at a time and exists while it does."""
        _check_length(credential)
        question = Verify(tenant=tenant, reference=reference, credential=credential, platform=platform, seconds=seconds)
        async with self._verifying:
            if self._is_closed:
                raise RegistryNotAsked("the service is stopping")
            settings = msgspec.structs.replace(self._settings, resident_bytes=VERIFIER_RESIDENT_BYTES)
            self._verifier = FetcherChild(settings, VERIFIER)
            try:
                await self._verifier.start()
                async with asyncio.timeout(seconds + _LEEWAY_SECONDS):
                    answer = await self._verifier.ask(question)
            except (OSError, ConfigError, ProtocolError, TimeoutError, FetcherEnded) as exc:
                ENDS[self._verifier.cause or "ended"].inc()
                raise RegistryNotAsked(f"the process that looks inside images ended: {type(exc).__name__}") from None
            finally:
                await self._verifier.end()
        if isinstance(answer, FailedAnswer):
            raise error_of(answer)
        assert isinstance(answer, Verified)  # noqa: S101 - as `messages.answers` says
        return answer.verification

    async def provide(self, spec: ProviderSpec, repository: str) -> ProvidedCredentials:
        """Returns what the provider has for the repository. Raises CredentialsUnavailable."""
        question = Provide(provider=spec, repository=repository)
        try:
            async with asyncio.timeout(_PROVIDE_SECONDS):
                try:
                    answer = await (await self.running()).ask(question)
                except FetcherEnded:  # which no program of the operator's has caused
                    answer = await (await self.running()).ask(question)
        except (TimeoutError, FetcherEnded, ProtocolError, RegistryNotAsked):
            raise CredentialsUnavailable("the process that asks for credentials ended or did not answer") from None
        if isinstance(answer, FailedAnswer):
            raise error_of(answer)
        assert isinstance(answer, Provided)  # noqa: S101 - as `messages.answers` says
        return answer.credentials

    def provider_from_here(self, spec: ProviderSpec, provider: LoginProvider) -> LoginProvider:
        """Returns the provider as one that the fetcher asks."""
        return _RemoteProvider(self, spec, provider)

    def tell_mirrors(self, objects: MirrorObjects) -> None:
        """Has the fetchers ask where the objects say, from the next question on; too many objects change nothing."""
        mirrors = NodeMirrors(objects)
        try:
            frame(mirrors)
        except ProtocolError as exc:
            report_mirrors_refused(f"OpenShift's objects: {exc}")
            return
        self._mirrors.append(mirrors)
        if self._main.done() and not self._main.exception():
            self._main.result().tell(mirrors)
        if self._second:
            self._second.tell(mirrors)

    def _tell(self, child: FetcherChild) -> None:
        for mirrors in self._mirrors:
            child.tell(mirrors)

    async def check(self) -> None:
        """Returns when the fetcher has opened its files, or has not for ten seconds.

        Raises:
            ConfigError: one of the files cannot be used.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CHECK_SECONDS):
                await asyncio.shield(self._checked)

    async def keep_running(self) -> None:
        """Runs fetchers, one after the other, until cancelled."""
        failures = 0
        while True:
            began_at = time.monotonic()
            cause = await self._run_one()
            failures = 0 if time.monotonic() - began_at >= _WELL_SECONDS else failures + 1
            wait_seconds = min(2.0 ** (failures - 1), _MOST_WAIT_SECONDS) if failures else 0.0
            ENDS[cause].inc()
            log.warning("fetcher.ended", cause=cause, next_seconds=wait_seconds)
            await asyncio.sleep(wait_seconds)

    async def close(self) -> None:
        """Ends the second fetcher; whatever is asked from now on is not."""
        self._is_closed = True
        if self._examining:
            self._examining.cancel()
            await asyncio.gather(self._examining, return_exceptions=True)
        for child in (self._second, self._verifier):
            if child:
                await child.end()

    async def _run_one(self) -> str:
        """Runs a fetcher until it ends; returns the cause."""
        child = FetcherChild(msgspec.structs.replace(self._settings, resident_bytes=RESIDENT_BYTES), MAIN)
        try:
            await child.start()
            self._tell(child)
            self._note_checked(None)
            self._main.set_result(child)
            await child.wait_end()
        except (OSError, ConfigError, FetcherEnded) as exc:
            self._note_failed_start(exc)
            await child.wait_end()
        finally:
            if self._main.done():
                self._main = asyncio.get_running_loop().create_future()
            await child.end()
        return child.cause

    def _note_failed_start(self, error: Exception) -> None:
        """Has nobody wait for a fetcher that could not start, and logs why."""
        log.error("fetcher.unstarted", why=str(error) or type(error).__name__)
        self._note_checked(error if isinstance(error, ConfigError) else None)
        waiting, self._main = self._main, asyncio.get_running_loop().create_future()
        waiting.set_exception(RegistryNotAsked("the process that asks registries could not be started"))
        waiting.exception()  # which is no news if nobody waits

    def _note_checked(self, error: ConfigError | None) -> None:
        if self._checked.done():
            return
        if error is None:
            self._checked.set_result(None)
        else:
            self._checked.set_exception(error)
            self._checked.exception()

    async def running(self) -> FetcherChild:
        """Returns the fetcher once there is one. Raises RegistryNotAsked if it cannot be started."""
        while not self._is_closed:
            main = await asyncio.shield(self._main)
            if not main.has_ended:
                return main
            await main.wait_end()
            await asyncio.sleep(0)  # in which it is replaced by the next
        raise RegistryNotAsked("the service is stopping")

    async def _ask(self, question: StateDigest | Describe, seconds: float) -> ToQuestion:
        """Returns the answer, or raises the error that it is."""
        _check_length(question.credential)
        loop = asyncio.get_running_loop()
        wanted = _PendingQuestion(question, loop.time() + seconds, loop.create_future())
        try:
            async with asyncio.timeout(seconds + _LEEWAY_SECONDS):
                answer = await self._find(wanted)
        except TimeoutError:
            raise RegistryNotAsked(f"{question.reference.domain} was not asked within {seconds:.3g} s") from None
        if isinstance(answer, FailedAnswer):
            raise error_of(answer)
        return answer

    async def _find(self, wanted: _PendingQuestion) -> ToQuestion:
        image = wanted.question.reference
        if not self._suspects.is_suspect(image):
            main = await self.running()
            try:
                return await main.ask(wanted.now())
            except ProtocolError:
                raise RegistryNotAsked("the question is too long") from None
            except FetcherEnded:
                self._suspects.suspect(image)
        return await self._find_alone(wanted)

    async def _find_alone(self, wanted: _PendingQuestion) -> ToQuestion:
        if self._is_closed:
            raise RegistryNotAsked("the service is stopping")
        self._suspects.add(wanted.question.tenant, wanted)
        if self._examining is None or self._examining.done():
            self._examining = asyncio.create_task(self._examine())
        return await wanted.answer

    async def _examine(self) -> None:
        """Asks the suspects one by one until there are none."""
        while True:
            wanted = self._suspects.next()
            if wanted is None:
                if self._second is None:
                    return
                await self._second.end()  # meanwhile there may be more
                self._second = None
                continue
            if wanted.answer.done() or asyncio.get_running_loop().time() >= wanted.ends_at:
                _conclude(wanted, RegistryNotAsked("other images were asked for first, each alone"))
                continue
            try:
                second = await self._started_second()
            except (OSError, ConfigError) as exc:
                _conclude(wanted, RegistryNotAsked(f"the image was not asked for: {type(exc).__name__}"))
            except FetcherEnded:  # before it was asked anything
                self._suspects.put_back(wanted.question.tenant, wanted)
            else:
                await self._examine_one(second, wanted)

    async def _started_second(self) -> FetcherChild:
        """Returns the second fetcher, or another if it has ended. Raises as `FetcherChild.start`."""
        if self._second and not self._second.has_ended:
            return self._second
        if self._second:
            await self._second.end()
        settings = msgspec.structs.replace(self._settings, resident_bytes=SECOND_RESIDENT_BYTES)
        self._second = FetcherChild(settings, SECOND)
        await self._second.start()
        self._tell(self._second)
        return self._second

    async def _examine_one(self, second: FetcherChild, wanted: _PendingQuestion) -> None:
        image = wanted.question.reference
        try:
            answer = await second.ask(wanted.now(_ALONE_SECONDS))
        except ProtocolError:
            _conclude(wanted, RegistryNotAsked("the question is too long"))
        except FetcherEnded as exc:
            wanted.deaths += 1
            if exc.is_over or wanted.deaths >= _DEATHS:
                self._suspects.suspect(image)
                log.warning("fetcher.ended_by", image=str(image), tenant=wanted.question.tenant)
                _conclude(wanted, RegistryUnavailable(f"{image.domain} sent more than could be read"))
            else:
                self._suspects.put_back(wanted.question.tenant, wanted)
        else:
            is_cleared = not (isinstance(answer, FailedAnswer) and answer.kind == RegistryUnavailable.__name__)
            if is_cleared:
                self._suspects.clear(image)
            if not wanted.answer.done():
                wanted.answer.set_result(answer)


class _RemoteProvider:
    """A provider that the fetcher asks. What needs no request is as `known` says."""

    def __init__(self, client: FetcherClient, spec: ProviderSpec, known: LoginProvider) -> None:
        self.name = known.name
        self.principal = known.principal
        self._client = client
        self._spec = spec
        self._known = known

    @property
    def source(self) -> Source | Cloud:
        return self._known.source

    def serves(self, repository: str) -> bool:
        return self._known.serves(repository)

    async def provide(self, repository: str) -> ProvidedCredentials:
        return await self._client.provide(self._spec, repository)


@contextlib.asynccontextmanager
async def open_fetcher(settings: FetcherSettings) -> AsyncIterator[FetcherClient]:
    """Runs a fetcher until the context is left. Returns before it is ready; questions wait for it."""
    client = FetcherClient(settings)
    async with in_background(client.keep_running(), "fetcher"):
        try:
            yield client
        finally:
            await client.close()


def _conclude(wanted: _PendingQuestion, error: ExtenderError) -> None:
    if not wanted.answer.done():
        wanted.answer.set_exception(error)


def _check_length(credential: Credential) -> None:
    if len(credential.username) + len(credential.password) > _MOST_CREDENTIAL:
        raise RegistryDenied("the credential is longer than a registry takes")
