"""The service's client of its fetcher: starts it, asks it, and starts another when it ends.

What was asked for when a fetcher ended is asked for again at once. It may also be why the fetcher ended: what was asked
for at a second end is asked for alone, by a process that exists only for that. So nobody's image keeps another's from
being known, and a fetcher that is killed costs its callers time.
"""

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator

import msgspec
import structlog

from extender.background import in_background
from extender.circuit_breaker import Backoff, CircuitBreaker
from extender.config.registry_section import RegistryConfig
from extender.credentials.keyring import NO_OPERATOR, CredentialId
from extender.errors import ConfigError, RegistryError, RegistryNotAsked, RegistryUnavailable
from extender.fetcher.child import ALONE, MAIN, FetcherChild, FetcherEnded
from extender.fetcher.messages import (
    Failed,
    Look,
    ProtocolError,
    SeenImage,
    ToQuestion,
    failed_of,
)
from extender.fetcher.settings import PATIENCE_SECONDS, FetcherSettings, LogLevel
from extender.images.content import Cause
from extender.images.reference import ImageReference
from extender.metrics import counter
from extender.tables import LruTable
from extender.turns import NoTurn, Turns

log = structlog.get_logger()

ENDS = counter(
    "multiarch_fetcher_ends_total",
    "Ends of the process that asks registries; over: it became too large; silent: it answered no ping; garbled: it "
    "sent nonsense; refused: its files cannot be used; unstarted: it did not start.",
    "cause",
    ("ended", "over", "silent", "garbled", "refused", "unstarted"),
)

# Together with the service this is less than 512 MiB. One question alone needs little.
RESIDENT_BYTES, ALONE_RESIDENT_BYTES = 150 << 20, 100 << 20
# A start after a process that lived for a second follows at once, others after a wait.
_WELL_SECONDS = 1.0
_RESTART = Backoff(first_seconds=1.0, max_seconds=10.0)
_DEATHS = 2  # of fetchers, at which an image was asked for that is then asked for alone
_ALONE_SECONDS = 3.0  # for which one image is asked for alone, since others wait
_LEEWAY_SECONDS = 0.5  # in which a fetcher says that the time is over, before its caller does
_SUSPECTED_SECONDS, _MOST_SUSPECTS = 300.0, 4096


