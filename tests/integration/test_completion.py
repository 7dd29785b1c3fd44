"""What every command has: help, errors in its own name, no colours outside terminals; and completion in shells."""

from collections.abc import Mapping

import pytest

from extender.cli import main as command_line
from testbed import forked_commands

KUBECONFIG = "--set=cluster=/nowhere/at/all"
POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c, image: 127.0.0.1:1/app:1}]}\n"
SETTINGS = ("--set=registry.plain_http=['127.0.0.1:1']", "--set=registry.allow=['127.0.0.1:1']")
MEMORY = "--set=cache.url='memory:'"
# Runs of commands that print something, with colours or a bar if they were for a terminal. Others are run bare.
RUNS: dict[str, list[tuple[str, ...]]] = {
    "audit": [("-f", "-", *SETTINGS, MEMORY), ("--kubeconfig", "/nowhere/at/all")],
    "config": [(), ("--check", "/nowhere/at/all")],
    "doctor": [("--kubeconfig", "/nowhere/at/all")],
    "explain": [("-f", "-", "--set=cluster=none", *SETTINGS), ("p", KUBECONFIG)],
    "fix": [("-f", "-", *SETTINGS), ("-f", "/nowhere/at/all")],
    "inspect": [("127.0.0.1:1/app:1", *SETTINGS), ("127.0.0.1:1/app:1", "-o", "json", *SETTINGS)],
    "serve": [("--set=scheduler.wait_seconds=soon",)],
    "ungate": [("-A", "--kubeconfig", "/nowhere/at/all")],
}


async def run(
    program: str, *arguments: str, stdin: str = "", environment: Mapping[str, str] | None = None
) -> tuple[int, str, str]:
    """The exit code, standard output and standard error of a program whose terminal would have colours."""
    terminal = {"TERM": "xterm-256color", "COLORTERM": "truecolor", "COLUMNS": "120", **(environment or {})}
    return await forked_commands.run(*arguments, stdin=stdin, environment=terminal, program=program)


@pytest.mark.parametrize("name", sorted(command_line.commands()))
async def test_a_command_is_one_of_kubectl_and_has_no_colours_in_a_pipe(name: str) -> None:
    """Its help and its errors name the program as it was typed, and nothing is drawn."""
    code, out, err = await run("kubectl-multiarch", name, "-h")
    assert (code, err) == (0, "")
    assert f"Usage: kubectl multiarch {name}" in out
    assert f"multiarch-extender {name}" in out.partition("Usage:")[2]  # an example
    code, shown, err = await run("kubectl-multiarch", name, "--no-such-option")
    assert (code, shown) == (2, "")
    assert f"Usage: kubectl multiarch {name}" in err
    assert "No such option" in err
    assert "\x1b" not in out + err
    for arguments in RUNS.get(name, [()]):
        code, out, err = await run("kubectl-multiarch", name, *arguments, stdin=POD)
        assert code in (0, 1, 2)
        assert out + err
        assert "\x1b" not in out + err
        assert "\r" not in out + err
        assert "Looking up" not in err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
async def test_a_shell_completes_by_the_script_that_the_program_shows(shell: str) -> None:
    """`--show-completion` prints it, and it asks the program, which answers in the shell's form."""
    detected = {"SHELL": f"/bin/{shell}", "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    code, script, err = await run("multiarch-extender", "--show-completion", shell, environment=detected)
    assert (code, err) == (0, "")
    variable = "_MULTIARCH_EXTENDER_COMPLETE"
    assert f"{variable}=complete_{shell}" in script
    words = {
        "_TYPER_COMPLETE_ARGS": "multiarch-extender aud", "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        "COMP_WORDS": "multiarch-extender aud", "COMP_CWORD": "1",
    }  # fmt: skip
    code, out, _ = await run("multiarch-extender", environment={variable: f"complete_{shell}", **words})
    assert code == 0
    assert "audit" in out
