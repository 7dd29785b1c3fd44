"""Completion in shells and in kubectl, the program's name as users typed it, and no colours outside terminals."""

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from extender.cli import main as command_line
from tests.unit.cli import commands

BIN = Path(sys.executable).parent
NAMES = ("multiarch-extender", "kubectl-multiarch")
KUBECONFIG = "--set=cluster.kubeconfig=/nowhere/at/all"
POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c, image: 127.0.0.1:1/app:1}]}\n"
SETTINGS = ("--set=registry.plain_http=['127.0.0.1:1']", "--set=registry.allow=['127.0.0.1:1']")
MEMORY = "--set=cache.url='memory:'"
# Runs of commands that print something, with colours or a bar if they were for a terminal. Others are run bare.
RUNS: dict[str, list[tuple[str, ...]]] = {
    "audit": [("-f", "-", *SETTINGS, MEMORY), ("--kubeconfig", "/nowhere/at/all")],
    "completion": [("bash",), ("tcsh",)],
    "config": [(), ("--table",), ("--check", "/nowhere/at/all")],
    "doctor": [("--no-registries", "--set=cluster.kubeconfig=/nowhere/at/all")],
    "explain": [("-f", "-", "--set=cluster.mode=none", *SETTINGS), ("p", KUBECONFIG)],
    "fix": [("-f", "-", *SETTINGS), ("-f", "/nowhere/at/all")],
    "inspect": [("127.0.0.1:1/app:1", *SETTINGS), ("127.0.0.1:1/app:1", "-o", "json", *SETTINGS)],
    "policies": [("--kubernetes", "1.36"), ("--kubeconfig", "/nowhere/at/all")],
    "running": [(KUBECONFIG,)],
    "serve": [("--set=scheduler.wait_seconds=soon",)],
    "ungate": [("-A", "--kubeconfig", "/nowhere/at/all")],
}


async def run(
    program: str, *arguments: str, stdin: str = "", environment: Mapping[str, str] | None = None
) -> tuple[int, str, str]:
    """The exit code, standard output and standard error of a program whose terminal would have colours."""
    terminal = {"TERM": "xterm-256color", "COLORTERM": "truecolor", "COLUMNS": "120", **(environment or {})}
    return await commands.run(*arguments, stdin=stdin, environment=terminal, program=program)


@pytest.mark.parametrize("name", sorted(command_line.commands()))
async def test_a_command_is_one_of_kubectl_and_has_no_colours_in_a_pipe(name: str) -> None:
    """Its help and its errors name the program as it was typed, and nothing is drawn."""
    code, out, err = await run("kubectl-multiarch", name, "--help")
    assert (code, err) == (0, "")
    assert f"Usage: kubectl multiarch {name}" in out
    code, _, err = await run("kubectl-multiarch", name, "--no-such-option")
    assert code == 2
    assert f"Usage: kubectl multiarch {name}" in err
    assert "\x1b" not in out + err
    for arguments in RUNS.get(name, [()]):
        code, out, err = await run("kubectl-multiarch", name, *arguments, stdin=POD)
        assert code in (0, 1, 2)
        assert out + err
        assert "\x1b" not in out + err
        assert "\r" not in out + err
        assert "Looking up" not in err


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["au"], ["audit"]),
        (["audit", "--req"], ["--require"]),
        (["completion", ""], ["bash", "zsh", "fish"]),
        (["explain", "--out"], ["--output"]),
    ],
)
async def test_bash_completes_words(name: str, words: list[str], found: list[str]) -> None:
    """By the script that `completion bash` prints, under either name."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash")
    _, script, _ = await run(name, "completion", "bash")
    function = script.partition("()")[0].strip()
    line = " ".join(f"'{word}'" for word in (name, *words))
    program = (
        f"{script}\nCOMP_WORDS=({line}); COMP_CWORD={len(words)}; {function} {name}; printf '%s\\n' ${{COMPREPLY[@]}}"
    )
    process = await asyncio.create_subprocess_exec(
        bash,
        "-c",
        program,
        stdout=subprocess.PIPE,
        env={**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"},
    )
    out, _ = await asyncio.wait_for(process.communicate(), 60)
    assert out.decode().split() == found


@pytest.mark.parametrize("shell", ["zsh", "fish"])
async def test_other_shells_are_told_where_to_ask(shell: str) -> None:
    """Their scripts call the program, which answers in their form."""
    _, script, _ = await run("multiarch-extender", "completion", shell)
    variable = "_MULTIARCH_EXTENDER_COMPLETE"
    assert f"{variable}=complete_{shell}" in script
    words = {"_TYPER_COMPLETE_ARGS": "multiarch-extender aud", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    code, out, _ = await run("multiarch-extender", environment={variable: f"complete_{shell}", **words})
    assert code == 0
    assert "audit" in out


@pytest.mark.parametrize(
    ("words", "found", "directive"),
    [
        (["au"], ["audit"], ":4"),
        (["audit", "--req"], ["--require"], ":4"),
        (["audit", "-f", ""], [], ":0"),
        (["completion", "f"], ["fish"], ":4"),
        (["audit", "it's", "--own"], ["--own"], ":4"),
        ([""], sorted(command_line.commands()), ":4"),
    ],
)
async def test_kubectl_completes_words(words: list[str], found: list[str], directive: str) -> None:
    """kubectl_complete-multiarch prints what cobra reads: a completion a line, then what the shell does besides."""
    code, out, err = await run("kubectl_complete-multiarch", *words)
    assert (code, err) == (0, "")
    *lines, last = out.splitlines()
    assert [line.partition("\t")[0] for line in lines] == found
    assert last == directive
