"""How do ten honest namespaces fare while five others, and strangers, attack the service in every way we know?

Each attack is made alone on a fresh service, after a quiet time, and then all are made together. The service has one
core and a container's memory; the honest load, the registries, the API server and all attackers share the other core.
The honest load has the highest priority there and the attackers the lowest. How late the load generator's own timers
and those of the honest registries were is printed, since that much of the latencies is not the service's.

`run_siege` needs a network namespace of its own (`network.isolating`).
"""

import contextlib
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from benchmarks.cores import cores
from benchmarks.process_costs import machine_seconds
from benchmarks.report import Cell, Claim, Report, Table, this_machine
from benchmarks.siege.answers import NODES
from benchmarks.siege.attacks import ATTACKS, TenantsAttack, chosen
from benchmarks.siege.memory_limit import memory_limit
from benchmarks.siege.network import prepare_network
from benchmarks.siege.outcome import COLUMNS, MARKS, Outcome, Window, joined, percentile, window_of
from benchmarks.siege.records import GENERATOR, REGISTRIES, AttackRecord, read_records
from benchmarks.siege.service import BesiegedService, Conditions, Grounds, besieged_service, write_grounds
from testbed.child import child

QUESTION = "How do honest tenants fare while others attack?"
SECONDS, QUIET_SECONDS, TOGETHER_SECONDS = 20.0, 5.0, 600.0
WARM_UP_SECONDS = 1.5
PODS_PER_SECOND = 30.0
TOGETHER = "together"
TOGETHER_SHARE = 2  # tenants' attacks together come as often as so many of them alone
DIFFERENCES = (
    "Settings as shipped, but for the registries' authority (registry.ca_files), a plugin that hangs "
    "(registry.credential_providers), and the paths of files."
)
LATENESS = ("generator late p99 ms", "honest registries late p99 ms")
FAULTS = "wrong or lost answers"


class Lengths(msgspec.Struct, frozen=True, kw_only=True):
    """The seconds of each attack alone, of the quiet time before it, and of all attacks together; 0: not made."""

    seconds: float = SECONDS
    quiet_seconds: float = QUIET_SECONDS
    together_seconds: float = TOGETHER_SECONDS


class Assault(msgspec.Struct, frozen=True):
    """Attacks that are made at the same time. `share` is how much each tenants' attack does of what it does alone."""

    name: str
    words: str
    attacks: Sequence[str]
    seconds: float
    share: float = 1.0

    def share_of(self, attack: str) -> float:
        """Returns the share of one attack. Nothing limits strangers, but an API server limits tenants together."""
        return self.share if isinstance(ATTACKS[attack], TenantsAttack) else 1.0


def run_siege(names: Sequence[str], lengths: Lengths, *, is_real_time: bool = False) -> Report:
    """Makes the attacks of these names, or all, and then all of them together.

    `is_real_time`: the service runs in a real-time class.

    Raises:
        NetworkMissing: the network cannot be prepared.
        ServerFailed: a process does not start.
    """
    attacks = chosen(names)
    with tempfile.TemporaryDirectory(prefix="siege-") as scratch, memory_limit() as limit:
        prepare_network(Path(scratch))
        grounds = write_grounds(Path(scratch))
        conditions = Conditions(cores(), limit, is_real_time)
        with _registries_of(grounds, conditions.cores.load):
            fought = [_fight(each, grounds, conditions, lengths) for each in _assaults(attacks, lengths)]
    return _report(fought, conditions, lengths)


def _assaults(attacks: Sequence[str], lengths: Lengths) -> Iterator[Assault]:
    for name in attacks if lengths.seconds else ():
        yield Assault(name, ATTACKS[name].words, [name], lengths.seconds)
    if lengths.together_seconds and len(attacks) > 1:
        tenants = sum(isinstance(ATTACKS[name], TenantsAttack) for name in attacks)
        share = TOGETHER_SHARE / max(tenants, TOGETHER_SHARE)
        yield Assault(TOGETHER, "all of them together", attacks, lengths.together_seconds, share)


@contextlib.contextmanager
def _registries_of(grounds: Grounds, core: int) -> Iterator[None]:
    """Runs the registries and the name server."""
    pair = grounds.certificate, grounds.key
    with (
        child("benchmarks.siege.registries", "honest", core, *pair, grounds.registries_log),
        child("benchmarks.siege.registries", "attacking", core, *pair, os.devnull),
    ):
        yield


class Fought(msgspec.Struct, frozen=True):
    """An assault that has been made: its outcome, the quiet time before it, and the service's core in that."""

    outcome: Outcome
    quiet: Window
    quiet_cores: float


