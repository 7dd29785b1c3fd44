"""Reads GitHub's workflows, and runs the lines of their steps in a shell as its runners do.

What only GitHub has are values: those of expressions are given by whoever runs a step.
"""

import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

_EXPRESSION = re.compile(r"\$\{\{ *(.*?) *\}\}")
_SHELLS = {None: ["bash", "-e"], "bash": ["bash", "--noprofile", "--norc", "-eo", "pipefail"]}
"""What `shell` stands for in GitHub's documentation of workflows."""


class Step(NamedTuple):
    """A step that has lines to run. `environment` is the workflow's, the job's and its own, with expressions."""

    workflow: Path
    job: str
    name: str
    script: str
    shell: str | None
    environment: Mapping[str, str]

    def __str__(self) -> str:
        return f"{self.workflow.stem}/{self.job}/{self.name or self.script.splitlines()[0]}"

    def run(
        self, folder: Path, values: Mapping[str, str], environment: Mapping[str, str], *, seconds: float
    ) -> "subprocess.CompletedProcess[str]":
        """Runs the lines in `folder` beside `environment`, which wins. `values` are those of expressions.

        Raises:
            KeyError: an expression has no value.
        """
        given = {name: evaluated(str(value), values) for name, value in self.environment.items()}
        return subprocess.run(
            [*_SHELLS[self.shell], "-c", evaluated(self.script, values)],
            cwd=folder,
            env={**given, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds,
        )


def evaluated(text: str, values: Mapping[str, str]) -> str:
    """Returns the text with the values of its expressions, by what stands in them. Raises KeyError."""
    return _EXPRESSION.sub(lambda found: values[found[1]], text)


def steps_of(workflow: Path) -> Iterator[Step]:
    """Returns the steps with lines to run, in the file's order."""
    document: dict[str, Any] = yaml.safe_load(workflow.read_text())
    for name, job in document["jobs"].items():
        around = {**document.get("env", {}), **job.get("env", {})}
        for step in job.get("steps", []):
            if "run" in step:
                own = {**around, **step.get("env", {})}
                yield Step(workflow, name, step.get("name", ""), step["run"], step.get("shell"), own)
