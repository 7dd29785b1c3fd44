"""What does it cost to look up images: one after the other, one for many callers at once, and many at once?

One after the other they are asked for by filter calls to the whole service. The others are compared with aiohttp
sending the same requests and ignoring the answers. The registry is a process of its own on the other core, answers
after 50 ms, and counts requests.
"""

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from statistics import median, quantiles
from typing import Any

import aiohttp
import msgspec
import uvloop

from benchmarks import payloads
from benchmarks.cores import cores, pinned
from benchmarks.far_registry import Counts, FarRegistry, far_registry
from benchmarks.loopback import Connection, request_bytes
from benchmarks.observed_process import ObservedProcess, observed_process
from benchmarks.quiet_cluster import quiet_cluster
from benchmarks.report import Claim, Report, Table, this_machine
from extender.credentials.keyring import Keyring
from extender.credentials.operator_keyring import OperatorKeyring
from extender.fetcher.sources import LocalSources
from extender.images.content import Content
from extender.machine import THIS_MACHINE
from extender.registry.addresses import AddressGuard
from extender.registry.http import open_session
from extender.registry.image_description import RegistryImages
from extender.resolver.image_cache import ImageQuery
from extender.resolver.resolver import Resolver

QUESTION = "What does it take to get to know images: one that many want at the same time, and many at once?"
DELAY_SECONDS = 0.05
BURST = 500
KINDS = ("multi-arch", "single")
COLD, COLD_ONE_HOST = 10_000, 1_000
ALONE, NODES = 200, 100
MOST_ALONE = {"multi-arch": 60.0, "single": 120.0}  # ms; one answer of the registry's, and one more for a config
PER_HOST = 16  # lookups that the service has under way at one registry host
TENANTS = [Keyring(tenant=f"team-{number}") for number in range(16)]  # together they may ask as much as anybody may
TENANTS_LOOKUPS = 64  # of one tenant, under way or waiting: fewer than it may have, so that none is put off
KEYRING = Keyring()
_BURST_COLUMNS = ("image", "callers", "HEAD manifests", "GET manifests", "GET blobs", "all, ms", "one alone, ms")
_ALONE_COLUMNS = ("image", "images", "requests", "connections", "p50, ms", "p99, ms", "p50 / the registry's delay")
_COLD_COLUMNS = ("", "images", "seconds", "images/s", "requests", "connections", "most at one host")


class Cold(msgspec.Struct, frozen=True):
    """The number of images looked up, the time it took, and the registry's counts."""

    images: int
    seconds: float
    counts: Counts

    @property
    def per_second(self) -> float:
        """Images per second."""
        return self.images / self.seconds

    @property
    def peak(self) -> int:
        """The most requests that one host had in flight at once."""
        return max(self.counts.peak_in_flight.values(), default=0)

    def row(self, name: str) -> list[str | int | float]:
        """Returns the table's row."""
        requests = sum(self.counts.requests.values())
        return [name, self.images, self.seconds, self.per_second, requests, self.counts.connections, self.peak]


class Alone(msgspec.Struct, frozen=True):
    """How long a filter call took for each image of a kind, one after the other, and the registry's counts."""

    kind: str
    milliseconds: list[float]
    counts: Counts

    def row(self) -> list[str | int | float]:
        """Returns the table's row."""
        requests = sum(self.counts.requests.values())
        p50, p99 = (quantiles(self.milliseconds, n=100, method="inclusive")[each - 1] for each in (50, 99))
        delays = p50 / (DELAY_SECONDS * 1000)
        return [self.kind, len(self.milliseconds), requests, self.counts.connections, p50, p99, delays]

    def claim(self) -> Claim:
        """Returns the claim of the usual time."""
        what = f"a filter call for a new image alone, {self.kind}, p50"
        return Claim(what=what, value=median(self.milliseconds), unit="ms", at_most=MOST_ALONE[self.kind])


class Burst(msgspec.Struct, frozen=True):
    """So many simultaneous callers for one image, and the time of a single lookup of another image."""

    callers: int
    seconds: float
    alone_seconds: float
    counts: Counts


