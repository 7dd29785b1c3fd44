"""Unknown is never yes: every way not to know an image, under every policy, at every outlet."""

import base64
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from aiohttp import web

from extender.images import manifest as media_type
from testbed.embedded_registry import EmbeddedRegistry
from testbed.images import Bundle, Manifest
from tests.integration.service.caller import AMD64, ARM64, kept, pod, victims, with_nodes
from tests.integration.service.conftest import StartService

POLICIES = ("pass", "retry", "assume")
CAUSES = {
    "missing": "missing",
    "unavailable": "unavailable",
    "garbled": "unavailable",
    "denied": "denied",
    "forbidden": "denied",
    "chart": "artifact",
    "schema1": "unsupported",
    "malformed": "invalid",
    "two-in-one": "invalid",
    "UPPER": "invalid-reference",
    "withheld": "by-operator",
    "throttled": "throttled",  # after which the host is not asked for a while
}
_STATUS = {"denied": 401, "forbidden": 403, "throttled": 429, "unavailable": 503}


class Failing(EmbeddedRegistry):
    """A registry in which each repository fails in the way of its name."""

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        repository = request.path.split("/")[2]
        if repository in _STATUS:
            return web.Response(status=_STATUS[repository])
        if repository == "garbled":
            return web.Response(text="<html>log in here</html>", content_type="text/html")
        return await super().answer(request)


@pytest.fixture
async def failing() -> AsyncIterator[Failing]:
    async with Failing() as opened:
        opened.add_index("good", "1", [AMD64, ARM64])
        opened.add_artifact("chart", "1")
        schema1 = Manifest(
            media_type.media_type_of("application/vnd.docker.distribution.manifest.v1+json"), b'{"schemaVersion":1}'
        )
        malformed = Manifest(media_type.OCI_INDEX, b'{"schemaVersion":2,"manifests":[3]}')
        two = Manifest(media_type.OCI_INDEX, msgspec.json.encode({"manifests": [], "layers": [], "config": {}}))
        for name, manifest in (("schema1", schema1), ("malformed", malformed), ("two-in-one", two)):
            opened.add(name, "1", Bundle((), (manifest,)))
        yield opened


def settings(policy: str) -> list[str]:
    """The policy for pending and unknown images, and the affinity that would be written if anything were known."""
    return [
        f"scheduler.pending={policy}",
        f"scheduler.unknown={policy}",
        "scheduler.assume=[linux/amd64]",
        "admission.node_affinity=both",
    ]


@pytest.mark.parametrize("policy", POLICIES)
async def test_unknown_earns_nothing_anywhere(start_service: StartService, failing: Failing, policy: str) -> None:
    """Beside a multi-arch image: no score, no toleration, no affinity beyond the known, no platform made up."""
    withheld = f"placement.images=[{{match: '{failing.host}/withheld:*', platforms: []}}]"
    caller = await start_service(*settings(policy), withheld, plain_http=failing.host)
    for image, cause in CAUSES.items():
        unknown = f"{failing.host}/{image}:1"
        created = pod(f"{failing.host}/good:1", unknown)
        review = await caller.review(created)
        assert cause in review["auditAnnotations"]["verdict"]
        written = msgspec.json.encode(review["patch"]).decode()
        assert "tolerations" not in written
        assert "preferred" not in written
        assert '"values":["amd64","arm64"]' in written  # what the known image has, and no less
        result = await caller.filter(with_nodes(created))
        if policy == "retry":
            assert unknown in result["Error"]
            assert cause in result["Error"]
            assert result["FailedAndUnresolvableNodes"] == {}
        elif policy == "assume":
            reason = f"image {unknown} is not known yet and is taken to run only on linux/amd64 (operator's setting)"
            assert result["FailedAndUnresolvableNodes"] == {"b": reason, "d": reason}
            assert kept(result) == ["a", "c"]
        else:
            assert kept(result) == ["a", "b", "c", "d"]
        assert await caller.prioritize(with_nodes(created)) == {}
        candidates = {"retry": [], "assume": ["a", "c"], "pass": ["a", "b", "c"]}[policy]
        assert sorted(await caller.preempt(victims(created))) == candidates
    never = pod(f"{failing.host}/missing:1")  # the node's copy decides, so it neither refuses nor waits nor earns
    never["spec"]["containers"][0]["imagePullPolicy"] = "Never"
    assert kept(await caller.filter(with_nodes(never))) == ["a", "b", "c", "d"]
    assert await caller.prioritize(with_nodes(never)) == {}
    assert (await caller.review(never))["patch"] == []


async def test_pods_own_wish_counts_for_unknown_images_only(start_service: StartService, failing: Failing) -> None:
    """The annotation decides about *unknown*, leaves *pending* to the operator, and a bad value counts as absent."""
    caller = await start_service(plain_http=failing.host)
    for annotation, error in (("retry", True), ("pass", False), ("nonsense", False)):
        annotations = {"multiarch-extender.io/unknown": annotation}
        denied = pod(f"{failing.host}/denied:1", annotations=annotations)
        missing = pod(f"{failing.host}/missing:1", annotations=annotations)
        assert bool((await caller.filter(with_nodes(denied)))["Error"]) == error
        assert (await caller.filter(with_nodes(missing)))["Error"]
        warnings = (await caller.review(denied)).get("warnings", [])
        assert any("multiarch-extender.io/unknown" in each for each in warnings) == (annotation == "nonsense")


@pytest.mark.parametrize("has_login", [False, True])
async def test_registry_that_a_pod_names_raises_no_alert_by_throttling(
    start_service: StartService, failing: Failing, tmp_path: Path, *, has_login: bool
) -> None:
    """The metric of the alert is about registries that the operator has a login for."""
    logins = {"auths": {failing.host: {"auth": base64.b64encode(b"ann:word").decode()}} if has_login else {}}
    (tmp_path / "config.json").write_bytes(msgspec.json.encode(logins))
    login = f"registry.docker_config={tmp_path / 'config.json'}"
    caller = await start_service(*settings("pass"), login, plain_http=failing.host)
    await caller.filter(with_nodes(pod(f"{failing.host}/throttled:1")))
    seconds = await caller.metric("multiarch_registry_throttled_seconds")
    assert (seconds > 0) is has_login
