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
from extender.cli.installation import CheckName, CheckState, Diagnosis
from extender.cli.installation_objects import INSTALLATION
from extender.cli.options import Context, Kubeconfig, Output, opened_client, read_settings

_PAUSE_SECONDS = 2.0
_COLOURS = {CheckState.OK: "green", CheckState.WRONG: "red", CheckState.NOT_SEEN: "yellow"}
_Examine: TypeAlias = Callable[[], Awaitable[Sequence[tuple[CheckName, Diagnosis]]]]


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

    async def examine_until() -> Sequence[tuple[CheckName, Diagnosis]]:
        async with opened_client(settings) as client:
            examine_once = partial(
                examine, client, checks, selector=selector, installed_in=installed_in, namespace=namespace
            )
            return await _examine_until(examine_once, failures, wait)

    findings = asyncio.run(examine_until())
    if output != "table":
        print_structs([{"check": check, **msgspec.structs.asdict(result)} for check, result in findings], output)
    else:
        _print(
            (check, result)
            for check, result in findings
            if is_verbose or result.state in failures or (result.state is CheckState.OK and result.remedy)
        )
    if any(result.state in failures for _, result in findings):
        raise typer.Exit(1)


async def _examine_until(
    examine_once: _Examine, failures: Set[CheckState], wait_seconds: float
) -> Sequence[tuple[CheckName, Diagnosis]]:
    """The results once no check ends as a failure, or after the wait. Raises ConfigError."""
    deadline, printed = time.monotonic() + wait_seconds, list[tuple[CheckName, Diagnosis]]()
    while True:
        found = await examine_once()
        failed = [(check, result) for check, result in found if result.state in failures]
        if time.monotonic() >= deadline or not failed:
            return found
        if failed != printed:  # whoever ends the wait early finds in the log what it was for
            for check, result in failed:
                print_problem(f"waiting: {check} {result.subject}: {result.seen}")
        printed = failed
        await asyncio.sleep(_PAUSE_SECONDS)


def _print(findings: Iterable[tuple[CheckName, Diagnosis]]) -> None:
    for check, result in findings:
        print_line((result.state, _COLOURS[result.state]), " ", (check, "bold"), f" {result.subject}: {result.seen}")
        if result.remedy:
            print_line(f"  → {result.remedy}")
