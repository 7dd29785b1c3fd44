"""Makes what is made from the chart of `deploy/helm`: `python -m tools.chart`.

It writes `values.schema.json`, `README.md`, `files/rights.yaml` and `deploy/manifests`. Each file in `deploy/manifests`
has a file of values in `deploy/helm/manifests`, whose first comment is the head of the file.
"""

import re
import sys
from pathlib import Path

import msgspec

from extender.service.rights import TABLE
from testbed.chart import CHART, HELM_FOLDER, HelmMissing, RenderingRefused, render
from tools.chart.readme import readme
from tools.chart.schema import schema_of

MANIFESTS = HELM_FOLDER.parent / "manifests"
RIGHTS = CHART / "files" / "rights.yaml"
_NAMESPACE = """apiVersion: v1
kind: Namespace
metadata:
  name: multiarch-extender
---
"""
_RIGHTS_HEAD = """# The rights that a part's account takes, by what its settings say. `make manifests` writes this file
# from extender/service/rights.py.
"""


def manifest(name: str) -> str:
    """Returns what `deploy/manifests/NAME.yaml` should be."""
    values = HELM_FOLDER / "manifests" / f"{name}.yaml"
    return f"{_head_of(values)}{_NAMESPACE}{_without_sources(render(files=[values]))}"


def manifest_names() -> list[str]:
    """Returns the names of the files in deploy/manifests."""
    return sorted(file.stem for file in (HELM_FOLDER / "manifests").glob("*.yaml"))


def values_schema() -> str:
    """Returns what the chart's `values.schema.json` should be."""
    return f"{msgspec.json.format(msgspec.json.encode(schema_of((CHART / 'values.yaml').read_text()))).decode()}\n"


def rights_file() -> str:
    """Returns what the chart's `files/rights.yaml` should be: the service's own table."""
    lines = (msgspec.json.encode(each).decode() for each in TABLE)
    return _RIGHTS_HEAD + "".join(f"- {line}\n" for line in lines)


def _head_of(values: Path) -> str:
    """The comment at the head of the file, with its last line's end."""
    found = re.match(r"(?:#.*\n)+", values.read_text())
    return found[0] if found else ""


def _without_sources(text: str) -> str:
    """The documents without what Helm alone reads, comments and a label, and without empty lines around."""
    text = re.sub(r"^(# Source| *helm.sh/chart): .*\n", "", text, flags=re.MULTILINE)
    documents = [each.strip("\n") for each in re.split(r"^---\n", text, flags=re.MULTILINE)]
    return "\n---\n".join(each for each in documents if each) + "\n"


def main() -> int:
    """Writes what is made from the chart; returns the exit code."""
    try:
        (CHART / "values.schema.json").write_text(values_schema())
        (CHART / "README.md").write_text(readme())
        RIGHTS.write_text(rights_file())
        for name in manifest_names():
            (MANIFESTS / f"{name}.yaml").write_text(manifest(name))
    except (HelmMissing, RenderingRefused) as exc:
        sys.stderr.write(f"{exc}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
