"""What does asking for an image cost that is known already, as nearly every one is?

Compared with a dictionary of answers, which has neither expiry nor credentials, and with a hit of `async_lru`, which
has no credentials. Pods name different images each time, so that the figures do not come from the processor's caches
alone.
"""

import gc
import time
from collections.abc import Sequence

import msgspec
import uvloop
from async_lru import alru_cache

from benchmarks.cores import cores, pinned
from benchmarks.far_registry import FarRegistry, far_registry
from benchmarks.images import KEYRING, learn, names_at, open_resolver
from benchmarks.report import Claim, Line, Plot, Report, Table, this_machine
from extender.credentials.keyring import Keyring
from extender.images.content import Answer
from extender.resolver.image_cache import ImageQuery
from extender.resolver.resolver import Resolver

QUESTION = "What does asking for an image cost that is known already?"
KNOWN, ASKED, ROUNDS = 2_000, 100_000, 5
SIZES = (1, 2, 5, 10)
MOST_MICROSECONDS = 3.0


class Cost(msgspec.Struct, frozen=True):
    """Microseconds per image when a pod names `images` of them."""

    name: str
    images: int
    microseconds: float


def run(*, fewer: int = 1) -> Report:
    """Returns the report. It takes a few seconds."""
    core = cores()
    with far_registry(core=core.load, delay_seconds=0) as registry, pinned(core.server):
        costs = uvloop.run(_measure(registry, max(KNOWN // fewer, 20), max(ASKED // fewer, 100)))
    by_name = {(cost.name, cost.images): cost.microseconds for cost in costs}
    two, cached = by_name["resolve_all", 2], by_name["alru_cache", 1]
    return Report(
        name="known_images",
        question=QUESTION,
        tables=[
            Table(
                "µs per known image",
                ["", *(f"{size} in a pod" for size in SIZES)],
                [[name, *(by_name.get((name, size)) for size in SIZES)] for name in dict.fromkeys(_names(costs))],
            )
        ],
        claims=[
            Claim(what="a known image, one of two", value=two, unit="µs", at_most=MOST_MICROSECONDS),
            Claim(what="a known image, one of two, over a hit of async_lru", value=two / cached),
        ],
        plots=[
            Plot(
                name="known_images",
                title="Asking for images that are known",
                x_label="images in a pod",
                y_label="µs per image",
                lines=[
                    Line(name, [(size, by_name[name, size]) for size in SIZES if (name, size) in by_name])
                    for name in ("peek_all", "resolve_all")
                ],
            )
        ],
        notes=[f"{KNOWN // fewer} images known; the least of {ROUNDS} times {ASKED // fewer} images asked for."],
        machine=this_machine(),
    )  # fmt: skip


def _names(costs: Sequence[Cost]) -> list[str]:
    return [cost.name for cost in costs]


async def _measure(registry: FarRegistry, known: int, lookups: int) -> list[Cost]:
    names = [f"{name}:known" for name in names_at(registry.hosts, known)]
    async with open_resolver(registry) as resolver:
        await learn([ImageQuery(name) for name in names], resolver)
        answers = resolver.peek_all([ImageQuery(name) for name in names], KEYRING)
        by_name = dict(zip(names, answers, strict=True))
        operators = Keyring()
        costs = [Cost("dictionary", 1, _dictionary(by_name, names, lookups))]
        costs.append(Cost("alru_cache", 1, await _alru_cache(by_name, names, lookups)))
        costs += [Cost("peek_all", size, _peek_all(resolver, operators, _pods(names, size), lookups)) for size in SIZES]
        costs += [
            Cost("resolve_all", size, await _resolve_all(resolver, operators, _pods(names, size), lookups))
            for size in SIZES
        ]
    return costs


def _pods(names: Sequence[str], size: int) -> list[list[str]]:
    return [[names[(first + further) % len(names)] for further in range(size)] for first in range(0, len(names), size)]


def _dictionary(answers: dict[str, Answer], names: Sequence[str], lookups: int) -> float:
    watch = _Watch(lookups)
    for _ in range(ROUNDS):
        watch.start()
        for number in range(lookups):
            answers[names[number % len(names)]]
        watch.stop()
    return watch.least


async def _alru_cache(answers: dict[str, Answer], names: Sequence[str], lookups: int) -> float:
    @alru_cache(maxsize=len(names))
    async def remembered(name: str) -> Answer:
        return answers[name]

    for name in names:
        await remembered(name)
    watch = _Watch(lookups)
    for _ in range(ROUNDS):
        watch.start()
        for number in range(lookups):
            await remembered(names[number % len(names)])
        watch.stop()
    return watch.least


def _peek_all(resolver: Resolver, keyring: Keyring, pods: Sequence[Sequence[str]], lookups: int) -> float:
    size = len(pods[0])
    watch = _Watch(lookups // size * size)
    for _ in range(ROUNDS):
        watch.start()
        for number in range(lookups // size):
            resolver.peek_all([ImageQuery(image) for image in pods[number % len(pods)]], keyring)
        watch.stop()
    return watch.least


async def _resolve_all(resolver: Resolver, keyring: Keyring, pods: Sequence[Sequence[str]], lookups: int) -> float:
    size = len(pods[0])
    watch = _Watch(lookups // size * size)
    for _ in range(ROUNDS):
        watch.start()
        for number in range(lookups // size):
            await resolver.resolve_all([ImageQuery(image) for image in pods[number % len(pods)]], keyring, 0.1)
        watch.stop()
    return watch.least


class _Watch:
    """A stopwatch that keeps the shortest time between `start` and `stop`, in microseconds per item.

    It collects garbage when it is made. `count` is the number of items.
    """

    def __init__(self, count: int) -> None:
        gc.collect()
        self.least = float("inf")
        self._count = count
        self._started = 0.0

    def start(self) -> None:
        self._started = time.perf_counter()

    def stop(self) -> None:
        self.least = min(self.least, (time.perf_counter() - self._started) / self._count * 1e6)
