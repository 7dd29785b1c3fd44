"""The service looks after its certificate, and no review fails while it is replaced."""

import asyncio
import base64
import contextlib
import ssl
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from extender.certificates.own_certificate import OwnCertificates, make_certificate, to_secret_data
from testbed.api_client import ADMISSIONREGISTRATION, ApiError
from testbed.eventually import eventually
from testbed.extender_process import ExtenderProcess
from testbed.objects import kept_to, pod
from testbed.shipped_files import Mode, webhook_configuration
from tests.e2e.world import World
from tools.docs.pages import blocks, page

pytestmark = pytest.mark.e2e

NAMESPACE, SECRET, CONFIGURATION = "multiarch-extender", "multiarch-webhook-identity", "multiarch-webhook"
CALLERS = 8


async def add_rights(world: World) -> None:
    """Those that the documentation gives, to the account of the webhook's manifest. No identity is there yet."""
    await world.account(Mode.WEBHOOK)
    with contextlib.suppress(ApiError):
        await world.api.delete("Secret", SECRET, NAMESPACE)
    for block in blocks(page("how-to/certificates.md"), "yaml"):
        for document in yaml.safe_load_all(block):
            if document.get("apiVersion", "").startswith("rbac."):
                await world.api.apply(document)


async def start(
    world: World, *settings: str, replicas: int = 1, before: Mapping[str, bytes | None] | None = None
) -> list[ExtenderProcess]:
    """Replicas that share one Secret, which has what was there before; the configuration calls the first of them."""
    await add_rights(world)
    if before:
        data = {key: base64.b64encode(value).decode() for key, value in before.items() if value is not None}
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET, "namespace": NAMESPACE}}
        await world.api.apply({**secret, "data": data})
    services = [
        await world.start_service(*settings, mode=Mode.WEBHOOK, admission="self-managed", start=False)
        for _ in range(replicas)
    ]
    await call(world, services[0])
    await asyncio.gather(*(service.start() for service in services))
    return services


async def call(world: World, service: ExtenderProcess) -> None:
    configuration = webhook_configuration(Mode.WEBHOOK, service.admission_url, b"")
    for webhook in configuration["webhooks"]:
        webhook["failurePolicy"] = "Fail"
        del webhook["clientConfig"]["caBundle"]
    await world.api.apply(configuration)
    world.unregister_at_end(CONFIGURATION)


async def client_config(world: World) -> Mapping[str, Any]:
    found = await world.api.get("MutatingWebhookConfiguration", CONFIGURATION, api_version=ADMISSIONREGISTRATION)
    config: Mapping[str, Any] = found["webhooks"][0]["clientConfig"]
    return config


async def identity(world: World) -> dict[str, bytes]:
    found = await world.api.get("Secret", SECRET, NAMESPACE)
    return {key: base64.b64decode(value) for key, value in found["data"].items()}


async def until_reviewed(world: World, where: str) -> None:
    await eventually(
        lambda: world.review(pod("probe", world.images.fresh("amd64"), namespace=where)),
        lambda found: kept_to(found["spec"], "kubernetes.io/arch"),
        despite=ApiError,
    )


def old_secret() -> dict[str, bytes | None]:
    """A certificate of whose life two thirds are over, and the next one, which is ten minutes old."""
    now, life = datetime.now(UTC), timedelta(days=90)
    made = now - timedelta(days=61)
    following = make_certificate(["127.0.0.1"], now - timedelta(minutes=10), life)
    return to_secret_data(OwnCertificates(make_certificate(["127.0.0.1"], made, life), following))


@pytest.mark.slow
async def test_the_certificate_is_replaced_while_reviews_go_on(world: World) -> None:
    """The next one is published at the start, and served a minute later; each review is answered."""
    where, before = await world.namespace(), old_secret()
    [service] = await start(world, before=before)
    await until_reviewed(world, where)
    shown = ssl.PEM_cert_to_DER_cert((before["next.crt"] or b"").decode())
    ended, reviews = asyncio.Event(), 0

    async def keep_asking() -> None:
        nonlocal reviews
        while not ended.is_set():
            found = await world.review(pod("asked", world.images.amd, namespace=where))
            assert kept_to(found["spec"], "kubernetes.io/arch") == ["amd64"]
            reviews += 1

    callers = [asyncio.create_task(keep_asking()) for _ in range(CALLERS)]
    try:
        await eventually(lambda: served(service), lambda found: found == shown, seconds=240)
        until = reviews + 10 * CALLERS
        await eventually(lambda: reviews >= until or any(caller.done() for caller in callers))
        assert not any(caller.done() for caller in callers)
    finally:
        ended.set()
        await asyncio.gather(*callers)
    world.figure(f"self-managed certificates: {reviews} reviews while the certificate was replaced, 0 failed")
    assert '"certificates.failed"' not in service.log()


async def served(service: ExtenderProcess) -> bytes:
    port = urlsplit(service.admission_url).port
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    certificate: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return certificate


async def test_replicas_make_one_identity_of_nothing(world: World) -> None:
    """No certificate, no Secret, no caBundle: one of two makes them. When one ends, the other goes on."""
    where = await world.namespace()
    first, second = await start(world, replicas=2)
    await until_reviewed(world, where)
    assert (await client_config(world))["caBundle"] == base64.b64encode((await identity(world))["tls.crt"]).decode()
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
    await eventually(lambda: "is not one of ours" in service.log())
    assert await identity(world) == {"tls.crt": b"x", "tls.key": b"x"}
    assert not await service.is_ready()
