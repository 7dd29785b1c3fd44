"""The webhook over HTTP: what is patched, what is left alone or only observed, and what every answer has."""

import msgspec
import pytest

from extender.cluster.probe import is_reviewed, probe_pod
from testbed.objects import kept_to
from tests.integration.service.caller import Caller, Json, changes_of, kept, pod, with_nodes
from tests.integration.service.conftest import World
from tests.unit.placement.json_patch import apply

POOL = ["kubernetes.io/arch", "arch"]


def keys_of(created: Json) -> list[str]:
    return [toleration["key"] for toleration in created["spec"].get("tolerations") or []]


async def created_with(caller: Caller, created: Json, **request: object) -> Json:
    response = await caller.review(created, **request)
    stored: Json = apply(created, msgspec.json.encode(response["patch"]))
    return stored


async def test_only_creations_of_pods_are_patched(world: World) -> None:
    """Anything else is allowed as it is."""
    caller = await world.serve()
    changes: list[tuple[Json, bool]] = [
        ({}, True),
        ({"dryRun": True}, True),
        ({"oldObject": None, "options": {"kind": "CreateOptions"}, "future": {"x": 1}}, True),
        ({"operation": "UPDATE"}, False),
        ({"operation": "DELETE", "object": None}, False),
        ({"subResource": "ephemeralcontainers"}, False),
        ({"kind": {"group": "apps", "version": "v1", "kind": "Deployment"}}, False),
        ({"kind": None}, False),
        ({"object": {}}, False),
    ]
    for change, patched in changes:
        response = await caller.review(world.pod("multi:1"), **change)
        assert bool(response["patch"]) == patched, change


@pytest.mark.parametrize("change", [{}, {"nodeName": "a"}], ids=["waiting", "bound"])
@pytest.mark.parametrize("mode", ["enforce", "observe", "ignore"])
async def test_an_update_gets_back_what_was_added(world: World, change: Json, mode: str) -> None:
    """Whatever has become of the pod since, and whatever is said of its mode by now: nobody may change it."""
    caller = await world.serve("admission.node_affinity=both", "admission.scheduler_name=multiarch")
    own = {"key": "own", "operator": "Exists"}
    manifest = world.pod("amd:1")
    manifest["spec"] |= {"tolerations": [own], "schedulerName": "default-scheduler"}
    stored = await created_with(caller, manifest)
    stored["spec"] |= change
    marked = {"multiarch-extender.io/mode": mode}
    stored["metadata"]["annotations"] |= marked
    update = {"metadata": stored["metadata"], "spec": {**manifest["spec"], **change}}
    assert stored["spec"] != update["spec"]
    restored = 'multiarch_admissions_total{outcome="restored"}'
    async with caller.growth(restored) as grown:
        for more in ({}, {"dryRun": True}):
            response = await caller.review(update, operation="UPDATE", oldObject=stored, **more)
            assert apply(update, msgspec.json.encode(response["patch"])) == stored
    assert grown == [2]
    assert (await caller.review(stored, operation="UPDATE", oldObject=stored))["patch"] == []
    assert (await caller.review(manifest, operation="UPDATE", oldObject=manifest))["patch"] == []


@pytest.mark.parametrize("part", ["object", "oldObject"])
async def test_an_update_that_is_too_large_or_cannot_be_read_is_allowed_as_it_is(world: World, part: str) -> None:
    caller = await world.serve("admission.node_affinity=required")
    stored = await created_with(caller, world.pod("amd:1"))
    large = {**stored, "x": "y" * 600_000}
    for other in (large, {"spec": {"containers": 3}}):
        objects = {"object": world.pod("amd:1"), "oldObject": stored} | {part: other}
        response = await caller.review(objects["object"], operation="UPDATE", oldObject=objects["oldObject"])
        assert response["patch"] == []


async def test_what_is_no_review_is_refused_with_a_reason(world: World) -> None:
    """400, so that the API server follows the failurePolicy; the service lives on."""
    caller = await world.serve()
    for body in (b"", b"{}", b"null", b'{"request":{}}', b'{"request":{"uid":""}}', b"[", b"\xff"):
        async with caller.session.post(f"{caller.service.admission_url}/admission/pods", data=body) as response:
            assert response.status == 400
            assert (await response.json())["error"]


async def test_pod_that_cannot_be_read_is_allowed_with_a_warning(world: World) -> None:
    """The API server knows better what a Pod is: a field of a type we do not know must not keep anybody's pod out."""
    caller = await world.serve()
    response = await caller.review({"spec": {"containers": 3}})
    assert response["patch"] == []
    assert "containers" in response["warnings"][0]


async def test_generated_name_and_unknown_fields_survive(world: World) -> None:
    """A controller's pod has no name yet; what this code has never heard of stays where it is."""
    caller = await world.serve("admission.node_affinity=required")
    created = world.pod("multi:1")
    created["metadata"] = {"generateName": "web-", "x-future": {"deep": [1, None]}}
    created["spec"] |= {"x-future": "kept", "affinity": {"podAffinity": {"x": 1}, "x-future": True}}
    stored = await created_with(caller, created)
    assert keys_of(stored) == POOL
    assert stored["metadata"]["x-future"] == {"deep": [1, None]}
    assert (stored["spec"]["x-future"], stored["spec"]["affinity"]["podAffinity"]) == ("kept", {"x": 1})
    assert stored["spec"]["affinity"]["x-future"] is True


