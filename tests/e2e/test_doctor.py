"""`doctor` on the installed chart: silent where it does its job, and by name of the cause where something is broken."""

import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trustme
import yaml

from testbed.api_client import ADMISSIONREGISTRATION, ApiClient
from testbed.control_plane import LocalCluster
from testbed.embedded_registry import EmbeddedRegistry
from testbed.objects import pod
from tests.e2e.examined_installation import (
    MERGE_PATCH,
    SILENT,
    Installation,
    open_installation,
    report_ready,
)
from tests.e2e.installed_chart import OURS, WEBHOOK, change_webhook, installed
from tests.e2e.policies import applied_policies
from tools.docs.pages import blocks, page

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("helm_program")]


async def replace_authority(it: Installation) -> None:
    bundle = base64.b64encode(trustme.CA().cert_pem.bytes()).decode()
    await change_webhook(it.api, clientConfig={"caBundle": bundle})


async def close_port(it: Installation) -> None:
    it.ports.clear()


async def take_verb(it: Installation) -> None:
    group = "rbac.authorization.k8s.io/v1"
    role = await it.api.get("ClusterRole", WEBHOOK, "", group)
    rules = [rule for rule in role["rules"] if rule["resources"] != ["namespaces"]]
    await it.api.patch("ClusterRole", WEBHOOK, {"rules": rules}, "", group)


async def shorten_timeout(it: Installation) -> None:
    await change_webhook(it.api, timeoutSeconds=1)


async def remove_configuration(it: Installation) -> None:
    """No webhook is registered; put back empty, so that the chart's own removal finds it."""
    await it.api.patch(
        "MutatingWebhookConfiguration", WEBHOOK, {"metadata": {"labels": {"app.kubernetes.io/name": "other"}}}, "",
        ADMISSIONREGISTRATION,
    )  # fmt: skip


async def silence_registry(it: Installation) -> None:
    """A pod runs whose registry nobody answers for."""
    running = pod("shop", f"{SILENT}/shop:1", spec={"nodeName": "amd64"})
    await it.api.create(running)
    path = "/api/v1/namespaces/default/pods/shop/status"
    await it.api.request("PATCH", path, {"status": {"phase": "Running"}}, content_type=MERGE_PATCH)


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
    "closed port": Breakage({"probe"}, "unmarked", close_port),
    "missing verb": Breakage({"rights"}, "it may not list namespaces, watch namespaces", take_verb),
    "timeout too short": Breakage({"timeout"}, "timeoutSeconds is 1, and the service may wait 1.5 s", shorten_timeout),
    "no configuration": Breakage({"webhook"}, "no MutatingWebhookConfiguration", remove_configuration),
    "silent registry": Breakage({"registries"}, f"registry {SILENT}", silence_registry),
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
        fine = dict.fromkeys(("pods", "rights", "gates", "probe"), "ok")
        assert checks == {**fine, "service": "not seen", "registries": "not seen"}  # no pod is running
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
            await api.delete_all("Pod", "default")
        await assert_a_policy_whose_gates_nobody_removes_is_named(installation)
        assert await installation.doctor() == (0, "")


async def assert_a_policy_whose_gates_nobody_removes_is_named(it: Installation) -> None:
    """Beside a webhook by its defaults: pods that are created while it is away would wait for ever."""
    async with applied_policies(it.api) as apply:
        await apply("gate")
        said = await it.doctor("-o", "json")
        assert said.wrong()["gates"] == (
            "MutatingAdmissionPolicy multiarch-extender-gate: it holds new pods, and no part of the installation "
            "removes their gates\n"
        )
        assert "set admission.unknown to gate" in (await it.doctor()).output


async def test_of_a_scheduler_it_says_what_keeps_it_from_asking(
    api: ApiClient, control_plane: LocalCluster, tmp_path: Path
) -> None:
    """In the chart's ConfigMap, as it is and changed, and in the file of the cluster's own."""
    modes = {"webhook": {"enabled": False}, "secondScheduler": {"enabled": True, "webhook": False}}
    async with open_schedulers(api, control_plane, tmp_path, modes) as installation:
        assert (await installation.doctor("-o", "json")).wrong() == {}
        [shipped] = [each for each in installation.objects if "scheduler.yaml" in (each.get("data") or {})]
        configuration = yaml.safe_load(shipped["data"]["scheduler.yaml"])
        configuration["extenders"][0]["ignorable"] = True
        data = {"data": {"scheduler.yaml": yaml.safe_dump(configuration)}}
        await api.patch("ConfigMap", shipped["metadata"]["name"], data, OURS)
        said = await installation.doctor("-o", "json")
        assert (said.code, set(said.wrong())) == (1, {"scheduler"}), said.output
        assert "it is ignorable, so that the errors of scheduler.pending: retry" in said.wrong()["scheduler"]
        file = tmp_path / "scheduler.yaml"
        file.write_text(yaml.safe_dump({"kind": "KubeSchedulerConfiguration", "extenders": []}))
        given = await installation.doctor("-o", "json", f"--scheduler-config={file}")
        assert "no entry of `extenders`" in given.wrong()["scheduler"]
        assert "given" in given.wrong()["scheduler"]


@asynccontextmanager
async def open_schedulers(
    api: ApiClient, control_plane: LocalCluster, folder: Path, modes: Mapping[str, Any]
) -> AsyncIterator[Installation]:
    """The objects of the second scheduler, without a process: `doctor` reads its configuration."""
    async with (
        EmbeddedRegistry() as registry,
        installed(api, control_plane.kubeconfig, registry, folder, {"modes": modes}) as chart,
    ):
        for each in chart.objects:
            if each["kind"] == "Deployment":
                await report_ready(api, each)
        yield Installation(api, control_plane, registry, trustme.CA(), [], folder, objects=chart.objects)


async def test_where_no_namespace_has_opted_in_yet_it_advises_and_proves_the_webhook_by_that_of_canaries(
    api: ApiClient, control_plane: LocalCluster, tmp_path: Path
) -> None:
    """As just after an installation that serves labelled namespaces; it is no failure."""
    opting = {"namespaceSelector": {"matchLabels": {"a": "b"}}}
    async with open_installation(api, control_plane, tmp_path, opting) as installation:
        said = await installation.doctor("-o", "json")
    found = {each["check"]: each for each in json.loads(said.output)}
    assert (said.code, found["namespaces"]["state"], found["probe"]["state"]) == (0, "ok", "ok")
    assert "selects none of the namespaces" in found["namespaces"]["seen"]
    assert f"{WEBHOOK}-canary" in found["probe"]["seen"]


async def test_without_an_installation_it_says_so(api: ApiClient, control_plane: LocalCluster, tmp_path: Path) -> None:
    """And how to name one with other labels."""
    async with EmbeddedRegistry() as registry:
        installation = Installation(api, control_plane, registry, trustme.CA(), [], tmp_path)
        said = await installation.doctor()
    assert said.code == 1
    assert "no Deployment or DaemonSet has the labels app.kubernetes.io/name=multiarch-extender" in said.output
    assert "--selector" in said.output


async def test_of_the_policy_alone_it_says_nothing(api: ApiClient, control_plane: LocalCluster, tmp_path: Path) -> None:
    """Where no webhook is served, none is missed."""
    modes = {"webhook": {"enabled": False}, "policy": {"enabled": True}}
    async with open_schedulers(api, control_plane, tmp_path, modes) as installation:
        said = await installation.doctor("-o", "json")
        assert said.wrong() == {}, said.output
        assert ("gates", "ok") in {(each["check"], each["state"]) for each in json.loads(said.output)}
        assert await installation.doctor() == (0, "")
