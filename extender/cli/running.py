"""`running`: prints which image runs on which platform, and what does not match."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
import typer
import yaml
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from extender.cli.options import Assignments, ConfigFile
from extender.cli.subjects import list_nodes, open_client
from extender.cluster.client import ClusterClient, ClusterRefused
from extender.cluster.secrets import ClusterSecrets
from extender.cluster.workload_lists import POD, fetch_namespace_annotations, list_documents
from extender.config.reading import read_config
from extender.config.tree import Config
from extender.credentials.keyring import Keyring
from extender.errors import ClusterError, ConfigError
from extender.fetcher.sources import open_local_sources
from extender.images.content import Failure
from extender.images.manifest import Image
from extender.kubernetes.core_v1 import Pod
from extender.kubernetes.reported_v1 import ReportedPod
from extender.logs import configure_logs
from extender.placement.policy import Overrides
from extender.reports.running_pods import (
    Certainty,
    PodImages,
    RunningContainer,
    RunningReport,
    Symptom,
    is_counted,
    references_of,
    report_running,
)
from extender.resolver.pod_resolver import PodResolver
from extender.service.cluster_view import ClusterView
from extender.service.operator_policies import policy_of
from extender.service.resolving import open_pod_resolver

_AT_ONCE = 32  # lookups; the limit for each registry host is a setting
_COLUMNS = 160
_COLOURS = {Certainty.KNOWN: "red", Certainty.PROBABLE: "yellow", Certainty.POSSIBLE: "dim"}
_POD = msgspec.json.Decoder(ReportedPod)


def running(
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="Namespace of the pods.")] = "default",
    all_namespaces: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="The pods of every namespace.")
    ] = False,
    everything: Annotated[
        bool, typer.Option("--everything", help="List every container in the table, not only those with findings.")
    ] = False,
    output: Annotated[Literal["table", "json", "yaml"], typer.Option("--output", "-o", help="How to print.")] = "table",
    file: ConfigFile = None,
    assignments: Assignments = None,
) -> None:
    """Show which image each container runs on which platform, and what does not match.

    Exit code 1 if something is wrong, or will be at the next start.

    Example: multiarch-extender running -A --config /etc/multiarch/config.yaml
    """
    settings = read_config(file, [*(assignments or ()), "cache.url='memory:'"])
    configure_logs("error", "console")
    report = asyncio.run(_report("" if all_namespaces else namespace, settings))
    if output == "json":
        print(json.dumps(msgspec.to_builtins(report), indent=2))
    elif output == "yaml":
        print(yaml.safe_dump(_plain(report), sort_keys=False, width=1000), end="")
    else:
        _print_table(report, everything=everything)
    if report.has_faults:
        raise typer.Exit(1)


def _plain(report: RunningReport) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(report)
    return plain


async def _report(namespace: str, settings: Config) -> RunningReport:
    client = await open_client(settings, is_needed=True)
    if client is None:
        raise ConfigError("cluster.mode: none leaves no cluster whose containers could be listed")
    try:
        nodes = await list_nodes(client)
        pods = await _list_pods(client, namespace)
        annotations = await _namespace_annotations(client, namespace)
        async with open_pod_resolver(
            settings, ClusterView(secrets=ClusterSecrets(client), annotations=annotations), open_local_sources
        ) as pod_resolver:
            counted = [pod for pod in pods if is_counted(pod, _overrides_of(pod, pod_resolver), pod_resolver.policy)]
            found = await look_up(counted, pod_resolver)
        return report_running(found, nodes, policy_of(settings).compatibility, settings.placement.level_label)
    except ClusterError as exc:
        raise ConfigError(str(exc)) from exc
    finally:
        await client.close()


async def _list_pods(client: ClusterClient, namespace: str) -> list[ReportedPod]:
    """The pods of the namespace, or of all if it is empty, that are bound to a node."""
    path = POD.path(namespace)
    return [pod async for raw in list_documents(client, path) if (pod := _POD.decode(raw)).spec.node_name]


async def _namespace_annotations(client: ClusterClient, namespace: str) -> Mapping[str, Mapping[str, str]]:
    """None where they may not be read."""
    try:
        return await fetch_namespace_annotations(client, namespace)
    except ClusterRefused:
        return {}


def _overrides_of(pod: ReportedPod, pod_resolver: PodResolver) -> Overrides:
    named = Pod(metadata=pod.metadata, spec=pod.spec)
    return pod_resolver.overrides_of(named, pod.metadata.namespace or "", b"")


async def look_up(pods: Sequence[ReportedPod], pod_resolver: PodResolver) -> list[PodImages]:
    """Each pod with its images, each looked up once for each set of credentials."""
    turns = asyncio.Semaphore(_AT_ONCE)
    lookups: dict[tuple[object, str], asyncio.Task[Image | Failure]] = {}

    async with asyncio.TaskGroup() as group:
        wanted = []
        for pod in pods:
            metadata = pod.metadata
            asked_for = Pod(metadata=metadata, spec=pod.spec)
            question = pod_resolver.question(asked_for, metadata.namespace or "", Overrides(), may_read=True)
            keyring = question.keyring

            async def one(reference: str, keyring: Keyring = keyring) -> Image | Failure:
                async with turns:
                    return await pod_resolver.resolver.describe(reference, keyring)

            references = references_of(pod)
            for reference in references:
                key = (keyring.identity, reference)
                if key not in lookups:
                    lookups[key] = group.create_task(one(reference))
            wanted.append((pod, keyring.identity, references))
    return [
        PodImages(pod, {reference: lookups[identity, reference].result() for reference in references})
        for pod, identity, references in wanted
    ]


def _print_table(report: RunningReport, *, everything: bool) -> None:
    console = Console(highlight=False)
    console.width = max(console.width, _COLUMNS)
    shown = [each for each in report.containers if everything or each.findings]
    for item in shown:
        _print_container(console, item)
    for node in report.nodes:
        console.print(f"[red]node {escape(node.node)}[/]: its labels say {node.label}, its kubelet {node.node_info}")
    platforms = sorted({each.platform for each in report.containers if each.platform})
    unknown = sum(each.platforms is None for each in report.containers)
    console.print(
        f"{len(report.containers)} containers on {', '.join(platforms) or 'no known platform'}, "
        f"{sum(bool(each.findings) for each in report.containers)} with findings, {unknown} of unknown images"
    )


def _print_container(console: Console, item: RunningContainer) -> None:
    where = f"{item.namespace}/{item.pod} {item.role} {item.container}"
    console.print(f"[bold]{escape(where)}[/] on {escape(item.node)} ({item.platform or 'platform not stated'})")
    table = Table.grid(padding=(0, 2))
    built_for = ", ".join(item.platforms) if item.platforms is not None else f"unknown {item.cause}".rstrip()
    table.add_row("  image", escape(item.image))
    table.add_row("  built for", escape(built_for))
    if item.reported:
        table.add_row("  reported", escape(item.reported))
    if item.chosen and item.chosen != item.digest:
        table.add_row("  chosen", item.chosen)
    table.add_row("  state", f"{escape(item.state)}, {item.restarts} restarts")
    console.print(table)
    for finding in item.findings:
        colour = "green" if finding.kind is Symptom.GAINED_PLATFORM else _COLOURS[finding.certainty]
        console.print(f"  [{colour}]{finding.kind}[/] ({finding.certainty}) {escape(finding.text)}", soft_wrap=True)
