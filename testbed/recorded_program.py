"""Credential programs for tests: real executables that record how they were called."""

import json
import sys
from pathlib import Path
from typing import Any

_FRAME = """#!{python} -IS
import json, os, sys, time
question = sys.stdin.read()
with open({calls!r}, "a") as file:
    print(json.dumps({{"arguments": sys.argv[1:], "question": question, "environment": dict(os.environ)}}), file=file)
{body}
"""


class Program:
    """An executable at `path`. `body` is Python code, which finds its standard input in `question`."""

    def __init__(self, path: Path, body: str) -> None:
        self.path = path
        self._calls = path.with_suffix(".calls")
        self.rewrite(body)

    def rewrite(self, body: str) -> None:
        """Replaces its code."""
        self.path.write_text(_FRAME.format(python=sys.executable, calls=str(self._calls), body=body))
        self.path.chmod(0o755)

    @property
    def calls(self) -> list[dict[str, Any]]:
        """Returns how it was called so far."""
        if not self._calls.exists():
            return []
        return [json.loads(line) for line in self._calls.read_text().splitlines()]
