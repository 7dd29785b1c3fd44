"""The part of `audit` that asks running services what they have observed, and prints what enforcing would change."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence

import msgspec
import yaml

from extender.cli.audit_writers import aligned_columns, printable
from extender.cli.json_schema import schema_of
from extender.cli.service_client import fetch_json, read_token
from extender.cluster.client import ClusterClient, ClusterRefused, open_cluster
from extender.cluster.workloads import POD, list_documents, list_nodes
from extender.config.tree import Config
from extender.errors import ClusterError, ConfigError
from extender.kubernetes.audited_v1 import AuditedPod
from extender.logs import configure_logs
from extender.reports.observed import (
    ChangedWorkload,
    LivePods,
    NodesNeeded,
    Observations,
    ObservedReport,
    merged,
    observed,
)
from extender.service.policies import policy_of

FORMATS = ("table", "json", "yaml")
_OBSERVATIONS = msgspec.json.Decoder(Observations)
_POD = msgspec.json.Decoder(AuditedPod)
_MIB = 1024.0 * 1024.0
_HEADER = ("NAMESPACE", "WORKLOAD", "PODS", "REFUSED", "HELD", "RUNNING", "MOVED", "KEPT TO", "REASON")


class ObservedSource(msgspec.Struct, frozen=True, kw_only=True):
    """Which services are asked, with what, and for which namespace; an empty one means all."""

    urls: Sequence[str]
    namespace: str
    token_file: str | None
    ca_file: str | None
    kubeconfig: str
    context: str


def show_observed(
    source: ObservedSource, output: str, read_settings: Callable[[], Config], *, is_schema: bool = False
) -> None:
    """Prints what enforcing would change for the observed pods, or the JSON schema of that.

    Raises:
        ConfigError: a service refuses or cannot be reached, or the cluster cannot be read.
    """
    if is_schema:
        print(schema_of(ObservedReport))
        return
    if output not in FORMATS:
        raise ConfigError(f"-o {output} is no format of --observed; give one of {', '.join(FORMATS)}")
    settings = read_settings()
    configure_logs("error", "console")
    report = asyncio.run(_report(source, settings))
    if output == "table":
        _print_table(report)
    elif output == "json":
        print(json.dumps(msgspec.to_builtins(report), indent=2))
    else:
        print(yaml.safe_dump(msgspec.to_builtins(report), sort_keys=False, width=1000), end="")


async def _report(source: ObservedSource, settings: Config) -> ObservedReport:
    cluster = settings.cluster
    try:
        client = await open_cluster("auto", source.kubeconfig or cluster.kubeconfig, source.context or cluster.context)
    except ClusterError as exc:
        raise ConfigError(f"{exc}; name a kubeconfig with --kubeconfig") from exc
    try:
        token = read_token(source.token_file) or await client.bearer_token()
        if not token:
            raise ConfigError("--observed needs a token, and the kubeconfig has none; give --token-file FILE")
        query = {"namespace": source.namespace} if source.namespace else {}
        parts = [await _fetch(url, token, source.ca_file, query) for url in source.urls]
        live, problems = await _live_pods(client, source.namespace, settings)
    except ClusterError as exc:
        raise ConfigError(f"the cluster cannot be read: {exc}") from exc
    finally:
        await client.close()
    report = observed(merged(parts), live, policy_of(settings).compatibility)
    return msgspec.structs.replace(report, problems=[*report.problems, *problems])


async def _fetch(url: str, token: str, ca_file: str | None, query: Mapping[str, str]) -> Observations:
    body = await fetch_json("--observed", url, "/observed", token, ca_file, query)
    try:
        return _OBSERVATIONS.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise ConfigError(f"--observed {url}: no answer of this service: {exc}") from exc


async def _live_pods(client: ClusterClient, namespace: str, settings: Config) -> tuple[LivePods, list[str]]:
    """The pods and nodes, and a sentence where they may not be listed.

    Pods of every namespace are listed if that is allowed, since all of them take room on nodes.
    """
    problems = list[str]()
    pods: list[AuditedPod] = []
    for where in dict.fromkeys(("", namespace)):
        try:
            pods = [_POD.decode(document) async for document in list_documents(client, POD.path(where))]
            break
        except ClusterRefused as exc:
            if exc.status != 403:
                raise
            problems.append(f"pods {f'of {where}' if where else 'of every namespace'} cannot be listed: {exc}")
        except msgspec.DecodeError as exc:
            raise ConfigError(f"the cluster cannot be read: a pod: {exc}") from exc
    try:
        nodes = await list_nodes(client)
    except ClusterRefused as exc:
        if exc.status != 403:
            raise
        problems.append(f"nodes cannot be listed, so that no move is known: {exc}")
        nodes = []
    return LivePods(pods=pods, nodes=nodes, level_label=settings.placement.level_label), problems


def _print_table(report: ObservedReport) -> None:
    print(f"Observed from {report.since} to {report.until}: {report.pods} pods of {len(report.workloads)} workloads")
    print(f"  refused: {report.refused}    held: {report.held}    let through unknown: {report.unresolved}")
    print(f"  of {report.running} pods that run now, moved: {_counts(report.moved)}")
    for needed in report.nodes_needed:
        print(f"  {printable(_needed(needed))}")
    for problem in report.problems:
        print(f"  note: {printable(problem)}")
    changed = [row for row in report.workloads if row.is_changed]
    if changed:
        print()
        print(aligned_columns(_HEADER, [_cells(row) for row in changed]), end="")


def _cells(row: ChangedWorkload) -> Sequence[str]:
    kept_to = "" if row.platforms is None else ", ".join(row.platforms) or "no platform"
    return (
        row.namespace, f"{row.kind}/{row.name}", str(row.pods), str(row.refused), str(row.held), str(row.running),
        _counts(row.moved), kept_to, row.reason,
    )  # fmt: skip


def _needed(needed: NodesNeeded) -> str:
    what = (
        f"{needed.pods} pods move to {', '.join(needed.platforms)}: {needed.cpu_cores:g} cores, "
        f"{needed.memory_bytes / _MIB:.0f} MiB"
    )
    if needed.nodes is None:
        return f"{what}; no node there is large enough to say how many are needed"
    size = f"{needed.node_cpu_cores:g} cores and {needed.node_memory_bytes / _MIB:.0f} MiB"
    return f"{what}; nodes needed: {needed.nodes} more of {size}"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number} from {platform}" for platform, number in sorted(counts.items())) or "0"
