"""`running`: prints which image runs on which platform, and what does not match."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
import typer
import yaml

from extender.cli.console import print_document, print_line, print_rows
from extender.cli.installed_settings import GivenSettings
from extender.cli.options import (
    AllNamespaces,
    Assignments,
    ConfigFile,
    Context,
    Kubeconfig,
    Namespace,
    Output,
    check_namespaces,
    read_settings,
)
from extender.cli.subjects import list_nodes, open_client
from extender.cluster.client import ClusterClient, ClusterRefused, decode_answer
from extender.cluster.workload_lists import POD, fetch_namespace_annotations, list_documents
from extender.credentials.keyring import Keyring
from extender.errors import ConfigError
from extender.fetcher.sources import open_local_sources
from extender.images.content import Failure
from extender.images.manifest import Image
from extender.kubernetes.core_v1 import Pod
from extender.kubernetes.reported_v1 import ReportedPod
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
_COLOURS = {Certainty.KNOWN: "red", Certainty.PROBABLE: "yellow", Certainty.POSSIBLE: "dim"}
_POD = msgspec.json.Decoder(ReportedPod)


def running(
    namespace: Namespace = "",
    all_namespaces: AllNamespaces = False,
    everything: Annotated[
        bool, typer.Option("--everything", help="List every container in the table, not only those with findings.")
    ] = False,
    output: Output = "table",
    file: ConfigFile = None,
    assignments: Assignments = None,
    kubeconfig: Kubeconfig = "",
    context: Context = "",
) -> None:
    """Show which image each container runs on which platform, and what does not match.

    By the settings of the installation in the cluster, unless --config gives others; --set changes one of them.
    Exit code 1 if something is wrong, or will be at the next start.

    Example: multiarch-extender running -A
    """
    check_namespaces(namespace, all_namespaces=all_namespaces)
    given = GivenSettings(read_settings(file, assignments, kubeconfig, context), file, assignments or ())
    report = asyncio.run(_report(given, namespace, all_namespaces=all_namespaces))
    if output == "json":
        print_document(json.dumps(_plain(report), indent=2) + "\n")
    elif output == "yaml":
        print_document(yaml.safe_dump(_plain(report), sort_keys=False, width=1000))
    else:
        _print_table(report, everything=everything)
    if report.has_faults:
        raise typer.Exit(1)


def _plain(report: RunningReport) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(report)
    return plain


async def _report(given: GivenSettings, namespace: str, *, all_namespaces: bool) -> RunningReport:
    client = await open_client(given.own, is_needed=True)
    if client is None:
        raise ConfigError("cluster.mode: none leaves no cluster whose containers could be listed")
    try:
        namespace = "" if all_namespaces else namespace or client.namespace
        nodes = await list_nodes(client)
        pods = await _list_pods(client, namespace)
        annotations = await _namespace_annotations(client, namespace)
        settings = await given.beside(client)
        async with open_pod_resolver(
            settings, ClusterView(client=client, annotations=annotations), open_local_sources
        ) as pod_resolver:
            counted = [pod for pod in pods if is_counted(pod, _overrides_of(pod, pod_resolver), pod_resolver.policy)]
            found = await look_up(counted, pod_resolver)
        return report_running(found, nodes, policy_of(settings).compatibility, settings.placement.level_label)
    finally:
        await client.close()


async def _list_pods(client: ClusterClient, namespace: str) -> list[ReportedPod]:
    """The pods of the namespace, or of all if it is empty, that are bound to a node."""
    path = POD.path(namespace)
    return [
        pod async for raw in list_documents(client, path) if (pod := decode_answer(_POD, raw, "pod")).spec.node_name
    ]


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
    for item in [each for each in report.containers if everything or each.findings]:
        _print_container(item)
    for node in report.nodes:
        print_line((f"node {node.node}", "red"), f": its labels say {node.label}, its kubelet {node.node_info}")
    platforms = sorted({each.platform for each in report.containers if each.platform})
    unknown = sum(each.platforms is None for each in report.containers)
    print_line(
        f"{len(report.containers)} containers on {', '.join(platforms) or 'no known platform'}, "
        f"{sum(bool(each.findings) for each in report.containers)} with findings, {unknown} of unknown images"
    )


def _print_container(item: RunningContainer) -> None:
    where = f"{item.namespace}/{item.pod} {item.role} {item.container}"
    print_line((where, "bold"), f" on {item.node} ({item.platform or 'platform not stated'})")
    built_for = ", ".join(item.platforms) if item.platforms is not None else f"unknown {item.cause}".rstrip()
    rows = [("image", item.image), ("built for", built_for)]
    if item.reported:
        rows.append(("reported", item.reported))
    if item.chosen and item.chosen != item.digest:
        rows.append(("chosen", item.chosen))
    print_rows([*rows, ("state", f"{item.state}, {item.restarts} restarts")])
    for finding in item.findings:
        colour = "green" if finding.kind is Symptom.GAINED_PLATFORM else _COLOURS[finding.certainty]
        print_line("  ", (finding.kind, colour), f" ({finding.certainty}) {finding.text}")
