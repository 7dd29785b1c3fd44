"""A program of ours in a process of its own, for as long as it is needed.

Knows how one is started, how it says that it is up, and how it ends: with its standard input. Nothing of what it does.
"""

import contextlib
import subprocess
import sys
from collections.abc import Iterator

import msgspec

from benchmarks.servers import ServerFailed

END_SECONDS = 10


class Child(msgspec.Struct, frozen=True):
    """A running program, and the line of JSON that it printed when it was up."""

    said: msgspec.Raw
    pid: int


@contextlib.contextmanager
def child(module: str, *arguments: object) -> Iterator[Child]:
    """The module, run as a program until the context is left.

    Raises:
        ServerFailed: it ended before it was up.
    """
    command = [sys.executable, "-m", module, *map(str, arguments)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin
    assert process.stdout
    try:
        line = process.stdout.readline()
        if not line:
            raise ServerFailed(f"{module} ended with status {process.wait(END_SECONDS)} before it was up")
        yield Child(msgspec.Raw(line), process.pid)
    finally:
        process.stdin.close()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
