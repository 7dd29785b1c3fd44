"""Runs the operator's programs: writes a request to standard input and reads the answer from standard output.

Drops standard error: it could contain anything, and many people read our log.
"""

import asyncio
import contextlib
import os
import resource
import signal
from collections.abc import Mapping, Sequence
from subprocess import DEVNULL, PIPE
from typing import cast

from extender.credentials.providers import CredentialsUnavailable

MAX_OUTPUT_BYTES = 1 << 20
_TIMEOUT_SECONDS = 60.0  # the kubelet's for plugins; and a helper may ask a person to unlock a key store


class ProgramFailed(CredentialsUnavailable):
    """The program exited with another status than 0. `output` is its standard output, which must not be logged."""

    def __init__(self, message: str, output: bytes) -> None:
        super().__init__(message)
        self.output = output


async def run_program(path: str, arguments: Sequence[str], question: bytes, *, environment: Mapping[str, str]) -> bytes:
    """Runs the program and returns its output.

    Kills its process group at the end: when it has exited, when it times out, or when the caller is cancelled. It stays
    in our session, so that whoever ends us can end it too. `environment` is added to our own, as in the kubelet.

    Raises:
        ProgramFailed: it exited with another status than 0.
        CredentialsUnavailable: it cannot be started, times out, or writes more than `MAX_OUTPUT_BYTES`.
    """
    name = os.path.basename(path)  # noqa: PTH119 - the text after the last slash, whatever it is
    try:
        transport, program = await asyncio.get_running_loop().subprocess_exec(
            _Program, path, *arguments,
            stdin=PIPE, stdout=PIPE, stderr=DEVNULL, env={**os.environ, **environment}, process_group=0,
        )  # fmt: skip
    except OSError as exc:
        raise CredentialsUnavailable(f"{name} cannot be started: {exc.strerror}") from None
    _lift_data_limit(transport.get_pid())
    stdin = cast("asyncio.WriteTransport", transport.get_pipe_transport(0))
    try:
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            stdin.write(question)
            stdin.write_eof()
            await program.answered.wait()
            if len(program.output) > MAX_OUTPUT_BYTES:
                raise CredentialsUnavailable(f"{name} answered more than {MAX_OUTPUT_BYTES} bytes")
            await program.exited.wait()
    except TimeoutError:
        raise CredentialsUnavailable(f"{name} has not answered within {_TIMEOUT_SECONDS:g} s") from None
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(transport.get_pid(), signal.SIGKILL)
        transport.close()  # its pipes too, which a process that has left the group may keep open
        await program.exited.wait()
    output, status = bytes(program.output), transport.get_returncode()
    if status != 0:
        raise ProgramFailed(f"{name} ended with status {status}", output)
    return output


class _Program(asyncio.SubprocessProtocol):
    """The output of a program so far. `answered`: it has closed its output, or written too much.

    asyncio's own `Process` waits until all pipes are closed, which a process that has left the group may never do.
    """

    def __init__(self) -> None:
        self.output = bytearray()
        self.answered, self.exited = asyncio.Event(), asyncio.Event()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        del fd
        self.output += data
        if len(self.output) > MAX_OUTPUT_BYTES:
            self.answered.set()

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        del exc
        if fd == 1:  # a program need not read what it is asked
            self.answered.set()

    def process_exited(self) -> None:
        self.exited.set()


def _lift_data_limit(pid: int) -> None:
    """Gives a program the memory that it would have without us, who may have less."""
    with contextlib.suppress(AttributeError, OSError):  # only Linux has it
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.prlimit(pid, resource.RLIMIT_DATA, (hard, hard))
