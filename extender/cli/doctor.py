"""`doctor`: says whether an installation of the service does its job, check by check, with the remedy."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence, Set
from functools import partial
from typing import Annotated, TypeAlias

import msgspec
import typer

from extender.cli.console import print_line, print_problem, print_structs
from extender.cli.examination import examine
from extender.cli.installation import CheckName, CheckState, Seen
from extender.cli.installation_objects import INSTALLATION
from extender.cli.options import Context, Kubeconfig, Output, opened_client, read_settings

_PAUSE_SECONDS = 2.0
_COLOURS = {CheckState.OK: "green", CheckState.WRONG: "red", CheckState.NOT_SEEN: "yellow"}
_Look: TypeAlias = Callable[[], Awaitable[Sequence[tuple[CheckName, Seen]]]]


def doctor(
    selector: Annotated[
        str, typer.Option("--selector", "-l", metavar="LABELS", help="Labels of the installation's objects.")
    ] = INSTALLATION,
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", help="Also check that the pods of this namespace are reviewed.")
    ] = "",
    installed_in: Annotated[
        str, typer.Option(metavar="NAMESPACE", help="The installation's namespace; it is searched for otherwise.")
    ] = "",
    only: Annotated[
        list[CheckName] | None,
        typer.Option(metavar="CHECK", help="Only this check, which must be possible; repeat it for several."),
    ] = None,
    wait: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.0, help="How long to look again while something is wrong.")
    ] = 0.0,
    is_verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print what is ok or not seen, too.")] = False,
    output: Output = "table",
    kubeconfig: Kubeconfig = "",
    context: Context = "",
) -> None:
    """Check whether the installation in a cluster does its job, and say what to do where it does not.

    A pod is created as a dry run, which stores nothing. Exit code 1 if something is wrong.

    Example: multiarch-extender doctor

    Example: multiarch-extender doctor -n shop --verbose
    """
    settings = read_settings(None, None, kubeconfig, context)
    checks = set(only or CheckName)
    # A check that was asked for by name and cannot be made is a failure: whoever names it wants to know.
    failures = {CheckState.WRONG, CheckState.NOT_SEEN} if only else {CheckState.WRONG}

    async def look_until() -> Sequence[tuple[CheckName, Seen]]:
        async with opened_client(settings) as client:
            look = partial(examine, client, checks, selector=selector, installed_in=installed_in, namespace=namespace)
            return await _look_until(look, failures, wait)

    findings = asyncio.run(look_until())
    if output != "table":
        print_structs([{"check": check, **msgspec.structs.asdict(seen)} for check, seen in findings], output)
    else:
        _print(
            (check, seen)
            for check, seen in findings
            if is_verbose or seen.state in failures or (seen.state is CheckState.OK and seen.remedy)
        )
    if any(seen.state in failures for _, seen in findings):
        raise typer.Exit(1)


async def _look_until(look: _Look, failures: Set[CheckState], wait_seconds: float) -> Sequence[tuple[CheckName, Seen]]:
    """What is seen once no check ends as a failure, or after the wait. Raises ConfigError."""
    deadline, printed = time.monotonic() + wait_seconds, list[tuple[CheckName, Seen]]()
    while True:
        found = await look()
        failed = [(check, seen) for check, seen in found if seen.state in failures]
        if time.monotonic() >= deadline or not failed:
            return found
        if failed != printed:  # whoever ends the wait early finds in the log what it was for
            for check, seen in failed:
                print_problem(f"waiting: {check} {seen.subject}: {seen.seen}")
        printed = failed
        await asyncio.sleep(_PAUSE_SECONDS)


def _print(findings: Iterable[tuple[CheckName, Seen]]) -> None:
    for check, seen in findings:
        print_line((seen.state, _COLOURS[seen.state]), " ", (check, "bold"), f" {seen.subject}: {seen.seen}")
        if seen.remedy:
            print_line(f"  → {seen.remedy}")
