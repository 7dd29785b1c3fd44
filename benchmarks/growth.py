"""How do cost and latency grow with nodes and images?

Nodes: requests about the same pod with an increasing number of node names. Images: an increasing number of cached
images, and requests about pods that use all of them.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from benchmarks import payloads
from benchmarks.contenders import OURS, TYPED, Contenders, contenders
from benchmarks.cores import cores
from benchmarks.measured_servers import MeasuredServer, serve
from benchmarks.report import Claim, Line, Plot, Report, Table, this_machine
from benchmarks.wrk import SERIAL, Load, Target, take_turns

QUESTION = "How do cost and latency grow with nodes and images?"
SECONDS, ROUNDS = 1.0, 3
NODES = (10, 100, 500, 1_000, 2_000, 5_000, 10_000, 15_000)
IMAGES = (10, 100, 1_000, 10_000, 100_000)
NAMES = 500  # in each request while images grow: as many as kube-scheduler passes on for 5,000 nodes
PODS = 6_000  # of two images each, too many for any table of texts or templates to hold
FILTER, PRIORITIZE, ADMIT = "/scheduler/filter", "/scheduler/prioritize", "/admission/pods"
NONE_REFUSED, HALF_REFUSED, PRIORITIZED = "filter, none refused", "filter, half refused", "prioritize"
FILTERED, ADMITTED = f"filter, {NAMES} names", "webhook"


class Fit(msgspec.Struct, frozen=True):
    """The straight line nearest to some points, and the share of their variance that it explains (R², at most 1)."""

    slope: float
    intercept: float
    r_squared: float


def fit_line(points: Sequence[tuple[float, float]]) -> Fit:
    """Returns the least-squares line. For points at the same height it is level and explains everything (R² is 1)."""
    xs, ys = zip(*points, strict=True)
    slope, intercept = statistics.linear_regression(xs, ys)
    if len(set(ys)) == 1:
        return Fit(slope, intercept, 1.0)
    return Fit(slope, intercept, statistics.correlation(xs, ys) ** 2)


class Step(msgspec.Struct, frozen=True):
    """The measurements at one size, by series."""

    size: int
    loads: Mapping[str, Load]


def run(*, fewer: int = 1, nodes: Sequence[int] = NODES, images: Sequence[int] = IMAGES) -> Report:
    """Returns the report; `nodes` and `images` are the sizes, ascending."""
    with contenders(nodes=max(nodes), null=False) as running:
        by_nodes = [_ask_about(size, running, fewer) for size in nodes]
        machine = this_machine(go=running.go_version)
    by_images = [_with_resident(size, fewer) for size in images]
    fits = {series: fit_line(_medians(by_nodes, series)) for series in by_nodes[0].loads}
    return Report(
        name="growth",
        question=QUESTION,
        tables=[
            _measured("p50 in milliseconds, by names asked about", "names", by_nodes),
            _fitted(fits),
            _measured("p50 in milliseconds, by images in memory", "images", by_images),
            _throughput(by_images),
        ],
        claims=list(_claims(fits, by_images)),
        plots=[
            _plot("growth-nodes", "Median latency by names asked about", "names", by_nodes),
            _plot("growth-images", "Median latency by images in memory", "images in memory", by_images, log_x=True),
        ],
        notes=[
            f"one connection; {max(ROUNDS // fewer, 1)} turns of {SECONDS / fewer:g} s each, one series after another",
            f"images: up to {max(PODS // fewer, 10):,} pods of two each, drawn at random over all resident ones",
        ],
        machine=machine,
    )


def _ask_about(size: int, running: Contenders, fewer: int) -> Step:
    questions = {
        NONE_REFUSED: (FILTER, payloads.by_names(running.multi, size)),
        HALF_REFUSED: (FILTER, payloads.by_names(running.single, size)),
        PRIORITIZED: (PRIORITIZE, payloads.by_names(running.multi, size)),
    }
    targets: dict[str, Target] = {}
    for question, (path, body) in questions.items():
        running.check(path, body)
        found = running.targets(path, body, OURS, TYPED)
        targets |= {f"{question}: {name}": target for name, target in found.items()}
    return Step(size, _measure(targets, fewer))


def _with_resident(size: int, fewer: int) -> Step:
    """Measures a service that has so many images cached, with requests about pods that use all of them."""
    with serve("service", core=cores().server, nodes=NAMES, images=size) as serving:
        return Step(size, _measure(_drawn(serving, size, max(PODS // fewer, 10)), fewer))


def _drawn(serving: MeasuredServer, images: int, pods: int) -> dict[str, Target]:
    pairs = [tuple(map(payloads.resident_image, pair)) for pair in spread(images, pods)]
    return {
        FILTERED: Target(
            serving["scheduler"] + FILTER, [payloads.by_names(pair, NAMES, serial=SERIAL) for pair in pairs]
        ),
        ADMITTED: Target(serving["admission"] + ADMIT, [payloads.review(pair, serial=SERIAL) for pair in pairs]),
    }


def spread(images: int, pods: int) -> list[tuple[int, int]]:
    """Returns pairs of images for at most so many pods, spread evenly over all images."""
    count = min(images // 2, pods)
    return [(number * images // count, (2 * number + 1) * images // (2 * count)) for number in range(count)]


def _measure(targets: Mapping[str, Target], fewer: int) -> dict[str, Load]:
    rounds = max(ROUNDS // fewer, 1)
    return take_turns(targets, connections=1, seconds=SECONDS / fewer, rounds=rounds, core=cores().load)


def _medians(steps: Sequence[Step], series: str) -> list[tuple[float, float]]:
    return [(step.size, step.loads[series].p50) for step in steps]


def _measured(title: str, size: str, steps: Sequence[Step]) -> Table:
    return Table(
        title,
        [size, *steps[0].loads],
        [[f"{step.size:,}", *(load.p50 for load in step.loads.values())] for step in steps],
    )


def _fitted(fits: Mapping[str, Fit]) -> Table:
    return Table(
        "straight lines by least squares",
        ["", "ms per 1,000 names", "ms at none", "R²"],
        [[series, fit.slope * 1000, fit.intercept, fit.r_squared] for series, fit in fits.items()],
    )


def _throughput(steps: Sequence[Step]) -> Table:
    return Table(
        "p99 in milliseconds and answers measured, by images in memory",
        ["images", *(f"{series}, {figure}" for series in steps[0].loads for figure in ("p99", "answers"))],
        [
            [f"{step.size:,}", *(cell for load in step.loads.values() for cell in (load.p99, load.requests))]
            for step in steps
        ],
    )


def _claims(fits: Mapping[str, Fit], by_images: Sequence[Step]) -> Iterator[Claim]:
    for question, mark in ((NONE_REFUSED, 0.06), (HALF_REFUSED, None), (PRIORITIZED, None)):
        for name in (OURS, TYPED):
            slope = fits[f"{question}: {name}"].slope * 1000
            what = f"each further name, {question}: {name}"
            yield Claim(what=what, value=slope, unit="µs", at_most=mark if name == OURS else None)
    first, last = by_images[0], by_images[-1]
    for series in first.loads:
        what = f"{series}: p50 with {last.size:,} images in memory / with {first.size:,}"
        yield Claim(what=what, value=last.loads[series].p50 / first.loads[series].p50)


def _plot(name: str, title: str, x_label: str, steps: Sequence[Step], *, log_x: bool = False) -> Plot:
    lines = [Line(series, _medians(steps, series)) for series in steps[0].loads]
    return Plot(name=name, title=title, x_label=x_label, y_label="milliseconds", lines=lines, log_x=log_x)
