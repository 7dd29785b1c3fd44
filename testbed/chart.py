"""Renders the chart of `deploy/helm` by the program helm, and makes what is made from it.

`python -m testbed.chart` writes `values.schema.json` and `deploy/manifests`. Each file in `deploy/manifests` has a file
of values in `deploy/helm/manifests`, whose first comment is the head of the file.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml

from testbed.binaries import NEWEST, cache_folder
from testbed.chart_schema import schema_of
from testbed.objects import KubernetesObject

HELM_FOLDER = Path(__file__).resolve().parents[1] / "deploy" / "helm"
CHART = HELM_FOLDER / "multiarch-extender"
MANIFESTS = HELM_FOLDER.parent / "manifests"
POLICIES = CHART / "files" / "policies"
"""The admission policies, for an installation without Helm; the chart fills its own names in."""
NAME = "multiarch-extender"
"""The release and its namespace, where nothing else is asked for."""

_SECONDS = 60.0
_IMAGE = Path(__file__).parent / "pins" / "chart_image.yaml"  # below all values: nothing is rendered without an image
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_ONE_TEMPLATE = (
    "network-policy",
    "scheduler-name-webhook",
)  # files of objects that come beside those of a mode


class HelmMissing(RuntimeError):
    """There is no program helm; the message says what to do."""


class RenderingRefused(RuntimeError):
    """Helm refused the values; the message is Helm's own."""


def find_helm(environment: Mapping[str, str] = os.environ) -> Path:
    """Returns the program: $HELM, else the newest in the programs' cache, else that on the PATH. Raises HelmMissing."""
    if named := environment.get("HELM"):
        return Path(named)
    built = sorted((cache_folder(environment) / "charts").glob("helm-v*/helm"), key=_version_of)
    if built:
        return built[-1]
    if found := shutil.which("helm", path=environment.get("PATH")):
        return Path(found)
    raise HelmMissing("needs helm: `python -m testbed.binaries helm` builds it, or name one in the variable HELM")


def render(
    values: Mapping[str, Any] | None = None,
    files: Sequence[Path] = (),
    *,
    release: str = NAME,
    namespace: str = NAME,
    kubernetes: str = NEWEST.version,
    only: str = "",
    hooks: bool = False,
    chart: Path = CHART,
) -> str:
    """Returns the text of all objects, as `helm template` prints them; those of Helm's hooks only with `hooks`.

    `values` wins over `files`, a later file over an earlier one. `only` names one file of the templates. Raises
    HelmMissing, RenderingRefused.
    """
    command = [
        str(find_helm()),
        "template",
        release,
        str(chart),
        f"--namespace={namespace}",
        f"--kube-version={kubernetes}",
    ]
    command += [f"--values={file}" for file in (_IMAGE, *files)]
    command += ["--values=-"] if values is not None else []
    command += [] if hooks else ["--no-hooks"]
    command += [f"--show-only=templates/{only}"] if only else []
    text = msgspec.yaml.encode(values).decode() if values is not None else ""
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=_SECONDS, check=False)
    if done.returncode:
        raise RenderingRefused(done.stderr.strip())
    return done.stdout


def objects_of(text: str) -> list[KubernetesObject]:
    """Returns the objects of rendered text, without empty documents."""
    return [each for each in yaml.load_all(text, _LOADER) if each]


def manifest(name: str) -> str:
    """Returns what `deploy/manifests/NAME.yaml` should be."""
    values = HELM_FOLDER / "manifests" / f"{name}.yaml"
    text = render(files=[values], only=f"{name}.yaml" if name in _ONE_TEMPLATE else "")
    return f"{_head_of(values)}{_without_sources(text)}"


def manifest_names() -> list[str]:
    """Returns the names of the files in deploy/manifests."""
    return sorted(file.stem for file in (HELM_FOLDER / "manifests").glob("*.yaml"))


def values_schema() -> str:
    """Returns what the chart's `values.schema.json` should be."""
    return f"{msgspec.json.format(msgspec.json.encode(schema_of((CHART / 'values.yaml').read_text()))).decode()}\n"


def _version_of(program: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", program.parent.name.split("-")[1])]


def _head_of(values: Path) -> str:
    """The comment at the head of the file, with its last line's end."""
    found = re.match(r"(?:#.*\n)+", values.read_text())
    return found[0] if found else ""


def _without_sources(text: str) -> str:
    """The documents without Helm's comments, which name the files of templates, and without empty lines around."""
    documents = [
        re.sub(r"^# Source: .*\n", "", each).strip("\n") for each in re.split(r"^---\n", text, flags=re.MULTILINE)
    ]
    return "\n---\n".join(each for each in documents if each) + "\n"


def main() -> int:
    """Writes what is made from the chart; returns the exit code."""
    try:
        (CHART / "values.schema.json").write_text(values_schema())
        for name in manifest_names():
            (MANIFESTS / f"{name}.yaml").write_text(manifest(name))
    except (HelmMissing, RenderingRefused) as exc:
        sys.stderr.write(f"{exc}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