def _fight(assault: Assault, grounds: Grounds, conditions: Conditions, lengths: Lengths) -> Fought:
    """Makes the assault on a fresh service, after a quiet time."""
    print(f"{assault.words} …", file=sys.stderr, flush=True)
    core = conditions.cores.load
    tenants, attackers = (grounds.folder / f"{assault.name}.{kind}" for kind in ("tenants", "attackers"))
    with (  # an API server of its own: the pods that wait are those of this assault
        child("benchmarks.siege.api_server", core, NODES),
        besieged_service(grounds, assault.name, conditions) as service,
    ):
        with child("benchmarks.siege.tenants", core, PODS_PER_SECOND, tenants):
            time.sleep(WARM_UP_SECONDS)
            quiet = _span(service, lengths.quiet_seconds)
            with _attacking(assault, core, attackers):
                attacked = _span(service, assault.seconds)
        megabytes, deaths = service.most_megabytes, service.deaths
    records = [record for path in (tenants, service.holds, grounds.registries_log) for record in read_records(path)]
    outcome = Outcome(
        words=assault.words,
        window=window_of(records, attacked.began, attacked.ended),
        megabytes=megabytes,
        deaths=deaths,
        cores=attacked.cores,
        waited=attacked.waited,
        other_cores=attacked.other_cores,
        did=_did(attackers, assault.seconds),
    )
    fought = Fought(outcome, window_of(records, quiet.began, quiet.ended), quiet.cores)
    print(_progress(fought), file=sys.stderr, flush=True)
    return fought


class Span(msgspec.Struct, frozen=True):
    """A span of time, and how much of a core the service used in it, waited for, and everything else here used."""

    began: float
    ended: float
    cores: float
    waited: float
    other_cores: float


def _span(service: BesiegedService, seconds: float) -> Span:
    """Waits for so long, and returns the span."""
    began, before, all_before = time.monotonic(), service.processor_time(), machine_seconds()
    time.sleep(seconds)
    length = time.monotonic() - began
    after, all_after = service.processor_time(), machine_seconds()
    own = max(after.used_seconds - before.used_seconds, 0.0)
    waited = max(after.waited_seconds - before.waited_seconds, 0.0)
    others = all_after - all_before - own
    return Span(began, began + length, own / length, waited / length, others / length)


@contextlib.contextmanager
def _attacking(assault: Assault, core: int, path: Path) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for name in assault.attacks:
            stack.enter_context(child("benchmarks.siege.attackers", name, core, assault.share_of(name), path))
        yield


def _did(path: Path, seconds: float) -> str:
    """Returns what the attackers counted, all together, in all and per second."""
    counts = Counter[str]()
    for record in read_records(path):
        if isinstance(record, AttackRecord):
            counts.update(record.counts)
    return "; ".join(f"{what}: {count:,} ({count / seconds:,.0f}/s)" for what, count in counts.most_common())


def _progress(fought: Fought) -> str:
    figures = dict(zip(COLUMNS, fought.outcome.row(fought.quiet), strict=True))
    shown = (f"{name} {value:.4g}" for name, value in figures.items() if isinstance(value, int | float))
    return f"  {', '.join(shown)}; {fought.outcome.did}"


def _report(fought: Sequence[Fought], conditions: Conditions, lengths: Lengths) -> Report:
    quiet = joined([each.quiet for each in fought])
    outcomes = [each.outcome for each in fought]
    calm = Outcome(words=f"quiet, {len(fought)} times", window=quiet)
    return Report(
        name="siege",
        question=QUESTION,
        tables=[
            Table("The honest load, and the service", COLUMNS, [row.row(quiet) for row in (calm, *outcomes)] + [MARKS]),
            Table(
                "What the attackers did, and what it took",
                ["attack", "service, cores", "waited for", "others, cores", *LATENESS, "done"],
                [_effort(outcome) for outcome in outcomes],
            ),
        ],
        claims=[
            Claim(
                what=FAULTS,
                value=sum(
                    window.wrong + window.faults.total() for window in (quiet, *(each.window for each in outcomes))
                ),
                unit="",
                at_most=0,
            ),
            Claim(what="pods a second of the honest load", value=PODS_PER_SECOND, unit="/s"),
            Claim(what="of a core in quiet times", value=statistics.mean(each.quiet_cores for each in fought), unit=""),
        ],
        notes=_notes(outcomes, quiet, conditions, lengths),
        machine=this_machine(),
    )


def _faults(windows: Sequence[Window]) -> int:
    return sum(window.wrong + window.faults.total() for window in windows)


def _effort(outcome: Outcome) -> list[Cell]:
    lateness = [percentile(outcome.window.late_ms(who), 99) for who in (GENERATOR, REGISTRIES)]
    return [outcome.words, outcome.cores, outcome.waited, outcome.other_cores, *lateness, outcome.did]


def _notes(outcomes: Sequence[Outcome], quiet: Window, conditions: Conditions, lengths: Lengths) -> list[str]:
    late = quiet.late_ms(GENERATOR)
    return [
        f"Memory limit: {conditions.limit.words}.{' The service ran in a real-time class.' * conditions.is_real_time}",
        f"Each attack {lengths.seconds:g} s after {lengths.quiet_seconds:g} s of quiet; {len(quiet.pods)} pods then.",
        f"The load generator's timers then: p99 {percentile(late, 99):.2g} ms late, most {max(late, default=0.0):.2g}.",
        DIFFERENCES,
        *(
            f"lost: {outcome.words}: {count} × {fault.removeprefix('lost: ')}"
            for outcome in outcomes
            for fault, count in outcome.window.faults.most_common(4)
        ),
        *(f"missed: {outcome.words}: {mark}" for outcome in outcomes for mark in outcome.missed(quiet)),
    ]
