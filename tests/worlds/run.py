"""Plays many worlds, or one, and says what was found: `python -m tests.worlds FIRST COUNT`."""

import argparse
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from tests.worlds.invariants import INVARIANTS
from tests.worlds.numbered import plan_of
from tests.worlds.plan import Found, Plan, read_found, write_found
from tests.worlds.shrink import shrink
from tests.worlds.world import Outcome, play

_HUNDRED = 100


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 1 if a promise was broken, or one was checked too seldom."""
    parser = argparse.ArgumentParser(prog="python -m tests.worlds", description=__doc__)
    parser.add_argument("first", type=int, nargs="?", help="number of the first world")
    parser.add_argument("count", type=int, nargs="?", default=_HUNDRED, help="how many worlds")
    parser.add_argument("--seed", type=int, help="one world, with its trace")
    parser.add_argument("--plan", type=Path, help="a plan that was kept, with its trace")
    parser.add_argument("--shrink", action="store_true", help="leave out of a plan that fails what it can do without")
    parser.add_argument("--keep", type=Path, help="folder in which shrunk plans are kept")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long")
    parser.add_argument("--theme", help="only worlds of this theme")
    parser.add_argument("--quiet", action="store_true", help="no trace")
    parser.add_argument("--digest", action="store_true", help="print a digest of each world's trace")
    options = parser.parse_args(arguments)
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
    if options.plan:
        return _play_one(read_found(options.plan).plan, options)
    if options.seed is not None:
        return _play_one(plan_of(options.seed), options)
    if options.first is None:
        parser.error("give the number of the first world, or --seed, or --plan")
    return _play_many(range(options.first, options.first + options.count), options)


def _play_one(plan: Plan, options: argparse.Namespace) -> int:
    outcome = play(plan)
    if not options.quiet:
        print(*outcome.trace, sep="\n")
    print(f"{plan.theme}, {plan.mode}, {' '.join(plan.settings)}")
    print(f"{outcome.seconds:.0f} simulated seconds, digest {outcome.digest}")
    print(*outcome.violations, sep="\n")
    if outcome.violations and options.shrink:
        name = outcome.violations[0].invariant
        smaller = shrunk(plan, name)
        found = Found(invariant=name, defect=play(smaller).violations[0].what, plan=smaller)
        print(msgspec.json.format(msgspec.json.encode(found), indent=1).decode())
        if options.keep:
            write_found(found, options.keep / f"{plan.number}.json")
    return bool(outcome.violations)


def shrunk(plan: Plan, invariant: str) -> Plan:
    """The plan without what the same violation does not need."""

    def fails(smaller: Plan) -> bool:
        try:
            return any(each.invariant == invariant for each in play(smaller).violations)
        except Exception:  # noqa: BLE001  # a plan may become one that cannot be played
            return False

    return shrink(plan, fails)


def _play_many(numbers: Iterable[int], options: argparse.Namespace) -> int:
    checks: Counter[str] = Counter()
    broken: dict[str, list[int]] = {}
    started, cpu_started, worlds, simulated = time.monotonic(), time.process_time(), 0, 0.0
    for number in numbers:
        plan = plan_of(number)
        if options.theme and plan.theme != options.theme:
            continue
        if time.monotonic() - started > options.seconds:
            break
        outcome = _played(plan)
        worlds += 1
        if outcome is None:
            broken.setdefault("crash", []).append(number)
            continue
        checks += outcome.checks
        simulated += outcome.seconds
        if options.digest:
            print(number, outcome.digest, flush=True)
        for name in dict.fromkeys(each.invariant for each in outcome.violations):
            broken.setdefault(name, []).append(number)
            first = next(each for each in outcome.violations if each.invariant == name)
            print(f"world {number} ({plan.theme}, {plan.mode}): {first}", flush=True)
            if options.keep and len(broken[name]) == 1:
                found = Found(invariant=name, defect=first.what, plan=shrunk(plan, name))
                write_found(found, options.keep / f"{name.split()[0].lower()}-{number}.json")
        if worlds % _HUNDRED == 0:
            print(f"{worlds} worlds, {worlds / (time.process_time() - cpu_started):.1f} a second of CPU", flush=True)
    rare = _print_table(checks, broken, worlds)
    cpu = time.process_time() - cpu_started
    print(f"{worlds} worlds in {cpu:.0f} s of CPU, {worlds / max(cpu, 0.001):.2f} a second, "
          f"{simulated / max(worlds, 1):.0f} simulated seconds each")  # fmt: skip
    return bool(broken or (rare and worlds >= _HUNDRED and not options.theme))


def _played(plan: Plan) -> Outcome | None:
    try:
        return play(plan)
    except Exception as exc:  # noqa: BLE001  # the model's own mistake in one world should not hide the others
        _print_cause(exc)
        print(f"world {plan.number} ({plan.theme}, {plan.mode}) could not be played: {exc!r}", flush=True)
        return None


def _print_cause(exc: BaseException) -> None:
    while isinstance(exc, BaseExceptionGroup):
        exc = exc.exceptions[0]
    traceback.print_exception(exc, limit=-5, chain=False)


def _print_table(checks: Counter[str], broken: dict[str, list[int]], worlds: int) -> list[str]:
    """Prints how often each promise was checked; returns those that were below their floor."""
    rare = []
    print(f"{'invariant':<32} {'checks':>8} {'per 100':>8} {'floor':>6}  broken in")
    for each in INVARIANTS:
        per_hundred = checks[each.name] * _HUNDRED / max(worlds, 1)
        if per_hundred < each.floor:
            rare.append(each.name)
        numbers = broken.get(each.name, [])
        shown = f"{len(numbers)}: {' '.join(map(str, numbers[:6]))}" if numbers else ""
        mark = " RARE" if each.name in rare else ""
        print(f"{each.name:<32} {checks[each.name]:>8} {per_hundred:>8.0f} {each.floor:>6}  {shown}{mark}")
    if "crash" in broken:
        print(f"not played: {broken['crash']}")
    return rare


if __name__ == "__main__":
    sys.exit(main())
