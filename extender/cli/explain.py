"""`explain`: prints why a pod may run on some nodes and not on others."""

import asyncio
import json
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import typer
import yaml

from extender.cli import manifest_files
from extender.cli.console import print_document, print_problem
from extender.cli.explanation_text import print_explanations
from extender.cli.installed_settings import GivenSettings
from extender.cli.options import (
    Assignments,
    ConfigFile,
    Context,
    Kubeconfig,
    Manifests,
    Namespace,
    Output,
    read_settings,
)
from extender.cli.subjects import Explained, ExplainTarget, explain_all, find_subjects, open_client
from extender.errors import ClusterError, ConfigError
from extender.reports.audit_report import RunAnswer


def explain(
    target: Annotated[
        str | None,
        typer.Argument(metavar="[POD|KIND/NAME]", help="A pod, or a workload such as deploy/web. With -f: only these."),
    ] = None,
    namespace: Namespace = "",
    manifests: Manifests = None,
    output: Output = "table",
    file: ConfigFile = None,
    assignments: Assignments = None,
    kubeconfig: Kubeconfig = "",
    context: Context = "",
) -> None:
    """Show why a pod may run on some nodes and not on others, and what would change that.

    By the settings of the installation in the cluster, unless --config gives others; --set changes one of them.
    Exit code 1 if some pod has no node that is known to take it, or is on a node of the wrong platform. Exit code 2 if
    a file of manifests could not be read to its end.

    Example: multiarch-extender explain deploy/web -n shop
    """
    given = GivenSettings(read_settings(file, assignments, kubeconfig, context), file, assignments or ())
    if not (target or manifests):
        raise ConfigError("nothing to explain; give a pod, KIND/NAME or -f FILE")
    read = manifest_files.read_manifests(manifests) if manifests else None
    found = asyncio.run(_by_lookups(ExplainTarget.parse(target, namespace, read), given))
    if not found:
        raise ConfigError(
            f"-f {' -f '.join(manifests or ())}: no object with pods" + (f" is {target}" if target else "")
        )
    _print(found, output)
    for line in (*read.repeats, *read.unread) if read else ():
        print_problem(line)
    if read and read.unread:
        raise typer.Exit(2)
    if any(each.explanation.answer is not RunAnswer.YES or each.explanation.faults for each in found):
        raise typer.Exit(1)


async def _by_lookups(target: ExplainTarget, given: GivenSettings) -> Sequence[Explained]:
    client = await open_client(given.own, is_needed=not target.manifests)
    try:
        subjects = await find_subjects(target, client)
        settings = await given.beside(client) if client else given.own
        return await explain_all(subjects, settings, client)
    except ClusterError as exc:
        raise ConfigError(str(exc)) from exc
    finally:
        if client:
            await client.close()


def _print(found: Sequence[Explained], output: str) -> None:
    plain: list[dict[str, Any]] = [msgspec.to_builtins(each.explanation) for each in found]
    if output == "json":
        print_document(json.dumps(plain, indent=2) + "\n")
    elif output == "yaml":
        print_document(yaml.safe_dump(plain, sort_keys=False, width=1000))
    else:
        print_explanations(found)
