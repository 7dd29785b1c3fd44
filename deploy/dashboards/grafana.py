"""Makes Grafana's JSON of the panels, by Grafana's own typed builders."""

import itertools
from collections.abc import Iterator

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import LegendDisplayMode, LegendPlacement, TooltipDisplayMode
from grafana_foundation_sdk.models.dashboard import DataSourceRef

from deploy.dashboards.panels import ROWS, Panel, Query, Row

UID = "multiarch-extender"
RUNBOOKS = "https://github.com/multiarch-extender/multiarch-extender/blob/main/docs/runbooks.md"
_SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
_WIDTH, _HEIGHT = 6, 7  # four panels in a row of Grafana's 24 columns
_NUMBER_HEIGHT = 4


def dashboard_json() -> str:
    """Returns the dashboard as the file that Grafana provisions."""
    made = (
        dashboard.Dashboard("multiarch-extender")
        .uid(UID)
        .description("Whether multiarch-extender keeps pods on nodes that run their images, and what to do if not.")
        .tags(["kubernetes", "multiarch-extender"])
        .time("now-6h", "now")
        .refresh("1m")
        .timezone("browser")
        .with_variable(dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
    )
    numbers = itertools.count(1)
    for row in ROWS:
        made = _with_row(made, row, numbers)
    return f"{JSONEncoder(sort_keys=True, indent=1).encode(made.build())}\n"


def description_of(panel: Panel) -> str:
    """The text behind the panel's (i): what it means, what to do, and where to read on."""
    links = [f"[{name}]({RUNBOOKS}#{name})" for name in panel.runbooks]
    return "\n\n".join([panel.meaning, panel.remedy, *([f"Runbook: {', '.join(links)}"] if links else [])])


def _with_row(made: dashboard.Dashboard, row: Row, numbers: Iterator[int]) -> dashboard.Dashboard:
    made = made.with_row(dashboard.Row(row.title).id(next(numbers)))
    for panel in row.panels:
        shown = _number(panel) if panel.is_number else _lines(panel)
        made = made.with_panel(shown.id(next(numbers)))
    return made


def _lines(panel: Panel) -> timeseries.Panel:
    made = (
        timeseries.Panel()
        .title(panel.title)
        .description(description_of(panel))
        .datasource(_SOURCE)
        .unit(panel.unit)
        .min(0)
        .span(_WIDTH)
        .height(_HEIGHT)
        .legend(
            common.VizLegendOptions()
            .show_legend(True)
            .display_mode(LegendDisplayMode.LIST)
            .placement(LegendPlacement.BOTTOM)
        )
        .tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI))
    )
    for query in panel.queries:
        made = made.with_target(_target(query))
    return made


def _number(panel: Panel) -> stat.Panel:
    made = (
        stat.Panel()
        .title(panel.title)
        .description(description_of(panel))
        .datasource(_SOURCE)
        .unit(panel.unit)
        .decimals(0)
        .span(_WIDTH)
        .height(_NUMBER_HEIGHT)
    )
    for query in panel.queries:
        made = made.with_target(_target(query))
    return made


def _target(query: Query) -> prometheus.Dataquery:
    return prometheus.Dataquery().expr(query.expression).legend_format(query.legend)
