"""`python -m deploy.dashboards` writes the dashboard into the chart."""

from pathlib import Path

from deploy.dashboards.grafana import dashboard_json

FILE = Path(__file__).parents[1] / "helm" / "multiarch-extender" / "files" / "dashboard.json"


def main() -> None:
    """Writes the file."""
    FILE.write_text(dashboard_json(), encoding="utf-8")


if __name__ == "__main__":
    main()
