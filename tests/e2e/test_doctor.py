"""`doctor` on the installed chart: silent where it does its job, and by name of the cause where something is broken."""

import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trustme
import yaml

from testbed.api_client import ApiClient, ApiError
from testbed.control_plane import LocalCluster
from testbed.embedded_registry import EmbeddedRegistry
from testbed.objects import KubernetesObject, pod
from tests.e2e.examined_installation import (
    ADMISSIONREGISTRATION,
    MERGE_PATCH,
    SILENT,
    WEBHOOK,
    Installation,
    Said,
    open_installation,
    report_ready,
    server_of,
)
from tests.e2e.installed_chart import OURS, installed
from tests.e2e.policies import applied_policies
from tools.docs.pages import blocks, page

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("helm_program")]


async def replace_authority(it: Installation) -> None:
    bundle = base64.b64encode(trustme.CA().cert_pem.bytes()).decode()
    await it.change_webhook(clientConfig={"caBundle": bundle})


async def close_port(it: Installation) -> None:
    it.ports.clear()


async def rename_url(it: Installation) -> None:
    """The API server calls a name that the certificate is not for."""
    found = await it.api.get("MutatingWebhookConfiguration", WEBHOOK, "", ADMISSIONREGISTRATION)
    url = found["webhooks"][0]["clientConfig"]["url"]
    await it.change_webhook(clientConfig={"url": url.replace("127.0.0.1", "localhost")})


async def take_verb(it: Installation) -> None:
    group = "rbac.authorization.k8s.io/v1"
    role = await it.api.get("ClusterRole", WEBHOOK, "", group)
    rules = [rule for rule in role["rules"] if rule["resources"] != ["namespaces"]]
    await it.api.patch("ClusterRole", WEBHOOK, {"rules": rules}, "", group)


async def add_sidecars_later(it: Installation) -> None:
    """Another webhook comes after ours, which is not called again."""
    await it.change_webhook(reinvocationPolicy="Never")
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    webhook = {
        "name": "sidecars.example.com", "admissionReviewVersions": ["v1"], "sideEffects": "None",
        "failurePolicy": "Ignore", "timeoutSeconds": 1, "clientConfig": {"url": "https://127.0.0.1:1/"},
        "rules": [rule],
    }  # fmt: skip
    await it.api.apply(
        {
            "apiVersion": ADMISSIONREGISTRATION, "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": "sidecars"}, "webhooks": [webhook],
        }
    )  # fmt: skip


async def shorten_timeout(it: Installation) -> None:
    await it.change_webhook(timeoutSeconds=1)


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


async def lose_pods(it: Installation) -> None:
    path = f"/apis/apps/v1/namespaces/{OURS}/deployments/{WEBHOOK}/status"
    status = {"readyReplicas": 0, "availableReplicas": 0}
    await it.api.request("PATCH", path, {"status": status}, content_type=MERGE_PATCH)


async def misspell_setting(it: Installation) -> None:
    """The ConfigMap has a setting that does not exist; running pods have the old one still."""
    await it.api.patch("ConfigMap", WEBHOOK, {"data": {"config.yaml": "admission: {wait: 2}\n"}}, OURS)


class Breakage(NamedTuple):
    """How an installation is broken, and what `doctor` then finds: the checks, and words of the first of them."""

    checks: set[str]
    words: str
    do: Callable[[Installation], Awaitable[None]] | None = None
    arguments: tuple[str, ...] = ()


