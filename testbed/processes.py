"""A program of the control plane as a child process: its log file, its readiness, its bounded end.

Knows nothing of Kubernetes. A child gets a session of its own, so that Ctrl-C reaches only us, who stop the children
in their order, and is killed by the kernel when we are gone (parent_death.py), so that none outlives us.
"""

import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

PARENT_DEATH = Path(__file__).with_name("parent_death.py")
LOG_TAIL_BYTES = 6000
PAUSE_SECONDS = 0.05


class ProcessFailed(RuntimeError):
    """A program did not come up, or is gone; the message ends with the last lines of its log."""


class Process:
    """A running program whose output goes to `log`. Start it from the main thread (see parent_death.py)."""

    def __init__(self, name: str, command: Sequence[str], log: Path) -> None:
        self.name, self.log = name, log
        wrapped = [sys.executable, "-I", "-S", str(PARENT_DEATH), str(os.getpid()), *command]
        with log.open("wb") as output:
            self._child = subprocess.Popen(
                wrapped,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._child.pid

    @property
    def is_running(self) -> bool:
        """False once it has ended."""
        return self._child.poll() is None

    def wait_until(self, is_ready: Callable[[], bool], timeout_seconds: float) -> None:
        """Returns when `is_ready` says so; raises ProcessFailed when it ends before that, or at the time-out."""
        deadline = time.monotonic() + timeout_seconds
        while not is_ready():
            if time.monotonic() > deadline:
                raise ProcessFailed(f"{self.name} was not ready in {timeout_seconds:g} s\n{self.tail()}")
            try:
                status = self._child.wait(PAUSE_SECONDS)
            except subprocess.TimeoutExpired:
                continue
            raise ProcessFailed(f"{self.name} ended with status {status}\n{self.tail()}")

    def stop(self, grace_seconds: float) -> None:
        """Ends it and waits until it is gone: SIGTERM, then after the grace SIGKILL. Stopping twice is fine."""
        self._child.terminate()
        try:
            self._child.wait(grace_seconds)
        except subprocess.TimeoutExpired:
            pass
        finally:  # on an impatient second Ctrl-C too; it does nothing to a child that has ended
            self._child.kill()
            self._child.wait()

    def tail(self) -> str:
        """The end of its log, under a heading."""
        with self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - LOG_TAIL_BYTES))
            text = file.read().decode(errors="replace")
        return f"--- end of {self.log} ---\n{text}"


def free_port() -> int:
    """A loopback port that nobody holds.

    Taken below 32768, where Linux's range for outgoing connections begins: a port found by binding to 0 lies within it,
    and may have gone to some connection by the time a program that starts slowly binds it.
    """
    while True:
        port = random.randrange(20000, 32768)
        with socket.socket() as candidate:
            try:
                candidate.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
