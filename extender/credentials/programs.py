"""Runs the operator's programs: writes a request to standard input and reads the answer from standard output.

Drops standard error: it could contain anything, and many people read our log.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence

from extender.credentials.providers import CredentialsUnavailable

MAX_OUTPUT_BYTES = 1 << 20


class ProgramFailed(CredentialsUnavailable):
    """The program exited with another status than 0. `output` is its standard output, which must not be logged."""

    def __init__(self, message: str, output: bytes) -> None:
        super().__init__(message)
        self.output = output


async def run_program(
    path: str, arguments: Sequence[str], question: bytes, *, environment: Mapping[str, str], timeout_seconds: float
) -> bytes:
    """Runs the program and returns its output.

    Kills its process group at the end: when it has exited, when it times out, or when the caller is cancelled.
    `environment` is added to our own, as in the kubelet.

    Raises:
        ProgramFailed: it exited with another status than 0.
        CredentialsUnavailable: it cannot be started, times out, or writes more than `MAX_OUTPUT_BYTES`.
    """
    name = os.path.basename(path)  # noqa: PTH119 - the text after the last slash, whatever it is
    try:
        process = await asyncio.create_subprocess_exec(
            path, *arguments,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
            env={**os.environ, **environment}, start_new_session=True,
        )  # fmt: skip
    except OSError as exc:
        raise CredentialsUnavailable(f"{name} cannot be started: {exc.strerror}") from None
    try:
        async with asyncio.timeout(timeout_seconds):
            output = await _converse(process, question)
            if len(output) > MAX_OUTPUT_BYTES:
                raise CredentialsUnavailable(f"{name} answered more than {MAX_OUTPUT_BYTES} bytes")
            status = await process.wait()
    except TimeoutError:
        raise CredentialsUnavailable(f"{name} has not answered within {timeout_seconds:g} s") from None
    finally:
        await _end(process)
    if status != 0:
        raise ProgramFailed(f"{name} ended with status {status}", output)
    return output


async def _converse(process: asyncio.subprocess.Process, question: bytes) -> bytes:
    assert process.stdin is not None and process.stdout is not None  # noqa: S101, PT018 - both are pipes
    with contextlib.suppress(ConnectionError):  # it may answer without reading the request
        process.stdin.write(question)
        await process.stdin.drain()
    process.stdin.close()
    output = b""
    while len(output) <= MAX_OUTPUT_BYTES and (chunk := await process.stdout.read(64 << 10)):
        output += chunk
    return output


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kills the process group, and waits until the process has ended.

    asyncio waits for the end of its output as well. Stops reading that: it is not read to its end if it is too long,
    and a program that has left the group may hold it open.
    """
    _kill(process)
    output = process._transport.get_pipe_transport(1)  # type: ignore[attr-defined] # noqa: SLF001 - there is no other way
    output.close()
    await process.wait()


def _kill(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
