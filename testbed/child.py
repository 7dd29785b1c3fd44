"""Runs a program in a process of its own while a context is open.

A program prints one line of JSON when it is up, and ends when its standard input is closed.
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
    """Runs the Python module as a program until the context is left; see `run_program`."""
    return run_program([sys.executable, "-m", module, *map(str, arguments)])


@contextlib.contextmanager
def run_program(command: Sequence[str]) -> Iterator[Child]:
    """Runs the program until the context is left.

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
