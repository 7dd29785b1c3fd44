"""What does the whole service take in a cluster, with 10 to 100,000 images known: memory, time to start, an idle core?

Memory is resident memory, at its peak and after start-up, as the kernel counts it against a container's limit. Images
come from the store, as after a restart; settings are the defaults.
"""

import asyncio
import statistics
import tempfile
import time
from pathlib import Path

import msgspec

from benchmarks.cores import cores
from benchmarks.observed_process import ObservedProcess, ProcessFigures, observed_process
from benchmarks.payloads import resident_image
from benchmarks.process_costs import children, cpu_seconds, memory
from benchmarks.quiet_cluster import QuietCluster, quiet_cluster
from benchmarks.report import Claim, Report, Table, this_machine
from extender.credentials.keyring import ANONYMOUS
from extender.images.content import Content
from extender.images.manifest import Kind
from extender.images.platform import parse_platform
from extender.images.reference import digest_of, pack_digest, parse_reference
from extender.store.rows import Batch, NameRow
from extender.store.sqlite import SqliteStore

QUESTION = "What does the whole service take, with 10 to 100,000 images known?"
IMAGES = (10, 1_000, 10_000, 100_000)
NODES = 5_000
MOST_MEGABYTES, MOST_READY_SECONDS, MOST_IDLE_PERCENT = 150, 1.5, 0.5
LOAD_SECONDS, IDLE_SECONDS = 60.0, 30.0
_PLATFORMS = ("linux/amd64", "linux/arm64", "linux/arm/v7", "linux/s390x", "linux/ppc64le", "linux/386")
_CONTENTS = [
    Content(Kind.INDEX, frozenset(map(parse_platform, _PLATFORMS[:count])), states_platforms=True)
    for count in range(1, len(_PLATFORMS) + 1)
]


class Taken(msgspec.Struct, frozen=True):
    """What the service took with so many images known; `idle_percent` is of a core, in both processes."""

    images: int
    process: ProcessFigures
    fetcher_megabytes: float
    ready_seconds: float
    idle_percent: float


def run(*, fewer: int = 1, nodes: int = NODES) -> Report:
    """Returns the report. It takes some minutes."""
    sizes, nodes = sorted({max(images // fewer, 10) for images in IMAGES}), max(nodes // fewer, 1)
    core = cores()
    with quiet_cluster(core=core.load, nodes=nodes) as cluster:
        taken = [_measure(core.server, cluster, images, IDLE_SECONDS / fewer) for images in sizes]
    line = statistics.linear_regression([one.images for one in taken], [one.process.megabytes for one in taken])
    most = taken[-1]
    with_all = f"{most.images:,} images"
    return Report(
        name="memory",
        question=QUESTION,
        tables=[
            Table(
                "MB of 10^6 bytes, resident; seconds from the start of the process to the first 200 of /readyz",
                ["images", "most MB", "MB after the start", "fetcher's MB", "ready s", "idle % of a core"],
                [
                    [f"{one.images:,}", one.process.peak_megabytes, one.process.megabytes, one.fetcher_megabytes,
                     one.ready_seconds, one.idle_percent]
                    for one in taken
                ],
            )
        ],
        claims=[
            Claim(what=f"most, {with_all}", value=most.process.peak_megabytes, unit="MB", at_most=MOST_MEGABYTES),
            Claim(what="each image", value=line.slope * 1e6, unit="bytes"),
            Claim(what="without images", value=line.intercept, unit="MB"),
            Claim(what=f"ready, {with_all} stored", value=most.ready_seconds, unit="s", at_most=MOST_READY_SECONDS),
            Claim(what=f"idle, {with_all}", value=most.idle_percent, unit="% of a core", at_most=MOST_IDLE_PERCENT),
        ],
        notes=[
            f"A cluster of {nodes:,} nodes is watched. References as {resident_image(12345)}.",
            "What each image takes is the slope of the line through the values after the start, by least squares.",
            f"Idle: {IDLE_SECONDS / fewer:g} s without a request. Ready waits half a second for the store at most.",
        ],
        machine=this_machine(),
    )  # fmt: skip


def _measure(core: int, cluster: QuietCluster, images: int, idle_seconds: float) -> Taken:
    with tempfile.TemporaryDirectory() as scratch:
        store = Path(scratch) / "images.sqlite"
        asyncio.run(_fill_store(store, images))
        settings = {"cache.url": f"sqlite:///{store}"}
        with observed_process(core=core, cluster=cluster, settings=settings) as service:
            _wait_until_known(service, images)
            figures, fetchers = service.look(), list(children(service.pid))
            before = sum(map(cpu_seconds, (service.pid, *fetchers)))
            time.sleep(idle_seconds)
            spent = sum(map(cpu_seconds, (service.pid, *fetchers))) - before
            fetcher_megabytes = sum(memory(pid).now_megabytes for pid in fetchers)
            return Taken(images, figures, fetcher_megabytes, service.ready_seconds, spent / idle_seconds * 100)


async def _fill_store(path: Path, images: int) -> None:
    """Writes a store of so many images, each in a repository of its own, as if a service had just looked them up."""
    store = SqliteStore(path, size=images)
    for first in range(0, images, 20_000):
        await store.put(Batch([_row(number) for number in range(first, min(first + 20_000, images))], {}))
    await store.close()


def _wait_until_known(service: ObservedProcess, images: int) -> None:
    """Returns when the service has so many images cached. Raises TimeoutError."""
    deadline = time.monotonic() + LOAD_SECONDS
    while service.metric('multiarch_images{state="known"}') < images:
        if time.monotonic() > deadline:
            raise TimeoutError(f"after {LOAD_SECONDS:g} s the service does not know {images} images")
        time.sleep(0.1)


def _row(number: int) -> NameRow:
    reference = parse_reference(resident_image(number))
    packed = pack_digest(digest_of(b"%d" % number))
    content = _CONTENTS[number % len(_CONTENTS)]
    return NameRow(reference.repository, reference.tag, ANONYMOUS.id, packed, content, time.time())
