"""The tables of the documentation say what the code says."""

import re

import pytest

import extender.cli.main
import extender.store.redis  # noqa: F401 -- imported late, where it is named
from extender.budgets import budgets
from extender.cli.config import settings_table
from extender.config.tree import settings
from extender.metrics import REGISTRY
from extender.placement.annotations import ANNOTATIONS, Writer
from tests.unit.declared_caches import declared_caches
from tests.unit.docs.pages import ALL, PROJECT, page

TEXT = "\n".join(path.read_text() for path in ALL)
WRITERS = {
    Writer.POD: "the pod's author",
    Writer.NAMESPACE: "the namespace's author",
    Writer.SERVICE: "the service, on pods",
}


def between(text: str, start: str, end: str) -> str:
    """The text between two comments."""
    found = re.search(rf"<!-- {start}[^>]*-->\n(.*?)<!-- {end} -->", text, re.DOTALL)
    assert found, f"the page has no <!-- {start} --> … <!-- {end} -->"
    return found[1]


def metrics_table() -> str:
    """Every metric of ours as Markdown, by name."""
    rows = []
    for metric in sorted(REGISTRY.collect(), key=lambda metric: metric.name):
        labels = sorted({label for sample in metric.samples for label in sample.labels if label != "le"})
        name = f"{metric.name}_total" if metric.type == "counter" else metric.name
        rows.append(f"| `{name}` | {metric.type} | {', '.join(labels)} | {metric.documentation} |")
    return "\n".join(["| metric | type | labels | meaning |", "|---|---|---|---|", *rows, ""])


def caches_table() -> str:
    """Every cache that the package declares as Markdown, by name."""
    rows = [
        f"| {spec.name} | {spec.key} | {spec.lifetime} | {_number(spec.bound)} | {spec.at_most} "
        f"| {spec.invalidated_by} |"
        for spec in declared_caches()
    ]
    return "\n".join(
        ["| cache | key | lifetime | rows | at most | invalidated by |", "|---|---|---|---|---|---|", *rows, ""]
    )


def _number(bound: int | str) -> str:
    return bound if isinstance(bound, str) else f"{bound:,}"


def budgets_table() -> str:
    """Every budget that the package declares as Markdown, by name."""
    declared_caches()  # imports all modules
    rows = [
        f"| {spec.name} | {spec.total:,} {spec.unit} | {spec.most_each:,} | {spec.why} |"
        for spec in budgets()
        if not spec.name.startswith("tests.")
    ]
    return "\n".join(["| budget | total | one tenant alone | why |", "|---|---|---|---|", *rows, ""])


def annotations_table() -> str:
    """Every annotation as Markdown, in the order of its declaration."""
    rows = [
        f"| `{annotation.key}` | {', '.join(WRITERS[writer] for writer in annotation.writers)} "
        f"| {annotation.values} | {annotation.meaning} |"
        for annotation in ANNOTATIONS
    ]
    return "\n".join(["| annotation | written by | values | meaning |", "|---|---|---|---|", *rows, ""])


def test_settings_table_is_the_structs() -> None:
    """Paste the output of `multiarch-extender config --table`."""
    assert between(page("settings.md"), "settings", "settings end") == settings_table()


def test_metrics_table_is_the_registry() -> None:
    """Each metric with type, labels and meaning."""
    assert between(page("metrics-and-logs.md"), "metrics", "metrics end") == metrics_table()


def test_caches_table_is_the_declarations() -> None:
    """Each cache with key, lifetime, bound and what invalidates it. Paste what `caches_table` gives."""
    assert between(page("caches.md"), "caches", "caches end") == caches_table()


def test_budgets_table_is_the_declarations() -> None:
    """Each budget with its amounts and where they come from. Paste what `budgets_table` gives."""
    assert between(page("budgets.md"), "budgets", "budgets end") == budgets_table()


def test_annotations_table_is_their_declaration() -> None:
    """Each annotation with its writers, values and meaning."""
    assert between(page("annotations.md"), "annotations", "annotations end") == annotations_table()


@pytest.mark.parametrize("annotation", [annotation.key for annotation in ANNOTATIONS])
def test_every_annotation_is_explained(annotation: str) -> None:
    """Each annotation that is read or written."""
    assert f"| `{annotation}` |" in page("annotations.md")


def test_settings_named_in_the_text_exist() -> None:
    """No paragraph speaks of a setting that there is not."""
    paths = {setting.path for setting in settings()}
    sections = {path.partition(".")[0] for path in paths}
    named = set(re.findall(rf"`((?:{'|'.join(sections)})\.[a-z_.]+)(?:[:=][^`]*)?`", TEXT))
    assert named
    assert named <= paths


def test_commands_named_in_the_text_exist() -> None:
    """Every `make` target that the text names is one."""
    makefile = (PROJECT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z0-9-]+):.*## ", makefile, re.MULTILINE))
    assert set(re.findall(r"(?:`|^)make ([a-z0-9-]+)", TEXT, re.MULTILINE)) <= targets


def test_log_events_are_those_of_the_code() -> None:
    """Each event is in the table, and each one in the table is logged somewhere."""
    source = "\n".join(file.read_text() for file in (PROJECT / "extender").rglob("*.py"))
    logged = set(re.findall(r"\blog\.(?:info|warning|error|exception)\(\s*\"([a-z]+\.[a-z_]+)\"", source))
    logged |= {
        event for line in re.findall(r"\bevent = (.*)", source) for event in re.findall(r"\"([a-z]+\.[a-z_]+)\"", line)
    }
    table = page("metrics-and-logs.md").partition("## Log events")[2].partition("\n## ")[0]
    named = set(re.findall(r"`([a-z]+\.[a-z_]+)`", table)) - {setting.path for setting in settings()}
    assert named == logged
