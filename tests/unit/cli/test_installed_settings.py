"""What counts of an installation's settings where its namespace is named, and that no other is read."""

import re
from typing import Any

import msgspec
import pytest
import yaml

from extender.cli.installed_settings import given_settings
from extender.cluster.client import ClusterRefused
from extender.config.reading import parse_config, read_config
from extender.config.tree import Config
from extender.errors import ConfigError
from extender.placement.affinity import AffinityMode
from extender.placement.annotations import Choice
from tests.unit.cli.installed_cluster import APPS, CONFIG_MAP, DEPLOYMENTS, InstalledCluster, deployment

IN_OURS = f"{APPS}/namespaces/ours"
WEBHOOK = {
    "admission": {"listen": ":8443", "node_affinity": "both"},
    "placement": {"preference": {"arm64": 10}},
    "registry": {
        "deny": ["a.example.com"],
        "allow": ["b.example.com"],
        "plain_http": ["b.example.com"],
        "docker_config": "/secrets/config.json",
        "mirrors": "/etc/containerd/certs.d",
        "credential_providers": {"config": "/providers.yaml", "bin_dir": "/providers"},
        "private_addresses": False,
    },
    "cluster": "auto#theirs",
    "cache": {"url": "sqlite:////data/cache.db"},
}


def installed(settings: Any) -> InstalledCluster:
    cluster = InstalledCluster(yaml.safe_dump(settings))
    cluster.lists[f"{IN_OURS}/deployments"] = cluster.lists.pop(DEPLOYMENTS)
    return cluster


async def beside(cluster: InstalledCluster, *assignments: str, file: str | None = None) -> Config:
    own = read_config(None, assignments)
    return await given_settings(own, file, assignments, "ours").beside(cluster.client)


async def test_what_is_installed_decides_as_far_as_it_counts_here(capsys: pytest.CaptureFixture[str]) -> None:
    """Not the cluster, the cache, files, and whom the service may ask, and how: these are of its pods."""
    settings = await beside(installed(WEBHOOK), "cluster=auto#mine")
    assert settings.admission.node_affinity is AffinityMode.BOTH
    assert settings.placement.preference == {"arm64": 10}
    assert settings.registry == msgspec.structs.replace(Config().registry, deny=("a.example.com",))
    assert (settings.cluster, settings.cache.url) == ("auto#mine", "")
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("settings: those of Deployment ours/webhook, without registry.plain_http, allow, private_")


async def test_an_assignment_is_over_what_is_installed() -> None:
    settings = await beside(
        installed(WEBHOOK), "admission.node_affinity=preferred", "registry.deny=[b.example.com]",
        "registry.plain_http=[b.example.com]",
    )  # fmt: skip
    assert settings.admission.node_affinity is AffinityMode.PREFERRED
    assert (settings.registry.deny, settings.registry.plain_http) == (("b.example.com",), ("b.example.com",))
    assert settings.placement.preference == {"arm64": 10}


async def test_nobody_is_asked_unless_an_installation_is_named() -> None:
    cluster = installed(WEBHOOK)
    own = read_config(None)
    assert await given_settings(own, "mine.yaml", (), "").beside(cluster.client) is own
    assert await given_settings(own, None, (), "").beside(cluster.client) is own
    assert cluster.asked == set()
    with pytest.raises(ConfigError, match="exclude each other"):
        given_settings(own, "mine.yaml", (), "ours")


async def test_of_two_parts_each_gives_what_it_serves(capsys: pytest.CaptureFixture[str]) -> None:
    """Reviews by the webhook, and the verbs as a scheduler has them."""
    cluster = installed({"scheduler": {"listen": "127.0.0.1:1", "unknown": "retry"}, "admission": {"listen": ""}})
    webhook = deployment(readyReplicas=1)
    webhook["metadata"]["name"] = "z"
    webhook["spec"]["template"]["spec"]["volumes"][0]["configMap"]["name"] = "z"
    cluster.lists[f"{IN_OURS}/statefulsets"] = [webhook]
    cluster.objects[CONFIG_MAP.replace("webhook", "z")] = {"data": {"config.yaml": yaml.safe_dump(WEBHOOK)}}
    settings = await beside(cluster)
    assert (settings.admission.node_affinity, settings.scheduler.unknown) == (AffinityMode.BOTH, Choice.RETRY)
    assert "those of StatefulSet ours/z and Deployment ours/webhook," in capsys.readouterr().err


MISSPELT: Any = {"data": {"config.yaml": "admision: {}"}}


@pytest.mark.parametrize(
    ("refused", "lists", "objects", "why"),
    [
        pytest.param(f"{IN_OURS}/deployments", {}, {}, "HTTP 403", id="no right to list"),
        pytest.param(CONFIG_MAP, {}, {}, "HTTP 403", id="no right to read settings"),
        pytest.param("", {f"{IN_OURS}/deployments": []}, {}, "nothing there has the label", id="nothing installed"),
        pytest.param("", {}, {CONFIG_MAP: MISSPELT}, "admision: there is no such setting", id="misspelt"),
    ],
)
async def test_without_an_installation_that_can_be_read_nothing_is_decided(
    refused: str, lists: Any, objects: Any, why: str
) -> None:
    """Whoever names an installation wants its settings."""
    cluster = installed(WEBHOOK)
    cluster.refused.add(refused)
    cluster.lists |= lists
    cluster.objects |= objects
    with pytest.raises((ConfigError, ClusterRefused), match=re.escape(why)):
        await beside(cluster)


async def test_a_tenants_look_alike_is_not_read() -> None:
    """It has the labels, in the tenant's namespace."""
    cluster = installed(WEBHOOK)
    cluster.lists[DEPLOYMENTS] = [deployment(readyReplicas=1)]
    cluster.lists[DEPLOYMENTS][0]["metadata"]["namespace"] = "tenant"
    await beside(cluster)
    assert not any("tenant" in path or path == DEPLOYMENTS for path in cluster.asked)


def test_every_default_is_that_of_the_chart() -> None:
    assert parse_config("", "").admission.node_affinity is AffinityMode.REQUIRED
