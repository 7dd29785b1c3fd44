"""`ungate`: takes our scheduling gate off pods, for uninstalling and for emergencies."""

import asyncio
from collections import Counter
from collections.abc import Coroutine, Sequence
from typing import Annotated

import typer

from extender.cli.console import print_line, print_problem
from extender.cli.options import (
    AllNamespaces,
    Context,
    Kubeconfig,
    Namespace,
    check_namespace,
    check_namespaces,
    opened_client,
    read_settings,
)
from extender.cluster.admission_objects import admission_object_path, delete_admission_object
from extender.cluster.client import ClusterClient, ClusterRefused
from extender.cluster.gated_pods import is_held, list_gated_pods, patch_pod
from extender.errors import ClusterError, ConfigError
from extender.kubernetes.core_v1 import StoredPod
from extender.placement.gate import encode_passing, encode_ungating
from extender.reports.quantities import counted

PATCHES_AT_ONCE = 16
SETTLE_SECONDS = 5.0
"""How long API servers may go on holding pods after what had them do so is gone: they learn it by a watch, and make
their policies anew every second. A review under way adds its timeoutSeconds, 3 as shipped."""
ASKED_SECONDS = 10.0
"""How long the service has to let pods go. Nobody may be there; one that starts to lead needs a few seconds."""
POLL_SECONDS = 1.0


def ungate(
    namespace: Namespace = "",
    all_namespaces: AllNamespaces = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the pods and change nothing.")] = False,
    first_delete: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND/NAME", help="Delete this policy binding or webhook configuration first. Repeatable."
        ),
    ] = None,
    seconds: Annotated[float, typer.Option(min=0, help="End after so long, whatever is left; 0: no limit.")] = 0.0,
    lenient: Annotated[
        bool, typer.Option("--lenient", help="Exit 0 whatever happens: for hooks, which must hold up nothing.")
    ] = False,
    kubeconfig: Kubeconfig = "",
    context: Context = "",
) -> None:
    """Take the scheduling gate of this service off pods, and its label; gates and labels of others stay.

    The pods are then scheduled wherever their own fields allow: what their images run on is not looked at. Remove the
    policy and the webhook first, or new pods are held again: --first-delete does so, has the service let pods go by
    what it knows of their images, if it runs, and looks for pods until the API servers have taken notice. Exit code 1
    if a pod could not be changed.

    Example: multiarch-extender ungate --all-namespaces --dry-run
    """
    check_namespaces(namespace, all_namespaces=all_namespaces)
    if dry_run and first_delete:
        raise ConfigError("--dry-run and --first-delete exclude each other")
    try:
        paths = [admission_object_path(text) for text in first_delete or []]
    except ValueError as exc:
        raise ConfigError(f"--first-delete: {exc}") from exc
    try:
        is_complete = asyncio.run(
            _within(seconds, _ungate(kubeconfig, context, namespace, all_namespaces, dry_run, paths))
        )
    except (ClusterError, ConfigError) as exc:
        if not lenient:
            raise
        print_problem(f"error: {exc}")
        is_complete = False
    if not (is_complete or lenient):
        raise typer.Exit(1)


async def _within(seconds: float, ungating: Coroutine[None, None, bool]) -> bool:
    """What `ungating` returns; False, and a line that says so, if it takes longer. 0 seconds are no limit."""
    try:
        async with asyncio.timeout(seconds or None):
            return await ungating
    except TimeoutError:
        print_problem(f"error: ended after {seconds:g} s; some pods may have our gate yet")
        return False


async def _ungate(
    kubeconfig: str, context: str, namespace: str, all_namespaces: bool, dry_run: bool, paths: Sequence[str]
) -> bool:
    """Whether no pod has our gate any more, and what is at `paths` is gone."""
    async with opened_client(read_settings(None, None, kubeconfig, context)) as client:
        where = "" if all_namespaces else namespace or client.namespace
        await check_namespace(client, where)
        if dry_run:
            pods = sorted(await list_gated_pods(client, where), key=lambda pod: pod.key)
            for pod in pods:
                print_line(f"pod {pod.key} would be ungated")
            _print_summary(where, Counter({"would be ungated": len(pods)}))
            return True
        is_gone = all([await _delete(client, path) for path in paths])
        asked = await _ask_service(client, where) if paths else Counter[str]()
        outcomes = asked + await _ungate_until_settled(client, where, SETTLE_SECONDS if paths else 0.0)
    _print_summary(where, outcomes)
    return is_gone and not outcomes["failed"]


def _print_summary(where: str, outcomes: Counter[str]) -> None:
    scope = f"in namespace {where}" if where else "in all namespaces"
    counts = ", ".join(f"{number} {outcome}" for outcome, number in outcomes.items() if number)
    print_line(f"{counted(outcomes.total(), 'pod')} with our gate or its label {scope}{': ' if counts else ''}{counts}")


async def _delete(client: ClusterClient, path: str) -> bool:
    """Whether nothing is at the path any more."""
    try:
        await delete_admission_object(client, path)
    except ClusterError as exc:
        print_problem(f"error: {path}: {exc}")
        return False
    return True


async def _ask_service(client: ClusterClient, where: str) -> Counter[str]:
    """Has pods passed as their author could, until none is held or the time is over; counts those ungated."""
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + ASKED_SECONDS
    asked: set[str] = set()
    while True:
        held = {pod.key: pod for pod in await list_gated_pods(client, where) if is_held(pod)}
        if not held or loop.time() >= ends_at:
            return Counter({"ungated by the service": len(asked - held.keys())})
        for key in held.keys() - asked:
            await _patch(client, held[key], encode_passing(held[key].metadata.uid))
        asked |= held.keys()
        await asyncio.sleep(POLL_SECONDS)


async def _ungate_until_settled(client: ClusterClient, where: str, settle_seconds: float) -> Counter[str]:
    """Takes the gate off all pods, and for so long off those held meanwhile; those that failed are tried again.

    Returns what has happened; of failures those of the last time.
    """
    loop = asyncio.get_running_loop()
    settled_at = loop.time() + settle_seconds
    outcomes: Counter[str] = Counter()
    while True:
        is_last = loop.time() >= settled_at
        pods = sorted(await list_gated_pods(client, where), key=lambda pod: pod.key)
        del outcomes["failed"]
        outcomes += await _ungate_all(client, pods)
        if is_last:
            return outcomes
        await asyncio.sleep(POLL_SECONDS)


async def _ungate_all(client: ClusterClient, pods: Sequence[StoredPod]) -> Counter[str]:
    turns = asyncio.Semaphore(PATCHES_AT_ONCE)

    async def ungate_one(pod: StoredPod) -> str:
        async with turns:
            return await _ungate_one(client, pod)

    return Counter(await asyncio.gather(*map(ungate_one, pods)))


async def _ungate_one(client: ClusterClient, pod: StoredPod) -> str:
    outcome = await _patch(client, pod, encode_ungating(pod.metadata.uid))
    if outcome:
        return outcome
    print_line(f"pod {pod.key} ungated")
    return "ungated"


async def _patch(client: ClusterClient, pod: StoredPod, patch: bytes) -> str:
    """Why the pod is not changed; empty if it is."""
    try:
        await patch_pod(client, pod.metadata.namespace, pod.metadata.name, patch)
    except ClusterRefused as exc:
        if exc.status == 404:
            return "gone"
        print_problem(f"error: pod {pod.key}: {exc}")
        return "failed"
    except ClusterError as exc:
        print_problem(f"error: pod {pod.key}: {exc}")
        return "failed"
    return ""
