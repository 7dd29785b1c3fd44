"""`doctor`: says whether an installation of the service does its job, check by check, with the remedy."""

import asyncio
import json
import time
from collections.abc import Sequence, Set
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
import yaml

from extender.cli.console import print_document, print_line
from extender.cli.examination import Examination
from extender.cli.installation_objects import read_scheduler_configuration
from extender.cli.installed_settings import INSTALLATION, GivenSettings
from extender.cli.options import Assignments, ConfigFile, Context, Kubeconfig, Output, read_settings
from extender.cli.subjects import opened_client
from extender.errors import ConfigError
from extender.printable import printable
from extender.reports.installation import CheckFinding, CheckName, CheckState

_PAUSE_SECONDS = 2.0
_COLOURS = {
    CheckState.FINE: "green",
    CheckState.WARNING: "yellow",
    CheckState.WRONG: "red",
    CheckState.UNCHECKED: "dim",
}


def doctor(
    selector: Annotated[
        str, typer.Option("--selector", "-l", metavar="LABELS", help="Labels of the installation's objects.")
    ] = INSTALLATION,
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", help="Also check that the pods of this namespace are reviewed.")
    ] = "",
    scheduler_config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="KubeSchedulerConfiguration of the cluster's own kube-scheduler."),
    ] = None,
    is_asking_registries: Annotated[
        bool, typer.Option("--registries/--no-registries", help="Whether registries of running pods are asked.")
    ] = True,
    installed_in: Annotated[
        str, typer.Option(metavar="NAMESPACE", help="The installation's namespace; all are searched otherwise.")
    ] = "",
    only: Annotated[
        list[CheckName] | None,
        typer.Option(metavar="CHECK", help="Only this check, which must be possible; repeat it for several."),
    ] = None,
    wait: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.0, help="How long to look again while something is wrong.")
    ] = 0.0,
    is_verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print what is fine as well.")] = False,
    output: Output = "table",
    file: ConfigFile = None,
    assignments: Assignments = None,
    kubeconfig: Kubeconfig = "",
    context: Context = "",
) -> None:
    """Check whether the installation in a cluster does its job, and say what to do where it does not.

    A pod is created as a dry run, which stores nothing. Nodes and registries are looked at by the settings that are
    installed, unless --config gives others; --set changes one of them. Exit code 1 if something is wrong.

    Example: multiarch-extender doctor

    Example: multiarch-extender doctor -n shop --scheduler-config /etc/kubernetes/scheduler.yaml --verbose
    """
    settings = GivenSettings(read_settings(file, assignments, kubeconfig, context), file, assignments or ())
    given = None
    if scheduler_config is not None:
        try:
            given = read_scheduler_configuration(scheduler_config.read_text(), str(scheduler_config))
        except OSError as exc:
            raise ConfigError(f"{scheduler_config}: {exc.strerror}; --scheduler-config takes a readable file") from exc
    checks = set(only or CheckName) - (set() if is_asking_registries else {CheckName.REGISTRIES})
    # A check that was asked for by name and cannot be made is a failure: whoever names it wants to know.
    failures = {CheckState.WRONG, CheckState.UNCHECKED} if only else {CheckState.WRONG}

    async def examine() -> list[CheckFinding]:
        async with opened_client(settings.own) as client:
            examination = Examination(
                client, settings, selector, namespace, given, checks=checks, installed_in=installed_in
            )
            return await _look_until(examination, failures, wait)

    findings = asyncio.run(examine())
    plain: list[dict[str, Any]] = msgspec.to_builtins(findings)
    if output == "json":
        print_document(json.dumps(plain, indent=2) + "\n")
    elif output == "yaml":
        print_document(yaml.safe_dump(plain, sort_keys=False, width=1000))
    else:
        shown = set(CheckState) if is_verbose else {CheckState.WARNING, *failures}
        _print([each for each in findings if each.state in shown])
    if any(each.state in failures for each in findings):
        raise typer.Exit(1)


async def _look_until(examination: Examination, failures: Set[CheckState], wait_seconds: float) -> list[CheckFinding]:
    """What is found once no check ends as a failure, or after the wait. Raises ConfigError."""
    deadline, told = time.monotonic() + wait_seconds, list[CheckFinding]()
    while True:
        findings = await examination.findings()
        failed = [each for each in findings if each.state in failures]
        if time.monotonic() >= deadline or not failed:
            return findings
        if failed != told:  # whoever ends the wait early finds in the log what it was for
            for each in failed:
                typer.echo(printable(f"waiting: {each.check} {each.subject}: {each.seen}"), err=True)
        told = failed
        await asyncio.sleep(_PAUSE_SECONDS)


def _print(findings: Sequence[CheckFinding]) -> None:
    for each in findings:
        print_line((each.state, _COLOURS[each.state]), " ", (each.check, "bold"), f" {each.subject}: {each.seen}")
        if each.remedy:
            print_line(f"  → {each.remedy}")
