"""The checks of `doctor`: what only somebody outside of the service sees, and what the service says itself.

A check reads what it takes, and yields its results. What the cluster refuses us is not seen.
"""

import re
from collections.abc import AsyncIterator, Mapping, Set

import msgspec

from extender.cli.installation import Check, CheckName, Diagnosis, Installation, name_of, not_seen, ok, wrong
from extender.cli.installation_objects import InstalledWorkload, read_workloads
from extender.cli.webhook_checks import WEBHOOK_CHECKS
from extender.cluster.client import ClusterClient, ClusterRefused
from extender.cluster.workload_lists import OBJECT
from extender.errors import ClusterError, ConfigError
from extender.kubernetes.documents import list_at, value_at
from extender.kubernetes.pod_templates import KubernetesObject
from extender.kubernetes.reported_v1 import PodStatus, ReportedPod

_RESTARTS = 3  # of a container that are nothing to speak of
_SAID = re.compile(r"\[(?P<sign>[+-])\](?P<what>.+)")


async def examine(
    client: ClusterClient, checks: Set[CheckName], *, selector: str, installed_in: str = "", namespace: str = ""
) -> list[tuple[CheckName, Diagnosis]]:
    """The results of these checks. Nothing is asked that none of them takes. Raises ConfigError."""
    found: list[tuple[CheckName, Diagnosis]] = []
    try:
        try:
            workloads = await read_workloads(client, selector, installed_in)
        except ClusterRefused as exc:
            return [(CheckName.PODS, not_seen("cluster", str(exc), "use an account that may list workloads"))]
        if not workloads:
            none = f"no Deployment, DaemonSet or StatefulSet has the labels {selector}"
            return [(CheckName.PODS, wrong("cluster", none, "install the chart, or give --selector"))]
        installation = Installation(client, workloads, selector, namespace)
        for name, (check, right) in CHECKS.items():
            if name not in checks:
                continue
            try:
                found += [(name, result) async for result in check(installation)]
            except ClusterRefused as exc:
                found.append((name, not_seen("cluster", str(exc), f"use an account that may {right}")))
    except ClusterError as exc:
        raise ConfigError(str(exc)) from exc
    return found


async def _pods(installation: Installation) -> AsyncIterator[Diagnosis]:
    for workload in installation.workloads:
        subject, counted = workload.subject, f"{workload.ready} of {workload.wanted} pods are ready"
        logs = f"kubectl -n {workload.namespace}"
        if not workload.wanted:
            remedy = f"see the replicas, or the node selector, of {workload.kind.lower()} {workload.name}"
            yield not_seen(subject, "it has no pods, as none are wanted", remedy)
        elif not workload.ready:
            remedy = f"{logs} describe {workload.kind.lower()} {workload.name}, and the logs of its pods"
            yield wrong(subject, f"none of {workload.wanted} pods is ready", remedy)
        elif workload.ready < workload.wanted:
            yield ok(subject, counted, f"{logs} get pods")
        elif (restarts := await _restarts(installation, workload)) > _RESTARTS:
            seen = f"{counted}, and their containers were restarted {restarts} times"
            yield ok(subject, seen, f"{logs} logs --previous of the pod that restarts")
        else:
            yield ok(subject, counted)


async def _restarts(installation: Installation, workload: InstalledWorkload) -> int:
    """The most restarts of a container of the workload; 0 where its pods may not be listed."""
    try:
        pods = await installation.listed(f"/api/v1/namespaces/{workload.namespace}/pods", OBJECT, workload.pod_labels)
    except ClusterRefused as exc:
        if exc.status != 403:
            raise
        return 0
    statuses = (msgspec.convert(each, ReportedPod).status or PodStatus() for each in pods)
    lists = (each for status in statuses for each in (status.container_statuses, status.init_container_statuses))
    return max((each.restart_count for some in lists for each in some or ()), default=0)


async def _settings(installation: Installation) -> AsyncIterator[Diagnosis]:
    for workload in installation.workloads:
        if workload.refusal:
            yield not_seen(workload.subject, workload.refusal, "use an account that may get the ConfigMap")
        elif workload.problem:
            yield wrong(workload.subject, workload.problem, "correct the ConfigMap, then restart the pods")
        else:
            yield ok(workload.subject, "the service takes them")


async def _service(installation: Installation) -> AsyncIterator[Diagnosis]:
    """What a pod of each workload says of itself, through the API server's proxy: a ready one if there is any."""
    for workload in installation.workloads:
        port = workload.config.operations.listen.rpartition(":")[2] if workload.config else ""
        pods = await installation.listed(f"/api/v1/namespaces/{workload.namespace}/pods", OBJECT, workload.pod_labels)
        pod = next(map(name_of, sorted(pods, key=_is_ready, reverse=True)), "")
        if not (pod and port):
            of_settings = "it serves no /readyz" if workload.config else "its settings are not known"
            yield not_seen(workload.subject, "it has no pod" if port else of_settings)
            continue
        try:
            path = f"/api/v1/namespaces/{workload.namespace}/pods/{pod}:{port}/proxy/readyz"
            text = (await installation.client.get(path, {"verbose": ""})).decode(errors="replace")
        except ClusterRefused as exc:
            if not _SAID.search(exc.text):
                why = f"/readyz of its pod cannot be asked: HTTP {exc.status} {exc.said}".rstrip()
                remedy = "use an account for pods/proxy, and let the API server reach the port"
                yield not_seen(workload.subject, why, remedy)
                continue
            text = exc.text
        said = [(found["sign"], found["what"]) for found in map(_SAID.fullmatch, text.splitlines()) if found]
        for sign, what in said:
            if sign == "-":
                yield wrong(workload.subject, f"{pod} says: {what}", f"kubectl -n {workload.namespace} logs {pod}")
        if not said:
            yield not_seen(workload.subject, f"/readyz of {pod} says nothing of any check")
        elif all(sign == "+" for sign, _ in said):
            yield ok(workload.subject, f"{pod} says: {'; '.join(what for _, what in said)}")


def _is_ready(pod: KubernetesObject) -> bool:
    conditions = list_at(pod, "status", "conditions")
    return any(value_at(each, "type") == "Ready" and value_at(each, "status") == "True" for each in conditions)


CHECKS: Mapping[CheckName, tuple[Check, str]] = {
    CheckName.PODS: (_pods, "list pods"),
    CheckName.SETTINGS: (_settings, "get ConfigMaps"),
    CheckName.SERVICE: (_service, "list pods, and get pods/proxy"),
    **WEBHOOK_CHECKS,
}
"""Each check, and the right that it takes."""
