"""Writes the tables of the documentation that are made from code: `python -m tools.docs.tables`.

A table stands between two comments of its page, `<!-- NAME -->` and `<!-- NAME end -->`. `test_tables` compares them
with the code, except those of journeys, for which calls are traced.
"""

import re
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence

import yaml

import extender.cli.serve
import extender.store.redis  # noqa: F401 -- imported late, where it is named
from benchmarks.journey import COLD, FETCHER, RELEASE, REVIEW, SERVICE, WARM, Function, crossed_functions
from extender.config.tree import settings
from extender.metrics import REGISTRY
from extender.placement.annotations import ANNOTATIONS
from testbed.binaries import (
    ACTIONLINT,
    CONTAINERD,
    ETCD,
    HELM,
    HELM_3,
    KARPENTER,
    KIND,
    KREW,
    KUBERNETES,
    KUEUE,
    GoModule,
)
from testbed.chart import HelmMissing
from tools.docs.pages import DOCS
from tools.docs.rights import rights_table
from tools.release.pythons import PROJECT, image_release, oldest_release, release_of

ABOUT_REGISTRIES = ("registry", "cache")
ABOUT_PLACEMENT = ("placement",)
"""The sections of the configuration that have tables of their own."""


def metrics_table() -> str:
    """Every metric of ours with its labels as Markdown, by name."""
    rows = []
    for metric in sorted(REGISTRY.collect(), key=lambda metric: metric.name):
        declared: Sequence[str] = getattr(metric, "_labelnames", ())  # a family may have no series yet
        labels = sorted({*declared, *(label for sample in metric.samples for label in sample.labels if label != "le")})
        name = f"{metric.name}_total" if metric.type == "counter" else metric.name
        rows.append(f"- `{name}{{{','.join(labels)}}}`: {metric.documentation}".replace("{}", ""))
    return "\n".join([*rows, ""])


def annotations_table() -> str:
    """Every annotation as Markdown, in the order of its declaration."""
    rows = [
        f"| `{annotation.key}` | {annotation.writer} | {annotation.values} | {annotation.meaning} |"
        for annotation in ANNOTATIONS
    ]
    return "\n".join(["| annotation | author | values | meaning |", "|---|---|---|---|", *rows, ""])


def settings_table(*, only: Container[str] | None = None, leave_out: Container[str] = ()) -> str:
    """The settings with their defaults as Markdown, of the sections in `only`, or of all but those in `leave_out`."""
    rows = [
        f"- `{setting.path}: {setting.default}`: {setting.documentation}"
        for setting in settings()
        if (only is None or setting.section in only) and setting.section not in leave_out
    ]
    return "\n".join([*rows, ""])


def settings_of_the_service() -> str:
    """The settings but for those with tables of their own."""
    return settings_table(leave_out=(*ABOUT_REGISTRIES, *ABOUT_PLACEMENT))


def settings_of_placement() -> str:
    """The settings of the decision that all modes share."""
    return settings_table(only=ABOUT_PLACEMENT)


def settings_of_registries() -> str:
    """The settings of registries and the cache."""
    return settings_table(only=ABOUT_REGISTRIES)


def support_table() -> str:
    """What the pins of the test bed and the pipeline's matrix name, as Markdown."""
    check = yaml.safe_load((PROJECT / ".github" / "workflows" / "check.yml").read_text())
    matrix = map(release_of, check["jobs"]["tests"]["strategy"]["matrix"]["python"])
    interpreters = ", ".join(map(str, sorted({*matrix, image_release()})))
    chart = yaml.safe_load((PROJECT / "deploy/helm/multiarch-extender/Chart.yaml").read_text())
    rows = {
        "API server and scheduler of Kubernetes": _versions(*KUBERNETES.values()),
        "Kubernetes that the chart takes": chart["kubeVersion"].removesuffix("-0"),
        "etcd": _versions(ETCD),
        "kubelet, on nodes that run containers": _versions(KUBERNETES["1.36"]),
        "containerd": f"{_versions(CONTAINERD)}, and Debian 12's 1.6",
        "Karpenter": _versions(KARPENTER),
        "Kueue": _versions(KUEUE),
        "Helm": _versions(HELM, HELM_3),
        "CPython": f"{interpreters}; at least {oldest_release()}; {image_release()} in the image",
        "kind, which only reads its configuration": _versions(KIND),
        "actionlint, krew's check of manifests": _versions(ACTIONLINT, KREW),
    }
    return "\n".join([*(f"- {what}: {each}" for what, each in rows.items()), ""])


def journey_table(functions: Sequence[Function], known: Collection[tuple[str, str]] = ()) -> str:
    """How many files have these functions, and a list of those that are not `known`, by process and room, as Markdown.

    They are in the order of the functions. A file is known by its process and its path.
    """
    crossed = list(dict.fromkeys((each.process, each.file) for each in functions))
    new = [each for each in crossed if each not in known]
    rows = [
        f"- `{room}`{' in the fetcher' * (process == FETCHER)}: {', '.join(f'`{name}`' for name in names)}"
        for process in (SERVICE, FETCHER)
        for room, names in _by_room(file for each, file in new if each == process).items()
    ]
    there = sum(process == FETCHER for process, _ in crossed)
    counted = f"{len({file for _, file in crossed})} files" + f", {there} of them in the fetcher" * bool(there)
    return "\n".join(["", f"{counted}{'; beyond those above:' if known else ':'}", "", *rows, "", ""])


def _by_room(files: Iterable[str]) -> Mapping[str, Sequence[str]]:
    rooms: dict[str, list[str]] = {}
    for file in files:
        room, _, name = f"extender/{file}".rpartition("/")
        rooms.setdefault(f"{room}/", []).append(name)
    return rooms


def _versions(*modules: GoModule) -> str:
    return ", ".join(module.version.removeprefix("v") for module in modules)


TABLES: Mapping[tuple[str, str], Callable[[], str]] = {
    ("settings.md", "settings of placement"): settings_of_placement,
    ("settings.md", "settings of registries"): settings_of_registries,
    ("settings.md", "settings of the service"): settings_of_the_service,
    ("metrics.md", "metrics"): metrics_table,
    ("annotations.md", "annotations"): annotations_table,
    ("how-to/upgrade.md", "support"): support_table,
    ("security.md", "rights"): rights_table,
}
"""What makes the table of a page, by the page and the name in its comments."""

JOURNEYS = ("architecture.md", (WARM, COLD, REVIEW, RELEASE))
"""The page with a table of files for each of these journeys."""


def split_at_table(text: str, name: str) -> tuple[str, str, str]:
    """The page's text before the table with the comment, the table, and the rest with the comment."""
    found = re.fullmatch(rf"(.*<!-- {name}[^>]*-->\n)(.*?)(<!-- {name} end -->.*)", text, re.DOTALL)
    assert found, f"the page has no <!-- {name} --> … <!-- {name} end -->"
    return found[1], found[2], found[3]


def main() -> None:
    """Writes every table into its page."""
    for (page, name), table in TABLES.items():
        try:
            _write(page, name, table())
        except HelmMissing as exc:
            print(f"{page} keeps its table of {name}, which {exc}")
    page, names = JOURNEYS
    crossed = crossed_functions()
    known: set[tuple[str, str]] = set()
    for name in names:
        _write(page, name, journey_table(crossed[name], known))
        known |= {(each.process, each.file) for each in crossed[name]}


def _write(page: str, name: str, table: str) -> None:
    path = DOCS / page
    before, _, after = split_at_table(path.read_text(), name)
    path.write_text(f"{before}{table}{after}")


if __name__ == "__main__":
    main()
