"""How do honest tenants fare while others attack the service in every way we know?

Each attack is made alone on a fresh service, and then all are made together. The service and its children have one core
and a container's memory; the honest load, the registries, the API server and all attackers share the other core. The
honest load goes first there and the attackers last. All go before what else runs on this machine, if they may.
`run_siege` needs a network namespace of its own (`network.isolating`).
"""

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec

from benchmarks.cores import cores
from benchmarks.report import Claim, Report, Table, this_machine
from benchmarks.siege.attacks import ATTACKS
from benchmarks.siege.container import contained, limits_memory
from benchmarks.siege.figures import COLUMNS, Phase
from benchmarks.siege.network import prepare_network
from benchmarks.siege.service import BesiegedService
from benchmarks.siege.settings import Files, write_files
from benchmarks.siege.tenants import read_pods
from testbed.child import Child, child, run_program
from testbed.shipped_environment import as_shipped

QUESTION = "How do honest tenants fare while others attack?"
SECONDS, QUIET_SECONDS, KILLED_SECONDS, TOGETHER_SECONDS = 15.0, 20.0, 60.0, 100.0
WARM_UP_SECONDS, KILL_SECONDS = 2.0, 2.0
PODS_PER_SECOND = 30.0
QUIET, KILLED, TOGETHER = "quiet", "killed", "together"
NAMES = (QUIET, *ATTACKS, KILLED, TOGETHER)
LEAST_KNOWN_PERCENT = 99.0
_USUAL = ("chrt", "--other", "0")


class Plan(msgspec.Struct, frozen=True):
    """A phase to come: what attacks in it, and whether fetchers are killed."""

    name: str
    words: str
    seconds: float
    attacks: Sequence[str] = ()
    kills: bool = False


def planned(only: Sequence[str], seconds: float, *, skips_together: bool = False) -> list[Plan]:
    """Returns the phases, of which the quiet one is always the first.

    `seconds` is for each attack alone, and the other phases last in proportion. With names in `only`, just these are
    made, and together too if several attack.
    """
    scale = seconds / SECONDS
    attacks = [name for name in ATTACKS if not only or name in only]
    plans = [Plan(QUIET, "quiet", QUIET_SECONDS * scale)]
    plans += (Plan(name, ATTACKS[name].words, seconds, [name]) for name in attacks)
    if not only or KILLED in only:
        plans.append(Plan(KILLED, "the fetcher killed every 2 s", KILLED_SECONDS * scale, kills=True))
    if not skips_together and len(attacks) > 1:
        plans.append(Plan(TOGETHER, "all attacks together", TOGETHER_SECONDS * scale, attacks))
    return plans


def run_siege(plans: Sequence[Plan], groups: Sequence[Path]) -> Report:
    """Makes the phases; `groups` are the service's control groups.

    Raises:
        NetworkMissing: the network cannot be prepared.
        ServerFailed: a process does not start.
    """
    on = cores()
    os.sched_setaffinity(0, {on.load})
    with contextlib.suppress(OSError):  # this process is on time, and those that it starts
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        Path("/proc/self/autogroup").write_text("-15")  # its group of processes (sched(7)), for the attackers
    with tempfile.TemporaryDirectory(prefix="siege-") as scratch:
        prepare_network(Path(scratch))
        files = write_files(Path(scratch))
        pair = (str(files.certificate), str(files.key))
        with (
            child("benchmarks.siege.servers", "honest", *pair),
            _attacking("benchmarks.siege.servers", "attacking", *pair),
        ):
            phases = list[Phase]()
            for plan in plans:
                print(plan.words, file=sys.stderr, flush=True)
                phases.append(_make(plan, files, groups, on.server))
    return _report(plans, phases, groups)


def _attacking(module: str, *arguments: str) -> AbstractContextManager[Child]:
    """Runs a program of the attackers."""
    return run_program([*_USUAL, sys.executable, "-m", module, *arguments])


def _make(plan: Plan, files: Files, groups: Sequence[Path], core: int) -> Phase:
    """Makes one phase on a fresh service.

    The attack is under way when the honest load begins, and goes on until the last pod of that has its answer.
    """
    pods, counts, log = (files.folder / f"{plan.name}.{what}" for what in ("pods", "counts", "log"))
    serve = as_shipped([sys.executable, "-m", "extender", "serve", f"--config={files.configuration}"])
    with contextlib.ExitStack() as stack:
        service = stack.enter_context(BesiegedService([*_USUAL, *contained(serve, groups)], log, core))
        if plan.attacks:
            stack.enter_context(_attacking("benchmarks.siege.attackers", str(counts), *plan.attacks))
        stack.enter_context(child("benchmarks.siege.tenants", PODS_PER_SECOND, pods))
        time.sleep(WARM_UP_SECONDS)
        service.forget()
        began, ends = time.monotonic(), service.fetcher_ends()
        killed = _pass_time(plan, service)
        ended, deaths = time.monotonic(), service.deaths
        ends = max(0, service.fetcher_ends() - killed - (0 if deaths else ends))  # the last kill may not be noted yet
    return Phase(
        words=plan.words,
        pods=[pod for pod in read_pods(pods) if began <= pod.at < ended],
        megabytes=service.megabytes,
        both_megabytes=service.both_megabytes,
        hold_seconds=service.hold_seconds,
        deaths=deaths,
        fetcher_ends=ends,
        killed=killed,
        counts=msgspec.json.decode(counts.read_bytes(), type=dict[str, int]) if plan.attacks else {},
    )


def _pass_time(plan: Plan, service: BesiegedService) -> int:
    """Waits for as long as the phase lasts; returns the number of fetchers that were killed meanwhile."""
    killed, deadline = 0, time.monotonic() + plan.seconds
    while (left := deadline - time.monotonic()) > 0:
        time.sleep(min(left, KILL_SECONDS))
        killed += service.kill_fetchers() if plan.kills else 0
    return killed


def _report(plans: Sequence[Plan], phases: Sequence[Phase], groups: Sequence[Path]) -> Report:
    enforced = "by a control group" if limits_memory(groups) else "not enforced, since no control group can be made"
    alone = [phase for plan, phase in zip(plans, phases, strict=True) if plan.name != TOGETHER]
    return Report(
        name="siege",
        question=QUESTION,
        tables=[Table("The honest load, and the service", COLUMNS, [phase.row(phases[0]) for phase in phases])],
        claims=[
            Claim(what="wrong answers", value=sum(phase.wrong for phase in phases), unit="", at_most=0),
            Claim(what="lost answers, alone", value=sum(phase.lost.total() for phase in alone), unit="", at_most=0),
            Claim(
                what="images known in time, alone",
                value=min(phase.known_percent for phase in alone),
                unit="%",
                at_least=LEAST_KNOWN_PERCENT,
            ),
            Claim(
                what="processes that an attack ended, alone",
                value=sum(phase.deaths + phase.fetcher_ends for phase in alone),
                unit="",
                at_most=0,
            ),
        ],
        notes=[
            *_notes(phases),
            f"The memory limit is {enforced}. {PODS_PER_SECOND:g} honest pods a second.",
            "Alone: each attack but all together.",
        ],
        machine=this_machine(),
    )


def _notes(phases: Sequence[Phase]) -> Iterator[str]:
    for phase in phases:
        if did := dict(sorted(phase.counts.items())) | ({"fetchers killed": phase.killed} if phase.killed else {}):
            yield f"{phase.words}: " + ", ".join(f"{what} {count:,}" for what, count in did.items())
        yield from (f"{phase.words}: {count} × {why}" for why, count in phase.lost.most_common(4))