async def test_sidecar_of_another_webhook_takes_back_what_was_added(world: World) -> None:
    """The second pass sees an amd64-only sidecar: tolerations go, the affinity narrows."""
    caller = await world.serve("admission.node_affinity=required")
    first = await created_with(caller, world.pod("multi:1"))
    assert keys_of(first) == POOL
    assert kept_to(first["spec"], "kubernetes.io/arch") == ["amd64", "arm64"]
    assert (await caller.review(first))["patch"] == []
    first["spec"]["containers"].append({"name": "sidecar", "image": world.image("amd:1")})
    second = await created_with(caller, first)
    assert keys_of(second) == []
    assert kept_to(second["spec"], "kubernetes.io/arch") == ["amd64"]
    assert kept_to(second["spec"], "kubernetes.io/os") == ["linux"]
    assert second["metadata"]["annotations"]["multiarch-extender.io/reason"].endswith("is built only for linux/amd64")
    assert (await caller.review(second))["patch"] == []


async def test_scheduler_name_is_given_to_pods_of_the_default_scheduler(world: World) -> None:
    """Even when nothing is known of the images; a pod that names another scheduler keeps it."""
    caller = await world.serve("admission.scheduler_name=multiarch-scheduler")
    for named, stored in ((None, "multiarch-scheduler"), ("default-scheduler", "multiarch-scheduler"), ("own", "own")):
        created = world.pod("missing:1")
        if named:
            created["spec"]["schedulerName"] = named
        assert (await created_with(caller, created))["spec"]["schedulerName"] == stored


async def test_reviews_are_counted_by_outcome(world: World) -> None:
    """Patched, unchanged and skipped."""
    caller = await world.serve("admission.node_affinity=none")
    series = [f'multiarch_admissions_total{{outcome="{outcome}"}}' for outcome in ("patched", "unchanged", "skipped")]
    async with caller.growth(*series) as grown:
        await caller.review(world.pod("multi:1"))
        await caller.review(world.pod("amd:1"))
        await caller.review(world.pod("amd:1"), operation="UPDATE")
    assert grown == [1, 1, 1]


@pytest.mark.parametrize(
    "settings",
    [
        ("admission.node_affinity=none", "admission.tolerations=[]"),
        ("admission.node_affinity=required", "admission.unknown=assume"),
        ("registry.allow=['registry.example.com']",),
        ("placement.mode=observe",),
    ],
)
async def test_a_probe_is_seen_to_be_reviewed_under_every_setting(world: World, settings: tuple[str, ...]) -> None:
    """Though nothing is known of its image, and other pods may only be observed."""
    caller = await world.serve(*settings)
    assert is_reviewed(await created_with(caller, probe_pod(), dryRun=True))
    assert not is_reviewed(probe_pod())


MODE = "multiarch-extender.io/mode"
OBSERVING = ("placement.mode=observe", "admission.node_affinity=required")
ADMISSIONS = 'multiarch_observed_admissions_total{{outcome="{}"}}'


async def test_a_cluster_under_observe_is_changed_nowhere(world: World) -> None:
    """No patch and no refusal; what would have been is in the audit annotations and counted."""
    caller = await world.serve(*OBSERVING)
    image = world.image("arm:1")
    await caller.review(pod(image, annotations={MODE: "enforce"}))  # which waits for the image
    patched = await caller.metric(ADMISSIONS.format("patched"))
    review = await caller.review(pod(image))
    assert review["patch"] == []
    assert review["auditAnnotations"]["would-be"] == "patched"
    assert "kubernetes.io/arch" in review["auditAnnotations"]["would-add"]
    assert kept(await caller.filter(with_nodes(pod(image)))) == ["a", "b", "c", "d"]
    assert await caller.prioritize(with_nodes(pod(image))) == {}
    assert await caller.metric(ADMISSIONS.format("patched")) == patched + 1
    enforced = world.pod("arm:1", annotations={MODE: "enforce"})
    review = await caller.review(enforced)
    assert changes_of(review)
    assert "would-be" not in review["auditAnnotations"]
    assert kept(await caller.filter(with_nodes(enforced))) == ["b", "d"]


@pytest.mark.parametrize("impossible", ["pend", "deny"])
async def test_what_would_be_refused_is_told_and_a_dry_run_counts_for_nothing(world: World, impossible: str) -> None:
    """An impossible pod is let through under observe, whatever enforcing does with it."""
    caller = await world.serve(*OBSERVING, f"admission.impossible={impossible}")
    outcome = {"pend": "impossible", "deny": "denied"}[impossible]
    for image in ("arm:1", "amd:1"):
        await caller.review(world.pod(image, annotations={MODE: "enforce"}))  # which waits for the image
    before = await caller.metric(ADMISSIONS.format(outcome))
    for dry_run in (True, False):
        assert await caller.metric(ADMISSIONS.format(outcome)) == before
        review = await caller.review(world.pod("arm:1", "amd:1"), dryRun=dry_run)
        assert review["patch"] == []
        assert review["auditAnnotations"]["would-be"] == outcome
    assert await caller.metric(ADMISSIONS.format(outcome)) == before + 1
