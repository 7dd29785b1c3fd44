"""Runs commands as processes, forked from one that has imported every command, which takes longer than most commands.

What a fork cannot show (signals, a terminal, which modules a command imports) needs a process of its own: `COMMAND`.
"""

import asyncio
import atexit
import contextlib
import functools
import gc
import importlib
import importlib.metadata
import io
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from extender.cli.main import main

COMMAND = [sys.executable, "-m", "extender"]
MEMORY = "--set=cache.url=memory:"
_SECONDS = 300
_TERMINAL = ("FORCE_COLOR", "GITHUB_ACTIONS", "NO_COLOR", "PY_COLORS", "TERMINAL_WIDTH")
_REQUEST_BYTES = 1 << 20


async def run(
    *arguments: str, stdin: str = "", environment: Mapping[str, str] | None = None, program: str = "multiarch-extender"
) -> tuple[int, str, str]:
    """The exit code, standard output and standard error of an installed program, after these arguments.

    `environment` is added to this process' own. Raises TimeoutError after five minutes.
    """
    return await asyncio.to_thread(_ancestor().run, [program, *arguments], stdin.encode(), environment or {})


def asking(host: str) -> tuple[str, ...]:
    """Options by which a command asks this registry of loopback, without TLS, and all others that there are."""
    return f"--set=registry.plain_http=['{host}']", f"--set=registry.allow=['*', '{host}']"


class _Ancestor:
    """The process that has imported every command. Runs one command at a time."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(_SECONDS)
        self._turn = threading.Lock()
        # This file as a program, since a process that has threads, as this one does, should not fork itself.
        code = f"import testbed.forked_commands as c; c.serve({theirs.fileno()})"
        root = Path(__file__).parents[1]
        self._process = subprocess.Popen([sys.executable, "-c", code], pass_fds=[theirs.fileno()], cwd=root)
        theirs.close()

    def run(self, words: list[str], stdin: bytes, environment: Mapping[str, str]) -> tuple[int, str, str]:
        """Exit code, standard output and standard error of the program and arguments in `words`."""
        variables = {key: value for key, value in os.environ.items() if key not in _TERMINAL}
        variables |= {"COLUMNS": "200", **environment}
        request = json.dumps({"words": words, "variables": variables, "folder": str(Path.cwd())}).encode() + b"\n"
        with contextlib.ExitStack() as stack:
            streams = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(3)]
            streams[0].write(stdin)
            streams[0].seek(0)
            with self._turn:
                socket.send_fds(self._socket, [request], [stream.fileno() for stream in streams])
                code = self._socket.recv(16)
            assert code, "the process that forks commands has ended"
            for stream in streams:
                stream.seek(0)
            return int(code), streams[1].read().decode(), streams[2].read().decode()

    def close(self) -> None:
        """Ends it, with the command that it may be running."""
        self._socket.close()
        self._process.wait(_SECONDS)


@functools.cache
def _ancestor() -> _Ancestor:
    made = _Ancestor()
    atexit.register(made.close)
    return made


def serve(descriptor: int) -> None:
    """Forks a process for each request that comes over this socket, until its other end is closed."""
    programs = {
        each.name: each
        for each in importlib.metadata.entry_points(group="console_scripts")
        if each.dist and each.dist.name == "multiarch-extender"
    }
    for name in _TERMINAL:  # which typer reads once
        os.environ.pop(name, None)
    for words in (["--help"], ["config"]):  # with every command, and what is imported when one runs
        sys.argv[:] = ["multiarch-extender", *words]
        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
            main()
    importlib.import_module("rich.progress")  # as soon as something is looked up
    gc.freeze()
    with socket.socket(fileno=descriptor) as channel:
        while received := _receive(channel):
            request, streams = received
            if not (child := os.fork()):
                for number, stream in enumerate(streams):
                    os.dup2(stream, number)
                    os.close(stream)
                channel.close()
                os.environ.clear()
                os.environ.update(request["variables"])
                os.chdir(request["folder"])
                sys.argv[:] = request["words"]
                _run(programs[sys.argv[0]].load())
            for stream in streams:
                os.close(stream)
            channel.sendall(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])).encode())


def _run(program: Callable[[], None]) -> NoReturn:
    """Runs the program, and ends without taking the interpreter apart, which takes as long as most commands."""
    code = None
    try:
        program()
    except SystemExit as exc:
        if isinstance(exc.code, str):  # which the interpreter prints
            raise
        code = exc.code
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)


def _receive(channel: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """The next request and its streams; None once the other end is closed."""
    text, streams, _, _ = socket.recv_fds(channel, _REQUEST_BYTES, 3)
    while text and not text.endswith(b"\n"):
        text += channel.recv(_REQUEST_BYTES)
    return (json.loads(text), streams) if text else None
