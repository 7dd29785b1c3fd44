"""`audit --observed` as a user runs it, where no cluster is needed to see what is wrong."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

SCHEMA = Path(__file__).parents[2] / "docs/schemas/observed-v1.json"
SERVICE = ("--observed", "http://127.0.0.1:1")


async def audit(*arguments: str) -> tuple[int, str, str]:
    """The exit code, standard output and standard error of the command."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "extender", "audit", *arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    out, err = await asyncio.wait_for(process.communicate(), 60)
    return process.returncode or 0, out.decode(), err.decode()


async def test_schema_is_the_published_one() -> None:
    """Whoever reads `-o json` finds it in the documentation."""
    code, out, _ = await audit(*SERVICE, "--schema")
    assert code == 0
    assert json.loads(out) == json.loads(SCHEMA.read_text())


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("-f", "web.yaml"), "leave out -f, --images, --require and --baseline"),
        (("--require", "linux/arm64"), "leave out -f, --images, --require and --baseline"),
        (("-o", "html"), "-o html is no format of --observed; give one of table, json, yaml"),
        (("--kubeconfig", "/nowhere/kubeconfig"), "name a kubeconfig with --kubeconfig"),
    ],
    ids=["manifests", "a gate", "a format", "no cluster"],
)
async def test_what_cannot_be_asked_is_said(arguments: tuple[str, ...], problem: str) -> None:
    """With exit code 2, and nothing on standard output."""
    code, out, err = await audit(*SERVICE, *arguments)
    assert (code, out) == (2, "")
    assert problem in err
