"""How many pods a second does a real kube-scheduler place, with and without an extender?

All pods of a run are created while no scheduler runs. Then kube-scheduler starts, and its own count of bound pods is
read a few times a second. `python -m benchmarks.cluster.throughput --help` lists sizes, variants and providers;
`--provider kind` needs docker, kind and kubectl, and has not been run.
"""

import asyncio
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from benchmarks.cluster.measurements import Measurement
from benchmarks.cluster.scheduler_run import FAST, SAMPLE_SECONDS, SchedulerRun
from benchmarks.cluster.throughput_report import report_of
from benchmarks.cluster.variants import QUICK, Variant, chosen, in_round
from benchmarks.reference.programs import Programs, find_programs
from benchmarks.report import Report, print_report, this_machine, write_report
from testbed.api_client import connect
from testbed.binaries import BinariesMissing, find_binaries
from testbed.cluster_provider import ClusterProvider
from testbed.control_plane import LocalCluster
from testbed.embedded_registry import EmbeddedRegistry
from testbed.kind_cluster import KindCluster
from testbed.processes import ProcessFailed

PROVIDERS = ("local", "kind")
_SEEN_SECONDS = 25.0  # from one run of 3,000 pods to the next, on two cores
_BUILD = re.compile(r'^kubernetes_build_info\{.*git_version="([^"]+)"', re.MULTILINE)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured: each number of nodes in each round, on a new cluster."""

    nodes: Sequence[int]
    pods: int
    rounds: int
    variants: Sequence[Variant]

    @property
    def runs(self) -> int:
        """The number of runs."""
        return len(self.nodes) * sum(len(in_round(self.variants, number)) for number in range(self.rounds))


def run(
    *,
    fewer: int = 1,
    nodes: Sequence[int] = (1000, 5000),
    pods: int = 3000,
    rounds: int = 4,
    only: Sequence[str] = (),
    provider: str = "local",
) -> Report:
    """Returns the report; `only` names variants, empty for all. Call it from the main thread (see parent_death.py).

    Raises ValueError, BinariesMissing, ProcessFailed, NotAsked, Misplaced, TimeoutError.
    """
    plan = Plan(
        nodes=[max(2, count // fewer) for count in nodes],
        pods=max(10, pods // fewer),
        rounds=max(1, rounds // fewer),
        variants=chosen(only),
    )
    programs = find_programs()
    measurements, scheduler = _measure(plan, provider, programs, Console(stderr=True).print)
    machine = this_machine(**{"kube-scheduler": scheduler, "Go (extenders)": programs.go_version})
    return report_of(measurements, machine, _notes(plan, provider))


def _measure(
    plan: Plan, provider: str, programs: Programs, say: Callable[[str], None]
) -> tuple[list[Measurement], str]:
    """Runs the plan; returns the measurements and kube-scheduler's version."""
    say(f"{plan.runs} runs, about {plan.runs * _SEEN_SECONDS * max(plan.pods, 600) / 3000 / 60:.0f} minutes")
    measurements: list[Measurement] = []
    version, began = "?", time.monotonic()
    for number in range(plan.rounds):
        for nodes in plan.nodes:
            with _cluster(provider) as cluster:
                found, version = asyncio.run(_play(plan, number, nodes, cluster, programs, say))
                measurements += found
    say(f"{time.monotonic() - began:.0f} s in all")
    return measurements, version


async def _play(
    plan: Plan, number: int, nodes: int, cluster: ClusterProvider, programs: Programs, say: Callable[[str], None]
) -> tuple[list[Measurement], str]:
    """Runs one round at one size, on a cluster that is up and empty."""
    measurements: list[Measurement] = []
    text = ""
    with tempfile.TemporaryDirectory(prefix="multiarch-throughput-") as folder:
        async with connect(cluster.kubeconfig) as api, EmbeddedRegistry() as registry:
            run = SchedulerRun(cluster, api, registry, programs, Path(folder))
            await run.set_up(nodes)
            for variant in in_round(plan.variants, number):
                measured, text = await run.measure(variant, plan.pods)
                measurements.append(measured)
                pace = f"{measured.pace.pods_per_second:.0f} pods/s, created {measured.created_per_second:.0f}/s"
                say(f"round {number + 1} of {plan.rounds}, {nodes:,} nodes, {variant.name}: {pace}")
    found = _BUILD.search(text)
    return measurements, found[1] if found else "?"


@contextmanager
def _cluster(provider: str) -> Iterator[ClusterProvider]:
    """Runs a cluster inside the block."""
    cluster: ClusterProvider = LocalCluster(find_binaries()) if provider == "local" else KindCluster()
    with cluster:
        yield cluster


def _notes(plan: Plan, provider: str) -> list[str]:
    """Returns the conditions of the run."""
    return [
        f"provider {provider}; {plan.pods:,} pods a run (a tenth where whole nodes are sent), created before the start",
        f"pods/s: kube-scheduler's schedule_attempts_total, read every {SAMPLE_SECONDS:g} s, from the first to",
        "  the last reading with some pods bound and others not; the median of the rounds",
        "ratios: of two variants in the same round, on the same cluster; the median of the rounds",
        f"rounds: {plan.rounds}, each on a fresh control plane, every second one in reverse order",
        "cores: nothing is pinned, and a disturbed run compares nothing",
        f"kube-scheduler: the second scheduler's shipped file and flags, with clientConnection {FAST};",
        "  the API server's flow control exempts it",
        "nodes: some 11 KB each, half amd64 and half arm64 in random order, and they never change. kube-scheduler",
        "  looks for 420 feasible ones of 1,000 and for 500 of 5,000, and asks the extender about those alone",
        "webhook: it acts at creation (created/s); when pods are scheduled nobody is asked, but the service runs",
    ]


def main(
    nodes: Annotated[list[int] | None, typer.Option(help="Nodes; repeat it for several sizes.")] = None,
    variant: Annotated[list[str] | None, typer.Option(help="Only this variant; repeat it for several.")] = None,
    quick: Annotated[bool, typer.Option(help="Only the variants that a claim is made of.")] = False,
    pods: Annotated[int, typer.Option(help="Pods a run.")] = 3000,
    rounds: Annotated[int, typer.Option(help="Rounds; every second one goes backwards.")] = 4,
    provider: Annotated[str, typer.Option(help="local (processes) or kind (containers; not yet run).")] = "local",
    out: Annotated[Path | None, typer.Option(help="Folder to write the report into, as JSON.")] = None,
) -> None:
    """How many pods a second does a real kube-scheduler place, with and without an extender?"""
    if provider not in PROVIDERS:
        raise typer.BadParameter(f"{provider} is neither of {' and '.join(PROVIDERS)}")
    only = variant or (QUICK if quick else ())
    try:
        chosen(only)
    except ValueError as exc:
        raise typer.BadParameter(str(exc)) from None
    try:
        report = run(nodes=nodes or (1000, 5000), pods=pods, rounds=rounds, only=only, provider=provider)
    except (BinariesMissing, ProcessFailed) as exc:
        print(exc, file=sys.stderr)
        raise typer.Exit(1) from None
    print_report(Console(width=160), report)
    if out:
        print(write_report(out, report))


if __name__ == "__main__":
    typer.run(main)
