"""Replicas of our service: each a whole service, as `serve` opens it, with what the fetcher asks by inside.

Limits: a replica has no TLS, no store on disk, and no process beside it. A fetcher that is stopped is played: look-ups
wait for it as `FetcherClient` has them wait, and are asked again; that an image which ended two fetchers is asked for
alone is not.
"""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Sequence
from contextvars import copy_context

from extender.cluster.client import ClusterClient
from extender.cluster.configuration import Access
from extender.config.reading import load_config
from extender.config.registry_section import RegistryConfig
from extender.config.tree import Config
from extender.credentials.keyring import CredentialId
from extender.errors import RegistryNotAsked
from extender.fetcher.messages import Failed, Look, SeenImage, failed_of
from extender.fetcher.settings import PATIENCE_SECONDS
from extender.fetcher.sources import LocalSources, open_local_sources
from extender.service.cluster_view import watched_view
from extender.service.compose import open_service
from testbed.machines import machine_in
from testbed.memory_http import Client
from testbed.memory_listening import PARTY
from testbed.memory_network import Network
from tests.worlds.observed import Log, Observed, sizes_of

SCHEDULER_PORT, ADMISSION_PORT, OPERATIONS_PORT = 8880, 8443, 8881
_LISTENS = (  # on the pod's own loopback, as TLS alone may be elsewhere; in memory that is the pod's address
    f"scheduler.listen=127.0.0.1:{SCHEDULER_PORT}",
    f"admission.listen=127.0.0.1:{ADMISSION_PORT}",
    "admission.tls=null",
    f"operations.listen=127.0.0.1:{OPERATIONS_PORT}",
    "cache.url='memory:'",
)
_LEEWAY_SECONDS = 0.5  # as in fetcher_client
_PROBE_SECONDS = 5.0
_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # of a URL that has none


