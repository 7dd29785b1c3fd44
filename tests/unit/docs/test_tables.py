"""The tables of the documentation say what the code says."""

import re

import pytest
from typer.main import get_command

from extender.cli.main import COMMANDS, command_line
from extender.config.tree import settings
from extender.placement.annotations import ANNOTATIONS
from testbed.chart import HelmMissing
from tools.docs.pages import ALL, PROJECT, page
from tools.docs.tables import TABLES, split_at_table

TEXT = "\n".join(path.read_text() for path in ALL)


@pytest.mark.parametrize(("name", "table"), TABLES)
def test_table_is_what_the_code_says(name: str, table: str) -> None:
    """`make tables` writes them."""
    try:
        made = TABLES[name, table]()
    except HelmMissing as exc:
        pytest.skip(str(exc))
    assert split_at_table(page(name), table)[1] == made


@pytest.mark.parametrize("annotation", [annotation.key for annotation in ANNOTATIONS])
def test_every_annotation_is_explained(annotation: str) -> None:
    """Each annotation that is read or written."""
    assert f"| `{annotation}` |" in page("annotations.md")


def test_settings_named_in_the_text_exist() -> None:
    """No paragraph speaks of a setting that there is not."""
    paths = {setting.path for setting in settings()}
    sections = {path[: end.start()] for path in paths for end in re.finditer(r"\.", path)}
    roots = "|".join(each for each in sections if "." not in each)
    text = "\n".join(path.read_text() for path in ALL if path.name != "CHANGELOG.md")  # which tells of removed ones
    named = set(re.findall(rf"`((?:{roots})\.[a-z_.]+)(?:[:=][^`]*)?`", text))
    assert named
    assert named <= paths | sections


def test_options_named_in_the_text_exist() -> None:
    """Every option that the text gives a command of ours is one of that command's."""
    known = {
        name: {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
        for name, command in vars(get_command(command_line(())))["commands"].items()
    }
    given = [
        (name, option)
        for name, options in re.findall(rf"multiarch-extender ({'|'.join(COMMANDS)})\b([^`|\n]*)", TEXT)
        for option in re.findall(r"(?<=\s)--?[a-z][\w-]*", options)
    ]
    assert len(given) > len(COMMANDS)
    assert [f"{name} {option}" for name, option in given if option not in known[name]] == []


def test_commands_named_in_the_text_exist() -> None:
    """Every `make` target that the text names is one."""
    makefile = (PROJECT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z0-9-]+):.*## ", makefile, re.MULTILINE))
    assert set(re.findall(r"(?:`|^)make ([a-z0-9-]+)", TEXT, re.MULTILINE)) <= targets


def test_log_events_are_those_of_the_code() -> None:
    """Each event is in the table, and each one in the table is logged somewhere."""
    source = "\n".join(file.read_text() for file in (PROJECT / "extender").rglob("*.py"))
    calls = r"\b(?:log\.(?:info|warning|error|exception)|outlive_defects)\(\s*\"([a-z]+\.[a-z_]+)\""
    logged = set(re.findall(calls, source))
    logged |= {
        event for line in re.findall(r"\bevent = (.*)", source) for event in re.findall(r"\"([a-z]+\.[a-z_]+)\"", line)
    }
    table = page("logs.md")
    named = set(re.findall(r"`([a-z]+\.[a-z_]+)`", table)) - {setting.path for setting in settings()}
    assert named == logged
