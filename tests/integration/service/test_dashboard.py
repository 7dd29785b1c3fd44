"""A real Prometheus reads a real service that has done a little of everything: each panel's queries return data."""

import base64
import json
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
import trustme
from aiohttp import web

from extender.cluster.views import PODS
from extender.placement.gate import GATE, GATED_LABEL
from extender.server.tls import TlsFiles
from testbed.chart import CHART
from testbed.dashboard import API_SERVER, Panel, as_sent, panels
from testbed.debian_package import ProgramMissing
from testbed.debian_prometheus import DebianPrometheus, find_prometheus, until, values
from testbed.eventually import eventually
from testbed.faulty_registry import FaultyRegistry
from tests.integration.cluster.api_server import ApiServer, namespace, node, serve_api
from tests.integration.service.caller import AMD64, ARM64, SPACE, Caller, marked, pod, with_names
from tests.integration.service.watching import service_in, until_ready

HERE = [panel for panel in panels() if panel.row != API_SERVER]
AT_ZERO = {
    "Mistakes of the service, last hour",
    "DaemonSets' pods for wrong nodes, last hour",
    "Tags that moved to other platforms",
    "Images verified, by what is known now",
    "Warnings to authors, last hour",
    "Fetchers that ended, last hour",
    "Refused by listeners, last hour",
    "The store",
    "Changed files that were refused, last hour",
}
"""Panels whose series stand at zero after what the test does. All others show more than zero."""


@pytest.fixture(scope="module")
def prometheus() -> Path:
    """The program; the test is skipped without one."""
    try:
        return find_prometheus()
    except ProgramMissing as exc:
        pytest.skip(str(exc))


class LimitedRegistry(FaultyRegistry):
    """A registry that states a quota, and that throttles whoever asks for a repository below `much/`."""

    def __init__(self) -> None:
        super().__init__(self._throttle)

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answers with the quota's headers."""
        response = await super().answer(request)
        response.headers["RateLimit-Limit"] = "100;w=21600"
        response.headers["RateLimit-Remaining"] = "76;w=21600"
        return response

    async def _throttle(self, request: web.BaseRequest) -> web.StreamResponse | None:
        if "/much/" not in request.path:
            return None
        return web.Response(status=429, headers={"Retry-After": "60"})


@asynccontextmanager
async def busy_service(folder: Path, api: ApiServer, *registries: str) -> AsyncIterator[Caller]:
    """A service with every outlet, in a container with a limit and a cluster with two nodes.

    The operator has logins for the registries.
    """
    for name, architecture in (("a", "amd64"), ("b", "arm64")):
        api.put("/api/v1/nodes", node(name, architecture))
    api.put("/api/v1/namespaces", namespace("shop"))
    api.admit = marked
    issued = trustme.CA().issue_cert("127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(folder / "tls.crt")
    issued.private_key_pem.write_to_path(folder / "tls.key")
    TlsFiles("another", str(folder / "tls.crt"), str(folder / "tls.key"), "")  # its expiry is in a metric
    logins = {"auths": {host: {"auth": base64.b64encode(b"ann:word").decode()} for host in registries}}
    (folder / "docker.json").write_text(json.dumps(logins))
    settings = (
        f"registry.docker_config={folder / 'docker.json'}",
        "admission.unknown=gate",
        "admission.node_affinity=required",
        "admission.wait_seconds=1",
        "placement.preference={arm64: 10}",
        f"installation={SPACE.removesuffix('-canary')}",
    )
    async with (
        service_in(api, folder, "127.0.0.1:0", *settings, registries=registries) as caller,
    ):
        await until_ready(caller)
        yield caller


async def work(caller: Caller, api: ApiServer, plain: FaultyRegistry, limited: LimitedRegistry) -> None:
    """Reviews and filter calls of every outcome, held pods of which one is let go, a throttled lookup."""
    plain.add_index("app", "1", [AMD64, ARM64])
    plain.add_manifest("amd", "1", AMD64)
    plain.add_manifest("arm", "1", ARM64)
    app, amd, arm = (f"{plain.host}/{name}:1" for name in ("app", "amd", "arm"))
    for _ in range(3):
        await caller.review(pod(app))
        await caller.filter(with_names(pod(amd), ["a", "b"]))
        await caller.filter(with_names(pod(app), ["a", "b"]))
        await caller.prioritize(with_names(pod(app), ["a", "b"]))
    await caller.review(pod(amd, arm))
    await caller.review(pod(arm, annotations={"multiarch-extender.io/mode": "observe"}))
    await caller.review(pod(f"{plain.host}/missing:1", annotations={"multiarch-extender.io/unknown": "pass"}))
    await caller.review(pod(f"{limited.host}/much/app:1", annotations={"multiarch-extender.io/unknown": "pass"}))
    for name, image in (("soon", app), ("late", f"{plain.host}/late:1")):
        held = pod(image, name=name, labels={GATED_LABEL: "true"})
        held["spec"]["schedulingGates"] = [{"name": GATE}]
        api.put(PODS, held)
    await eventually(lambda: not api.find(PODS, "soon")["spec"]["schedulingGates"])


async def wrong_panels(
    session: aiohttp.ClientSession, server: DebianPrometheus, shown: list[Panel], at_zero: set[str]
) -> list[str]:
    """The queries without a number, and the panels that show nothing above zero though something happened."""
    wrong = []
    for panel in shown:
        found = [await values(session, server, as_sent(query)) for query in panel.queries]
        finite = [[number for number in numbers if math.isfinite(number)] for numbers in found]
        wrong += [query for query, numbers in zip(panel.queries, finite, strict=True) if not numbers]
        if panel.title not in at_zero and not any(number > 0 for numbers in finite for number in numbers):
            wrong.append(f"{panel.title}: nothing above zero")
    return wrong


@pytest.mark.slow
async def test_each_query_returns_data(prometheus: Path, tmp_path: Path) -> None:
    """After pods of every outcome; the API server's row has an end-to-end test of its own."""
    async with (
        FaultyRegistry() as plain,
        LimitedRegistry() as limited,
        serve_api() as api,
        busy_service(tmp_path, api, plain.host, limited.host) as caller,
        aiohttp.ClientSession() as session,
    ):
        target = caller.service.operations_url.removeprefix("http://")
        with DebianPrometheus(prometheus, tmp_path, target, CHART / "files" / "rules.yaml") as server:
            await until(session, server, "count_over_time(multiarch_build_info[1m]) >= 2", found=True)
            await work(caller, api, plain, limited)
            wrong: list[str] = []
            try:
                wrong = await eventually(lambda: wrong_panels(session, server, HERE, AT_ZERO), lambda wrong: not wrong)
            except TimeoutError:
                pytest.fail("\n".join(wrong))