BREAKAGES = {
    "wrong caBundle": Breakage({"certificate", "probe"}, "no authority of its caBundle", replace_authority),
    "closed port": Breakage({"probe"}, "unmarked", close_port),
    "wrong name": Breakage({"certificate", "probe"}, "the API server calls localhost", rename_url),
    "missing verb": Breakage({"rights"}, "it may not list namespaces, watch namespaces", take_verb),
    "sidecars added later": Breakage({"order"}, "sidecars is called after it", add_sidecars_later),
    "timeout too short": Breakage({"timeout"}, "timeoutSeconds is 1, and the service may wait 1.5 s", shorten_timeout),
    "no configuration": Breakage({"webhook"}, "no MutatingWebhookConfiguration", remove_configuration),
    "excluded namespace": Breakage({"namespaces"}, "its pods are not reviewed", arguments=("-n", "kube-system")),
    "silent registry": Breakage({"registries"}, f"registry {SILENT}", silence_registry),
    "no pod ready": Breakage({"pods"}, "none of 2 pods is ready", lose_pods),
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
            if broken.do:
                await broken.do(installation)
            assert_named(name, broken, await installation.doctor("-o", "json", *broken.arguments))
            if broken.do is shorten_timeout:
                shown = await installation.doctor()
                assert (shown.code, shown.output) == (1, next(blocks(page("how-to/doctor.md"), "text")))
            await installation.mend(ports)
            await remove_additions(api)
        await assert_a_policy_whose_pods_nobody_lets_go_is_named(installation)
        assert await installation.doctor() == (0, "")


async def assert_a_policy_whose_pods_nobody_lets_go_is_named(it: Installation) -> None:
    """Beside a webhook by its defaults: pods that are created while it is away would wait for ever."""
    async with applied_policies(it.api) as apply:
        await apply("gate")
        said = await it.doctor("-o", "json")
        assert said.wrong()["gates"] == (
            "MutatingAdmissionPolicy multiarch-extender-gate: it holds new pods, and no part of the installation "
            "lets them go\n"
        )
        assert "set admission.unknown to gate" in (await it.doctor()).output


async def test_of_a_certificate_that_has_ended(api: ApiClient, control_plane: LocalCluster, tmp_path: Path) -> None:
    ended = Breakage({"certificate", "probe"}, "ended 3 days ago")
    async with open_installation(api, control_plane, tmp_path, {}, days=-3) as installation:
        assert_named("expired leaf", ended, await installation.doctor("-o", "json"))


def assert_named(name: str, broken: Breakage, said: Said) -> None:
    wrong = said.wrong()
    assert (said.code, set(wrong)) == (1, broken.checks), name
    assert broken.words in wrong[min(wrong)], name


async def remove_additions(api: ApiClient) -> None:
    with suppress(ApiError):
        await api.delete("MutatingWebhookConfiguration", "sidecars", "", ADMISSIONREGISTRATION)
    await api.delete_all("Pod", "default")


EXTENDER = {
    "urlPrefix": "http://127.0.0.1:8880/scheduler", "filterVerb": "filter", "prioritizeVerb": "prioritize",
    "nodeCacheCapable": True, "httpTimeout": "2s", "weight": 10,
}  # fmt: skip
SECOND = {"webhook": {"enabled": False}, "secondScheduler": {"enabled": True, "webhook": False}}


EXTENDERS: Sequence[tuple[list[KubernetesObject], str]] = [
    ([], "no entry of `extenders`"),
    ([{**EXTENDER, "ignorable": True}], "it is ignorable, so that the errors of scheduler.pending: retry"),
    ([{**EXTENDER, "httpTimeout": "100ms"}], "httpTimeout is 0.1 s"),
    ([{**EXTENDER, "filterVerb": "Filter"}], "filterVerb is 'Filter'"),
    ([EXTENDER], ""),
]


async def test_of_a_scheduler_it_says_what_keeps_it_from_asking(
    api: ApiClient, control_plane: LocalCluster, tmp_path: Path
) -> None:
    """In the chart's ConfigMap, and in the file of the cluster's own."""
    async with open_schedulers(api, control_plane, tmp_path, SECOND) as installation:
        [shipped] = [each for each in installation.objects if "scheduler.yaml" in (each.get("data") or {})]
        for extenders, words in EXTENDERS:
            configuration = {"kind": "KubeSchedulerConfiguration", "extenders": extenders}
            both = {**yaml.safe_load(shipped["data"]["scheduler.yaml"]), "extenders": extenders}
            data = {"data": {"scheduler.yaml": yaml.safe_dump(both)}}
            await api.patch("ConfigMap", shipped["metadata"]["name"], data, OURS)
            said = await installation.doctor("-o", "json")
            assert (said.code, set(said.wrong())) == ((1, {"scheduler"}) if words else (0, set())), said.output
            assert words in said.wrong().get("scheduler", "")
            file = tmp_path / "scheduler.yaml"
            file.write_text(yaml.safe_dump(configuration))
            given = await installation.doctor("-o", "json", f"--scheduler-config={file}")
            assert ("given" in given.wrong().get("scheduler", "")) == bool(words)


@asynccontextmanager
async def open_schedulers(
    api: ApiClient, control_plane: LocalCluster, folder: Path, modes: Mapping[str, Any]
) -> AsyncIterator[Installation]:
    """The objects of the second scheduler, without a process: `doctor` reads its configuration."""
    async with (
        EmbeddedRegistry() as registry,
        server_of(control_plane) as server,
        installed(api, control_plane, server, registry, folder, {"modes": modes}) as chart,
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
