"""`policies`: prints the admission policies for a cluster, or confirms that they are at work there."""

import asyncio
import re
from typing import Annotated

import typer

from extender.cli.console import print_document, print_line, print_problem
from extender.cli.options import Context, Kubeconfig
from extender.cli.policy_proof import Confirmation, confirm_policies, serves_mutating_policies
from extender.cli.shipped_policies import (
    FIRST_VERSION,
    OWN_ACCOUNT,
    PoliciesImpossible,
    PolicyChoice,
    PolicyFile,
    SelectedNamespaces,
    Way,
    policy_files,
    to_yaml,
)
from extender.cluster.client import open_cluster
from extender.errors import ConfigError
from extender.logs import configure_logs

_VERSION = re.compile(r"v?1\.([0-9]{1,3})(\.[0-9]+)?", re.ASCII)
_LABEL = re.compile(r"([A-Za-z0-9./_-]{1,317})=([A-Za-z0-9._-]{0,63})", re.ASCII)
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", re.ASCII)


def policies(
    mode: Annotated[
        Way, typer.Option(help="Whether a webhook runs beside the policies, or they and the controller do alone.")
    ] = Way.WITH_WEBHOOK,
    namespaces: Annotated[
        str | None,
        typer.Option(
            metavar="KEY=VALUE[,…]", help="Labels of the namespaces whose pods are held; default: all but the system's."
        ),
    ] = None,
    scheduler_name: Annotated[
        str, typer.Option(metavar="NAME", help="Also name this scheduler in the namespaces labelled for it.")
    ] = "",
    account: Annotated[
        list[str] | None,
        typer.Option(metavar="NAMESPACE/NAME", help="ServiceAccount of the service. Repeatable."),
    ] = None,
    kubernetes: Annotated[
        str | None, typer.Option(metavar="VERSION", help="Print for this version instead of asking a cluster.")
    ] = None,
    kubeconfig: Kubeconfig = "",
    context: Context = "",
    is_proof: Annotated[
        bool, typer.Option("--prove", help="Print nothing to apply: confirm by dry-run pods that they are at work.")
    ] = False,
) -> None:
    """Print the admission policies for the cluster's version as YAML, or confirm that they are at work.

    Exit code 1 if the cluster cannot have them, or if --prove finds that one is not at work.

    Example: multiarch-extender policies --mode alone | kubectl apply --server-side -f -

    Example: multiarch-extender policies --mode alone --prove
    """
    if is_proof and kubernetes:
        raise ConfigError("--prove asks the cluster: leave out --kubernetes")
    configure_logs("error", "console")
    held = [_account(text) for text in account or ["/".join(OWN_ACCOUNT)]]
    choice = PolicyChoice(
        way=mode,
        namespaces=SelectedNamespaces(_labels(namespaces), [namespace for namespace, _ in held]),
        accounts=held,
        scheduler=_name("--scheduler-name", scheduler_name) if scheduler_name else "",
    )
    try:
        if kubernetes:
            files = policy_files(choice, has_mutating=_version(kubernetes) >= FIRST_VERSION)
            found = None
        else:
            files, found = asyncio.run(_ask(choice, kubeconfig, context, is_proof=is_proof))
    except PoliciesImpossible as exc:
        print_problem(f"error: {exc}")
        raise typer.Exit(1) from exc
    if found is None:
        print_document(to_yaml(files))
        return
    for line in found.confirmed:
        print_line(line)
    for line in found.problems:
        print_problem(f"error: {line}")
    if found.problems:
        raise typer.Exit(1)


async def _ask(
    choice: PolicyChoice, kubeconfig: str, context: str, *, is_proof: bool
) -> tuple[list[PolicyFile], Confirmation | None]:
    """The files for the cluster, and what is confirmed about them there."""
    cluster = await open_cluster("auto", kubeconfig, context)
    try:
        files = policy_files(choice, has_mutating=await serves_mutating_policies(cluster))
        return files, await confirm_policies(cluster, choice, files) if is_proof else None
    finally:
        await cluster.close()


def _version(text: str) -> tuple[int, int]:
    if not (found := _VERSION.fullmatch(text)):
        raise ConfigError(f"--kubernetes is {text!r}; it must be a version such as 1.36")
    return 1, int(found[1])


def _labels(text: str | None) -> dict[str, str]:
    labels: dict[str, str] = {}
    for each in filter(None, (text or "").split(",")):
        if not (found := _LABEL.fullmatch(each)):
            raise ConfigError(f"--namespaces has {each!r}; it must be labels such as team=shop")
        if labels.setdefault(found[1], found[2]) != found[2]:
            raise ConfigError(
                f"--namespaces has two values of {found[1]}; a namespace has one, and needs all labels given"
            )
    return labels


def _account(text: str) -> tuple[str, str]:
    namespace, slash, name = text.partition("/")
    if not slash:
        raise ConfigError(f"--account is {text!r}; it must be a namespace and a name such as {'/'.join(OWN_ACCOUNT)}")
    return _name("--account", namespace), _name("--account", name)


def _name(option: str, text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ConfigError(f"{option} has {text!r}, which is no name of an object in Kubernetes")
    return text
