"""`doctor` on the installed chart: silent where it does its job, and by name of the cause where something is broken."""

import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trustme

from testbed.api_client import ADMISSIONREGISTRATION, ApiClient
from testbed.control_plane import LocalCluster
from testbed.embedded_registry import EmbeddedRegistry
from tests.e2e.examined_installation import (
    Installation,
    open_installation,
    report_ready,
)
from tests.e2e.installed_chart import OURS, WEBHOOK, change_webhook, installed
from tools.docs.pages import blocks, page

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("helm_program")]


async def replace_authority(it: Installation) -> None:
    bundle = base64.b64encode(trustme.CA().cert_pem.bytes()).decode()
    await change_webhook(it.api, clientConfig={"caBundle": bundle})


async def close_port(it: Installation) -> None:
    it.ports.clear()


async def shorten_timeout(it: Installation) -> None:
    await change_webhook(it.api, timeoutSeconds=1)


async def remove_configuration(it: Installation) -> None:
    """No webhook is registered; put back empty, so that the chart's own removal finds it."""
    await it.api.patch(
        "MutatingWebhookConfiguration", WEBHOOK, {"metadata": {"labels": {"app.kubernetes.io/name": "other"}}}, "",
        ADMISSIONREGISTRATION,
    )  # fmt: skip


async def misspell_setting(it: Installation) -> None:
    """The ConfigMap has a setting that does not exist; running pods have the old one still."""
    await it.api.patch("ConfigMap", WEBHOOK, {"data": {"config.yaml": "admission: {wait: 2}\n"}}, OURS)


class Breakage(NamedTuple):
    """How an installation is broken, and what `doctor` then finds: the checks, and words of the first of them."""

    checks: set[str]
    words: str
    do: Callable[[Installation], Awaitable[None]]


BREAKAGES = {
    "wrong caBundle": Breakage({"certificate", "probe"}, "no authority of its caBundle", replace_authority),
    "closed port": Breakage({"probe"}, "without a word of the webhook", close_port),
    "timeout too short": Breakage({"webhook"}, "timeoutSeconds is 1, and the service may wait 1.5 s", shorten_timeout),
    "no configuration": Breakage({"webhook"}, "no MutatingWebhookConfiguration", remove_configuration),
    "misspelt setting": Breakage({"settings"}, "admission.wait", misspell_setting),
}


async def test_of_a_broken_installation_it_names_the_cause_and_of_a_right_one_nothing(
    api: ApiClient, control_plane: LocalCluster, tmp_path: Path
) -> None:
    """That check alone, or that and the pod that shows it; and nothing any more once it is mended."""
    async with open_installation(api, control_plane, tmp_path, {}) as installation:
        assert await installation.doctor("-n", "default") == (0, "")
        said = await installation.doctor("-o", "json")
        checks = {each["check"]: each["state"] for each in json.loads(said.output)}
        fine = dict.fromkeys(("pods", "settings", "webhook", "namespaces", "certificate", "probe"), "ok")
        assert checks == {**fine, "service": "not seen"}  # no pod is running
        ports = [*installation.ports]
        for name, broken in BREAKAGES.items():
            await broken.do(installation)
            said = await installation.doctor("-o", "json")
            wrong = said.wrong()
            assert (said.code, set(wrong)) == (1, broken.checks), name
            assert broken.words in wrong[min(wrong)], name
            if broken.do is shorten_timeout:
                shown = await installation.doctor()
                assert (shown.code, shown.output) == (1, next(blocks(page("how-to/doctor.md"), "text")))
            await installation.mend(ports)
        assert await installation.doctor() == (0, "")


@asynccontextmanager
async def open_objects(
    api: ApiClient, control_plane: LocalCluster, folder: Path, modes: Mapping[str, Any]
) -> AsyncIterator[Installation]:
    """The chart's objects, without a process."""
    async with (
        EmbeddedRegistry() as registry,
        installed(api, control_plane.kubeconfig, registry, folder, {"modes": modes}) as chart,
    ):
        for each in chart.objects:
            if each["kind"] == "Deployment":
                await report_ready(api, each)
        yield Installation(api, control_plane, registry, trustme.CA(), [], folder, objects=chart.objects)


async def test_where_no_namespace_has_opted_in_yet_it_advises(
    api: ApiClient, control_plane: LocalCluster, tmp_path: Path
) -> None:
    """As just after an installation that serves labelled namespaces; it is no failure."""
    opting = {"namespaceSelector": {"matchLabels": {"a": "b"}}}
    async with open_installation(api, control_plane, tmp_path, opting) as installation:
        said = await installation.doctor("-o", "json")
    found = {each["check"]: each for each in json.loads(said.output)}
    assert (said.code, found["namespaces"]["state"], found["probe"]["state"]) == (0, "ok", "not seen")
    assert "selects none of the namespaces" in found["namespaces"]["seen"]


async def test_without_an_installation_it_says_so(api: ApiClient, control_plane: LocalCluster, tmp_path: Path) -> None:
    """And how to name one with other labels."""
    async with EmbeddedRegistry() as registry:
        installation = Installation(api, control_plane, registry, trustme.CA(), [], tmp_path)
        said = await installation.doctor()
    assert said.code == 1
    assert (
        "no Deployment, DaemonSet or StatefulSet has the labels app.kubernetes.io/name=multiarch-extender"
        in said.output
    )
    assert "--selector" in said.output


async def test_of_the_policy_alone_it_says_nothing(api: ApiClient, control_plane: LocalCluster, tmp_path: Path) -> None:
    """Where no webhook is served, none is missed."""
    modes = {"webhook": {"enabled": False}, "policy": {"enabled": True}}
    async with open_objects(api, control_plane, tmp_path, modes) as installation:
        said = await installation.doctor("-o", "json")
        assert said.wrong() == {}, said.output
        assert await installation.doctor() == (0, "")
