"""Grafana's dashboard in the chart: every panel shows the chosen release, and helps who does not know us."""

import re
from typing import Any

import msgspec
import pytest

from testbed.chart import CHART
from tools.docs.pages import PROJECT

DASHBOARD: dict[str, Any] = msgspec.json.decode((CHART / "files" / "dashboard.json").read_bytes())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
RUNBOOKS = {
    heading.lower().replace(" ", "-")
    for heading in re.findall(r"^## (.*)$", (PROJECT / "docs" / "runbooks.md").read_text(), re.MULTILINE)
}
CHOSEN = 'cluster=~"$cluster",namespace=~"$namespace",job=~"$release"'


def test_a_reader_chooses_source_cluster_namespace_and_release() -> None:
    names = [each["name"] for each in DASHBOARD["templating"]["list"]]
    assert names == ["datasource", "cluster", "namespace", "release"]
    assert {panel["datasource"]["uid"] for panel in PANELS} == {"${datasource}"}


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_panel_shows_what_was_chosen_and_says_what_to_do(panel: dict[str, Any]) -> None:
    """By every metric of ours that it reads; its runbooks exist."""
    for target in panel["targets"]:
        assert target["expr"].count(CHOSEN) == len(re.findall(r"\bmultiarch_", target["expr"]))
        assert target["expr"].count('cluster=~"$cluster"') == len(
            re.findall(r"\b(?:multiarch|apiserver)_", target["expr"])
        )
    meaning, remedy, *_ = panel["description"].split("\n\n")
    assert meaning.endswith(".")
    assert remedy.endswith(".")
    assert set(re.findall(r"runbooks\.md#([a-z-]+)", panel["description"])) <= RUNBOOKS
