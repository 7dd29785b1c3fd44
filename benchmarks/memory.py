"""How much memory do images take: the whole service in a cluster, with 10 to 100,000 of them known?

The figures are resident memory, at its peak and after start-up, as the kernel counts it against a container's limit.
Images come from the store, as after a restart; settings are the defaults.
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
from benchmarks.quiet_cluster import quiet_cluster
from benchmarks.report import Claim, Line, Plot, Report, Table, this_machine
from extender.credentials.keyring import ANONYMOUS
from extender.images.content import Content
from extender.images.manifest import Kind
from extender.images.platform import parse_platform
from extender.images.reference import digest_of, pack_digest, parse_reference
from extender.store.rows import Batch, NameRow
from extender.store.sqlite import SqliteStore

QUESTION = "How much memory does the whole service take, with 10 to 100,000 images known?"
IMAGES = (10, 1_000, 10_000, 100_000)
NODES = 5_000
MOST_MEGABYTES = 150
LOAD_SECONDS = 60
_PLATFORMS = ("linux/amd64", "linux/arm64", "linux/arm/v7", "linux/s390x", "linux/ppc64le", "linux/386")
_CONTENTS = [
    Content(Kind.INDEX, frozenset(map(parse_platform, _PLATFORMS[:count])), states_platforms=True)
    for count in range(1, len(_PLATFORMS) + 1)
]


class Taken(msgspec.Struct, frozen=True):
    """The memory used with so many images known."""

    images: int
    process: ProcessFigures


def run(*, fewer: int = 1, nodes: int = NODES) -> Report:
    """Returns the report. It takes half a minute."""
    sizes = sorted({max(images // fewer, 10) for images in IMAGES})
    core = cores()
    with quiet_cluster(core=core.load, nodes=max(nodes // fewer, 1)) as cluster:
        taken = [_measure(core.server, cluster.kubeconfig, images) for images in sizes]
    line = statistics.linear_regression([one.images for one in taken], [one.process.megabytes for one in taken])
    most = taken[-1]
    return Report(
        name="memory",
        question=QUESTION,
        tables=[
            Table(
                "Resident memory, MB of 10^6 bytes",
                ["images", "at its highest", "after the start"],
                [[f"{one.images:,}", one.process.peak_megabytes, one.process.megabytes] for one in taken],
            )
        ],
        claims=[
            Claim(what=f"{most.images:,} images", value=most.process.peak_megabytes, unit="MB", at_most=MOST_MEGABYTES),
            Claim(what="each image", value=line.slope * 1e6, unit="bytes"),
            Claim(what="without images", value=line.intercept, unit="MB"),
        ],
        plots=[
            Plot(
                name="memory",
                title=f"The whole service in a cluster of {max(nodes // fewer, 1):,} nodes",
                x_label="images known",
                y_label="MB resident",
                lines=[
                    Line("at its highest", [(one.images, one.process.peak_megabytes) for one in taken]),
                    Line("after the start", [(one.images, one.process.megabytes) for one in taken]),
                ],
                log_x=True,
            )
        ],
        notes=[
            f"A cluster of {max(nodes // fewer, 1):,} nodes is watched. References as {resident_image(12345)}.",
            "What each image takes is the slope of the line through the values after the start, by least squares.",
        ],
        machine=this_machine(),
    )  # fmt: skip


def fill_store(path: Path, images: int) -> None:
    """Writes a store of so many images, each in a repository of its own, as if a service had just looked them up."""

    async def fill() -> None:
        store = SqliteStore(path, size=images)
        for first in range(0, images, 20_000):
            await store.put(Batch([_row(number) for number in range(first, min(first + 20_000, images))], {}))
        await store.close()

    asyncio.run(fill())


def wait_until_known(service: ObservedProcess, images: int) -> None:
    """Returns when the service has so many images cached. Raises TimeoutError."""
    deadline = time.monotonic() + LOAD_SECONDS
    while service.metric('multiarch_images{state="known"}') < images:
        if time.monotonic() > deadline:
            raise TimeoutError(f"after {LOAD_SECONDS} s the service does not know {images} images")
        time.sleep(0.1)


def _measure(core: int, kubeconfig: Path, images: int) -> Taken:
    with tempfile.TemporaryDirectory() as scratch:
        store = Path(scratch) / "images.sqlite"
        fill_store(store, images)
        settings = {"cluster": kubeconfig, "cache.url": f"sqlite:///{store}"}
        with observed_process(core=core, settings=settings) as service:
            wait_until_known(service, images)
            return Taken(images, service.look())


def _row(number: int) -> NameRow:
    reference = parse_reference(resident_image(number))
    packed = pack_digest(digest_of(b"%d" % number))
    content = _CONTENTS[number % len(_CONTENTS)]
    return NameRow(reference.repository, reference.tag, ANONYMOUS.id, packed, content, time.time())