class FetcherClient:
    """Asks registries by a fetcher, as `sources.LocalSources` does in its own process.

    `is_ready`: a fetcher has opened its files. It may have ended since, and another one be on its way.
    """

    def __init__(self, settings: FetcherSettings) -> None:
        self._settings = settings
        self._alone_until: LruTable[ImageReference, float] = LruTable(_MOST_SUSPECTS)
        self._main: asyncio.Future[FetcherChild] = asyncio.get_running_loop().create_future()
        self._checked = asyncio.Event()  # the first fetcher has opened its files, or has ended
        self._refusal: ConfigError | None = None
        self._starts, self._starts_alone = (
            CircuitBreaker(_RESTART, clock=time.monotonic, random=lambda: 0.0) for _ in range(2)
        )
        self._turns = Turns(total=1, each=1, at_host=1)  # of an image alone
        self._children: set[FetcherChild] = set()
        self._last: FetcherChild | None = None
        self._is_closed = False
        self.is_ready = False

    @property
    def operator_id(self) -> CredentialId:
        """What stands for the operator's credentials, by the last fetcher that has opened them; empty without any."""
        return self._last.operator_id if self._last else NO_OPERATOR

    async def look(self, look: Look) -> SeenImage | Failed:
        """As `LocalSources`, also when a fetcher ends meanwhile."""
        seconds = look.seconds + PATIENCE_SECONDS + _LEEWAY_SECONDS
        ends_at = asyncio.get_running_loop().time() + seconds
        try:
            async with asyncio.timeout_at(ends_at):
                answer = await self._find(look, ends_at)
        except (TimeoutError, NoTurn):
            return failed_of(RegistryNotAsked(f"{look.reference.domain} was not asked within {seconds:.3g} s"))
        except RegistryError as exc:
            return failed_of(exc)
        assert isinstance(answer, SeenImage | Failed)  # noqa: S101 - what the fetcher answers to it
        return answer

    async def check(self) -> None:
        """Returns when the fetcher has opened its files, or has ended before that.

        Raises:
            ConfigError: one of the files cannot be used.
        """
        await self._checked.wait()
        if self._refusal:
            raise self._refusal

    async def keep_running(self) -> None:
        """Runs fetchers, one after the other, until cancelled."""
        while True:
            began_at = time.monotonic()
            cause = await self._run_one()
            self._note_end(MAIN, cause, self._starts, is_well=time.monotonic() - began_at >= _WELL_SECONDS)
            await asyncio.sleep(self._starts.wait_seconds())

    def _note_end(self, name: str, cause: str, starts: CircuitBreaker, *, is_well: bool) -> None:
        """Counts and logs the end of a process, which nobody has wanted. If it was well, the next starts at once."""
        ENDS[cause].inc()
        if is_well:
            starts.record_success()
        else:
            starts.record_failure()
        log.warning("fetcher.ended", process=name, cause=cause, next_seconds=round(starts.wait_seconds(), 3))

    async def close(self) -> None:
        """Ends what asks for images alone; whatever is asked from now on is not."""
        self._is_closed = True
        await asyncio.gather(*(child.end() for child in self._children))

    async def _run_one(self) -> str:
        """Runs a fetcher until it ends; returns the cause."""
        child = FetcherChild(msgspec.structs.replace(self._settings, resident_bytes=RESIDENT_BYTES), MAIN)
        try:
            await child.start()
            self._last, self.is_ready = child, True
            self._checked.set()
            self._main.set_result(child)
            await child.wait_end()
        except Exception as exc:  # noqa: BLE001 - whatever it is, another one is started
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
        if isinstance(error, ConfigError) and not self._checked.is_set():
            self._refusal = error
        self._checked.set()
        waiting, self._main = self._main, asyncio.get_running_loop().create_future()
        if not waiting.done():
            waiting.set_exception(RegistryNotAsked("the process that asks registries could not be started"))
            waiting.exception()  # which is no news if nobody waits

    async def running(self) -> FetcherChild:
        """Returns the fetcher once there is one. Raises RegistryNotAsked if it cannot be started."""
        while not self._is_closed:
            main = await asyncio.shield(self._main)
            if not main.has_ended:
                return main
            await main.wait_end()
            await asyncio.sleep(0)  # in which it is replaced by the next
        raise RegistryNotAsked("the service is stopping")

    async def _find(self, look: Look, ends_at: float) -> ToQuestion:
        deaths = _DEATHS if (self._alone_until.get(look.reference) or 0.0) > time.monotonic() else 0
        while deaths < _DEATHS:
            main = await self.running()
            left = ends_at - asyncio.get_running_loop().time() - _LEEWAY_SECONDS
            try:
                return await main.ask(msgspec.structs.replace(look, seconds=max(0.0, min(look.seconds, left))))
            except ProtocolError:
                raise RegistryNotAsked("the question is too long") from None
            except FetcherEnded:
                deaths += 1
        return await self._find_alone(look, ends_at)

    async def _find_alone(self, look: Look, ends_at: float) -> ToQuestion:
        """Asks in a process of its own, and again if that ends, which may be chance.

        For some minutes the image is asked for in this way at once, unless its registry now answers about it.
        """
        image, look = look.reference, msgspec.structs.replace(look, seconds=_ALONE_SECONDS)
        self._alone_until.put(image, time.monotonic() + _SUSPECTED_SECONDS)
        for _ in range(_DEATHS):
            try:
                answer = await self._ask_in_child(look, ends_at)
            except FetcherEnded:
                continue
            if not isinstance(answer, Failed) or answer.failure.cause is not Cause.UNAVAILABLE:
                self._alone_until.remove(image)
            return answer
        log.warning("fetcher.ended_by", image=str(image), tenant=look.tenant)
        raise RegistryUnavailable(f"{image.domain} sent more than could be read")

    async def _ask_in_child(self, look: Look, ends_at: float) -> ToQuestion:
        """Returns the answer of a process that exists only for this question. One at a time; tenants take turns.

        Raises:
            NoTurn, RegistryNotAsked: no turn came in time, or no process could be started.
            FetcherEnded: it ended before it answered.
        """
        async with self._turns.turn(look.tenant):
            await asyncio.sleep(self._starts_alone.wait_seconds())
            if self._is_closed:
                raise RegistryNotAsked("the service is stopping")
            if asyncio.get_running_loop().time() >= ends_at:
                raise RegistryNotAsked("other images were asked for first, each alone")
            settings = msgspec.structs.replace(self._settings, resident_bytes=ALONE_RESIDENT_BYTES)
            child = FetcherChild(settings, ALONE)
            self._children.add(child)
            try:
                return await self._ask_child(child, look, ends_at)
            finally:
                await child.end()
                self._children.discard(child)

    async def _ask_child(self, child: FetcherChild, look: Look, ends_at: float) -> ToQuestion:
        try:
            await child.start()
        except (OSError, ConfigError, ProtocolError, FetcherEnded) as exc:
            await child.wait_end()
            self._note_end(child.name, child.cause, self._starts_alone, is_well=False)
            raise RegistryNotAsked(f"no process could be started to ask for the image: {type(exc).__name__}") from None
        self._starts_alone.record_success()
        left = min(ends_at - asyncio.get_running_loop().time(), look.seconds)
        try:
            return await child.ask(msgspec.structs.replace(look, seconds=max(0.0, left)))
        except ProtocolError:
            raise RegistryNotAsked("the question is too long") from None
        except FetcherEnded:
            await child.wait_end()
            self._note_end(child.name, child.cause, self._starts_alone, is_well=True)
            raise


@contextlib.asynccontextmanager
async def open_fetcher(
    registry: RegistryConfig, id_key: bytes = b"", *, log_level: LogLevel = "info"
) -> AsyncIterator[FetcherClient]:
    """Runs a fetcher until the context is left. Returns before it is ready; questions wait for it.

    `id_key` is the hash key of the id that stands for the operator's credentials. Empty: a random one.
    """
    client = FetcherClient(
        FetcherSettings(registry=registry, log_level=log_level, id_key=id_key or secrets.token_bytes(32))
    )
    async with in_background(client.keep_running(), "fetcher"):
        try:
            yield client
        finally:
            await client.close()
