"""The dashboard of the chart: it is what `make manifests` writes, and every panel helps who does not know us."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from deploy.dashboards.__main__ import FILE
from deploy.dashboards.grafana import dashboard_json, description_of
from deploy.dashboards.panels import ROWS, Panel

PAGE = Path(__file__).parents[3] / "docs" / "runbooks.md"
RUNBOOKS = {heading.lower().replace(" ", "-") for heading in re.findall(r"^## (.*)$", PAGE.read_text(), re.MULTILINE)}
PANELS = [panel for row in ROWS for panel in row.panels]


def test_the_committed_file_is_what_the_code_makes() -> None:
    """`make manifests` writes it."""
    assert FILE.read_text(encoding="utf-8") == dashboard_json()


def test_grafana_gets_each_panel_with_its_queries() -> None:
    """Under the row's heading, with the data source that the reader chooses, and each with a number of its own."""
    made: dict[str, Any] = msgspec.json.decode(dashboard_json())
    shown = [panel for panel in made["panels"] if panel["type"] != "row"]
    assert [(panel["title"], [target["expr"] for target in panel["targets"]]) for panel in shown] == [
        (panel.title, [query.expression for query in panel.queries]) for panel in PANELS
    ]
    assert [panel["title"] for panel in made["panels"] if panel["type"] == "row"] == [row.title for row in ROWS]
    assert {panel["datasource"]["uid"] for panel in shown} == {"${datasource}"}
    assert made["templating"]["list"][0]["name"] == "datasource"
    numbers = [panel["id"] for panel in made["panels"]]
    assert len(numbers) == len(set(numbers))


def test_no_panel_covers_another() -> None:
    """Nor reaches beyond the 24 columns of Grafana."""
    taken: set[tuple[int, int]] = set()
    for panel in msgspec.json.decode(dashboard_json())["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert cells.isdisjoint(taken), panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel.title)
def test_each_panel_says_what_it_means_and_what_to_do(panel: Panel) -> None:
    """In a sentence each; its runbooks exist."""
    assert panel.meaning.endswith(".")
    assert panel.remedy.endswith(".")
    for name in panel.runbooks:
        assert name in RUNBOOKS
        assert f"/docs/runbooks.md#{name})" in description_of(panel)


def test_every_runbook_is_linked() -> None:
    """Each alert has a panel where its cause shows."""
    assert {name for panel in PANELS for name in panel.runbooks} == RUNBOOKS