class Replica:
    """One pod of our service, at an address of its own. It may be started again once it has ended."""

    def __init__(
        self,
        network: Network,
        name: str,
        address: str,
        settings: Sequence[str],
        *,
        api_url: str,
        registries: Sequence[str] = (),
        namespace: str = "multiarch-extender",
    ) -> None:
        """`settings` are those of `--set`, with the listeners that are off. `registries` are asked without TLS."""
        self.name, self.address = name, address
        self.settings = (*_LISTENS, f"registry.plain_http={[*registries]}", *settings)
        self.is_running = False
        self.started_at = 0.0
        self.logs: list[Log] = []
        """Every log event of each start, with its time as `at`; an exception as text under `exception`."""
        self._network = network
        self.access = Access(url=api_url, tls=_TLS, authorize=_no_headers, namespace=namespace)
        self._client = Client(network, "")
        self._party = Observed(address, network.loop.time)
        self._opened, self._stop = asyncio.Event(), asyncio.Event()
        self._serving: asyncio.Task[None] | None = None
        self._sources: StoppableSources | None = None
        self._grace_seconds = 0.0

    async def start(self) -> None:
        """Returns when it listens. Raises ConfigError, and what else its start fails with."""
        config = load_config(None, self.settings)
        self._grace_seconds = config.shutdown.grace_seconds
        self._party = party = Observed(self.address, self._network.loop.time)
        party.logs = self.logs
        self._network.parties.append(party)
        opened, stop = self._opened, self._stop = asyncio.Event(), asyncio.Event()
        context = copy_context()
        context.run(PARTY.set, party)
        loop = asyncio.get_running_loop()
        self.is_running, self.started_at = True, loop.time()
        serving = self._serving = loop.create_task(self._serve(config, opened, stop), context=context)
        serving.add_done_callback(lambda _: self._note_end(party))
        opening = loop.create_task(opened.wait())
        await asyncio.wait((serving, opening), return_when=asyncio.FIRST_COMPLETED)
        opening.cancel()
        if serving.done() and not serving.cancelled() and (error := serving.exception()):
            raise error

    async def terminate(self) -> float:
        """Sends SIGTERM; returns after how many seconds the replica has ended, which it does within its grace."""
        began_at = self._network.loop.time()
        serving = self._serving
        if serving and self.is_running:
            if not self._opened.is_set():
                serving.cancel()
            self._stop.set()
            _, late = await asyncio.wait((serving,), timeout=self._grace_seconds)
            if late:
                self.kill()
        return self._network.loop.time() - began_at

    def kill(self) -> None:
        """Ends it at once, as SIGKILL does."""
        self._note_end(self._party)

    def stop_fetcher(self, seconds: float) -> None:
        """Has look-ups wait for a fetcher for so long, those too that are under way."""
        if self._sources:
            self._sources.stop(seconds)

    async def readyz(self) -> tuple[int, str]:
        """The status and text of `/readyz`."""
        return await self._probe("readyz")

    async def livez(self) -> tuple[int, str]:
        """The status and text of `/livez`."""
        return await self._probe("livez")

    @property
    def able(self) -> bool:
        """Whether it may hold pods: some replica leads, and this one would remove a gate too."""
        return self.is_running and self.metrics().get("multiarch_gates_removal{able}", 0.0) == 1.0

    def metrics(self) -> dict[str, float]:
        """Counters and gauges since its start, by `name{label,label}`."""
        return self._party.metrics()

    def sizes(self) -> dict[str, int]:
        """How much it keeps: by `Class.attribute` of the package's objects, `tasks`, and `connections` of any side."""
        connections = sum(self.address in (each.server, each.of) for each in self._network.links)
        return {**sizes_of(self._party), "connections": connections}

    async def _probe(self, path: str) -> tuple[int, str]:
        url = f"http://{self.address}:{OPERATIONS_PORT}/{path}?verbose"
        answer = await self._client.request("GET", url, timeout_seconds=_PROBE_SECONDS)
        return answer.status, answer.body.decode()

    def _note_end(self, party: Observed) -> None:
        """Of its process: the kernel closes what is open."""
        self._network.end(party)
        if self._party is party:
            self.is_running = False

    async def _serve(self, config: Config, opened: asyncio.Event, stop: asyncio.Event) -> None:
        machine = machine_in(self._network, self.name)

        async def load() -> Access:
            return self.access

        client = ClusterClient(self.access, load, machine.clock)
        try:
            async with open_service(config, watched_view(client, machine), self._open_sources, machine):
                opened.set()
                await stop.wait()
        finally:
            await client.close()

    @contextlib.asynccontextmanager
    async def _open_sources(self, settings: RegistryConfig, id_key: bytes, /) -> AsyncIterator["StoppableSources"]:
        machine = machine_in(self._network, self.name)
        async with open_local_sources(settings, id_key, machine=machine, patience_seconds=PATIENCE_SECONDS) as sources:
            self._sources = StoppableSources(sources)
            yield self._sources


class StoppableSources:
    """Sources that answer as a fetcher does which is away at times."""

    def __init__(self, sources: LocalSources) -> None:
        self._sources = sources
        self._under_way: dict[asyncio.Task[SeenImage | Failed], None] = {}
        self._away_until = 0.0

    @property
    def operator_id(self) -> CredentialId:
        """That of the last fetcher."""
        return self._sources.operator_id

    @property
    def is_ready(self) -> bool:
        """Whether a fetcher has opened its files."""
        return self._sources.is_ready

    async def check(self) -> None:
        """Returns."""

    def stop(self, seconds: float) -> None:
        """Ends what is under way."""
        self._away_until = asyncio.get_running_loop().time() + seconds
        for task in self._under_way:
            task.cancel()

    async def look(self, look: Look) -> SeenImage | Failed:
        """As `FetcherClient` has it."""
        seconds = look.seconds + PATIENCE_SECONDS + _LEEWAY_SECONDS
        try:
            async with asyncio.timeout(seconds):
                while True:
                    await self._wait()
                    answer = await self._ask(look)
                    if answer is not None:
                        return answer
        except TimeoutError:
            return failed_of(RegistryNotAsked(f"{look.reference.domain} was not asked within {seconds:.3g} s"))

    async def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        while loop.time() < self._away_until:
            await asyncio.sleep(self._away_until - loop.time())

    async def _ask(self, look: Look) -> SeenImage | Failed | None:
        """None if the fetcher has ended meanwhile."""
        task = asyncio.get_running_loop().create_task(self._sources.look(look))
        self._under_way[task] = None
        try:
            await asyncio.wait((task,))
            return None if task.cancelled() else task.result()
        finally:
            task.cancel()
            del self._under_way[task]


async def _no_headers() -> dict[str, str]:
    return {}
