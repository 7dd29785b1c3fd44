"""How do honest tenants fare while others attack the service in every way we know?

Each attack is made alone on a fresh service, and then all are made together. The service and its children have one core
and a container's memory; the honest load, the registries, the API server and all attackers share the other core. The
honest load goes first there and the attackers last. All go before what else runs on this machine, if they may.
The service looks inside images (`registry.verify: background`) where layers attack.

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
from benchmarks.siege.figures import COLUMNS, Phase, marks_row
from benchmarks.siege.images import LAYERS
from benchmarks.siege.inspections import COLUMNS as INSPECTED
from benchmarks.siege.inspections import Inspection, inspect_kinds
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
FAULTS = "wrong or lost answers"
UNCLAIMED = "layers that change what is known, or say no reason"
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
        hurts = any(LAYERS in plan.attacks for plan in plans)
        with (
            child("benchmarks.siege.servers", "honest", *pair),
            _attacking("benchmarks.siege.servers", "hurting" if hurts else "attacking", *pair),
        ):
            phases, inspections = list[Phase](), list[Inspection]()
            for plan in plans:
                phases.append(_make(plan, files, groups, on.server))
                missed = "; ".join(phases[-1].missed(phases[0])) or "all marks hold"
                print(f"{plan.words}: {missed}", file=sys.stderr, flush=True)
                if plan.name == LAYERS:
                    inspections += inspect_kinds(files.configuration, on.server)
    return _report(phases, inspections, groups)


def _attacking(module: str, *arguments: str) -> AbstractContextManager[Child]:
    """Runs a program of the attackers."""
    return run_program([*_USUAL, sys.executable, "-m", module, *arguments])


def _make(plan: Plan, files: Files, groups: Sequence[Path], core: int) -> Phase:
    """Makes one phase on a fresh service.

    The attack is under way when the honest load begins, and goes on until the last pod of that has its answer.
    """
    pods, counts, log = (files.folder / f"{plan.name}.{what}" for what in ("pods", "counts", "log"))
    serve = as_shipped([sys.executable, "-m", "extender", "serve", f"--config={files.configuration}"])
    serve += ["--set=registry.verify=background"] * (LAYERS in plan.attacks)
    with contextlib.ExitStack() as stack:
        service = stack.enter_context(BesiegedService([*_USUAL, *contained(serve, groups)], log, core))
        if plan.attacks:
            stack.enter_context(_attacking("benchmarks.siege.attackers", str(counts), *plan.attacks))
        stack.enter_context(child("benchmarks.siege.tenants", PODS_PER_SECOND, pods))
        time.sleep(WARM_UP_SECONDS)
        service.forget()
        began, (own, of_children) = time.monotonic(), service.processor_seconds()
        killed = _pass_time(plan, service)
        looks = service.looks() if LAYERS in plan.attacks else {}
        ended, (own_after, of_children_after) = time.monotonic(), service.processor_seconds()
    return Phase(
        words=plan.words,
        seconds=ended - began,
        pods=[pod for pod in read_pods(pods) if began <= pod.at < ended],
        megabytes=service.megabytes,
        both_megabytes=service.both_megabytes,
        hold_seconds=service.hold_seconds,
        livez_seconds=service.livez_seconds,
        service_seconds=max(0.0, own_after - own),  # less if it was started again meanwhile
        children_seconds=max(0.0, of_children_after - of_children),
        deaths=service.deaths,
        killed=killed,
        counts=looks | (msgspec.json.decode(counts.read_bytes(), type=dict[str, int]) if plan.attacks else {}),
    )


def _pass_time(plan: Plan, service: BesiegedService) -> int:
    """Waits for as long as the phase lasts; returns the number of fetchers that were killed meanwhile."""
    killed, deadline = 0, time.monotonic() + plan.seconds
    while (left := deadline - time.monotonic()) > 0:
        time.sleep(min(left, KILL_SECONDS))
        killed += service.kill_fetchers() if plan.kills else 0
    return killed


def _report(phases: Sequence[Phase], inspections: Sequence[Inspection], groups: Sequence[Path]) -> Report:
    rows = [phase.row(phases[0]) for phase in phases]
    enforced = "by a control group" if limits_memory(groups) else "not enforced, since no control group can be made"
    return Report(
        name="siege",
        question=QUESTION,
        tables=[
            Table("The honest load, and the service", COLUMNS, [*rows, marks_row()]),
            Table(
                "Layers that are made to hurt", INSPECTED, [list(msgspec.structs.astuple(each)) for each in inspections]
            ),
        ],
        claims=[
            Claim(what=FAULTS, value=sum(phase.faults for phase in phases), unit="", at_most=0),
            Claim(what=UNCLAIMED, value=sum(not each.is_right for each in inspections), unit="", at_most=0),
        ],
        notes=[*_notes(phases), f"The memory limit is {enforced}. {PODS_PER_SECOND:g} honest pods a second."],
        machine=this_machine(),
    )


def _notes(phases: Sequence[Phase]) -> Iterator[str]:
    for phase in phases:
        if did := dict(sorted(phase.counts.items())) | ({"fetchers killed": phase.killed} if phase.killed else {}):
            yield f"{phase.words}: " + ", ".join(f"{what} {count:,}" for what, count in did.items())
    for phase in phases:
        yield from (f"{phase.words}: {count} × {why}" for why, count in phase.lost.most_common(4))
        yield from (f"missed: {phase.words}: {mark}" for mark in phase.missed(phases[0]))
