"""`fix` as a post-renderer of the real helm, 4 by the plugin of `deploy/` and 3 by the command itself.

`python -m testbed.binaries helm helm3` builds them; the tests are skipped without.
"""

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed.binaries import HELM, HELM_3, GoModule, find_built
from testbed.demo.story import fill_registry
from testbed.embedded_registry import EmbeddedRegistry

PLUGIN = Path(__file__).parents[2] / "deploy" / "helm-plugin"
TEMPLATES = {
    "agent.yaml": """\
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: agent}
spec:
  selector: {matchLabels: {app: agent}}
  template:
    metadata: {labels: {app: agent}}
    spec:
      containers:
        - name: agent
          image: {{ .Values.host }}/shop/{{ .Values.image }}:1.0
""",
    "web.yaml": """\
{{- range $name := list "one" "two" }}
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ $name }}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
        - name: web
          image: {{ $.Values.host }}/shop/web:1.0
          env: [{name: TEXT, value: "no --- marker"}]
{{- end }}
""",
    "empty.yaml": "{{- if false }}\nkind: Pod\n{{- end }}\n",
    "configuration.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {kind: Deployment}\n",
}


class Helm:
    """A built helm with the command as its post-renderer, and a chart."""

    def __init__(self, module: GoModule, folder: Path, host: str) -> None:
        self._program = find_built(module) / "helm"
        self._folder, self._host = folder, host
        self.shows_why = module is HELM_3
        settings = [f"registry.plain_http=['{host}']", f"registry.allow=['{host}']"]
        more = [f"--set={setting}" for setting in settings]
        self._post_renderer = [sys.executable, "-m", "extender", "fix", "--filename=-", "--write", *more]
        if module is HELM:
            shutil.copytree(PLUGIN, folder / "plugins" / "multiarch")
            (folder / "bin").mkdir()
            (folder / "bin" / "multiarch-extender").write_text(f'#!/bin/sh\nexec {sys.executable} -m extender "$@"\n')
            (folder / "bin" / "multiarch-extender").chmod(0o755)
            self._post_renderer = ["multiarch", *more]
        chart = folder / "chart" / "templates"
        chart.mkdir(parents=True)
        (chart.parent / "Chart.yaml").write_text("apiVersion: v2\nname: shop\nversion: 1.0.0\n")
        for name, text in TEMPLATES.items():
            (chart / name).write_text(text)

    async def template(self, image: str, *, post_rendered: bool) -> tuple[int, str, str]:
        """The exit code, standard output and standard error of `helm template`."""
        program, *arguments = self._post_renderer
        options = [f"--post-renderer={program}", *(f"--post-renderer-args={argument}" for argument in arguments)]
        home = {name: str(self._folder / name.lower()) for name in ("HELM_CACHE_HOME", "HELM_CONFIG_HOME")}
        process = await asyncio.create_subprocess_exec(
            self._program, "template", "release", self._folder / "chart",
            "--set", f"host={self._host},image={image}", *(options if post_rendered else ()),
            env={**os.environ, **home, "HELM_PLUGINS": str(self._folder / "plugins"),
                 "HELM_DATA_HOME": str(self._folder), "PATH": f"{self._folder / 'bin'}:{os.environ['PATH']}",
                 "PYTHONPATH": str(Path(__file__).parents[2])},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        out, err = await asyncio.wait_for(process.communicate(), 60)
        return process.returncode or 0, out.decode(), err.decode()


@pytest.fixture(params=["helm 4", pytest.param("helm 3", marks=pytest.mark.slow)])
async def helm(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Helm]:
    """Helm of each major version, with the demonstration's images."""
    module = HELM if request.param == "helm 4" else HELM_3
    if not find_built(module).is_dir():
        pytest.skip(f"{request.param} is not built: python -m testbed.binaries helm helm3")
    async with EmbeddedRegistry() as registry:
        fill_registry(registry)
        yield Helm(module, tmp_path, registry.host)


def objects_of(text: str) -> dict[str, Any]:
    """The objects of a stream by kind and name, without what helm 4 notes for itself."""
    found = {}
    for item in yaml.safe_load_all(text):
        if item:
            item["metadata"].pop("annotations", None)
            found[f"{item['kind']}/{item['metadata']['name']}"] = item
    return found


async def test_a_chart_is_rendered_with_what_the_webhook_would_add(helm: Helm) -> None:
    """Affinity and tolerations are new, the rest is what helm renders without."""
    code, out, err = await helm.template("legacy", post_rendered=True)
    assert (code, err) == (0, "")
    found = objects_of(out)
    plain = objects_of((await helm.template("legacy", post_rendered=False))[1])
    pods = {name: item["spec"]["template"]["spec"] for name, item in found.items() if name != "ConfigMap/c"}
    assert sorted(pods) == ["DaemonSet/agent", "Deployment/one", "Deployment/two"]
    assert [sorted(pod) for pod in pods.values()] == [
        ["affinity", "containers"] if name == "DaemonSet/agent" else ["containers", "tolerations"] for name in pods
    ]
    for pod in pods.values():
        for key in ("affinity", "tolerations"):
            pod.pop(key, None)
    assert found == plain


async def test_helm_fails_and_says_why_if_an_image_is_not_known(helm: Helm) -> None:
    """Nothing is installed by halves. Helm 3 shows which image it is; Helm 4 keeps a plugin's standard error."""
    code, _, err = await helm.template("missing", post_rendered=True)
    assert code == 1
    if helm.shows_why:
        assert "DaemonSet agent is left as it is" in err
        assert "shop/missing:1.0 is not known (missing)" in err
    else:
        assert 'plugin "multiarch" exited with error' in err
