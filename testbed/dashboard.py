"""Grafana's dashboard in the chart, as far as queries of it are asked of a Prometheus."""

from typing import Any, NamedTuple

import msgspec

from testbed.chart import CHART


class Panel(NamedTuple):
    """A panel, the heading of its row, and its queries."""

    row: str
    title: str
    queries: tuple[str, ...]


def panels() -> list[Panel]:
    """Returns the panels in their order."""
    decoded: dict[str, Any] = msgspec.json.decode((CHART / "files" / "dashboard.json").read_bytes())
    found, row = list[Panel](), ""
    for each in decoded["panels"]:
        if each["type"] == "row":
            row = each["title"]
        else:
            found.append(Panel(row, each["title"], tuple(target["expr"] for target in each["targets"])))
    return found


def as_sent(query: str, interval: str = "1m") -> str:
    """Returns a query as Grafana sends it where everything is chosen."""
    for name in ("cluster", "namespace", "release"):
        query = query.replace(f"${name}", ".*")
    return query.replace("$__rate_interval", interval)


API_SERVER = "What does the API server say of the webhook?"
"""The row whose metrics are the API server's."""
