"""The README of the chart, in the form of helm-docs, from Chart.yaml and values.yaml."""

from typing import Any

import msgspec
import yaml

from testbed.chart import CHART
from tools.chart.schema import leaves_of

_KINDS = {bool: "bool", int: "int", str: "string", list: "list", dict: "object"}
_INSTALLATION = """## Installation

```sh
helm install {name} deploy/helm/{name} \\
  --namespace {name} --create-namespace \\
  --set image.repository=YOUR.REGISTRY/{name}
```

[Install with Helm]({home}/blob/main/docs/how-to/install-with-helm.md) says more.
"""


def readme() -> str:
    """Returns what the chart's README.md should be. Raises UndescribedValue."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    paragraphs = [
        f"<!-- Made by `make manifests` from Chart.yaml and values.yaml. -->\n\n# {chart['name']}",
        f"Version {chart['version']}, of {chart['appVersion']}. Kubernetes `{chart['kubeVersion']}`.",
        chart["description"],
        f"**Homepage:** <{chart['home']}>",
        _INSTALLATION.format(**chart).strip(),
        "## Values",
        "\n".join(["| Key | Type | Default | Description |", "|---|---|---|---|", *map(_row, _values())]),
    ]
    return "\n\n".join(paragraphs) + "\n"


def _values() -> list[tuple[str, Any, str]]:
    return list(leaves_of((CHART / "values.yaml").read_text()))


def _row(value: tuple[str, Any, str]) -> str:
    path, default, description = value
    shown = msgspec.json.encode(default).decode()
    return f"| {path} | {_KINDS[type(default)]} | `{shown}` | {description.replace('|', chr(92) + '|')} |"
