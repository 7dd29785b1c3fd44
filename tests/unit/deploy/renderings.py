"""Renderings of the chart, kept in tests/data/chart: `python -m tests.unit.deploy.renderings` writes them anew."""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import yaml

from testbed.chart import CHART, objects_of, render
from testbed.objects import KubernetesObject

FOLDER = Path(__file__).parents[2] / "data" / "chart"


class Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Values, or a preset of the case's name, and the cluster that they are rendered for."""

    values: dict[str, Any] = {}
    preset: bool = False
    kubernetes: str = "v1.36.3"
    apis: tuple[str, ...] = ()


CASES = msgspec.yaml.decode((FOLDER / "cases.yaml").read_bytes(), type=dict[str, Case])
PRESETS = sorted(file.stem.removeprefix("values-") for file in CHART.glob("values-*.yaml"))


@cache
def objects_in(name: str) -> list[KubernetesObject]:
    case = CASES[name]
    files = [CHART / f"values-{name}.yaml"] if case.preset else []
    return objects_of(render(case.values, files, kubernetes=case.kubernetes, apis=case.apis, hooks=True))


def kept(name: str) -> str:
    """What the file of a case is to have: its objects, and of those that `default` has too only what is other there."""
    own, usual = _named(objects_in(name)), {} if name == "default" else _named(objects_in("default"))
    found: dict[str, object] = {}
    for key in sorted(own.keys() | usual.keys()):
        if key not in own:
            found[key] = "is not there"
        elif key not in usual:
            found[key] = own[key]
        elif changes := dict(_changes(usual[key], own[key], "")):
            found[key] = changes
    text = yaml.dump(found, Dumper=_Dumper, width=120, default_flow_style=None, sort_keys=False)
    return re.sub(r"(?<=checksum/configuration: )'?\w+'?", "of-the-files", text)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: object) -> bool:
        return True


def _named(objects: list[KubernetesObject]) -> dict[str, KubernetesObject]:
    """The objects by kind, name and namespace; settings as a map, and files of the chart left out."""
    return {
        " ".join(
            (each["kind"], each["metadata"]["name"], each["metadata"].get("namespace", ""), _hook(each))
        ).strip(): {field: value for field, value in _shortened(each).items() if field not in ("apiVersion", "kind")}
        for each in objects
    }


def _hook(document: KubernetesObject) -> str:
    """The event of a hook whose object replaces that of another one; its name is the same."""
    hook: str = (document["metadata"].get("annotations") or {}).get("helm.sh/hook", "")
    return f"of {hook}" if document["kind"] == "Job" and hook else ""


def _shortened(document: KubernetesObject) -> KubernetesObject:
    metadata = {name: value for name, value in document["metadata"].items() if name not in ("name", "namespace")}
    made = {**document, "metadata": metadata}
    if document["kind"] == "PrometheusRule":  # of files/rules.yaml
        rules = [rule for group in document["spec"]["groups"] for rule in group["rules"]]
        made["spec"] = [rule["labels"]["part"] for rule in rules if "part" in rule.get("labels", {})]
    if document["kind"] == "ConfigMap" and "data" in document:
        texts = document["data"].items()
        made["data"] = {name: yaml.safe_load(text) if name.endswith(".yaml") else text for name, text in texts}
    return made


def _changes(usual: object, own: object, path: str) -> Iterator[tuple[str, object]]:
    """The values that differ, by their paths; None where there is none."""
    if usual == own:
        return
    if isinstance(usual, dict) and isinstance(own, dict):
        for name in sorted(usual.keys() | own.keys()):
            yield from _changes(usual.get(name), own.get(name), f"{path}/{name}")
    elif isinstance(usual, list) and isinstance(own, list) and len(usual) == len(own):
        for index, pair in enumerate(zip(usual, own, strict=True)):
            yield from _changes(*pair, f"{path}/{index}")
    elif not path.endswith("/checksum/configuration"):
        yield path, own


def leaves(values: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The paths of the values; a map whose keys are anybody's to fill is one."""
    for name, value in values.items():
        if isinstance(value, dict) and value and name not in ("resources", "nodeSelector"):
            yield from leaves(value, (*path, name))
        else:
            yield (*path, name)


Values = dict[str, Any]


MODES: dict[str, Values] = {
    "webhook": {},
    "policy": {"webhook": {"enabled": False}, "policy": {"enabled": True}},
    "policy-and-webhook": {"policy": {"enabled": True}},
    "second": {"webhook": {"enabled": False}, "secondScheduler": {"enabled": True}},
    "default": {"webhook": {"enabled": False}, "defaultScheduler": {"enabled": True}},
    "all": {name: {"enabled": True} for name in ("policy", "secondScheduler", "defaultScheduler")},
}


def values(text: str) -> Values:
    """Values from lines such as `webhook.port: 9443`, whose keys are paths."""
    made: Values = {}
    for path, value in yaml.safe_load(text or "{}").items():
        inner = made
        *parents, last = path.split(".")
        for name in parents:
            inner = inner.setdefault(name, {})
        inner[last] = value
    return made


def rendered(text: str = "", mode: str = "webhook", *, hooks: bool = False) -> list[KubernetesObject]:
    made = values(text)
    modes = {name: {**MODES[mode].get(name, {}), **made.get("modes", {}).get(name, {})} for name in
             MODES[mode].keys() | made.get("modes", {}).keys()}  # fmt: skip
    return objects_of(render({**made, "modes": modes}, hooks=hooks))


if __name__ == "__main__":
    for each in CASES:
        (FOLDER / f"{each}.yaml").write_text(kept(each))
