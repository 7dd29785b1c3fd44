"""A program in a process of its own for as long as a context is open.

Knows how one is started, how it says that it is up, and how it ends: with its standard input. Nothing of what it does.
"""

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager

import msgspec

END_SECONDS = 30


class ServerFailed(RuntimeError):
    """A program ended before it listened."""


class Child(msgspec.Struct, frozen=True):
    """A running program, and the line of JSON that it printed when it was up."""

    said: msgspec.Raw
    pid: int


def child(module: str, *arguments: object) -> AbstractContextManager[Child]:
    """The Python module, run as a program until the context is left; as `run_program`."""
    return run_program([sys.executable, "-m", module, *map(str, arguments)])


@contextlib.contextmanager
def run_program(command: Sequence[str]) -> Iterator[Child]:
    """The program, running until the context is left.

    Raises:
        ServerFailed: it ended before it listened.
    """
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin
    assert process.stdout
    try:
        line = process.stdout.readline()
        if not line:
            raise ServerFailed(f"{' '.join(command)} ended with status {process.wait(END_SECONDS)} before it listened")
        yield Child(msgspec.Raw(line), process.pid)
    finally:
        process.stdin.close()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