def run(*, fewer: int = 1) -> Report:
    """Returns the report. It takes about half a minute, most of it in the registry."""
    core = cores()
    with far_registry(core=core.load, delay_seconds=DELAY_SECONDS) as registry:
        with (
            quiet_cluster(core=core.load, nodes=NODES) as cluster,
            observed_process(
                core=core.server, cluster=cluster, registry=registry, settings={"scheduler.wait_seconds": 10}
            ) as service,
        ):
            alone = [_alone(service, registry, kind, max(ALONE // fewer, 2)) for kind in KINDS]
        with pinned(core.server):
            return uvloop.run(_measure(registry, fewer, alone))


def _alone(service: ObservedProcess, registry: FarRegistry, kind: str, count: int) -> Alone:
    """Has a pod of each image filtered, one after the other, as kube-scheduler asks."""
    images = [f"{registry.hosts[0]}/{kind}/alone-{number}:1" for number in range(count + 1)]
    first = KINDS.index(kind) * len(images)  # a pod of its own for each: a lookup is waited for by pod
    pods = [payloads.pod((image,), serial=f"{number:08}") for number, image in enumerate(images, first)]
    window = payloads.Window(NODES)
    requests = [request_bytes("/scheduler/filter", payloads.by_names(pod, window)) for pod in pods]
    host, _, port = service.addresses["scheduler"].partition(":")
    with Connection(host, int(port)) as connection:
        connection.ask(requests[0])
        registry.forget()
        taken = [_seconds_of(connection, request) * 1000 for request in requests[1:]]
    return Alone(kind, taken, registry.counts())


def _seconds_of(connection: Connection, request: bytes) -> float:
    started = time.perf_counter()
    answer = connection.ask(request)
    assert b'"Error":""' in answer, answer
    return time.perf_counter() - started


async def _measure(registry: FarRegistry, fewer: int, alone: Sequence[Alone]) -> Report:
    bursts = {kind: await _burst(registry, kind, max(BURST // fewer, 2)) for kind in KINDS}
    one = await _cold(registry, names_at(registry.hosts[:1], max(COLD_ONE_HOST // fewer, 4)), "one")
    many = await _cold(registry, names_at(registry.hosts, max(COLD // fewer, 4)), "many")
    floor = await _floor(registry, names_at(registry.hosts, max(COLD // fewer, 4)))
    return Report(
        name="images",
        question=QUESTION,
        tables=[
            Table(
                "How long does a new image take? One after the other", _ALONE_COLUMNS, [each.row() for each in alone]
            ),
            Table("One cold image, many callers", _BURST_COLUMNS, [_burst_row(*each) for each in bursts.items()]),
            Table(
                "Cold images, all asked for at once",
                _COLD_COLUMNS,
                [
                    one.row("one registry host"),
                    many.row(f"{len(registry.hosts)} hosts"),
                    floor.row("bare aiohttp, as many hosts"),
                ],
            ),
        ],
        claims=[
            *(each.claim() for each in alone),
            *(claim for kind, burst in bursts.items() for claim in _burst_claims(kind, burst)),
            _claim("cold images a second over bare aiohttp's", many.per_second / floor.per_second, at_least=0.5),
            Claim(
                what="most requests to one host at a time", value=max(one.peak, many.peak), unit="", at_most=PER_HOST
            ),
        ],
        notes=[
            f"The registry answers after {DELAY_SECONDS * 1000:g} ms. An image takes a GET, and its config another.",
            f"At most {PER_HOST} requests at a time to one host, as shipped, bare aiohttp's too.",
        ],
        machine=this_machine(),
    )


@contextlib.asynccontextmanager
async def open_resolver(registry: FarRegistry) -> AsyncIterator[Resolver]:
    """Opens the service's own resolver and client, with empty caches and default settings."""
    guard = AddressGuard(allow=[host.partition(":")[0] for host in registry.hosts])
    async with open_session(guard=guard) as session:
        client = RegistryImages(
            session,
            timeout_seconds=10,
            plain_http=frozenset(registry.hosts),
            machine=THIS_MACHINE,
            guard=guard,
        )
        resolver = Resolver(
            LocalSources(client, OperatorKeyring(token_bytes=THIS_MACHINE.token_bytes)),
            size=100_000,
            tag_seconds=900,
            stale_seconds=86_400,
            clock=THIS_MACHINE.clock,
            random=THIS_MACHINE.random,
        )
        yield resolver
        await resolver.close()


async def _burst(registry: FarRegistry, kind: str, callers: int) -> Burst:
    async with open_resolver(registry) as resolver:
        alone, shared = (f"{registry.hosts[0]}/{kind}/{name}:1" for name in ("alone", "burst"))
        alone_seconds = await _timed(lambda: learn([ImageQuery(alone)], resolver))
        registry.forget()
        seconds = await _timed(lambda: asyncio.gather(*(learn([ImageQuery(shared)], resolver) for _ in range(callers))))
        return Burst(callers, seconds, alone_seconds, registry.counts())


async def _cold(registry: FarRegistry, names: Sequence[str], generation: str) -> Cold:
    """Looks up all images at once, each for a caller of its own, of sixteen tenants."""
    registry.forget()
    async with open_resolver(registry) as resolver:
        waiting = [asyncio.Semaphore(TENANTS_LOOKUPS) for _ in TENANTS]

        async def learn_one(number: int, name: str) -> None:
            tenant = number // len(registry.hosts) % len(TENANTS)
            async with waiting[tenant]:
                await learn([ImageQuery(f"{name}:{generation}")], resolver, TENANTS[tenant])

        seconds = await _timed(lambda: asyncio.gather(*itertools.starmap(learn_one, enumerate(names))))
    return Cold(len(names), seconds, registry.counts())


async def _floor(registry: FarRegistry, names: Sequence[str]) -> Cold:
    """Sends the same requests within the same limits with aiohttp, and does not decode the answers."""
    registry.forget()
    room = {host: asyncio.Semaphore(PER_HOST) for host in registry.hosts}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=256)) as session:

        async def fetch(name: str) -> None:
            async with room[name.partition("/")[0]]:
                await _fetch(session, name)

        seconds = await _timed(lambda: asyncio.gather(*map(fetch, names)))
    return Cold(len(names), seconds, registry.counts())


async def _fetch(session: aiohttp.ClientSession, name: str) -> None:
    host, _, repository = name.partition("/")
    async with session.get(f"http://{host}/v2/{repository}/manifests/bare") as answer:
        assert answer.status == 200
        await answer.read()


async def learn(lookups: Sequence[ImageQuery], resolver: Resolver, keyring: Keyring = KEYRING) -> None:
    """Looks up all images. Raises AssertionError if a lookup fails."""
    answers = await resolver.resolve_all(lookups, keyring, 600)
    assert all(isinstance(answer, Content) for answer in answers), answers


async def _timed(work: Callable[[], Awaitable[Any]]) -> float:
    started = time.perf_counter()
    await work()
    return time.perf_counter() - started


def names_at(hosts: Sequence[str], count: int) -> list[str]:
    """Returns the names of so many repositories, distributed over the hosts in turn."""
    return [f"{hosts[number % len(hosts)]}/team-{number % 97}/service-{number}/component" for number in range(count)]


def _burst_row(kind: str, burst: Burst) -> list[str | int | float]:
    counts = [burst.counts.of(each) for each in _BURST_COLUMNS[2:5]]
    return [kind, burst.callers, *counts, burst.seconds * 1000, burst.alone_seconds * 1000]


def _burst_claims(kind: str, burst: Burst) -> list[Claim]:
    expected = {"HEAD manifests": 0, "GET manifests": 1, "GET blobs": int(kind == "single")}
    return [
        *(
            Claim(what=f"{what} for one {kind} image", value=burst.counts.of(what), unit="", at_least=one, at_most=one)
            for what, one in expected.items()
        ),
        _claim(f"time of all over that of one alone, {kind}", burst.seconds / burst.alone_seconds, at_most=2),
    ]


def _claim(what: str, value: float, *, at_least: float | None = None, at_most: float | None = None) -> Claim:
    return Claim(what=what, value=value, at_least=at_least, at_most=at_most)
