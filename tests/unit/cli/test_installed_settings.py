"""By whose settings a command decides beside an installation, and that it says so."""

from typing import Any

import pytest
import yaml

from extender.cli.installed_settings import GivenSettings
from extender.config.reading import parse_config, read_config
from extender.config.tree import Config
from extender.placement.affinity import AffinityMode
from extender.placement.policy import Choice
from tests.unit.cli.installed_cluster import APPS, CONFIG_MAP, DEPLOYMENTS, InstalledCluster, deployment

MIRRORS = "/apis/config.openshift.io/v1/imagedigestmirrorsets"
WEBHOOK = {
    "admission": {"listen": ":8443", "node_affinity": "both"},
    "placement": {"preference": {"arm64": 10}},
    "registry": {"deny": ["a.example.com"], "docker_config": "/secrets/config.json", "private_addresses": False},
    "cluster": "auto#theirs",
    "cache": {"url": "sqlite:////data/cache.db"},
}


def installed(settings: Any) -> InstalledCluster:
    return InstalledCluster(yaml.safe_dump(settings))


async def beside(cluster: InstalledCluster, *assignments: str, file: str | None = None) -> Config:
    own = read_config(None, assignments)
    return await GivenSettings(own, file, assignments).beside(cluster.client)


async def test_what_is_installed_decides(capsys: pytest.CaptureFixture[str]) -> None:
    """Not the cluster, the cache and the files, which are those of its pods."""
    settings = await beside(installed(WEBHOOK), "cluster=auto#mine")
    assert settings.admission.node_affinity is AffinityMode.BOTH
    assert settings.placement.preference == {"arm64": 10}
    assert (settings.registry.deny, settings.registry.private_addresses) == (("a.example.com",), False)
    assert (settings.cluster, settings.cache.url, settings.registry.docker_config) == ("auto#mine", "", "")
    out, err = capsys.readouterr()
    assert (out, err) == ("", "settings: those of Deployment ours/webhook; --config FILE gives others\n")


async def test_an_assignment_is_over_what_is_installed() -> None:
    settings = await beside(installed(WEBHOOK), "admission.node_affinity=preferred", "registry.deny=[b.example.com]")
    assert settings.admission.node_affinity is AffinityMode.PREFERRED
    assert settings.registry.deny == ("b.example.com",)
    assert settings.placement.preference == {"arm64": 10}


async def test_a_file_is_instead_of_what_is_installed(capsys: pytest.CaptureFixture[str]) -> None:
    cluster = installed(WEBHOOK)
    assert await beside(cluster, file="mine.yaml") == read_config(None)
    assert cluster.asked == set()
    assert capsys.readouterr().err == "settings: those of mine.yaml\n"


async def test_of_two_parts_each_gives_what_it_serves(capsys: pytest.CaptureFixture[str]) -> None:
    """Reviews by the webhook, and the verbs as a scheduler has them."""
    cluster = installed({"scheduler": {"listen": "127.0.0.1:1", "unknown": "retry"}, "admission": {"listen": ""}})
    webhook = deployment(readyReplicas=1)
    webhook["metadata"]["name"] = "z"
    webhook["spec"]["template"]["spec"]["volumes"][0]["configMap"]["name"] = "z"
    cluster.lists[f"{APPS}/statefulsets"] = [webhook]
    cluster.objects[CONFIG_MAP.replace("webhook", "z")] = {"data": {"config.yaml": yaml.safe_dump(WEBHOOK)}}
    settings = await beside(cluster)
    assert (settings.admission.node_affinity, settings.scheduler.unknown) == (AffinityMode.BOTH, Choice.RETRY)
    assert "those of StatefulSet ours/z and Deployment ours/webhook;" in capsys.readouterr().err


MISSPELT: Any = {"data": {"config.yaml": "admision: {}"}}


@pytest.mark.parametrize(
    ("refused", "lists", "objects", "why"),
    [
        pytest.param(DEPLOYMENTS, {}, {}, "HTTP 403", id="no right to list"),
        pytest.param(CONFIG_MAP, {}, {}, "HTTP 403", id="no right to read settings"),
        pytest.param("", {DEPLOYMENTS: []}, {}, "none was found", id="nothing installed"),
        pytest.param("", {}, {CONFIG_MAP: MISSPELT}, "admision: there is no such setting", id="misspelt"),
    ],
)
async def test_without_an_installation_that_can_be_read_the_defaults_decide(
    refused: str, lists: Any, objects: Any, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = installed(WEBHOOK)
    cluster.refused.add(refused)
    cluster.lists |= lists
    cluster.objects |= objects
    settings = await beside(cluster, "placement.preference={arm64: 5}")
    assert settings == read_config(None, ["placement.preference={arm64: 5}"])
    assert settings.admission.node_affinity is AffinityMode.REQUIRED
    said = capsys.readouterr().err
    assert said.startswith("settings: the defaults, as no installation can be read (")
    assert why in said


@pytest.mark.parametrize("is_refused", [True, False])
async def test_mirrors_of_openshift_are_left_out_where_the_account_may_not_list_them(
    is_refused: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else who may not read the cluster's configuration could not have a pod explained."""
    cluster = installed({**WEBHOOK, "registry": {"mirrors": "openshift"}})
    if is_refused:
        cluster.refused.add(MIRRORS)
    assert (await beside(cluster)).registry.mirrors_of_openshift is not is_refused
    assert ("without OpenShift's mirrors" in capsys.readouterr().err) is is_refused


def test_every_default_is_that_of_the_chart() -> None:
    assert parse_config("", "").admission.node_affinity is AffinityMode.REQUIRED
