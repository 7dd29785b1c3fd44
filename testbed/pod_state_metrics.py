"""The series of kube-state-metrics that alerts of ours go by, of the pods that the API server has.

Its own program cannot be had here. Names, labels and meanings are those of its documentation of pod metrics: a series
of a container that has not ended, or does not wait, is not there.
"""

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager

from aiohttp import web

from testbed.api_client import ApiClient
from testbed.objects import KubernetesObject
from testbed.tcp_proxy import LOOPBACK

_Sample = tuple[str, Mapping[str, str], float]


def samples_of(pod: KubernetesObject) -> Iterator[_Sample]:
    """Yields name, labels and value of each series of the pod."""
    metadata = pod["metadata"]
    own = {"namespace": metadata["namespace"], "pod": metadata["name"], "uid": metadata["uid"]}
    owners = [each for each in metadata.get("ownerReferences", ()) if each.get("controller")]
    kind, name = next(((each["kind"], each["name"]) for each in owners), ("<none>", "<none>"))
    node = pod["spec"].get("nodeName", "")
    yield "kube_pod_info", {**own, "node": node, "created_by_kind": kind, "created_by_name": name}, 1
    for status in pod["status"].get("containerStatuses", ()):
        labels, state = {**own, "container": status["name"]}, status["state"]
        yield "kube_pod_container_status_running", labels, float("running" in state)
        yield "kube_pod_container_status_restarts_total", labels, status["restartCount"]
        if waiting := state.get("waiting"):
            yield "kube_pod_container_status_waiting_reason", {**labels, "reason": waiting.get("reason", "")}, 1
        if ended := status.get("lastState", {}).get("terminated"):
            yield "kube_pod_container_status_last_terminated_exitcode", labels, ended["exitCode"]


def _line(name: str, labels: Mapping[str, str], number: float) -> str:
    text = ",".join(f'{key}="{value}"' for key, value in labels.items())
    return f"{name}{{{text}}} {number}\n"


@asynccontextmanager
async def open_pod_state_metrics(api: ApiClient) -> AsyncIterator[str]:
    """Serves them on loopback; yields the address, host:port."""

    async def metrics(_request: web.Request) -> web.Response:
        pods = await api.list("Pod")
        lines = [_line(*sample) for pod in pods for sample in samples_of(pod)]
        return web.Response(text="".join(lines))

    application = web.Application()
    application.router.add_get("/metrics", metrics)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, LOOPBACK, 0).start()
    try:
        yield f"{LOOPBACK}:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
