"""The checks of `doctor`: what only somebody outside of the service sees, and what the service says itself.

A check reads what it takes, and yields what it has seen. What the cluster refuses us is not seen.
"""

import re
from collections.abc import AsyncIterator, Mapping, Set

import msgspec

from extender.cli.installation import Check, CheckName, Installation, Seen, name_of, not_seen, ok, wrong
from extender.cli.installation_objects import InstalledPart, read_parts
from extender.cli.webhook_checks import WEBHOOK_CHECKS
from extender.cluster.client import ClusterClient, ClusterRefused
from extender.errors import ClusterError, ConfigError
from extender.kubernetes.documents import list_at, value_at
from extender.kubernetes.pod_templates import KubernetesObject
from extender.kubernetes.reported_v1 import PodStatus, ReportedPod

_RESTARTS = 3  # of a container that are nothing to speak of
_SAID = re.compile(r"\[(?P<sign>[+-])\](?P<what>.+)")


async def examine(
    client: ClusterClient, checks: Set[CheckName], *, selector: str, installed_in: str = "", namespace: str = ""
) -> list[tuple[CheckName, Seen]]:
    """What these checks have seen. Nothing is asked that none of them takes. Raises ConfigError."""
    found: list[tuple[CheckName, Seen]] = []
    try:
        try:
            parts = await read_parts(client, selector, installed_in)
        except ClusterRefused as exc:
            return [(CheckName.PODS, not_seen("cluster", str(exc), "use an account that may list workloads"))]
        if not parts:
            none = f"no Deployment, DaemonSet or StatefulSet has the labels {selector}"
            return [(CheckName.PODS, wrong("cluster", none, "install the chart, or give --selector"))]
        installation = Installation(client, parts, selector, namespace)
        for name, (check, right) in CHECKS.items():
            if name not in checks:
                continue
            try:
                found += [(name, seen) async for seen in check(installation)]
            except ClusterRefused as exc:
                found.append((name, not_seen("cluster", str(exc), f"use an account that may {right}")))
    except ClusterError as exc:
        raise ConfigError(str(exc)) from exc
    return found


async def _pods(it: Installation) -> AsyncIterator[Seen]:
    for part in it.parts:
        subject, counted = part.subject, f"{part.ready} of {part.wanted} pods are ready"
        logs = f"kubectl -n {part.namespace}"
        if not part.wanted:
            remedy = f"see the replicas, or the node selector, of {part.kind.lower()} {part.name}"
            yield not_seen(subject, "it has no pods, as none are wanted", remedy)
        elif not part.ready:
            remedy = f"{logs} describe {part.kind.lower()} {part.name}, and the logs of its pods"
            yield wrong(subject, f"none of {part.wanted} pods is ready", remedy)
        elif part.ready < part.wanted:
            yield ok(subject, counted, f"{logs} get pods")
        elif (restarts := await _restarts(it, part)) > _RESTARTS:
            seen = f"{counted}, and their containers were restarted {restarts} times"
            yield ok(subject, seen, f"{logs} logs --previous of the pod that restarts")
        else:
            yield ok(subject, counted)


async def _restarts(it: Installation, part: InstalledPart) -> int:
    """The most restarts of a container of the part; 0 where its pods may not be listed."""
    try:
        pods = await it.listed(f"/api/v1/namespaces/{part.namespace}/pods", part.pod_labels)
    except ClusterRefused as exc:
        if exc.status != 403:
            raise
        return 0
    statuses = (msgspec.convert(each, ReportedPod).status or PodStatus() for each in pods)
    lists = (each for status in statuses for each in (status.container_statuses, status.init_container_statuses))
    return max((each.restart_count for some in lists for each in some or ()), default=0)


async def _settings(it: Installation) -> AsyncIterator[Seen]:
    for part in it.parts:
        if part.refusal:
            yield not_seen(part.subject, part.refusal, "use an account that may get the ConfigMap")
        elif part.problem:
            yield wrong(part.subject, part.problem, "correct the ConfigMap, then restart the pods")
        else:
            yield ok(part.subject, "the service takes them")


async def _service(it: Installation) -> AsyncIterator[Seen]:
    """What a pod of each part says of itself, through the API server's proxy: a ready one if there is any."""
    for part in it.parts:
        port = part.config.operations.listen.rpartition(":")[2] if part.config else ""
        pods = await it.listed(f"/api/v1/namespaces/{part.namespace}/pods", part.pod_labels)
        pod = next(map(name_of, sorted(pods, key=_is_ready, reverse=True)), "")
        if not (pod and port):
            of_settings = "it serves no /readyz" if part.config else "its settings are not known"
            yield not_seen(part.subject, "it has no pod" if port else of_settings)
            continue
        try:
            path = f"/api/v1/namespaces/{part.namespace}/pods/{pod}:{port}/proxy/readyz"
            text = (await it.client.get(path, {"verbose": ""})).decode(errors="replace")
        except ClusterRefused as exc:
            if not _SAID.search(exc.text):
                why = f"/readyz of its pod cannot be asked: HTTP {exc.status} {exc.said}".rstrip()
                remedy = "use an account for pods/proxy, and let the API server reach the port"
                yield not_seen(part.subject, why, remedy)
                continue
            text = exc.text
        said = [(found["sign"], found["what"]) for found in map(_SAID.fullmatch, text.splitlines()) if found]
        for sign, what in said:
            if sign == "-":
                yield wrong(part.subject, f"{pod} says: {what}", f"kubectl -n {part.namespace} logs {pod}")
        if not said:
            yield not_seen(part.subject, f"/readyz of {pod} says nothing of any check")
        elif all(sign == "+" for sign, _ in said):
            yield ok(part.subject, f"{pod} says: {'; '.join(what for _, what in said)}")


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
