"""Which options every command has, and that one name means one thing."""

from typing import Any

import pytest
import typer

from extender.cli.main import COMMANDS, command_line
from extender.cli.options import on_cluster
from extender.config.reading import read_config

ABOUT_NAMESPACES = ["audit", "doctor", "explain", "fix", "ungate"]


def options_of(name: str) -> dict[str, Any]:
    group: Any = typer.main.get_command(command_line([name]))
    return {word: each for each in group.commands[name].params for word in each.opts}


def test_a_command_takes_cluster_and_namespaces_as_kubectl_does() -> None:
    for name in COMMANDS:
        assert {"--kubeconfig", "--context"} <= options_of(name).keys(), name
    for name in ABOUT_NAMESPACES:
        assert "--namespace" in options_of(name), name
    for name in ("audit", "ungate"):
        assert "--all-namespaces" in options_of(name), name


@pytest.mark.parametrize("word", ["--kubeconfig", "--context", "--config", "--set", "--filename", "--all-namespaces"])
def test_one_option_means_one_thing(word: str) -> None:
    said = {found[word].help for name in COMMANDS if word in (found := options_of(name))}
    assert len(said) == 1


@pytest.mark.parametrize(
    ("short", "long"), [("-n", "--namespace"), ("-A", "--all-namespaces"), ("-o", "--output"), ("-f", "--filename")]
)
def test_a_letter_stands_for_one_word(short: str, long: str) -> None:
    for name in COMMANDS:
        found = options_of(name)
        assert found.get(short) is found.get(long)


@pytest.mark.parametrize(
    ("set_to", "kubeconfig", "context", "cluster"),
    [
        ("auto", "", "", "auto"),
        ("none", "", "", "none"),
        ("none", "", "b", "auto#b"),
        ("none", "f", "", "f#"),
        ("auto", "", "b", "auto#b"),
        ("f#a", "", "b", "f#b"),
        ("f#a", "g", "", "g#a"),
        ("f#a", "a#folder/g", "b", "a#folder/g#b"),
    ],
)
def test_the_cluster_of_the_options_stands_in_place_of_that_of_the_settings(
    set_to: str, kubeconfig: str, context: str, cluster: str
) -> None:
    assert on_cluster(read_config(None, [f"cluster={set_to}"]), kubeconfig, context).cluster == cluster
