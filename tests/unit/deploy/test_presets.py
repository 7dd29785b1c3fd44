"""What the chart's files of values do to workloads: only the boost of the scheduler's extender moves any."""

from pathlib import Path
from typing import Any

import pytest

from extender.config.reading import load_config
from extender.config.tree import Config
from extender.images.content import Content, Evidence
from extender.images.manifest import Kind
from extender.placement.facts import images_of
from extender.placement.mutation import Mutator
from extender.placement.scheduling import Decision
from extender.reports.explanation import Subject, explain
from extender.service.operator_policies import admission_settings_of, policy_of
from testbed.chart import CHART, objects_of, render
from tests.builders import AMD64, ARCH, ARM64, MULTI, PREFERRED, created, pod
from tests.unit.deploy.renderings import PRESETS
from tests.unit.placement.mutating import after, terms_of

pytestmark = pytest.mark.usefixtures("helm")
Values = dict[str, Any]
ASKS_SCHEDULER = {"kind", "k3s"}
BOOST, NAMED, DRAWN, LEFT_OUT = "boost", "scheduler's name", "preferred affinity", "left out"


def settings_of_parts(folder: Path, values: Values, *files: Path) -> list[Config]:
    """The settings of every part that runs with these values, as the service reads them."""
    found = []
    for each in objects_of(render(values, files)):
        if each["kind"] == "ConfigMap" and "config.yaml" in each["data"]:
            file = folder / "config.yaml"
            file.write_text(each["data"]["config.yaml"])
            found.append(load_config(str(file)))
    assert found
    return found


def movers(config: Config) -> set[str]:
    """What moves a pod whose images run everywhere, where no taint keeps it from any node."""
    made = pod()
    patched = after(made, MULTI, admission=admission_settings_of(config), policy=policy_of(config))["spec"]
    moved = set()
    if config.admission.listen or config.admission.unknown == "gate":
        affinity = patched.get("affinity", {}).get("nodeAffinity", {})
        moved |= {DRAWN} if affinity.get(PREFERRED) else set()
        moved |= {NAMED} if patched["schedulerName"] != made["spec"]["schedulerName"] else set()
    if config.scheduler.listen:
        policy = policy_of(config)
        decision = Decision(images_of(created(made)), [MULTI], policy, policy.overrides)
        moved |= {BOOST} if any(decision.preference.values()) else set()
        moved |= {LEFT_OUT} if decision.leaves_out else set()
    return moved


@pytest.fixture(params=["", *PRESETS])
def preset(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def configs(preset: str, tmp_path: Path) -> list[Config]:
    return settings_of_parts(tmp_path, {}, *([CHART / f"values-{preset}.yaml"] if preset else []))


def test_nothing_but_the_boost_moves_workloads(configs: list[Config], preset: str) -> None:
    """And that only where the preset has kube-scheduler ask. The affinity allows all architectures of the images."""
    assert set.union(*map(movers, configs)) == ({BOOST} if preset in ASKS_SCHEDULER else set())
    (webhook,) = (each for each in configs if each.admission.listen)
    (term,) = terms_of(after(pod(), MULTI, admission=admission_settings_of(webhook)))
    assert {each["key"]: each["values"] for each in term["matchExpressions"]}[ARCH] == ["amd64", "arm64"]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"config": {"admission": {"node_affinity": "both"}}}, {DRAWN}),
        ({"config": {"admission": {"node_affinity": "preferred"}}}, {DRAWN}),
        ({"config": {"admission": {"scheduler_name": "mine"}}}, {NAMED}),
        ({"config": {"placement": {"preference_by": "filter"}}, "modes": {"defaultScheduler": {"enabled": True}}},
         {BOOST, LEFT_OUT}),
    ],
)  # fmt: skip
def test_what_moves_workloads_is_seen(tmp_path: Path, values: Values, expected: set[str]) -> None:
    """Each of the second steps, named in values."""
    assert set.union(*map(movers, settings_of_parts(tmp_path, values))) == expected


def test_explain_shows_no_change_for_a_pod_that_the_webhook_has_just_patched(configs: list[Config]) -> None:
    """By the settings of the preset, whatever its images run on: its second look is the webhook's own second pass."""
    (webhook,) = (each for each in configs if each.admission.listen)
    policy, admission = policy_of(webhook), admission_settings_of(webhook)
    for content in (MULTI, AMD64, ARM64):
        stored = after(pod(), content, admission=admission, policy=policy)
        decoded = created(stored)
        answer = Content(Kind.INDEX, content.platforms, states_platforms=True)
        known = Evidence(answer=answer, digest="", credential="", age_seconds=0.0, is_fresh=True)
        found = dict.fromkeys(images_of(decoded), known)
        subject = Subject(kind="Pod", name="p", namespace="shop", document=stored, pod=decoded, is_created=True)
        told = explain(subject, found, policy.overrides, policy, Mutator(policy, admission), [])
        assert (told.webhook.patch, told.webhook.outcome) == ([], "unchanged")
