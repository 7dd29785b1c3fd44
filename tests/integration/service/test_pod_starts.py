"""The count of starts as a part of the whole service: only where the settings ask for it, and for labelled pods."""

from pathlib import Path

from extender.cluster.counted_pods import COUNTED_LABEL
from extender.cluster.pods import PODS
from extender.outlets.pod_starts import RESTARTS, STARTS
from tests.integration.cluster.api_server import LABELS as LABELS_SELECTED
from tests.integration.cluster.api_server import namespace, node, pod, serve_api
from tests.integration.service.test_watches import service_in, until, until_ready

LABELS = ("default/web", "arm64")


async def test_pods_are_watched_where_the_settings_ask_for_it(tmp_path: Path) -> None:
    """By their label alone, and they count by the architecture of their node."""
    async with serve_api() as api:
        api.put("/api/v1/nodes", node("b", "arm64"))
        api.put("/api/v1/namespaces", namespace("default"))
        async with service_in(api, tmp_path, "", "placement.count_starts=true") as caller:
            await until_ready(caller)
            await until(lambda: api.watchers(PODS))
            assert [watcher.selector for watcher in api.watchers(PODS)] == [f"{LABELS_SELECTED}{COUNTED_LABEL}=true"]
            counted = pod("web", node_name="b")
            counted["metadata"]["labels"] = {COUNTED_LABEL: "true"}
            api.put(PODS, counted)
            api.put(PODS, pod("other", node_name="b", phase="Running"))
            await until(lambda: LABELS in STARTS)
            running = {"phase": "Running", "containerStatuses": [{"name": "main", "restartCount": 2}]}
            api.put(PODS, counted | {"status": running})
            await until(lambda: STARTS[LABELS].value == 1)
            assert RESTARTS[LABELS].value == 2
            assert ("default/other", "arm64") not in STARTS


async def test_no_pod_is_watched_otherwise(tmp_path: Path) -> None:
    """The setting is off by default."""
    async with serve_api() as api:
        api.put("/api/v1/nodes", node("b", "arm64"))
        async with service_in(api, tmp_path, "") as caller:
            await until_ready(caller)
            assert not [request for request in api.requests if request.path == PODS]
