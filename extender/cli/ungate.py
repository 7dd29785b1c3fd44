"""`ungate`: takes our scheduling gate off pods, for uninstalling and for emergencies."""

import asyncio
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Annotated

import typer

from extender.cluster.client import ClusterClient, ClusterRefused, open_cluster
from extender.cluster.gated_pods import list_gated_pods, patch_pod
from extender.errors import ClusterError, ConfigError
from extender.kubernetes.core_v1 import StoredPod
from extender.placement.gate import encode_ungating

PATCHES_AT_ONCE = 16


def ungate(
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", help="Pods of this namespace; by default that of kubectl's context.")
    ] = "",
    all_namespaces: Annotated[bool, typer.Option("--all-namespaces", "-A", help="Pods of all namespaces.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the pods and change nothing.")] = False,
    kubeconfig: Annotated[str, typer.Option(metavar="FILE", help="By default $KUBECONFIG, else ~/.kube/config.")] = "",
    context: Annotated[str, typer.Option(help="Context of the kubeconfig; by default the current one.")] = "",
) -> None:
    """Take the scheduling gate of this service off pods, and its label; gates and labels of others stay.

    The pods are then scheduled wherever their own fields allow: what their images run on is not looked at. Remove the
    policy and the webhook first, or new pods are held again. Exit code 1 if a pod could not be changed.

    Example: multiarch-extender ungate --all-namespaces --dry-run
    """
    if namespace and all_namespaces:
        raise ConfigError("--namespace and --all-namespaces exclude each other")
    try:
        is_complete = asyncio.run(_ungate(kubeconfig, context, namespace, all_namespaces, dry_run))
    except ClusterRefused as exc:
        print(f"error: the pods cannot be listed: {exc}", file=sys.stderr)
        is_complete = False
    except ClusterError as exc:
        raise ConfigError(str(exc)) from exc
    if not is_complete:
        raise typer.Exit(1)


async def _ungate(kubeconfig: str, context: str, namespace: str, all_namespaces: bool, dry_run: bool) -> bool:
    """Whether no pod has our gate any more."""
    client = await open_cluster("auto", kubeconfig, context)
    try:
        where = "" if all_namespaces else namespace or client.namespace
        pods = sorted(await list_gated_pods(client, where), key=lambda pod: pod.key)
        outcomes = Counter({"would be ungated": len(pods)}) if dry_run else await _ungate_all(client, pods)
    finally:
        await client.close()
    if dry_run:
        for pod in pods:
            print(f"pod {pod.key} would be ungated")
    scope = f"in namespace {where}" if where else "in all namespaces"
    counts = ", ".join(f"{number} {outcome}" for outcome, number in outcomes.items() if number)
    print(f"{len(pods)} pods with our gate or its label {scope}{': ' if counts else ''}{counts}")
    return not outcomes["failed"]


async def _ungate_all(client: ClusterClient, pods: Sequence[StoredPod]) -> Counter[str]:
    turns = asyncio.Semaphore(PATCHES_AT_ONCE)

    async def ungate_one(pod: StoredPod) -> str:
        async with turns:
            return await _ungate_one(client, pod)

    return Counter(await asyncio.gather(*map(ungate_one, pods)))


async def _ungate_one(client: ClusterClient, pod: StoredPod) -> str:
    try:
        await patch_pod(client, pod.metadata.namespace, pod.metadata.name, encode_ungating(pod.metadata.uid))
    except ClusterRefused as exc:
        if exc.status == 404:
            return "gone"
        print(f"error: pod {pod.key}: {exc}", file=sys.stderr)
        return "failed"
    except ClusterError as exc:
        print(f"error: pod {pod.key}: {exc}", file=sys.stderr)
        return "failed"
    print(f"pod {pod.key} ungated")
    return "ungated"
