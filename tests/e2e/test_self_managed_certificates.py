"""The service looks after its certificate and authority, and no review fails while they are replaced."""

import asyncio
import base64
import contextlib
import time
from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from testbed.api_client import ApiError
from testbed.extender_process import ExtenderProcess
from testbed.objects import kept_to, pod
from testbed.shipped_files import Mode, webhook_configuration
from tests.e2e.world import ADMISSIONREGISTRATION, World
from tests.unit.docs.pages import blocks, page

pytestmark = pytest.mark.e2e

NAMESPACE, SECRET, CONFIGURATION = "multiarch-extender", "multiarch-webhook-identity", "multiarch-webhook"
DAY_SECONDS = 86_400
CALLERS = 8


async def add_rights(world: World) -> None:
    """Those that the documentation gives, to the account of the webhook's manifest. No identity is there yet."""
    await world.account(Mode.WEBHOOK)
    for kind, name, version in (
        ("Secret", SECRET, "v1"),
        ("Lease", SECRET, "coordination.k8s.io/v1"),
    ):
        with contextlib.suppress(ApiError):
            await world.api.delete(kind, name, NAMESPACE, version)
    for block in blocks(page("how-to/certificates.md"), "yaml"):
        for document in yaml.safe_load_all(block):
            if document.get("apiVersion", "").startswith("rbac."):
                await world.api.apply(document)


async def start(world: World, *settings: str, replicas: int = 1) -> list[ExtenderProcess]:
    """Replicas that share one identity; the configuration calls the first of them."""
    await add_rights(world)
    services = [
        await world.start_service(*settings, mode=Mode.WEBHOOK, admission="self-managed", start=False)
        for _ in range(replicas)
    ]
    await call(world, services[0])
    await asyncio.gather(*(service.start() for service in services))
    return services


async def call(world: World, service: ExtenderProcess) -> None:
    """Makes the configuration call this replica; one that is there keeps its authority."""
    configuration = webhook_configuration(Mode.WEBHOOK, service.admission_url, b"")
    for webhook in configuration["webhooks"]:
        webhook["failurePolicy"] = "Fail"
        del webhook["clientConfig"]["caBundle"]
    await world.api.apply(configuration)
    world.unregister_at_end(CONFIGURATION)


async def client_config(world: World) -> Mapping[str, Any]:
    """How the API server calls the webhook now."""
    found = await world.api.get("MutatingWebhookConfiguration", CONFIGURATION, api_version=ADMISSIONREGISTRATION)
    config: Mapping[str, Any] = found["webhooks"][0]["clientConfig"]
    return config


async def identity(world: World) -> dict[str, bytes]:
    """The data of the Secret."""
    found = await world.api.get("Secret", SECRET, NAMESPACE)
    return {key: base64.b64decode(value) for key, value in found["data"].items()}


async def until_reviewed(world: World, where: str) -> None:
    """Returns when the API server has a pod reviewed: an image is looked up for it."""
    async with asyncio.timeout(30):
        while True:
            with contextlib.suppress(ApiError):
                found = await world.review(pod("probe", world.images.fresh("amd64"), namespace=where))
                if kept_to(found["spec"], "kubernetes.io/arch"):
                    return
            await asyncio.sleep(0.05)


async def test_from_nothing_to_reviews(world: World) -> None:
    """No certificate, no Secret, no authority in the configuration: reviews are answered seconds after the start."""
    where = await world.namespace()
    started = time.monotonic()
    await start(world)
    await until_reviewed(world, where)
    seconds = time.monotonic() - started
    world.figure(f"self-managed certificates: from nothing to a review in {seconds:.1f} s")
    assert (await client_config(world))["caBundle"] == base64.b64encode((await identity(world))["ca.crt"]).decode()


@pytest.mark.slow
async def test_everything_is_replaced_while_reviews_go_on(world: World) -> None:
    """Lives of minutes: certificate and authority change several times, and each review is answered."""
    where = await world.namespace()
    [service] = await start(
        world,
        f"admission.self_managed.certificate_days={30 / DAY_SECONDS}",  # and an authority of 240 s
    )
    await until_reviewed(world, where)
    before, ended, reviews = await identity(world), asyncio.Event(), 0

    async def keep_asking() -> None:
        nonlocal reviews
        while not ended.is_set():
            found = await world.review(pod("asked", world.images.amd, namespace=where))
            assert kept_to(found["spec"], "kubernetes.io/arch") == ["amd64"]
            reviews += 1

    callers = [asyncio.create_task(keep_asking()) for _ in range(CALLERS)]
    try:
        async with asyncio.timeout(300):
            seen = dict.fromkeys(("tls.crt", "ca.key"), 0)
            while min(seen.values()) == 0:
                await asyncio.sleep(1)
                assert not any(caller.done() for caller in callers)
                now = await identity(world)
                seen = {key: seen[key] or now[key] != before[key] for key in seen}
    finally:
        ended.set()
        await asyncio.gather(*callers)
    world.figure(f"self-managed certificates: {reviews} reviews while everything was replaced, 0 failed")
    assert '"certificates.failed"' not in service.log()


async def test_replicas_share_one_identity(world: World) -> None:
    """One of two makes it. When the leader ends, the other goes on."""
    where = await world.namespace()
    first, second = await start(world, replicas=2)
    await until_reviewed(world, where)
    made = [each.log().count('"certificates.renewed"') for each in (first, second)]
    assert sorted(made) == [0, 1]
    first.kill()
    await call(world, second)
    await until_reviewed(world, where)
    assert '"certificates.failed"' not in second.log()


async def test_secret_of_others_is_left_alone(world: World) -> None:
    """It may be cert-manager's. The service says so, and does not start."""
    await add_rights(world)
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET, "namespace": NAMESPACE}}
    await world.api.apply({**secret, "data": {"tls.crt": "eA==", "tls.key": "eA=="}})
    service = await world.start_service(mode=Mode.WEBHOOK, admission="self-managed", start=False)
    service.launch()
    async with asyncio.timeout(20):
        while "is not one of ours" not in service.log():
            await asyncio.sleep(0.1)
    assert await identity(world) == {"tls.crt": b"x", "tls.key": b"x"}
    assert not await service.is_ready()
