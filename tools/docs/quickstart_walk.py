"""Walks through docs/quickstart.md, from a cluster of this machine to the chart that helm installs into it.

`python -m tools.docs.quickstart_walk` types each command of the page, prints it with what it prints, and keeps all of
that in build/quickstart.txt. Exit code 1 if a command fails, or prints something else than the page says.
"""

import asyncio
import os
import shutil
import signal
import sys
import time
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import NamedTuple, Self

from testbed.processes import PARENT_DEATH
from tools.docs.pages import PROJECT
from tools.docs.quickstart import says_the_same, section, steps_of

TRANSCRIPT = PROJECT / "build" / "quickstart.txt"
CLUSTER_SECONDS = 240.0  # on a busy machine; usually it takes ten
COMMAND_SECONDS = 120.0
END_SECONDS = 60.0
LAST_OF_WELCOME = "Ctrl-C"


class Walk(NamedTuple):
    """What came of it: the transcript, the differences from the page, how much was compared, and how long it took."""

    transcript: str
    differences: list[str]
    commands: int
    compared: int
    seconds: float

    @property
    def summary(self) -> str:
        """One line that says all but the transcript."""
        return (
            f"quickstart: {self.commands} commands in {self.seconds:.1f} s, what {self.compared} of them printed"
            f" compared with the page, {len(self.differences)} differences"
        )


class Shell:
    """A terminal: `async with Shell(environment) as shell:` runs bash in the checkout, which is typed into."""

    _MARK = "-- done:"

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment

    async def __aenter__(self) -> Self:
        self._bash = await _start(["bash", "--noprofile", "--norc"], self._environment)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await _end(self._bash, signal.SIGTERM)

    async def type(self, command: str) -> tuple[int, str]:
        """Types a command; returns its exit code and what it printed."""
        assert self._bash.stdin
        assert self._bash.stdout
        self._bash.stdin.write(f"{command}\nprintf '\\n{self._MARK} %d\\n' $?\n".encode())
        async with asyncio.timeout(COMMAND_SECONDS):
            printed = (await self._bash.stdout.readuntil(f"\n{self._MARK} ".encode())).decode()
            code = int(await self._bash.stdout.readline())
        return code, printed.removesuffix(f"\n{self._MARK} ")


class ClusterTerminal:
    """The terminal that the cluster keeps until Ctrl-C."""

    def __init__(self, command: str, environment: Mapping[str, str]) -> None:
        self._command, self._environment = command, environment
        self.welcome = ""

    async def __aenter__(self) -> Self:
        self._make = await _start(self._command.split(), self._environment)
        assert self._make.stdout
        try:
            async with asyncio.timeout(CLUSTER_SECONDS):
                async for line in self._make.stdout:
                    self.welcome += line.decode()
                    if line.startswith(LAST_OF_WELCOME.encode()):
                        return self
        except BaseException:
            await _end(self._make, signal.SIGINT)
            raise
        await _end(self._make, signal.SIGINT)
        raise RuntimeError(f"{self._command} ended:\n{self.welcome}")

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await _end(self._make, signal.SIGINT)


async def _start(command: Sequence[str], environment: Mapping[str, str]) -> Process:
    """Starts a program as the first of a group of its own, as in a terminal. The kernel kills it if we are killed."""
    program = shutil.which(command[0]) or command[0]
    bound = [sys.executable, "-I", "-S", str(PARENT_DEATH), str(os.getpid()), program, *command[1:]]
    return await asyncio.create_subprocess_exec(
        *bound, stdin=PIPE, stdout=PIPE, stderr=STDOUT, cwd=PROJECT, env=environment, start_new_session=True
    )


async def _end(process: Process, number: signal.Signals) -> None:
    """Sends the signal to the program's group, as Ctrl-C does; kills the group if it does not end."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)
    try:
        async with asyncio.timeout(END_SECONDS):
            await process.communicate()
    except TimeoutError:
        os.killpg(process.pid, signal.SIGKILL)
        await process.communicate()
        raise


async def walk_through(say: Callable[[str], None], environment: Mapping[str, str] = os.environ) -> Walk:
    """Types the page's commands and says each with what it prints; ends the cluster afterwards.

    Writes the transcript to a file. Stops at a command that fails.
    """
    transcript: list[str] = []
    differences: list[str] = []
    started = time.monotonic()

    def tell(text: str) -> None:
        transcript.append(text)
        say(text)

    def tell_step(command: str, printed: str, taken_from: float) -> None:
        tell(f"$ {command}")
        tell(f"{printed.strip()}\n".lstrip("\n") + f"[{time.monotonic() - taken_from:.1f} s]\n")

    first, *others = steps_of(section())
    compared = 0
    environment = {name: value for name, value in environment.items() if not name.startswith(("MAKE", "MFLAGS"))}
    async with ClusterTerminal(first.command, environment) as cluster, Shell(environment) as shell:
        tell_step(first.command, cluster.welcome, started)
        for command, shown in others:
            begun = time.monotonic()
            code, printed = await shell.type(command)
            tell_step(command, printed, begun)
            if code:
                differences.append(f"{command} ended with exit code {code}:\n{printed}")
                break
            if shown is not None:
                compared += 1
                if not says_the_same(shown, printed):
                    differences.append(f"{command} printed\n{printed}\nand the page says\n{shown}")
    walk = Walk("\n".join(transcript), differences, len(others) + 1, compared, time.monotonic() - started)
    tell(walk.summary)
    TRANSCRIPT.parent.mkdir(exist_ok=True)
    TRANSCRIPT.write_text("\n".join([*transcript, ""]))
    return walk


def main() -> int:
    """Walks through the page; returns the exit code."""
    walk = asyncio.run(walk_through(lambda text: print(text, flush=True)))
    for difference in walk.differences:
        print(difference, file=sys.stderr)
    return 1 if walk.differences else 0


if __name__ == "__main__":
    sys.exit(main())
