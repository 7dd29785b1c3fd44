"""Renders the chart of `deploy/helm` by the program helm."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml

from testbed.binaries import NEWEST, cache_folder
from testbed.objects import KubernetesObject

HELM_FOLDER = Path(__file__).resolve().parents[1] / "deploy" / "helm"
CHART = HELM_FOLDER / "multiarch-extender"
POLICIES = CHART / "files" / "policies"
"""The admission policies, for an installation without Helm; the chart fills its own names in."""
NAME = "multiarch-extender"
"""The release and its namespace, where nothing else is asked for."""

_SECONDS = 60.0
_IMAGE = Path(__file__).parent / "pins" / "chart_image.yaml"  # below all values: nothing is rendered without an image
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


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
    apis: Sequence[str] = (),
    hooks: bool = False,
    chart: Path = CHART,
) -> str:
    """Returns the text of all objects, as `helm template` prints them; those of Helm's hooks only with `hooks`.

    `values` wins over `files`, a later file over an earlier one. `apis` are versions that the cluster serves beside the
    usual ones. Raises HelmMissing, RenderingRefused.
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
    command += [f"--api-versions={each}" for each in apis]
    text = msgspec.yaml.encode(values).decode() if values is not None else ""
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=_SECONDS, check=False)
    if done.returncode:
        raise RenderingRefused(done.stderr.strip())
    return done.stdout


def objects_of(text: str) -> list[KubernetesObject]:
    """Returns the objects of rendered text, without empty documents."""
    return [each for each in yaml.load_all(text, _LOADER) if each]


def _version_of(program: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", program.parent.name.split("-")[1])]
