"""Options that several commands share, each declared once, and what they give together. They mean what kubectl's do."""

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Literal

import msgspec
import typer

from extender.cli.console import print_problem
from extender.cluster.client import ClusterClient, ClusterRefused, context_of, open_users_cluster
from extender.config.checks import unheard_of
from extender.config.reading import read_config
from extender.config.tree import Config
from extender.errors import ClusterError, ConfigError
from extender.images.platform import InvalidPlatform, Platform, parse_platform
from extender.kubernetes.meta_v1 import is_object_name
from extender.logs import configure_logs
from extender.machine import THIS_MACHINE

ConfigFile = Annotated[str | None, typer.Option("--config", metavar="FILE", help="YAML file of settings.")]
Assignments = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="One setting, over the file; the value is YAML. Repeatable."),
]
Kubeconfig = Annotated[
    str, typer.Option("--kubeconfig", metavar="FILE", help="By default $KUBECONFIG, else ~/.kube/config.")
]
Context = Annotated[
    str, typer.Option("--context", metavar="NAME", help="Context of the kubeconfig; by default its current one.")
]
Namespace = Annotated[
    str, typer.Option("--namespace", "-n", metavar="NAME", help="By default the context's; for audit every one.")
]
AllNamespaces = Annotated[bool, typer.Option("--all-namespaces", "-A", help="Every namespace.")]
Manifests = Annotated[
    list[str] | None,
    typer.Option("--filename", "-f", metavar="FILE", help="Manifests: a file, a folder, or - for standard input."),
]
InstalledIn = Annotated[
    str, typer.Option(metavar="NAMESPACE", help="By the settings of the installation in this namespace.")
]
MANIFESTS_INSTEAD = ", or manifests with -f"
Output = Annotated[Literal["table", "json", "yaml"], typer.Option("--output", "-o", help="How to print.")]


def read_settings(file: str | None, assignments: Sequence[str] | None, kubeconfig: str, context: str) -> Config:
    """The settings of a command that looks, and keeps nothing of what it has seen; it logs errors alone.

    A kubeconfig or a context that is given is the cluster, whatever the settings say.

    Raises:
        ConfigError: as `read_config`.
    """
    settings = read_config(file, assignments or ())
    configure_logs("error", "console")
    cache = msgspec.structs.replace(settings.cache, url="memory:")
    return on_cluster(msgspec.structs.replace(settings, cache=cache), kubeconfig, context)


def on_cluster(settings: Config, kubeconfig: str, context: str) -> Config:
    """The settings with this kubeconfig and this context, where they are not empty."""
    if not (kubeconfig or context):
        return settings
    path, its_context = context_of(settings.cluster)
    chosen = kubeconfig or (path if settings.has_cluster else "auto")
    return msgspec.structs.replace(settings, cluster=f"{chosen}#{context or its_context}")


@contextlib.asynccontextmanager
async def opened_client(settings: Config, instead: str = "") -> AsyncIterator[ClusterClient]:
    """A client of the cluster that the settings name; it is closed at the end.

    Raises ConfigError if there is none, which says what to give `instead`.
    """
    try:
        client = await open_users_cluster(settings.cluster, THIS_MACHINE.clock)
    except ClusterError as exc:
        raise ConfigError(f"{exc}; name a kubeconfig with --kubeconfig{instead}") from exc
    try:
        yield client
    finally:
        await client.close()


async def check_namespace(client: ClusterClient, namespace: str) -> None:
    """Ends the command as one whose answer is no if there is no such namespace, as far as the account may see it."""
    if namespace and not is_object_name(namespace):
        raise ConfigError(f"{namespace!r} is no name of a namespace")
    try:
        if namespace:
            await client.get(f"/api/v1/namespaces/{namespace}")
    except ClusterRefused as exc:
        if exc.status == 404:
            print_problem(f"error: no such namespace: {namespace}")
            raise typer.Exit(1) from exc


def check_namespaces(namespace: str, *, all_namespaces: bool) -> None:
    """Raises ConfigError if both options are given."""
    if namespace and all_namespaces:
        raise ConfigError("--namespace and --all-namespaces exclude each other")


def required_platforms(texts: Sequence[str]) -> list[Platform]:
    """The platforms in `os/architecture[/variant]`. Raises ConfigError if one is none, or one that no node has."""
    try:
        required = [parse_platform(text) for text in texts]
    except InvalidPlatform as exc:
        raise ConfigError(f"--require: {exc}") from exc
    for text, platform in zip(texts, required, strict=True):
        if problem := unheard_of(platform):
            raise ConfigError(f"--require: {text!r}: {problem}")
    return required
