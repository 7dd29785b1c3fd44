"""Runs the operator's programs: writes a request to standard input and reads the answer from standard output.

Drops standard error: it could contain anything, and many people read our log.

`subprocess` starts a program without copying our page tables (vfork(2)). uvloop forks, which holds the event loop for
50 ms when the caches are full.
"""

import asyncio
import contextlib
import os
import resource
import signal
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import IO

from extender.credentials.providers import CredentialsUnavailable

MAX_OUTPUT_BYTES = 1 << 20
_LOOK_SECONDS = 0.005  # how often whether a program has exited is looked at, which is mostly when it closes its output


class ProgramFailed(CredentialsUnavailable):
    """The program exited with another status than 0. `output` is its standard output, which must not be logged."""

    def __init__(self, message: str, output: bytes) -> None:
        super().__init__(message)
        self.output = output


async def run_program(
    path: str, arguments: Sequence[str], question: bytes, *, environment: Mapping[str, str], timeout_seconds: float
) -> bytes:
    """Runs the program and returns its output.

    Kills its process group at the end: when it has exited, when it times out, or when the caller is cancelled. It stays
    in our session, so that whoever ends us can end it too.
    `environment` is added to our own, as in the kubelet.

    Raises:
        ProgramFailed: it exited with another status than 0.
        CredentialsUnavailable: it cannot be started, times out, or writes more than `MAX_OUTPUT_BYTES`.
    """
    name = os.path.basename(path)  # noqa: PTH119 - the text after the last slash, whatever it is
    try:
        process = subprocess.Popen(  # noqa: ASYNC220, S603 - it takes a millisecond; the operator names the program
            [path, *arguments],
            bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env={**os.environ, **environment}, process_group=0,
        )  # fmt: skip
    except OSError as exc:
        raise CredentialsUnavailable(f"{name} cannot be started: {exc.strerror}") from None
    _lift_data_limit(process.pid)
    try:
        async with asyncio.timeout(timeout_seconds):
            output = await _converse(process, question)
            if len(output) > MAX_OUTPUT_BYTES:
                raise CredentialsUnavailable(f"{name} answered more than {MAX_OUTPUT_BYTES} bytes")
            status = await _wait(process)
    except TimeoutError:
        raise CredentialsUnavailable(f"{name} has not answered within {timeout_seconds:g} s") from None
    finally:
        _kill(process)
        await _wait(process)
    if status != 0:
        raise ProgramFailed(f"{name} ended with status {status}", output)
    return output


async def _converse(process: "subprocess.Popen[bytes]", question: bytes) -> bytes:
    """Writes the question and returns the output, up to some bytes more than may be; closes both pipes."""
    assert process.stdin is not None and process.stdout is not None  # noqa: S101, PT018 - both are pipes
    async with _reading(process.stdout) as reader:
        async with _writing(process.stdin) as writer:
            writer.write(question)
            with contextlib.suppress(ConnectionError):  # it may answer without reading the request
                await writer.drain()
        output = b""
        while len(output) <= MAX_OUTPUT_BYTES and (chunk := await reader.read(64 << 10)):
            output += chunk
    return output


@contextlib.asynccontextmanager
async def _reading(pipe: IO[bytes]) -> AsyncIterator[asyncio.StreamReader]:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    try:
        yield reader
    finally:
        transport.close()


@contextlib.asynccontextmanager
async def _writing(pipe: IO[bytes]) -> AsyncIterator[asyncio.StreamWriter]:
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.connect_write_pipe(
        lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), pipe
    )
    try:
        yield asyncio.StreamWriter(transport, protocol, None, loop)
    finally:
        transport.close()


async def _wait(process: "subprocess.Popen[bytes]") -> int:
    """Returns the exit status when the process has exited."""
    while (status := process.poll()) is None:  # noqa: ASYNC110  # an exit is no event of the loop on all systems
        await asyncio.sleep(_LOOK_SECONDS)
    return status


def _lift_data_limit(pid: int) -> None:
    """Gives a program the memory that it would have without us, who may have less."""
    with contextlib.suppress(AttributeError, OSError):  # only Linux has it
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.prlimit(pid, resource.RLIMIT_DATA, (hard, hard))


def _kill(process: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
